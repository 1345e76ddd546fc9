"""A server by itself: it welcomes clients, plays rounds and never sees data."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from fedsub.checks import check_seed
from fedsub.errors import DataError, MethodError, NoUsableClient, WireError
from fedsub.method.codecs.wire import decode_rows
from fedsub.method.parts import SecureSum
from fedsub.method.slots import Method
from fedsub.node.agree import method_digest, model_digest
from fedsub.node.heat import adds_in_secret, ask, private_heat
from fedsub.node.remote import Remote
from fedsub.node.secret_remote import SecretRemote
from fedsub.objective.population import Population
from fedsub.round import wire
from fedsub.round.channels import Channel
from fedsub.round.ledger import RoundReport
from fedsub.round.letters import Letters
from fedsub.round.memory import moments
from fedsub.round.quiet import one_thread
from fedsub.round.schema import Field, expected
from fedsub.round.server import ServerHalf
from fedsub.round.transport import Transport, play
from fedsub.secure import Registry
from fedsub.trees import Tree

log = logging.getLogger("fedsub")


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
    channels: Mapping[int, Channel],
    *,
    rounds: int,
    seed: int = 0,
    run: int = 1,
    before_round: Callable[[int], None] = lambda number: None,
    identities: Registry | str | os.PathLike[str] | None = None,
) -> Served:
    """Play ``rounds`` rounds with clients that are reached through ``channels``, by their numbers.

    ``params`` is the first model; it is trained in place.
    ``before_round`` is called with each round's number; a client whose channel was replaced there says hello again.
    A client without a channel is lost whenever it is drawn, like one whose hello was refused.
    ``identities``: the registered public keys of all clients, who then sign what they do in secure sums; a `Registry`
    or the file that it was saved to. Clients that have identities join no server that knows of none.
    """
    check_seed("seed", seed)
    signers = _registered(method, population, identities)
    secure = next((part for part in method.parts if isinstance(part, SecureSum)), None)
    server = ServerHalf(method, population, params, seed=seed, rounds=rounds)
    letters = Letters(server.schema, population.rows, run, population.padding)
    joined: dict[int, Channel] = {}
    remote = Remote(server, letters, joined)
    transport: Transport = remote if secure is None else SecretRemote(remote, secure, signers)
    first = {name: params[name].clone() for name in server.schema.private}
    done = Served(params, refused=remote.refused)
    known: dict[int, Channel] = {}
    mechanism = private_heat(method)
    with one_thread():
        for number in range(1, rounds + 1):
            if server.private is not None and (spent := server.private.stops(number)):
                done.stopped, rounds = spent, number - 1
                break
            before_round(number)
            for client, channel in channels.items():
                if known.get(client) is not channel:
                    known[client] = channel
                    joined.pop(client, None)
                    done.left_out.pop(client, None)
                    try:
                        welcome(server, letters, first, client, channel, seed, signers)
                        joined[client] = channel
                    except WireError as err:
                        done.left_out[client] = str(err)
                        log.warning("left out client %s: %s", client, err)
            if not joined:
                why = "; ".join([*done.left_out.values()][:3]) or "there is no channel to any"
                raise NoUsableClient(f"Round {number}: no client has joined. {why}")
            if number == 1 and mechanism is not None and population.tables:
                server.population, done.asked = ask(remote, mechanism, known=signers)
            done.reports.append(play(server, transport, number))
        server.settle(rounds)
    done.notes = tuple(getattr(server.average, "notes", ()))
    return done


def _registered(
    method: Method, population: Population, given: Registry | str | os.PathLike[str] | None
) -> Registry | None:
    """The keys of those who sign in secure sums; None if nobody does."""
    if given is None or not adds_in_secret(method):
        return None
    known = given if isinstance(given, Registry) else Registry.open(given)
    if missing := [client for client in range(len(population)) if client not in known]:
        raise MethodError(
            f"{len(missing)} of {len(population)} clients have no registered identity, the first is {missing[0]}; "
            "register all of them, or none."
        )
    return known


def welcome(
    server: ServerHalf, letters: Letters, first: Tree, client: int, channel: Channel, seed: int,
    signers: Registry | None = None,
) -> None:  # fmt: skip
    """Answer a client's hello: tell one that runs something else, give the others what they begin with.

    WireError says why a client cannot take part.
    """
    data = channel.receive()
    if data is None:
        raise WireError(f"Client {client} did not say hello; start it, or leave it out of the channels.")
    try:
        rows = _rows_held(server, wire.read(data, wire.HELLO), client, signers)
    except WireError:
        channel.send(wire.write(wire.Envelope(wire.WELCOME, 0, client, run=letters.run, flags=wire.REFUSED)))
        raise
    tables = server.population.tables
    tensors: Tree = {"seed": torch.tensor(seed)}
    tensors |= {f"report/{name}": torch.ones(()) for name in server.schema.reports}
    for name, value in first.items():
        tensors[f"moments/{name}"] = torch.tensor(moments(value), dtype=torch.float64)
        tensors[f"first/{name}"] = value[rows[tables[name]]] if name in tables else value
    channel.send(wire.write(wire.Envelope(wire.WELCOME, 0, client, run=letters.run, tensors=tensors)))


def _rows_held(
    server: ServerHalf, hello: wire.Envelope, client: int, signers: Registry | None
) -> dict[str, torch.Tensor]:
    """The rows of each space of which a client keeps values of its own, if it runs what the server runs."""
    population, fields = server.population, server.schema.hello()
    wanted = {"method": method_digest(server.method), "model": model_digest(server.params, population.tables)}
    if signers is not None:
        wanted["identities"] = signers.digest
        fields.append(Field("identities", torch.int64, ()))
    if ("identities" in hello.tensors) != (signers is not None):
        has, lacks = ("client", "server") if signers is None else ("server", "client")
        raise WireError(
            f"Client {client} cannot join: the {has} has registered identities for secure sums and the {lacks} has "
            "none; give both the same (serve(identities=…), Node(identity=…)), or neither."
        )
    for name, digest in wanted.items():
        seen = hello.tensors.get(name)
        if seen is not None and seen.shape == () and seen.dtype == torch.int64 and int(seen) != digest:
            raise WireError(
                f"Client {client} joins with another {name} than the server's; give both the same {name} (settings, "
                "names, shapes, types and keys)."
            )
    head = {"round": 0, "client": client, "repeat": 0, "run": 0, "flags": 0, "accepted": 0}
    wire.check(hello, expected(fields, {}), **head)
    rows: dict[str, torch.Tensor] = {}
    for asked in fields:
        kind, _, space = asked.name.partition("/")
        if kind == "rows":
            try:
                found = decode_rows(hello.tensors[asked.name].numpy().tobytes(), population.rows[space])
            except DataError as err:
                raise WireError(f"Client {client} does not say which rows of {space!r} it holds ({err}).") from err
            rows[space] = torch.from_numpy(found)
    return rows
