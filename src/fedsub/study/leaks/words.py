"""Protections in words: settings of a named method, as a command line writes them.

    none                 the method as it is
    steps:N, batch:N     so many local steps, samples in a batch ("batch:all")
    sign, ef-sign, topk:SHARE, randomk:SHARE, int8          codecs
    local:…, central:…   noise, as the setting dp writes it:      local:clip=0.5,noise=1
    secure:…             a secure sum, as the setting secure writes it: secure:0.5, secure:clear:0.5
    NAME=VALUE           any setting: mu=0.1

Several are joined by "+".
"""

from __future__ import annotations

from typing import Any

from fedsub.errors import ConfigError, nearest
from fedsub.method.spelling import CODECS, PRIVACY
from fedsub.study.experiment.config import parse_set

COUNTS = {"steps": "local_steps", "batch": "batch_size"}
USUAL = ("steps:1+batch:1", "none", "batch:50", "sign", "local:clip=1,noise=0.1", "local:clip=1,noise=1", "secure:1")


def settings_of(words: str) -> dict[str, Any]:
    """The settings that a protection stands for."""
    out: dict[str, Any] = {}
    for word in words.split("+"):
        for name, value in _one(word.strip(), words).items():
            if name in out:
                raise ConfigError(f"{words!r} says {name} twice; join what is about different settings.")
            out[name] = value
    return out


def _one(word: str, words: str) -> dict[str, Any]:
    head, colon, rest = word.partition(":")
    if word == "none":
        return {}
    if head in COUNTS:
        if rest == "all" and head == "batch":
            return {"batch_size": "all"}
        if not rest.isdecimal() or int(rest) < 1:
            raise ConfigError(f"{word!r} needs a whole number from 1 on, such as {head}:10.")
        return {COUNTS[head]: int(rest)}
    if head in PRIVACY:
        return {"dp": word}
    if head == "secure":
        return {"secure": rest if rest.partition(":")[0] in ("union", "clear") else f"union:{rest}"}
    if head in CODECS:
        return {"codec": word}
    if "=" in word and not colon:
        return parse_set(word)
    known = ["none", *COUNTS, *CODECS, *PRIVACY, "secure"]
    raise ConfigError(f"There is no protection {word or words!r}; {nearest(head, known)} Or a setting: mu=0.1.")
