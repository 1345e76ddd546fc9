"""The client's half of a round: objective, method, its own data and its own memory; of the server only what was sent.

Clients whose work is done together form a group; on a device the group is the client alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedsub import rng
from fedsub.data.clients import Clients
from fedsub.data.frequency import frequency
from fedsub.data.narrowed import Came, Narrowed, narrowed
from fedsub.errors import MethodError
from fedsub.method.batches import Batches, draw
from fedsub.method.groups import Cohort, Group
from fedsub.method.part import Message, Work
from fedsub.method.slots import Method
from fedsub.objective.problem import Problem
from fedsub.round.engines.base import Engine, Filled, Plan, columns_to, template
from fedsub.round.layout import Asked
from fedsub.round.memory import Memory
from fedsub.round.messages import MODEL, UPDATE, Downlink, Kept, Uplink
from fedsub.trees import Tree

Places = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ClientHalf:
    """What clients do with a downlink. ``places`` says where a client, by its number, stands in ``problem``'s data:
    in a simulation at that number, on a device, where it is alone, at 0.
    """

    problem: Problem
    method: Method
    plan: Plan
    seed: int = 0
    reports: tuple[str, ...] = ()  # what the sampler wants to hear of every client, in the clear
    places: Places = lambda numbers: numbers
    start: tuple[int, ...] = ()  # names what a run began with, where parts must not draw what that one drew
    _modules: dict[torch.device, Filled] = field(default_factory=dict, init=False, repr=False)

    def draw(self, who: Cohort, round: int, *, one_batch: bool = False, left: Clients | None = None) -> Batches:
        """The samples of every local step of some clients; of what is ``left`` of theirs, where they have some."""
        local = self.method.local
        for part in self.method.parts:
            local = part.drawn(local, round)
        if one_batch:
            local = replace(local, local_steps=1, local_epochs=None)  # type: ignore[type-var]
        at = self.places(who.clients) if left is None else np.arange(len(who))
        return draw(
            self.problem.clients, who, local, round=round, seed=self.seed, at=at, left=left,
            dtype=self.problem.weight_dtype,
        )  # fmt: skip

    def train(self, engine: Engine, down: Downlink, memory: Memory, batches: Batches) -> tuple[Uplink, Kept]:
        """Local work of a group; ``batches`` are what `draw` gave for it."""
        pair = engine.stacked and len(down.who) == 1
        if pair:  # torch takes other kernels for one matrix than for a stack of them: a lone client stands twice
            down, batches = _twice(down, self.problem.tables), batches.take(np.zeros(2, np.int64))
        work = self._work(engine.stacked, down, memory, batches.steps)
        params, losses = engine.steps(work, batches, self._keys(down, batches))
        message = Message({UPDATE: {name: params[name] - work.sent[name] for name in self.problem.names}})
        good = finite(message, work.group)
        for part in self.method.parts:
            part.finish(message, params, work)
        if self.method.parts:  # NaN may be born in what they made of it, and infinity may get lost in an encoding
            self._declared(message)
            good &= finite(message, work.group)
        work.gradient = work.same_batch = work.frequency = (
            None  # they hold it, and it holds them: it would not go before a collection
        )
        count = 1 if pair else len(good)
        if pair:
            _halve(message, work)
        losses, steps = losses[:, :count], batches.steps[:count]
        loss = _mean(losses, steps, engine.stacked)
        seen = {"loss": loss} if "loss" in self.reports else {}
        if "deviation" in self.reports:
            seen["deviation"] = _deviation(losses, loss, steps, engine.stacked)
        good = good[:count] & np.isfinite(loss)
        sizes = batches.sizes[:count]
        uplink = self._uplink(_first(down) if pair else down, message, loss, seen, good, sizes, engine.stacked)
        return uplink, self._kept(work)

    def rest(self, down: Downlink, memory: Memory) -> Uplink:
        """What a lone client sends of whose samples none are left in a round: zeros, and what parts add to them."""
        work = self._work(False, down, memory, np.zeros(1, np.int64))
        like = down.trees[MODEL]
        trees = {UPDATE} | {f"{part.key}.{name}" for part in self.method.parts for name in part.payloads}
        message = Message({tree: {name: torch.zeros_like(value) for name, value in like.items()} for tree in trees})
        message.numbers = {f"{p.key}.{name}": torch.zeros(1) for p in self.method.parts for name in p.numbers}
        for part in self.method.parts:
            part.rest(message, work)
        nothing = np.zeros(1, np.int64)
        uplink = self._uplink(down, message, np.zeros(1), {}, np.ones(1, bool), nothing, stacked=False)
        uplink.sums["idle"] = np.ones(1)
        return uplink

    def narrowed(self, who: Cohort, came: Mapping[str, Asked], of: Clients | None = None) -> Narrowed:
        """What is left of some clients' samples, in the data ``of`` them all, where only these rows came."""
        clients = self.problem.clients if of is None else of
        rows = {space: Came(one.rows, one.counts) for space, one in came.items()}
        return narrowed(clients, self.places(who.clients), rows, self.plan.columns)

    def put_aside(self, down: Downlink, held: Mapping[str, np.ndarray]) -> Downlink:
        """Of rows that clients were sent and do not hold they make zeros, which nothing in local work moves."""
        hidden = {space: torch.from_numpy(~mask) for space, mask in held.items()}
        spaces = {name: space.name for name, space in self.problem.tables.items() if space.name in held}

        def kept(name: str, value: Tensor) -> Tensor:
            if name not in spaces:
                return value
            return value.masked_fill(hidden[spaces[name]].to(value.device).reshape(-1, *[1] * (value.ndim - 1)), 0.0)

        trees = {tree: {name: kept(name, value) for name, value in own.items()} for tree, own in down.trees.items()}
        return replace(down, trees=trees)

    def ask(self, down: Downlink) -> Uplink:
        """The loss of each client at what it was sent, on all its data or on one batch."""
        device = next(iter(down.trees[MODEL].values())).device
        batches = self.draw(down.who, down.round, one_batch=True) if down.probe == "batch" else None
        filled = self._asked(device)
        losses, starts = np.zeros(len(down.who)), {s: np.cumsum(c) - c for s, c in down.counts.items()}
        offsets = self.problem.clients.offsets
        for k, at in enumerate(self.places(down.who.clients).tolist()):
            sent = dict(down.trees[MODEL])
            for name, space in self.problem.tables.items():
                begin = int(starts[space.name][k])
                sent[name] = sent[name][begin : begin + int(down.counts[space.name][k])]
            filled.fill(sent)
            samples = np.arange(int(offsets[at]), int(offsets[at + 1]))
            if batches is not None:
                samples = batches.samples[k, 0][batches.weights[k, 0] > 0]
            data = columns_to(self.problem.clients.gather(samples, self.plan.columns, local=True), device)
            with torch.no_grad():
                found, _ = filled.losses(self.problem.objective, data, torch.ones(len(samples), device=device))
            losses[k] = float(found.mean())
        return Uplink(down.who, np.zeros(len(down.who), bool), {}, {}, {"loss": losses})

    def _asked(self, device: torch.device) -> Filled:
        """The module that answers questions; made once."""
        if device not in self._modules:
            self._modules[device] = Filled(template(self.problem, device))
            self._modules[device].module.eval()
        return self._modules[device]

    def example(self, down: Downlink) -> Tree:
        """Tensors like those that a group trains, for engines that look at shapes only."""
        own = dict(self.problem.objective.module.named_parameters())
        device = next((v.device for v in down.trees[MODEL].values()), None)
        out: Tree = {}
        for name in self.problem.names:
            kept = own[name].detach()[:1] if name in self.problem.tables else own[name].detach()
            out[name] = down.trees[MODEL][name] if name in down.trees[MODEL] else kept.to(device)
        return out

    def _work(self, stacked: bool, down: Downlink, memory: Memory, steps: np.ndarray) -> Work:
        """The scene of a group's local work."""
        problem, method, who = self.problem, self.method, down.who
        model = down.trees[MODEL]
        device = next(iter(model.values())).device if model else torch.device("cpu")
        counts: dict[str, Tensor] = {}
        if stacked:
            by_space = {space: torch.from_numpy(n).to(device) for space, n in down.counts.items()}
            counts = {name: by_space[space.name] for name, space in problem.tables.items()}
        group = Group(len(who), stacked, counts)
        work = Work(down.round, 0, method.local.rate(down.round), {}, group, method=method, padding=problem.padding)
        work.tables = frozenset(problem.tables)
        work.scales = {name: scale for name in problem.names if (scale := method.local.scale(name)) != 1.0}
        supplied: Tree = {}
        if method.parts:  # nobody else asks
            work.steps = torch.from_numpy(steps.astype(np.float32)).to(device)
            work.words = who.words(self.seed, rng.PART, down.round, *self.start)
            at = self.places(who.clients)
            work.frequency = lambda: self._frequency(at, model)
            for part in method.parts:
                work.server[part.key] = {
                    slot: self._spread(down.trees[f"{part.key}.{slot}"], group) for slot in part.sent_slots
                }
                work.numbers[part.key] = {name: down.numbers[f"{part.key}.{name}"] for name in part.sent_numbers}
                work.client[part.key] = {
                    slot: self._lone(memory.read(f"{part.key}.{slot}", at), group) for slot in part.client_slots
                }
                supplied |= part.supply(work)
            work.client = {key: slots for key, slots in work.client.items() if slots}
        shared = self._spread(model, group)
        # Own values are copied: what is kept must not change while it is trained.
        work.sent = {n: shared[n].contiguous() if n in shared else supplied[n].clone() for n in problem.names}
        return work

    def _frequency(self, at: np.ndarray, like: Tree) -> Tree:
        """In which share of its samples a client names each of its rows, by table, shaped to multiply its values."""
        found = {s.name: torch.from_numpy(frequency(self.problem.clients, s, at)) for s in self.problem.spaces.values()}
        tables = {name: space.name for name, space in self.problem.tables.items() if name in like}
        return {
            name: found[space].to(like[name]).reshape(-1, *[1] * (like[name].ndim - 1))
            for name, space in tables.items()
        }

    def _spread(self, tree: Tree, group: Group) -> Tree:
        """A dense value that all clients were sent, for each of a stacked group."""
        if not group.stacked:
            return tree
        tables = self.problem.tables
        return {n: v if n in tables else v.expand(group.count, *v.shape) for n, v in tree.items()}

    def _lone(self, stacked: Tree, group: Group) -> Tree:
        """Dense state comes stacked; a lone client's has no such dimension."""
        if group.stacked:
            return stacked
        return {name: value if name in self.problem.tables else value[0] for name, value in stacked.items()}

    def _keys(self, down: Downlink, batches: Batches) -> np.ndarray | None:
        """One random word per client and step, int64 [c, steps], for dropout layers."""
        if not (self.plan.dropout or self.plan.random):
            return None
        words = down.who.words(self.seed, rng.DROPOUT_LAYER, down.round).view(np.int64)
        return (rng.key(words[:, None], np.arange(batches.samples.shape[1])) >> np.uint64(33)).astype(np.int64)

    def _declared(self, message: Message) -> None:
        """Refuse what a part sends without saying so: nobody would count, add or expect it."""
        trees = {UPDATE} | {f"{p.key}.{name}" for p in self.method.parts for name in p.payloads}
        numbers = {f"{p.key}.{name}" for p in self.method.parts for name in p.numbers}
        odd = sorted((message.trees.keys() ^ trees) | (message.numbers.keys() ^ numbers))
        if odd:
            raise MethodError(
                f"A part's finish and what it declares differ in {odd[0]!r}; name it in payloads or numbers, "
                "and have finish put it into message.trees or message.numbers under 'key.name'."
            )

    def _kept(self, work: Work) -> Kept:
        """What the clients keep, with dense values [c, …]."""
        if work.group.stacked:
            return work.client
        tables = self.problem.tables

        def stacked(tree: Tree) -> Tree:
            return {name: value if name in tables else value.unsqueeze(0) for name, value in tree.items()}

        return {part: {slot: stacked(tree) for slot, tree in slots.items()} for part, slots in work.client.items()}

    def _uplink(
        self, down: Downlink, message: Message, loss: np.ndarray, seen: dict[str, np.ndarray], good: np.ndarray,
        sizes: np.ndarray, stacked: bool,
    ) -> Uplink:  # fmt: skip
        """What is sent: everything times a_i, and nothing of clients that refuse themselves."""
        who = down.who
        weights = self.method.average.weight(sizes) * good
        once = {f"{p.key}.{n}" for p in self.method.parts if p.client_slots for n in p.payloads}
        trees: dict[str, Tree] = {}
        for name, tree in message.trees.items():
            factors = weights * (who.repeats == 0) if name in once else weights
            trees[name] = self._weighted(tree, factors, down.counts, sound=bool(good.all()), stacked=stacked)
        sums = {"weight": weights, "count": good.astype(np.float64)}
        if not any(part.silent for part in self.method.parts):
            sums["loss"] = np.where(good, loss, 0.0)
        for name, values in message.numbers.items():
            sums[name] = np.where(good, values.double().cpu().numpy(), 0.0) * weights
        return Uplink(who, ~good, trees, sums, seen, message.encoded, message.written)

    def _weighted(
        self, tree: Tree, weights: np.ndarray, counts: dict[str, np.ndarray], *, sound: bool, stacked: bool
    ) -> Tree:
        """Every client's values times its weight; dense values [c, …]."""
        plain, out = bool((weights == 1).all()), {}
        for name, value in tree.items():
            space = self.problem.tables.get(name)
            if space is None and not stacked:
                value = value.unsqueeze(0)
            if not sound:
                value = torch.nan_to_num(value, 0.0, 0.0, 0.0)
            if not plain:
                rows = None if space is None or len(weights) == 1 else counts[space.name]
                value = value * _column(weights if rows is None else np.repeat(weights, rows), value)
            out[name] = value
        return out


