"""A task, and a Grid in this process that hands messages to ClientApps, loses them and spoils them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from node.processes import METHODS, SEED, data, objective

import fedsub as fs
from fedsub.flower import Task, client_app, parcel, serve
from fedsub.flower.host import RESIDENT
from fedsub.node import hand_out
from fedsub.privacy.heat import RandomizedResponse, SecureCount
from fedsub.round import wire

ROUNDS = 4
SMALL: dict[str, Any] = {"lr": 0.3, "local_steps": 2, "batch_size": 4, "clients_per_round": 5}
MORE = {
    "everyone": lambda: fs.methods.fedsubavg(**SMALL | {"lr": 0.1, "local_steps": 1, "clients_per_round": 8}),
    "secure sum": lambda: fs.methods.fedsubavg(secure=fs.SecureSum(0.5), heat=SecureCount(), **SMALL),
    "secure sum, counted heat": lambda: fs.methods.fedsubavg(secure=fs.SecureSum(0.5), **SMALL),
    "secure sum, no heat": lambda: fs.methods.fedavg(secure=fs.SecureSum(0.5), **SMALL),
    "private heat": lambda: fs.methods.fedsubavg(heat=RandomizedResponse(epsilon=8.0), **SMALL),
}


def task(folder: Path, **changed: Any) -> Task:
    """The task of the node tests: what each process may read lies in a folder."""
    asked: dict[str, Any] = {
        "objective": objective,
        "method": lambda config: (METHODS | MORE)[str(config["method"])](),
        "data": lambda node: str(folder / "data" / f"client-{int(node['client']):06d}"),
        "outline": lambda config: str(folder / "data" / "outline"),
    }
    return Task(**(asked | changed))


def letters_of(content: RecordDict) -> list[bytes]:
    """The letters of a message or an answer, however many travel together; none of a hello or a refusal."""
    about, data = parcel.unpack(content)
    return parcel.unfold(data) if about == parcel.LETTERS else [data] if about == parcel.LETTER else []


def packed(letters: list[bytes]) -> RecordDict:
    if len(letters) == 1:
        return parcel.pack(parcel.LETTER, letters[0])
    return parcel.pack(parcel.LETTERS, parcel.fold(letters))


def has_task(message: Message) -> bool:
    """Whether a message holds a task, which is then its last letter."""
    letters = letters_of(message.content)
    return bool(letters) and wire.read(letters[-1]).kind == wire.DOWN


@dataclass
class Info:
    node_id: int
    name: str
    last_activated_at: str = "then"
    status: str = "online"
    public_key: bytes = b""


@dataclass
class Inproc:
    """A Grid. ``spoil`` may change a reply, or be None to lose it; ``away`` nodes answer nothing."""

    app: Callable[[int], ClientApp]
    node_configs: Mapping[int, dict[str, Any]]
    config: Mapping[str, Any]
    spoil: Callable[[int, Message, Message], Message | None] = lambda node, message, reply: reply
    names: Callable[[int], str] = lambda client: f"node-{client}"
    away: set[int] = field(default_factory=set)
    replies: dict[str, Message] = field(default_factory=dict)
    fast: bool = True  # the apps stay, as on resident nodes; else each message has a new one

    def __post_init__(self) -> None:
        TaskIdentity._run_id, TaskIdentity._node_id, TaskIdentity._task_id = 1, 1, 1
        self.infos = {100 + client: Info(100 + client, self.names(client)) for client in self.node_configs}
        self.apps = {100 + client: self.app(client) for client in self.node_configs}

    def get_nodes(self) -> list[Info]:
        for node, info in self.infos.items():
            info.status = "offline" if node in self.away else "online"
        return list(self.infos.values())

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{len(self.replies)}-{message.object_id}"
            sent.append(message.metadata.message_id)
            self.replies[sent[-1]] = Message(Error(5, "Node Unavailable"), reply_to=message)
            if node in self.away:
                continue
            client = node - 100
            app = self.apps[node] if self.fast else self.app(client)
            context = Context(1, node, dict(self.node_configs[client]), RecordDict(), dict(self.config))
            spoilt = self.spoil(node, message, app(message, context))
            if spoilt is None:
                del self.replies[sent[-1]]
            else:
                self.replies[sent[-1]] = spoilt
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]


def grid(folder: Path, config: Mapping[str, Any], made: Task | None = None, **more: Any) -> Inproc:
    known = made or task(folder)
    configs = {n: {"client": n, "state": str(folder / f"state-{n}")} for n in range(8)}
    if more.get("fast", True):
        configs = {n: one | {RESIDENT: True} for n, one in configs.items()}
    return Inproc(lambda client: client_app(known, piece=int(config.get("piece", 4 << 20))), configs, config, **more)


def config_of(folder: Path, method: str, checkpoints: int = 1, **more: Any) -> dict[str, Any]:
    given = {"checkpoint-every": checkpoints}
    given |= {"method": method, "rounds": ROUNDS, "out": str(folder / "out"), "seed": SEED, "poll": 0.01}
    return given | {"deadline": 5.0, "patience": 1.0, "back": 1.0, "returns": 0.5} | more


def over_grid(folder: Path, method: str, *, spoil: Any = None, fast: bool = True, **more: Any) -> fs.Result:
    if not (folder / "data").exists():
        hand_out(data(), folder / "data")
    config = config_of(folder, method, **more)
    options = {} if spoil is None else {"spoil": spoil}
    return serve(task(folder), grid(folder, config, fast=fast, **options), config)  # type: ignore[arg-type]


def simulated(method: str, rounds: int = ROUNDS, **more: Any) -> fs.Result:
    sizes = {"item": 40, "slot": 6}
    return fs.run(
        (METHODS | MORE)[method](), objective(sizes), data(), rounds=rounds, seed=SEED, engine="serial", **more
    )


def same(found: fs.Result, expected: fs.Result) -> bool:
    assert found.params is not None
    assert expected.params is not None
    return all(np.array_equal(found.params[n].numpy(), value.numpy()) for n, value in expected.params.items())
