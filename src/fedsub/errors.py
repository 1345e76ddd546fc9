"""Every error that fedsub raises on purpose, on one page.

A message says what was seen, what was expected and what to do next.

    FedsubError
    ├── DataError            the clients' data cannot be used as given
    │   ├── ColumnError      a column is missing, has the wrong type or a bad value
    │   ├── DownloadError    a file of a data set could not be fetched, or is not the one that was expected
    │   └── StoreError       a saved directory is truncated, foreign or damaged
    ├── ObjectiveError       module, loss and tables do not fit together or do not fit the data
    ├── MethodError          slots that make no sense together, refused when the method is built
    ├── ConfigError          a configuration file, a flag or a task name is wrong
    ├── RunError             training cannot go on
    │   ├── NoUsableClient   a round in which no client delivered a usable update
    │   └── SecureSumError   a secure sum was given up: nothing was opened
    ├── WireError            a message between server and client is damaged, foreign or not what was waited for
    ├── CheckpointError      nothing on disk to resume from, or it belongs to another run
    └── MissingExtra         an optional dependency is not installed

What is no error, but worth knowing about data (rows left out, a constant label), is a `DataNotice`, a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class FedsubError(Exception):
    """Base of all errors raised by fedsub on purpose."""


class DataError(FedsubError, ValueError):
    """The clients' data cannot be used as given."""


class ColumnError(DataError):
    """A column is missing, has the wrong type or holds a bad value; ``problems`` are all that were found at once.

    They may be anything that ``str`` puts into words, which it does when the error is told. ``stage`` says how many
    checks of its column had been passed.
    """

    def __init__(self, *problems: object, where: str = "", stage: int = 0):
        self.problems, self.where, self.stage = problems, where, stage
        super().__init__(*problems)

    def __str__(self) -> str:
        many = f"{len(self.problems)} problems:\n" + "\n".join(f"- {text}" for text in self.problems)
        where = f"{self.where}: " if self.where else ""
        return where + (str(self.problems[0]) if len(self.problems) == 1 else many)


class DownloadError(DataError):
    """A file of a data set could not be fetched, or is not the one that was expected."""


class StoreError(DataError):
    """A saved directory is truncated, foreign or damaged."""


class ObjectiveError(FedsubError, ValueError):
    """Module, loss and tables do not fit together, or do not fit the data."""


class MethodError(FedsubError, ValueError):
    """A combination of slots that makes no sense."""


class ConfigError(FedsubError, ValueError):
    """A configuration file, flag or task name is wrong."""


class RunError(FedsubError, RuntimeError):
    """Training cannot go on."""


class NoUsableClient(RunError):
    """No client of the round delivered a usable update."""


class SecureSumError(RunError):
    """A secure sum was given up, and nothing was opened: too few clients, or what came does not fit together."""


class WireError(FedsubError, ValueError):
    """A message between server and client is damaged, foreign or not what was waited for."""


class CheckpointError(FedsubError, RuntimeError):
    """There is nothing to resume from, or it belongs to another run."""


class MissingExtra(FedsubError, ImportError):
    """An optional dependency is not installed."""


def lacking(title: str, extra: str) -> MissingExtra:
    """The refusal where an optional dependency is not installed, with the command that installs it."""
    return MissingExtra(f"{title} is not installed; in the folder of fedsub's source: pip install -e '.[{extra}]'")


class DataNotice(UserWarning):
    """Something about the data that is worth knowing, and no error."""


def notice(text: str) -> None:
    """Tell it as a warning; the command line prints it as a line of its own."""
    warnings.warn(text, DataNotice, stacklevel=3)


def nearest(word: str, valid: Iterable[str]) -> str:
    """The tail of a message about an unknown name: the closest valid one, and all of them."""
    names = sorted(valid)
    close = get_close_matches(word, names, n=1)
    listed = ", ".join(names)
    return f"did you mean {close[0]!r}? Valid: {listed}." if close else f"valid: {listed}."
