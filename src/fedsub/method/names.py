"""How names of methods are compared, whoever writes them, and which labels they may have."""

import reprlib

from fedsub.errors import ConfigError

LONGEST_LABEL = 150  # a name in a directory has at most 255 bytes


def normal(name: str) -> str:
    """A method's name as the catalogue spells it: "L2SGD+" is l2sgd_plus, "AL2SGD+" al2sgd_plus."""
    return name.strip().lower().replace("+", "_plus").replace("-", "_").replace(" ", "_")


def check_label(label: str) -> None:
    """Refuse a label that no directory can be named after."""
    if len(label) > LONGEST_LABEL:
        raise ConfigError(
            f"The label {reprlib.repr(label)} has {len(label):,} characters, and its runs' directories are named after "
            f"it; give at most {LONGEST_LABEL}."
        )
    if any("\ud800" <= c <= "\udfff" for c in label):
        raise ConfigError(f"The label {label!r} is not valid Unicode; rename the method.")