def finite(message: Message, group: Group) -> np.ndarray:
    """Which clients of a group would send neither NaN nor infinity, bool [c]; a sum is enough to tell as a rule."""
    good = np.ones(group.count, bool)
    for tree in message.trees.values():
        for name, value in tree.items():
            if math.isfinite(float(value.sum())) or bool(torch.isfinite(value).all()):
                continue
            good &= group.total(name, (~torch.isfinite(value)).to(torch.float32)).cpu().numpy() == 0
    for values in message.numbers.values():
        good &= torch.isfinite(values).cpu().numpy()
    return good


def _mean(losses: np.ndarray, steps: np.ndarray, stacked: bool) -> np.ndarray:
    """The mean of the losses [steps, c] over each client's steps."""
    with np.errstate(invalid="ignore", over="ignore"):  # of a client that diverged, and refuses itself
        return losses.cumsum(0)[-1] / steps if stacked else np.add.reduce(losses) / len(losses)


def _deviation(losses: np.ndarray, mean: np.ndarray, steps: np.ndarray, stacked: bool) -> np.ndarray:
    """Their standard deviation over each client's steps."""
    with np.errstate(invalid="ignore", over="ignore"):
        if not stacked:
            return losses[:, 0].std(keepdims=True)
        square = (losses**2).cumsum(0)[-1] / steps
        return np.sqrt(np.maximum(square - mean**2, 0.0))


