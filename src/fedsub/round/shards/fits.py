"""What tables in pieces can do: whatever treats every row alike, looking at no other. All else is refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedsub.errors import ConfigError
from fedsub.method.parts.central_dp import CentralDP
from fedsub.method.slots import BoundAverage, Method
from fedsub.trees import Tree

INSTEAD = "leave out shards=, so that tables stay in the driver"


def check(method: Method, params: Tree, tables: Collection[str], lazy: Collection[str], shards: int) -> None:
    """Refuse, before anything is started, what would have to see rows of several shards at once."""
    if not tables:
        raise ConfigError("The objective has no tables that shards= could hold; leave it out.")
    if lazy:
        raise ConfigError(
            f"{next(iter(lazy))!r} is lazy: the driver has only the rows that were touched, and shards hold whole "
            f"tables; {INSTEAD}."
        )
    name = min(tables, key=lambda n: len(params[n]))
    if shards > len(params[name]):
        raise ConfigError(f"shards={shards} is more than the {len(params[name]):,} rows of {name!r}; give fewer.")
    device = next(iter(params.values())).device
    if device.type != "cpu":
        raise ConfigError(f"Shards hold their rows in main memory, and device={str(device)!r} is asked for; {INSTEAD}.")
    for name in tables:
        if not str(params[name].dtype).startswith("torch.float"):
            raise ConfigError(f"{name!r} is {params[name].dtype}, which shards do not hold; {INSTEAD}.")
    if any(isinstance(part, CentralDP) for part in method.parts):
        raise ConfigError(
            f"CentralDP draws noise for rows of whole tables at one server, and {shards} shards hold them; {INSTEAD}."
        )
    if not getattr(method.server, "rowwise", False):
        raise ConfigError(
            f"The server {method.server!r} does not say that it treats every row by itself (rowwise), as shards need; "
            f"use Add, Adam, Yogi or Adagrad, or {INSTEAD}."
        )
    for part in method.parts:
        if not part.rowwise_at_server:
            raise ConfigError(
                f"{type(part).__name__} changes means at the server and does not say that it treats every row by "
                f"itself (rowwise), as shards need; {INSTEAD}."
            )


@runtime_checkable
class Cut(BoundAverage, Protocol):
    """An average that knows what it is for some rows of each table."""

    def cut(self, rows: Mapping[str, Tensor]) -> BoundAverage: ...


def with_cut(average: BoundAverage) -> Cut:
    if not isinstance(average, Cut):
        raise ConfigError(
            f"{type(average).__name__} does not say what it is for some rows of a table (cut), as shards need; "
            f"{INSTEAD}."
        )
    return average
