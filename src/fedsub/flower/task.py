"""What an app says of its task, and the settings that its configuration gives to the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsub.data.clients import Clients
from fedsub.errors import ConfigError
from fedsub.method.slots import Method
from fedsub.objective.objective import Objective
from fedsub.objective.population import Population

Config = Mapping[str, Any]  # an app's, or a node's: names and plain values
Kept = Clients | str | os.PathLike[str]  # data, or the directory in which it lies


@dataclass(frozen=True)
class Task:
    """Functions that say what is learned, and from what; both apps are made of one task.

    ``objective(sizes)`` is made for tables of given sizes: all rows at the server, a node's own rows there.
    ``method(config)`` gets the app's configuration; server and nodes compare digests of what it returns.
    ``data(node_config)`` is a node's own data, ``outline(config)`` that of all clients without samples
    (`fedsub.node.outline`). ``test(config)`` is data at the server that is evaluated, and ``population(config)`` what
    is known of the clients beforehand; without it, it is counted from what they say.
    """

    objective: Callable[[Mapping[str, int]], Objective]
    method: Callable[[Config], Method]
    data: Callable[[Config], Kept]
    outline: Callable[[Config], Kept]
    test: Callable[[Config], Kept | None] | None = None
    population: Callable[[Config], Population | str | os.PathLike[str] | None] | None = None

    def server_data(self, config: Config) -> tuple[Clients, dict[str, Clients], Population | None]:
        """(outline, what is evaluated, what is known of the clients)."""
        test = self.test(config) if self.test is not None else None
        known = self.population(config) if self.population is not None else None
        splits = {"test": opened(test)} if test is not None else {}
        known = known if known is None or isinstance(known, Population) else Population.open(known)
        return opened(self.outline(config)), splits, known


def opened(data: Kept) -> Clients:
    return data if isinstance(data, Clients) else Clients.open(data, verify=True)


class Settings(BaseModel):
    """What `server_app` reads of an app's configuration; all else in it is the app's own.

    ``deadline`` seconds an exchange of messages may take, ``returns`` seconds it waits for a node that is gone;
    ``patience`` seconds until all have said hello at the start (0: without end), after which ``fewest`` will do;
    ``back`` seconds at a resume; ``poll`` seconds
    between two looks for answers; ``most`` bytes of an answer that are taken, ``piece`` of a message in one piece.
    ``names`` is a JSON file {registered name or public key: client}, ``identities`` the keys of secure sums.
    """

    model_config = ConfigDict(extra="ignore", populate_by_name=True)
    rounds: Annotated[int, Field(ge=1)]
    out: Annotated[str, Field(min_length=1)]
    seed: Annotated[int, Field(ge=0)] = 0
    every: Annotated[int, Field(ge=1)] = 10
    checkpoint_every: Annotated[int, Field(ge=1, alias="checkpoint-every")] = 1
    deadline: Annotated[float, Field(gt=0)] = 600.0
    returns: Annotated[float, Field(ge=0)] = 120.0
    patience: Annotated[float, Field(ge=0)] = 600.0
    back: Annotated[float, Field(ge=0)] = 90.0
    tries: Annotated[int, Field(ge=0)] = 3
    fewest: Annotated[int, Field(ge=0)] = 0
    poll: Annotated[float, Field(gt=0)] = 0.2
    most: Annotated[int, Field(ge=1024)] = 1 << 30
    piece: Annotated[int, Field(ge=1024)] = 4 << 20
    names: str = ""
    identities: str = ""

    @classmethod
    def read(cls, config: Config) -> Settings:
        try:
            return cls.model_validate(dict(config))
        except ValidationError as error:
            said = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise ConfigError(
                f"The app's configuration ([tool.flwr.app.config] or --run-config) cannot be used: {said}."
            ) from error

    @property
    def folder(self) -> Path:
        return Path(self.out).expanduser()
