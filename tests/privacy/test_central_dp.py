"""Central differential privacy: what is summed, what is noised, and that late noise changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from noisy import method, train, world
from scipy import stats
from worlds import bag, trainer_for

import fedsub as fs
from fedsub.method.groups import Cohort
from fedsub.method.sampling import Poisson
from fedsub.testing import check_part
from fedsub.trees import whole

SILENT = fs.CentralDP(clip=1e6, noise=0.0)


def gap(a: fs.Tree, b: fs.Tree) -> float:
    return max(float((a[n] - b[n]).abs().max()) for n in a)


def test_without_noise_and_clipping_it_is_fedavg() -> None:
    plain, private = train(method(per_round=None)), train(method(SILENT, per_round=None))
    assert gap(plain.params, private.params) < 1e-12


def updates(parts: tuple[fs.Part, ...] = ()) -> tuple[list[fs.Tree], np.ndarray]:
    """What every client of round 1 sends, each trained alone, and who they are."""
    objective, clients = world()
    out = []
    trainer = trainer_for(method(), objective, clients, "serial")
    who = trainer.server.sampler.select(1, 0, lambda *_: np.zeros(0)).clients
    for client in who.tolist():
        alone = trainer_for(method(*parts), objective, clients, "serial")
        before = {n: v.clone() for n, v in alone.params.items()}
        alone.server.choose = lambda number, ask, client=client: Cohort.of(np.array([client]))  # type: ignore[method-assign]
        alone.round(1)
        out.append({n: v - before[n] for n, v in alone.params.items()})
    return out, who


def test_the_sum_of_clipped_updates_is_divided_by_the_expected_number() -> None:
    clip, sent = 1.05, updates()[0]
    assert len(sent) not in (0, 4)
    lengths = [sum(float(v.square().sum()) for v in one.values()) ** 0.5 for one in sent]
    assert min(lengths) < clip < max(lengths)
    objective, clients = world()
    trainer = trainer_for(method(fs.CentralDP(clip=clip, noise=0.0)), objective, clients, "serial")
    before = {n: v.clone() for n, v in trainer.params.items()}
    trainer.round(1)
    for name, value in trainer.params.items():
        total = sum(one[name] * min(1.0, clip / length) for one, length in zip(sent, lengths, strict=True))
        torch.testing.assert_close(value - before[name], total / 4, rtol=0, atol=1e-6)


def test_noise_covers_the_whole_table_with_the_right_spread() -> None:
    """Rows that nobody sent or holds too; FedSubAvg's coefficient comes after it."""
    average = fs.OverHolders("clients")
    made = method(fs.CentralDP(clip=0.3, noise=2.0, public_heat=True), average=average)
    still = method(fs.CentralDP(clip=0.3, noise=0.0, public_heat=True), average=average)
    objective, clients = world()
    heat = fs.heat.row_heat(clients.spaces["ids"])
    coefficient = np.where(heat > 0, len(clients) / np.maximum(heat, 1), 1.0)
    drawn = []
    for seed in range(40):
        params = []
        for one in (made, still):
            trainer = trainer_for(one, objective, clients, "serial", seed=seed)
            trainer.round(1)
            trainer.settle(1)
            params.append(trainer.params)
        drawn.append((params[0]["emb.weight"] - params[1]["emb.weight"]).numpy())
    scaled = np.stack(drawn) / (2.0 * 0.3 / 4) / coefficient[None, :, None]
    assert (heat == 0).sum() >= 10
    assert stats.kstest(scaled[:, heat == 0].ravel(), "norm").pvalue > 0.01
    assert stats.kstest(scaled[:, heat > 0].ravel(), "norm").pvalue > 0.01


@pytest.mark.parametrize("average", [fs.OverClients("clients"), fs.OverHolders("clients", max_coef=5.0)])
def test_late_noise_is_eager_noise(average: fs.OverHolders) -> None:
    late, eager = (
        train(
            method(fs.CentralDP(clip=0.3, noise=1.0, eager=eager, public_heat=True), average=average, per_round=2),
            rounds=70,
        )
        for eager in (False, True)
    )
    assert 0 in [r["clients"] for r in late.history[1:]]  # rounds in which nobody came have noise as well
    assert gap(late.params, eager.params) < 1e-9
    assert late.final["train"]["ce"] == pytest.approx(eager.final["train"]["ce"], abs=1e-9)


def test_evaluation_does_not_change_the_noise(tmp_path: Path) -> None:
    made = method(fs.CentralDP(clip=0.3, noise=1.0))
    often, rarely = (train(made, rounds=9, evaluate=fs.Evaluate(every=k)) for k in (1, 9))
    assert gap(often.params, rarely.params) < 1e-12


