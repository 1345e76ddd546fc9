"""A server by itself: it welcomes clients, plays rounds and never sees data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from fedsub.errors import DataError, MethodError, NoUsableClient, WireError
from fedsub.method.codecs.wire import decode_rows
from fedsub.method.parts import SecureSum
from fedsub.method.slots import Method
from fedsub.node.agree import method_digest, model_digest
from fedsub.node.remote import Channel, Remote
from fedsub.objective.population import Population
from fedsub.round import wire
from fedsub.round.ledger import RoundReport
from fedsub.round.letters import Letters
from fedsub.round.memory import moments
from fedsub.round.quiet import one_thread
from fedsub.round.server import ServerHalf
from fedsub.round.transport import play
from fedsub.trees import Tree


@dataclass
class Served:
    """What came of it: the shared model, a report of every round, and the messages that were refused."""

    params: Tree
    reports: list[RoundReport] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def serve(
    method: Method,
    params: Tree,
    population: Population,
    channels: Mapping[int, Channel],
    *,
    rounds: int,
    seed: int = 0,
    run: int = 1,
    before_round: Callable[[int], None] = lambda number: None,
) -> Served:
    """Play ``rounds`` rounds with clients that are reached through ``channels``, by their numbers.

    ``params`` is the first model; it is trained in place.
    ``before_round`` is called with each round's number; a client whose channel was replaced there says hello again.
    """
    secure = next((part for part in method.parts if isinstance(part, SecureSum)), None)
    if secure is not None:
        raise MethodError(
            "SecureSum is played in simulations (fedsub.run) and not yet between processes: a server of nodes would "
            "read every uplink. Leave it out, or run the simulation."
        )
    server = ServerHalf(method, population, params, seed=seed, rounds=rounds)
    letters = Letters(server.schema, population.rows, run, population.padding)
    remote = Remote(server, letters, channels)
    first = {name: params[name].clone() for name in server.schema.private}
    done = Served(params, refused=remote.refused)
    known: dict[int, Channel] = {}
    with one_thread():
        for number in range(1, rounds + 1):
            before_round(number)
            for client, channel in channels.items():
                if known.get(client) is not channel:
                    welcome(server, letters, first, client, channel, seed)
                    known[client] = channel
            done.reports.append(play(server, remote, number))
        server.settle(rounds)
    return done


def welcome(server: ServerHalf, letters: Letters, first: Tree, client: int, channel: Channel, seed: int) -> None:
    """Answer a client's hello: refuse one that runs something else, give the others what they begin with."""
    data = channel.receive()
    if data is None:
        raise NoUsableClient(f"Client {client} did not say hello; start it, or leave it out of the channels.")
    message = wire.read(data, wire.HELLO)
    tables = server.population.tables
    wanted = {"method": method_digest(server.method), "model": model_digest(server.params, tables)}
    for name, digest in wanted.items():
        seen = message.tensors.get(name)
        if seen is None or seen.shape != () or int(seen) != digest or message.client != client:
            raise WireError(
                f"Client {client} joins with another {name} than the server's; give both the same {name} (settings, "
                "names, shapes and types)."
            )
    tensors: Tree = {"seed": torch.tensor(seed)}
    tensors |= {f"report/{name}": torch.ones(()) for name in server.schema.reports}
    for name, value in first.items():
        tensors[f"moments/{name}"] = torch.tensor(moments(value), dtype=torch.float64)
        tensors[f"first/{name}"] = value
        if name in tables:
            space = tables[name]
            try:
                rows = decode_rows(message.tensors[f"rows/{space}"].numpy().tobytes(), server.population.rows[space])
            except (KeyError, DataError) as err:
                raise WireError(f"Client {client} does not say which rows of {space!r} it holds ({err}).") from err
            tensors[f"first/{name}"] = value[torch.from_numpy(rows)]
    channel.send(wire.write(wire.Envelope(wire.WELCOME, 0, client, run=letters.run, tensors=tensors)))
