"""A server by itself, from the first round to the last: `serve`. It welcomes clients and never sees data.

A run with a directory, checkpoints and resume is `fedsub.node.run`; both play `Rounds`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedsub.method.slots import Method
from fedsub.node.post import Channels, Post
from fedsub.node.rounds import Rounds
from fedsub.objective.population import Population
from fedsub.round.channels import Channel
from fedsub.round.ledger import RoundReport
from fedsub.round.quiet import one_thread
from fedsub.secure import Registry
from fedsub.trees import Tree


@dataclass
class Served:
    """What came of it: the shared model, a report of every round, and the messages that were refused.

    ``left_out`` are the clients that said something else in their hello than the server expects, or nothing, and why;
    they count as lost in every round that they are drawn for. ``notes`` say how heat was learned in private, and
    ``asked`` are the bytes, down and up, that this took.
    """

    params: Tree
    reports: list[RoundReport] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stopped: str = ""  # why it ended before its last round, in a sentence: a privacy budget is spent
    left_out: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    asked: tuple[int, int] = (0, 0)


def serve(
    method: Method,
    params: Tree,
    population: Population,
    channels: Mapping[int, Channel] | Post,
    *,
    rounds: int,
    seed: int = 0,
    run: int = 1,
    before_round: Callable[[int], None] = lambda number: None,
    identities: Registry | str | os.PathLike[str] | None = None,
) -> Served:
    """Play ``rounds`` rounds with clients that are reached through ``channels``, by their numbers, or by a `Post`.

    ``params`` is the first model; it is trained in place.
    ``before_round`` is called with each round's number; a client whose channel was replaced there says hello again.
    A client without a channel is lost whenever it is drawn, like one whose hello was refused.
    ``identities``: the registered public keys of all clients, who then sign what they do in secure sums; a `Registry`
    or the file that it was saved to. Clients that have identities join no server that knows of none.
    """
    post = Channels(channels) if isinstance(channels, Mapping) else channels
    played = Rounds(method, params, population, post, seed=seed, run=run, rounds=rounds, identities=identities)
    done = Served(params, refused=played.seen.refused, left_out=played.seen.left_out)
    with one_thread():
        for number in range(1, rounds + 1):
            if spent := played.stops(number):
                done.stopped, rounds = spent, number - 1
                break
            before_round(number)
            done.reports.append(played.round(number))
        played.settle(rounds)
        done.asked = played.asked
        done.notes = played.notes if rounds else ()
    return done
