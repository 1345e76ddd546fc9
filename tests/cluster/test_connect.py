"""One connection to Ray per process, and refusals that say what to do."""

from __future__ import annotations

import socket
import sys

import pytest

from fedsub.errors import ConfigError, MissingExtra
from fedsub.round import cluster


def test_a_cluster_that_nobody_runs_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"No Ray cluster answers at {address}.*ray start --head"):
        cluster.connect(address)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"\[ray\]"):
        cluster.connect()
