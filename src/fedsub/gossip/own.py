"""The part by which every node keeps a model of its own: nothing is sent to a server."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedsub.errors import MethodError
from fedsub.method.part import Message, Part, Start, Work
from fedsub.method.parts import Personal, SecureSum
from fedsub.trees import Tree


@dataclass(frozen=True)
class OwnModel(Part):
    """All parameters are the node's own: it begins with the shared ones, and goes on from where it ended.

    Of those ``apart``, which are never exchanged, ``personal`` says how they begin.
    """

    personal: Personal | None = None
    apart: tuple[str, ...] = ()
    client_slots: ClassVar[tuple[str, ...]] = ("own",)
    own: ClassVar[str] = "own"

    def private(self, names: Collection[str]) -> tuple[str, ...]:
        return tuple(names)

    def first(self, slot: str, name: str, start: Start) -> Tensor:
        if self.personal is not None and name in self.apart:
            return self.personal.first(slot, name, start)
        return start.values

    def supply(self, work: Work) -> Tree:
        return dict(work.client[self.key]["own"])

    def finish(self, message: Message, params: Tree, work: Work) -> None:
        own, update = work.client[self.key]["own"], message.trees["update"]
        assert work.method is not None
        changed = any(type(part).finish is not Part.finish for part in work.method.parts if part is not self)
        for name in own:
            own[name] = work.sent[name] + update[name] if changed else params[name].clone()
            del update[name]


def without_server(parts: tuple[Part, ...], name: str) -> None:
    """Refuse parts of which a server would have to do a half."""
    for part in parts:
        kind = type(part)
        needs = {
            "keeps something at the server": part.server_slots or part.sent_numbers,
            "sends something beside the model": part.payloads or part.numbers,
            "writes the update to a server in other bytes": part.codec,
            "changes what a server has added up": kind.combine is not Part.combine or kind.limit is not Part.limit,
            "hides updates from a server": part.silent or part.noises or isinstance(part, SecureSum),
            "needs rounds in turns": part.turns > 1,
        }
        for why, true in needs.items():
            if true:
                raise MethodError(
                    f"{name} has no server, and {kind.__name__} needs one: it {why}. Leave it out; a proximal term, "
                    "clipped gradients and personal parameters need none."
                )
