"""Bytes of gossip: of written messages, of the cost models, and by link."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gossip_worlds import gossip, pulls_of, trainer, world
from torch import nn

import fedsub as fs
from fedsub.gossip import AllReduce, Metropolis, RandomPeers, Ring
from fedsub.gossip.messages import Letters
from fedsub.method.codecs.wire import encode_rows
from fedsub.round import wire
from fedsub.study.costs import gossip_round, ring_all_reduce

EVERYBODY = np.arange(9)


def written(fields: list, values: dict[str, torch.Tensor]) -> int:
    """The bytes of a message that has these fields, written."""
    assert [field.name for field in fields] == list(values)
    for field in fields:
        assert values[field.name].dtype == field.dtype
        assert values[field.name].ndim == field.ndim, field.name
    return len(wire.write(wire.Envelope(wire.UP, 1, 0, tensors=values)))


def raw(rows: np.ndarray, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(encode_rows(rows, size)), dtype=torch.uint8)


def by_writing(made, to: int, of: int, segment: int, *, known: bool, degrees: bool) -> tuple[int, int]:
    """A question and its answer, written, from the data of both nodes alone."""
    letters, network = made.exchange.letters, made.exchange.network
    space, table = made.problem.clients.spaces["ids"], "emb.weight"
    width = made.params[table].shape[1]
    low, high = network.segments.edges[segment : segment + 2]
    inside = lambda rows, first, last: rows[(rows >= first) & (rows < last)]  # noqa: E731
    end = made.params[table].numel()
    low_in, high_in = min(low, end), min(high, end)
    named = inside(space.rows_of(to), low_in // width, -(-high_in // width) if low_in < high_in else 0)
    both = inside(np.intersect1d(space.rows_of(to), space.rows_of(of)), -(-low_in // width), high_in // width)
    ask, answer = {}, {}
    for field in letters.ask(segment, known=known):
        ask[field.name] = torch.tensor(segment) if field.name == "segment" else raw(named, space.size)
    for field in letters.answer(segment, known=known):
        name = field.name
        if name in ("weight", "degree"):
            answer[name] = torch.zeros((), dtype=field.dtype)
        elif name.startswith("shared/"):
            answer[name] = torch.zeros(-(-len(named) // 8), dtype=torch.uint8)
        elif name.startswith("degrees/"):
            answer[name] = torch.zeros(len(both) if degrees else 0, dtype=torch.int16)
        elif name == f"values/{table}":
            answer[name] = torch.zeros(len(both), width)
        else:
            stretch = next(
                s for s in network.stretches
                if s.segment == segment and name == f"values/{s.name}" + (f"/{s.row}" if s.row is not None else "")
            )  # fmt: skip
            shared = stretch.row is None or all(stretch.row in space.rows_of(k) for k in (to, of))
            answer[name] = torch.zeros(stretch.values if shared else 0)
    return written(letters.ask(segment, known=known), ask), written(letters.answer(segment, known=known), answer)


@pytest.mark.parametrize(
    ("settings", "rounds"),
    [
        ({"mixing": RandomPeers(peers=2)}, (1,)),
        ({"mixing": RandomPeers(peers=2, segments=6)}, (1, 2)),
        ({"mixing": RandomPeers(peers=2, segments=19, weighting="clients")}, (1,)),
        ({"mixing": RandomPeers(peers=1, segments=3), "graph": Ring()}, (1, 2, 3)),
        ({"mixing": Metropolis(), "graph": Ring()}, (1, 2)),
        ({"mixing": Metropolis(), "graph": Ring(), "over": "peers"}, (1, 2)),
        ({"mixing": Metropolis(), "graph": Ring(), "fresh": True}, (1, 2)),
    ],
)
def test_bytes_are_the_lengths_of_written_messages(settings: dict, rounds: tuple) -> None:
    objective, clients = world()
    made = trainer(gossip(**settings), objective, clients)
    asks, met = not isinstance(settings["mixing"], Metropolis), set()
    stays = "graph" in settings and not settings.get("fresh")
    for number in rounds:
        found = made.exchange.meet(number, EVERYBODY)
        down, up = np.zeros(9, int), np.zeros(9, int)
        pulls = pulls_of(found)
        before = set(met)
        for to, of, s in zip(pulls.to.tolist(), pulls.of.tolist(), pulls.segment.tolist(), strict=True):
            known = stays and (to, of, s) in before
            degrees = not asks and settings.get("over") != "peers" and not known
            question, answer = by_writing(made, to, of, s, known=known, degrees=degrees)
            question *= asks or not known
            down[to], up[of], up[to], down[of] = (
                down[to] + answer,
                up[of] + answer,
                up[to] + question,
                down[of] + question,
            )
            met.add((to, of, s))
        assert found.traffic.down.tolist() == down.tolist()
        assert found.traffic.up.tolist() == up.tolist()
        assert found.traffic.links == len({(a, b) for a, b in zip(pulls.to.tolist(), pulls.of.tolist(), strict=True)})


def test_degrees_of_rows_are_told_again_where_a_neighbour_was_missing() -> None:
    """Two bytes a row with every answer, until all nodes have been there together; less one says so by itself."""
    objective, clients = world()
    made = trainer(gossip(Metropolis(), graph=Ring()), objective, clients)
    plain = trainer(gossip(Metropolis(), graph=Ring(), over="peers"), objective, clients)
    told, named = [], len("degrees/emb.weight") + 4 + 8
    for number, here in enumerate((np.delete(EVERYBODY, 3), EVERYBODY, EVERYBODY, np.delete(EVERYBODY, 5), EVERYBODY)):
        found = made.exchange.meet(number + 1, here)
        without = plain.exchange.meet(number + 1, here).traffic.down.sum()
        assert found.meeting is not None
        rows, answers = len(found.meeting.cuts[0]), len(found.meeting.pulls)
        extra = found.traffic.down.sum() - without - named * answers
        assert extra in (0, 2 * rows)
        told.append(extra > 0)
    assert told == [True, True, False, True, False]


class Dense(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, batch):
        return batch["x"] @ self.weight


def dense(nodes: int, width: int) -> tuple[fs.Objective, fs.Clients]:
    draw = np.random.default_rng(0)
    arrays = {"x": draw.normal(size=(2 * nodes, width)).astype(np.float32), "y": draw.integers(0, 2, 2 * nodes)}
    clients = fs.Clients.from_arrays(arrays, offsets=np.arange(0, 2 * nodes + 1, 2), values=["x"], label="y", ids=[])
    return fs.Objective(Dense(width), fs.losses.binary("y"), {}), clients


@pytest.mark.parametrize(("segments", "width"), [(1, 40), (4, 40), (7, 40)])
def test_measured_bytes_of_gossip_are_those_of_the_cost_model(segments: int, width: int) -> None:
    """Whole models: R · N values to every node, N/S over each of S · R links; and the frames of as many messages."""
    objective, clients = dense(60, width)
    made = trainer(gossip(RandomPeers(peers=2, segments=segments)), objective, clients)
    cost, found = gossip_round(60, width, segments=segments, peers=2), made.exchange.meet(1, np.arange(60))
    letters = made.exchange.letters
    frames = [int(letters._fixed[False][s]) for s in range(segments)]
    questions = [int(letters._asked[False][s]) for s in range(segments)]
    # A node's received: its R · S answers, and the questions of those who ask it.
    pulls = pulls_of(found)
    answers = sum(2 * (frame + 4 * size) for frame, size in zip(frames, cost.sizes, strict=True))
    asked_by = np.bincount(pulls.of, np.array(questions)[pulls.segment], 60)
    assert found.traffic.down.tolist() == (answers + asked_by).astype(int).tolist()
    values = found.traffic.down - asked_by - 2 * sum(frames)
    assert (values == 4 * cost.received).all()
    assert cost.received == 2 * width
    assert cost.links == 2 * segments
    assert cost.total == 60 * 2 * width
    assert cost.per_link == pytest.approx(width / segments)


def test_a_link_of_segmented_gossip_carries_a_share_of_one_of_plain_gossip() -> None:
    """1/S of the values, over S times as many links; the same in all."""
    objective, clients = dense(200, 4000)
    plain, cut = (
        trainer(gossip(RandomPeers(peers=1, segments=s)), objective, clients).exchange.meet(1, np.arange(200))
        for s in (1, 5)
    )
    frame = plain.traffic.of_a_link - 4 * 4000
    assert 0 < frame < 250
    pulls = pulls_of(cut)
    each = np.bincount(np.unique(pulls.to * 200 + pulls.of, return_inverse=True)[1])
    once = cut.traffic.down.sum() / len(pulls)
    assert once == pytest.approx(4 * 4000 / 5 + frame, abs=20)
    assert cut.traffic.of_a_link == pytest.approx(once * each.mean())
    assert len(pulls) == 5 * 200
    assert 0.97 * 1000 < cut.traffic.links <= 1000  # two segments seldom come from the same node
    for letters, segments in ((1, 1), (5, 5)):
        assert gossip_round(200, 4000, segments=segments, peers=1).per_link == 4000 / letters


@pytest.mark.parametrize("here", [EVERYBODY, np.delete(EVERYBODY, [1, 5]), np.array([4])])
def test_the_ring_sends_what_its_cost_model_says(here: np.ndarray) -> None:
    objective, clients = world()
    for over in ("holders", "peers"):  # over peers the rest of a row's weight is what its holders leave
        made = trainer(gossip(AllReduce(), over=over), objective, clients)
        found, count = made.exchange.meet(1, here), len(here)
        values = sum(p.numel() for p in made.params.values()) + 12 + 1
        cost = ring_all_reduce(count, values)
        head = wire.length([("chunk", 1)]) * 2 * (count - 1)
        assert found.traffic.up[here].tolist() == (4 * cost.sent + head).tolist()
        assert found.traffic.down[here].tolist() == (4 * cost.received + head).tolist()
        assert abs(cost.sent - 2 * (count - 1) * values / count).max() < 2
        assert found.traffic.up.sum() == found.traffic.up[here].sum()


def test_every_byte_that_is_sent_is_received() -> None:
    objective, clients = world()
    for mixing in (RandomPeers(peers=3, segments=4), RandomPeers(peers=100), AllReduce(), Metropolis()):
        made = trainer(gossip(mixing), objective, clients)
        traffic = made.exchange.meet(2, np.delete(EVERYBODY, 7)).traffic
        assert traffic.down.sum() == traffic.up.sum() > 0
        assert traffic.down[7] == traffic.up[7] == 0
        assert isinstance(made.exchange.letters, Letters)
