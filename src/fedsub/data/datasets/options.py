"""The choices that a reader leaves open, taken from its signature.

def read(path, *, history: Annotated[Literal["intended", "released"], Says("which history")] = "intended"): ...

options_of(read)["history"].check("relesed")     # an error that names the nearest
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fedsub.checks import is_number, is_whole
from fedsub.errors import DataError, nearest


@dataclass(frozen=True)
class Says:
    """What an option means, and the least number it may be."""

    about: str
    least: float = 1


@dataclass(frozen=True)
class Option:
    name: str
    default: Any
    values: tuple[Any, ...]  # what is allowed; empty for numbers
    kind: Any  # str, int or float
    optional: bool  # None (on the command line: none) is allowed too
    least: float
    about: str

    @property
    def allowed(self) -> str:
        """The allowed values, in words."""
        words = ", ".join(map(str, self.values))
        if not words:
            words = f"a {'whole ' if self.kind is int else ''}number, {self.least:g} or more"
        return f"{words}, or none" if self.optional else words

    def check(self, value: Any) -> Any:
        """The value with the option's type; text from a command line is read."""
        value = self._number(value) if isinstance(value, str) and self.kind is not str else value
        if value is None and self.optional:
            return None
        if self.values:
            if value not in self.values:
                raise DataError(f"Option {self.name}={value!r}: {nearest(str(value), map(str, self.values))}")
            return value
        right = is_whole(value) if self.kind is int else is_number(value)
        if value is None or not right or not value >= self.least:
            raise DataError(f"Option {self.name}={value!r}: expected {self.allowed}.")
        return self.kind(value)

    def _number(self, text: str) -> Any:
        if self.optional and text.lower() == "none":
            return None
        try:
            return self.kind(text)
        except ValueError:
            raise DataError(f"Option {self.name}={text!r}: expected {self.allowed}.") from None


def options_of(reader: Callable[..., Any]) -> dict[str, Option]:
    """Every keyword argument of a reader, whose annotation says what it allows and means."""
    hints = get_type_hints(reader, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(reader).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            hint, says = get_args(hints[name])
            kinds = [k for k in (get_args(hint) if NoneType in get_args(hint) else (hint,)) if k is not NoneType]
            values = get_args(kinds[0]) if get_origin(kinds[0]) is Literal else ()
            kind = type(values[0]) if values else kinds[0]
            optional = kinds[0] is not hint
            found[name] = Option(name, parameter.default, values, kind, optional, says.least, says.about)
    return found


def checked(options: Mapping[str, Option], given: Mapping[str, Any], what: str) -> dict[str, Any]:
    """All options with what was given for them, or their defaults; unknown ones are errors."""
    for name in given:
        if name not in options:
            raise DataError(f"{what} has no option {name!r}; {nearest(name, options)}")
    return {name: option.check(given.get(name, option.default)) for name, option in options.items()}