def test_a_round_in_which_nobody_came_is_noised_too() -> None:
    objective, clients = world()
    trainer = trainer_for(method(fs.CentralDP(clip=1.0, noise=1.0)), objective, clients, "serial")
    nobody = Cohort.of(np.zeros(0, np.int64))
    trainer.server.sampler.select = lambda *_: nobody  # type: ignore[method-assign]
    before = {n: v.clone() for n, v in trainer.params.items()}
    report = trainer.round(1)
    after = trainer.model(1)
    assert report.loss != report.loss
    assert isinstance(after, dict)
    assert all(bool((one != before[n]).all()) for n, one in whole(after, "The test").items())
    assert trainer.spent()["spends"][0]["times"] == 1


def test_lost_and_refusing_clients_only_shrink_the_sum() -> None:
    everyone = train(method(fs.CentralDP(clip=0.3, noise=0.0), per_round=None), rounds=1, lost=0.7)
    assert 0 < everyone.history[1]["lost"] < 12
    objective, _ = world()
    start = {name: value.detach() for name, value in objective.module.named_parameters()}
    length = sum(float((everyone.params[n] - start[n]).square().sum()) for n in start) ** 0.5
    assert length <= 0.3 * (12 - everyone.history[1]["lost"]) / 12
    lost = train(method(fs.CentralDP(clip=0.3, noise=1.0), per_round=1), rounds=3, lost=0.95)  # not one that delivers
    assert all(np.isfinite(v.numpy()).all() for v in lost.params.values())


def test_clients_do_not_tell_their_loss() -> None:
    result = train(method(fs.CentralDP(clip=1.0, noise=1.0)))
    assert all(r["loss"] is None or np.isnan(r["loss"]) for r in result.history)


def test_rows_of_padding_stay() -> None:
    clients = fs.Clients.from_arrays(
        {"ids": np.array([[1, 2], [3, 1], [2, 4]]), "label": np.array([0, 1, 1])},
        offsets=np.arange(4), ids={"ids": ["ids"]}, label="label", sizes={"ids": 6}, padding=("ids",),
    )  # fmt: skip
    objective = bag(clients, padding_idx=0)
    for eager in ("", ",eager"):
        made = fs.methods.fedavg(weighting="clients", clients_per_round=None, dp=f"central:clip=1,noise=1{eager}")
        result = fs.run(made, objective, clients, rounds=3)
        assert not result.params["emb.weight"][0].any()
        assert result.params["emb.weight"][5].any()


@pytest.mark.parametrize("server", [fs.Add(momentum=0.5), fs.servers.Adam(lr=0.1), fs.servers.TailMean(0.5)])
def test_other_servers_work_with_eager_noise(server: fs.Add) -> None:
    """They see a mean that has noise in every row: the same by hand, round after round."""
    made = method(fs.CentralDP(clip=0.3, noise=1.0, eager=True), server=server)
    result = train(made, rounds=4)
    assert bool((result.params["emb.weight"] != world()[0].module.get_parameter("emb.weight")).all())
    assert result.privacy["spends"][-1]["times"] == 4


def test_it_works_with_personal_parameters_and_a_proximal_term() -> None:
    made = method(fs.Personal(("out.*",)), fs.Prox(0.1), fs.CentralDP(clip=0.3, noise=1.0))
    result = train(made)
    shared = world()[0].module.get_parameter("out.weight")
    assert torch.equal(result.params["out.weight"], shared)  # never sent, never noised
    assert bool((result.params["emb.weight"] != world()[0].module.get_parameter("emb.weight")).all())


def test_it_is_the_same_in_every_engine() -> None:
    check_part(fs.CentralDP(clip=0.3, noise=0.5), method=method(per_round=3))


def test_a_codec_that_only_leaves_out_may_follow() -> None:
    check_part(
        fs.codecs.TopK(0.3, feedback=False), fs.CentralDP(clip=0.3, noise=0.5), method=method(per_round=3)
    )  # fmt: skip


def test_the_sampler_is_poisson_and_counts_clients_with_data() -> None:
    trainer = trainer_for(method(fs.CentralDP(clip=1.0, noise=1.0)), *world(), "serial")
    assert isinstance(trainer.method.sampler, Poisson)
    assert trainer.spent()["spends"][-1]["rate"] == pytest.approx(4 / 12)
    share = method(fs.CentralDP(clip=1.0, noise=1.0), sampler=fs.sampling.Fraction(0.3, Poisson()))
    one, other = train(share), train(method(fs.CentralDP(clip=1.0, noise=1.0)))  # 4 of 12: ⌈3.6⌉
    assert one.privacy == other.privacy
    assert all(torch.equal(one.params[name], value) for name, value in other.params.items())
