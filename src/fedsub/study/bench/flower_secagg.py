"""A client of Flower's SecAgg+, timed; run as a file by a Python that has flwr installed, which may be another.

    python flower_secagg.py CLIENTS VALUES TURNS   →   one line of JSON: CPU seconds of one client, by stage and turn

The four functions of `flwr.client.mod.secure_aggregation.secaggplus_mod` are called as its mod calls them. Left out,
in Flower's favour, are its messages and the state that it writes and reads between the stages. The parameters are
those of ours beside it: complete graph, a majority as the threshold, numbers modulo 2^32, 2^15 levels.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any


def main(clients: int, values: int, turns: int) -> list[dict[str, float]]:
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    np = importlib.import_module("numpy")
    mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
    key = mod.Key
    common = importlib.import_module("flwr.common")
    configs = {
        key.SAMPLE_NUMBER: clients, key.SHARE_NUMBER: clients, key.THRESHOLD: clients // 2 + 1,
        key.CLIPPING_RANGE: 1.0, key.TARGET_RANGE: 2**15 - 1, key.MOD_RANGE: 2**32, key.MAX_WEIGHT: 1.0,
    }  # fmt: skip
    vector = np.random.default_rng(0).normal(0, 0.3, values).astype(np.float32)
    parameters = common.ndarrays_to_parameters([vector])

    def state(number: int) -> Any:
        made = mod.SecAggPlusState()
        made.nid = number
        return made

    states = {number: state(number) for number in range(1, clients + 1)}
    keys = {number: mod._setup(one, dict(configs)) for number, one in states.items()}
    public = {str(number): (made[key.PUBLIC_KEY_1], made[key.PUBLIC_KEY_2]) for number, made in keys.items()}
    out = []
    for _ in range(turns):
        me, took, at = state(1), {}, time.process_time()

        def lap(stage: str) -> None:
            nonlocal at
            took[stage] = time.process_time() - at  # noqa: B023
            at = time.process_time()

        made = mod._setup(me, dict(configs))
        lap("keys")
        shared = mod._share_keys(me, {**public, "1": (made[key.PUBLIC_KEY_1], made[key.PUBLIC_KEY_2])})
        lap("shares")
        # What the others send this client: shares as long as real ones, under the real keys; not timed.
        cipher = importlib.import_module("flwr.common.secure_aggregation.crypto.symmetric_encryption")
        text = importlib.import_module("flwr.common.secure_aggregation.secaggplus_utils")
        share = me.rd_seed_share_dict[1], me.sk1_share_dict[1]
        sources = list(range(2, clients + 1))
        sealed = [cipher.encrypt(me.ss2_dict[n], text.share_keys_plaintext_concat(n, 1, *share)) for n in sources]
        assert len(shared[key.CIPHERTEXT_LIST]) == len(sealed)
        at = time.process_time()
        mod._collect_masked_vectors(me, {key.CIPHERTEXT_LIST: sealed, key.SOURCE_LIST: sources}, 1, parameters)
        lap("masked")
        mod._unmask(me, {key.ACTIVE_NODE_ID_LIST: list(range(1, clients + 1)), key.DEAD_NODE_ID_LIST: []})
        lap("unmask")
        out.append(took)
    return out


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:4]))))