def _column(weights: np.ndarray, like: Tensor) -> Tensor | float:
    """One number per entry of ``like``, shaped to multiply it."""
    if len(weights) == 1:  # torch rounds a number to the tensor's type, too
        return float(weights[0])
    if like.dtype == torch.float32:
        weights = weights.astype(np.float32)
    return torch.from_numpy(weights).to(device=like.device, dtype=like.dtype).reshape(-1, *[1] * (like.ndim - 1))


def _twice(down: Downlink, tables: Collection[str]) -> Downlink:
    """A lone client's downlink, as of two equal clients."""
    trees = {
        tree: {n: torch.cat([v, v]) if n in tables else v for n, v in values.items()}
        for tree, values in down.trees.items()
    }
    counts = {space: np.repeat(n, 2) for space, n in down.counts.items()}
    return Downlink(down.round, down.who.take(np.zeros(2, np.int64)), counts, trees, down.numbers)


def _first(down: Downlink) -> Downlink:
    """Of two equal clients the first; the trees are not needed any more."""
    return Downlink(down.round, down.who.take(np.zeros(1, np.int64)), {s: n[:1] for s, n in down.counts.items()}, {})


def _halve(message: Message, work: Work) -> None:
    """Keep the first of two equal clients."""
    for tree in (*message.trees.values(), *[t for slots in work.client.values() for t in slots.values()]):
        for name, value in tree.items():
            tree[name] = value[: len(value) // 2]
    message.numbers = {name: value[:1] for name, value in message.numbers.items()}
    if message.encoded is not None:
        message.encoded = message.encoded[:1]
