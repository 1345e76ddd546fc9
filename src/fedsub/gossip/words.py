"""Short spellings of graphs and of who is there: words with numbers behind a colon.

graph          complete  ring  torus  regular:8  small-world:8,0.1
availability   random:0.8  daily:24,0.3
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedsub.errors import MethodError, nearest
from fedsub.gossip.graphs import Complete, Given, Graph, Regular, Ring, SmallWorld, Torus
from fedsub.method.sampling import Daily, Random
from fedsub.method.sampling.availability import Availability

Words = Mapping[str, tuple[Callable[..., Any], tuple[type, ...]]]  # word -> what it makes, and the numbers it takes

GRAPHS: Words = {
    "complete": (Complete, ()), "ring": (Ring, ()), "torus": (Torus, ()), "regular": (Regular, (int,)),
    "small-world": (SmallWorld, (int, float)),
}  # fmt: skip
AVAILABILITIES: Words = {"random": (Random, (float,)), "daily": (Daily, (int, float))}


def graph_of(value: Any) -> Graph:
    """A graph from an object, a networkx graph, or a word with its numbers: "regular:8", "small-world:8,0.1"."""
    if isinstance(value, Graph) and type(value) is not Graph:
        return value
    if hasattr(value, "nodes") and hasattr(value, "edges") and not isinstance(value, type):
        return Given.of(value)
    return _read(value, GRAPHS, "graph", "a networkx graph, an object like Ring(),", "regular:8 or small-world:8,0.1")


def availability_of(value: Any) -> Availability | None:
    """Who is there, from an object or a word: "random:0.8", "daily:24,0.3"; None: everybody."""
    if value is None or (isinstance(value, Availability) and not isinstance(value, type)):
        return value
    example = "random:0.8 or daily:24,0.3"
    return _read(value, AVAILABILITIES, "availability", "an object like Random(0.8)", example, all_numbers=True)


def _read(value: Any, words: Words, what: str, objects: str, example: str, *, all_numbers: bool = False) -> Any:
    """What a word makes of the numbers behind its colon; with ``all_numbers`` none of them may be left out."""
    word, _, rest = str(value).partition(":")
    if not isinstance(value, str) or word not in words:
        raise MethodError(
            f"{what} must be {objects} or one of {', '.join(words)}; got {value!r}: {nearest(word, words)}"
        )
    make, takes = words[word]
    given = [text for text in rest.split(",") if text]
    if len(given) > len(takes) or (all_numbers and len(given) < len(takes)):
        raise MethodError(
            f"{what}={value!r} has {len(given)} numbers, and {word} takes {len(takes) or 'none'}; write it like "
            f"{example}."
        )
    try:
        numbers = [kind(text) for kind, text in zip(takes, given, strict=False)]
    except ValueError as err:
        raise MethodError(f"{what}={value!r}: {err}; write it like {example}.") from err
    return make(*numbers)
