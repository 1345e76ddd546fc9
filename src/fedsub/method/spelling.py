"""Short spellings: settings as the command line, TOML files and hasty Python write them, turned into objects.

    solver    sgd  adam                                                                 and lr, local_steps, …
    server    add  adam  yogi  adagrad  frequency  history                              and server_lr, tau, …
    sampler   uniform  by-size  poisson  pow-d:20  cpow-d:20  rpow-d:20  ucb:0.7        and clients_per_round, …
    codec     sign  ef-sign  topk:0.05  randomk:0.05  int8
    schedule  constant  exponential:0.999  diminishing:100  cosine:400
    variates  II  I  I:1  dynamic:0.1  admm:0.1  split:0.1  svrg                      one of them
    iterates  last  tail:0.25  tail:100  ema:0.99                                       around the server
    secure    union:0.5  clear:0.5  union:0.5,rows_threshold=3,simulate=false           rows, clip, other settings
              perturbed:0.5,preset=2  perturbed:0.5,p1=0.9,p2=0.1,p3=0.8,p4=0.2,rows=50
    dp        central:clip=0.5,noise=1  central:clip=0.5,epsilon=8  local:clip=0.5,noise=4
    heat      exact  rr:1  oue:1  prr:2  hadamard:1,rows=100  histogram:1,rows=100  secure

The first three words are understood together with the settings beside them, `BESIDE`. An object in place of a word
has its own settings: the same ones beside it are refused. Nothing else in fedsub reads such words; matrix
factorisation, whose projections are words too, reads them by `read_word`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from functools import partial
from typing import Any, NoReturn, cast

from fedsub.errors import MethodError, nearest
from fedsub.method.codecs import ErrorFeedbackSign, Int8, RandomK, Sign, TopK
from fedsub.method.local import SGD, Adam
from fedsub.method.part import Part
from fedsub.method.parts import (
    AnchoredSteps,
    CentralDP,
    ControlVariates,
    Dynamic,
    LocalDP,
    Multipliers,
    SecureSum,
    Splitting,
)
from fedsub.method.parts.bounded import BoundedUpdate
from fedsub.method.parts.secure_sum import ROWS
from fedsub.method.patterns import Groups, share_out
from fedsub.method.sampling import UCB, BySize, Everyone, Fraction, Poisson, PowerOfChoice, Uniform
from fedsub.method.schedules import Cosine, Diminishing, Exponential, Schedule
from fedsub.method.servers import EMA, Adagrad, Add, FrequencyAware, ScaffoldHistory, TailMean, Yogi
from fedsub.method.servers import Adam as AdamServer
from fedsub.method.servers.iterates import MeanOfIterates
from fedsub.method.settings import DEFAULTS
from fedsub.method.slots import Local, Sampler, Server
from fedsub.privacy.heat import (
    CentralHistogram,
    Hadamard,
    PermanentResponse,
    PrivateHeat,
    RandomizedResponse,
    SecureCount,
)

Words = Mapping[str, tuple[Callable[..., Any], type | None]]  # word -> what it makes, and the number it may take

SOLVERS = {"sgd": SGD, "adam": Adam}
SERVERS = {
    "add": Add, "adam": AdamServer, "yogi": Yogi, "adagrad": Adagrad, "frequency": FrequencyAware,
    "history": ScaffoldHistory,
}  # fmt: skip
SAMPLERS: Words = {
    "uniform": (Uniform, None), "by-size": (BySize, None), "poisson": (Poisson, None), "pow-d": (PowerOfChoice, int),
    "cpow-d": (PowerOfChoice, int), "rpow-d": (PowerOfChoice, int), "ucb": (UCB, float),
}  # fmt: skip
CODECS: Words = {
    "sign": (Sign, None), "ef-sign": (ErrorFeedbackSign, None), "topk": (TopK, float), "randomk": (RandomK, float),
    "int8": (Int8, None),
}  # fmt: skip
SCHEDULES: Words = {
    "constant": (lambda: None, None), "exponential": (Exponential, float), "diminishing": (Diminishing, float),
    "cosine": (Cosine, int),
}  # fmt: skip
ITERATES: Words = {"last": (lambda: None, None), "tail": (TailMean, float), "ema": (EMA, float)}
PRIVACY: dict[str, type[BoundedUpdate]] = {"central": CentralDP, "local": LocalDP}
VARIATES: Words = {
    "I": (partial(ControlVariates, "I"), float), "II": (partial(ControlVariates, "II"), None),
    "dynamic": (Dynamic, float), "admm": (Multipliers, float), "split": (Splitting, float),
    "svrg": (AnchoredSteps, None),
}  # fmt: skip
HEATS: dict[str, tuple[Callable[..., PrivateHeat], str | None]] = {  # and the field that a bare number means
    "rr": (RandomizedResponse, "epsilon"), "oue": (partial(RandomizedResponse, kind="optimal"), "epsilon"),
    "prr": (PermanentResponse, "preset"), "hadamard": (Hadamard, "epsilon"),
    "histogram": (CentralHistogram, "epsilon"), "secure": (SecureCount, None),
}  # fmt: skip

# Settings of a server, and what its class calls them; it understands those that it has.
_OF_SERVER = {
    "server_lr": "lr", "server_momentum": "momentum", "tau": "tau", "beta1": "beta1", "beta2": "beta2",
    "sparse_server": "sparse_server",
}  # fmt: skip
BESIDE: dict[str, tuple[str, ...]] = {
    "solver": ("lr", "local_steps", "local_epochs", "batch_size", "batches", "weight_decay", "clip_norm", "schedule",
               "momentum", "step_decay"),
    "server": tuple(_OF_SERVER),
    "sampler": ("clients_per_round", "clients_fraction", "replacement"),
}  # fmt: skip


def objects(
    name: str, given: Mapping[str, Any], made: Mapping[str, Any], own: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The settings that were ``given`` to the method ``name``, with objects for words.

    ``made`` is what the method fills in by itself: values, or for "server" the class of which it must be. ``own`` are
    its own parameters and their defaults, which nobody asked for. Of ``groups`` the average's share is left.
    """
    rest = dict(given)
    of_solver, of_server, rest["groups"] = share_out(rest.pop("groups", None))
    slots = {slot: _Slot(slot, name, rest, own or {}, made.get(slot)) for slot in BESIDE}
    rest["solver"] = slots["solver"].read(of_solver, _solver)
    rest["server"] = slots["server"].read(of_server, _server)
    rest["server"] = _mean_of_iterates(rest.pop("iterates", None), rest["server"])
    rest["sampler"] = slots["sampler"].read(None, _sampler)
    readers = {"codec": codec, "variates": variates, "dp": dp, "secure": secure}
    for setting, read in readers.items():
        if setting in rest:
            rest[setting] = read(rest[setting])
    for setting, value in made.items():
        if setting in readers:
            value = readers[setting](value)
        if setting != "server" and rest.setdefault(setting, value) != value:
            refuse_other(name, setting, word(value), given[setting])
    return rest


class _Slot:
    """A slot that is given by a word and the settings beside it, or by an object."""

    def __init__(self, slot: str, name: str, rest: dict[str, Any], own: Mapping[str, Any], made: Any):
        self.slot, self.name, self.own, self.made = slot, name, own, made
        if slot in rest and rest[slot] is None:
            raise MethodError(f"{slot} of {name} is None; leave it out for the usual one.")
        self.given = rest.pop(slot, None)
        self.beside = {setting: rest.pop(setting) for setting in BESIDE[slot] if setting in rest}

    def read(self, groups: Groups | None, make: Callable[[_Slot, Groups | None], Any]) -> Any:
        if self.given is None or isinstance(self.given, str):
            return make(self, groups)
        loose = {s: v for s, v in self.beside.items() if s not in self.own or v != self.own[s]}
        if groups:
            loose["groups"] = groups
        for setting, value in loose.items():
            raise MethodError(
                f"{self.slot}={self.given!r} has its own settings, so that {setting}={value!r} beside it means "
                f"nothing; write it into the {self.slot}, or name the {self.slot} by a word."
            )
        inner = self.given.server if isinstance(self.given, MeanOfIterates) else self.given
        if isinstance(self.made, type) and not isinstance(inner, self.made):
            refuse_other(self.name, self.slot, word(self.made), self.given)
        return self.given

    def word(self, words: Mapping[str, Any]) -> str:
        """The word that was given, or the usual one."""
        found = cast("str", dict(DEFAULTS)[self.slot]) if self.given is None else self.given
        if (found.partition(":")[0] if words is SAMPLERS else found) not in words:  # the others take no number
            raise MethodError(f"{self.slot} must be one of {', '.join(words)}; {nearest(found, words)}")
        return found

    def refuse_beside_fraction(self, kind: str) -> None:
        """clients_fraction means nothing beside a number of clients, and to methods and samplers that need one."""
        given = self.beside.get("clients_per_round", DEFAULTS.get("clients_per_round"))
        if self.made is not None or kind.endswith("-d"):
            what = self.name if self.made is not None else f"The sampler {kind}"
            raise MethodError(f"{what} needs a number of clients; give clients_per_round, not clients_fraction.")
        if given != DEFAULTS.get("clients_per_round"):
            raise MethodError(
                f"{self.name} was given clients_per_round={given} and "
                f"clients_fraction={self.beside['clients_fraction']}; give one of them."
            )
        if self.beside.get("replacement") and kind not in ("uniform", "by-size"):
            raise MethodError(f"The sampler {kind} draws without replacement; leave replacement out.")

    def all(self) -> dict[str, Any]:
        """Every setting of the slot, those left out at their defaults."""
        defaults = dict(DEFAULTS)
        return {setting: self.beside.get(setting, defaults[setting]) for setting in BESIDE[self.slot]}


def _solver(slot: _Slot, groups: Groups | None) -> Local:
    kind, s = SOLVERS[slot.word(SOLVERS)], slot.all()
    if s["local_epochs"] is not None:
        if slot.beside.get("local_steps") is not None:
            raise MethodError(
                f"{slot.name} was given local_steps={s['local_steps']} and local_epochs={s['local_epochs']}; "
                "give one of them."
            )
        s["local_steps"] = None
    s["schedule"], momentum, step_decay = schedule(s["schedule"]), s.pop("momentum"), s.pop("step_decay")
    if kind is SGD:
        return SGD(**s, groups=groups, momentum=momentum, step_decay=step_decay)
    if momentum:
        raise MethodError("momentum belongs to solver='sgd'; Adam has its own (beta1 0.9).")
    if step_decay != 1:
        raise MethodError("step_decay belongs to solver='sgd'; with Adam let the rate fall over rounds, by schedule.")
    return kind(**s, groups=groups)


def _server(slot: _Slot, groups: Groups | None) -> Server:
    kind = slot.made or Add
    if slot.given is not None:
        asked = SERVERS[slot.word(SERVERS)]
        if slot.made is not None and asked is not slot.made:
            refuse_other(slot.name, "server", word(slot.made), slot.given)
        kind = asked
    has, defaults = {field.name for field in fields(kind)}, dict(DEFAULTS)
    options = {}
    for setting, value in slot.beside.items():
        if _OF_SERVER[setting] in has:
            if value is not None or defaults[setting] is not None:  # None: what suits the server
                options[_OF_SERVER[setting]] = value
        elif value != defaults[setting]:
            understood = ", ".join(s for s, field in _OF_SERVER.items() if field in has and field != "lr")
            raise MethodError(
                f"{setting}={value!r} means nothing to server={word(kind)!r}; "
                f"it has {understood or 'none of that kind'}."
            )
    return kind(**options, groups=groups)


def _sampler(slot: _Slot, groups: Groups | None) -> Sampler:
    text, s = slot.word(SAMPLERS), slot.all()
    kind = text.partition(":")[0]
    count, replacement = s["clients_per_round"], s["replacement"]
    if (fraction := s["clients_fraction"]) is not None:
        slot.refuse_beside_fraction(kind)
        return Fraction(fraction, _counted(text, kind, 1, replacement))
    if slot.made is not None:
        if slot.given is None and not replacement:
            return slot.made
        count = slot.made.clients_per_round
    if count is None:
        if kind != "uniform":
            raise MethodError(f"clients_per_round=None takes everyone; the sampler {kind} needs a number.")
        return Everyone()
    if replacement and (slot.made is not None or kind not in ("uniform", "by-size")):
        drawn = kind if slot.made is None else type(slot.made).__name__
        raise MethodError(f"The sampler {drawn} draws without replacement; leave replacement out.")
    return _counted(text, kind, count, replacement)


def _counted(text: str, kind: str, count: int, replacement: bool) -> Any:
    """A sampler of so many clients."""
    make, numbers = _read(text, SAMPLERS, "sampler")
    if make is PowerOfChoice:
        return PowerOfChoice(count, int(numbers[0]) if numbers else 2 * count, kind.removesuffix("-d"))
    return make(count, replacement) if kind in ("uniform", "by-size") else make(count, *numbers)


def codec(text: str | Part | None) -> Part | None:
    """A codec from its short spelling, like "topk:0.05"."""
    return text if text is None or (isinstance(text, Part) and text.codec) else read_word(text, CODECS, "codec")


def variates(text: str | Part | None) -> Part | None:
    """What bends local steps: Scaffold's control variates by the option's name ("I:1" names a share of the batches),
    the prices of FedDyn, FedADMM and FedSplit with their ρ ("dynamic:0.1"), or FSVRG's anchor ("svrg").
    """
    if text is None or (isinstance(text, Part) and text.steers):
        return text
    return read_word(text, VARIATES, "variates (Scaffold's option)")


def secure(text: str | Part | None) -> Part | None:
    """A secure sum from how rows are told, the clip, and other settings by name: "union:0.5,rows_threshold=3"."""
    if text is None or isinstance(text, SecureSum):
        return text
    rows, _, rest = str(text).partition(":")
    if not isinstance(text, str) or rows not in ROWS:
        raise MethodError(
            f"secure must be an object, or like {' or '.join(f'{r}:0.5' for r in ROWS)}, where the number is the clip; "
            f"got {text!r}: {nearest(rows, ROWS)}"
        )
    given, told = f"secure={text!r}", rows
    if rows == "perturbed":
        of_rows = {field.name for field in fields(PermanentResponse)}
        items = [item for item in rest.split(",") if item]
        own = [item for item in items if item.partition("=")[0].strip() in of_rows]
        rest = ",".join(item for item in items if item not in own)
        if not own:
            raise MethodError(f"{given} lacks its preset; write perturbed:0.5,preset=2, or p1 to p4.")
        told = _filled(given, "PermanentResponse", PermanentResponse, ",".join(own), "perturbed:0.5,preset=2")
    return _filled(given, "SecureSum", partial(SecureSum, rows=told), rest, f"{rows}:0.5", main="clip")


def dp(text: str | Part | None) -> Part | None:
    """Differential privacy from its short spelling, "central:clip=0.5,noise=1"; a setting alone is True."""
    if text is None or isinstance(text, BoundedUpdate):
        return text
    kind, _, rest = str(text).partition(":")
    if not isinstance(text, str) or kind not in PRIVACY:
        raise MethodError(
            f"dp must be an object, or one of {', '.join(PRIVACY)}; got {text!r}: {nearest(kind, PRIVACY)}"
        )
    return _filled(f"dp={text!r}", kind, PRIVACY[kind], rest, f"{kind}:clip=0.5,noise=1")


def _mean_of_iterates(text: str | None, server: Server) -> Server:
    """The server, or around it what ``iterates`` asks for."""
    wrapped = None if text is None else read_word(text, ITERATES, "iterates", objects=False)
    return server if wrapped is None else replace(wrapped, server=server)


def schedule(text: str | Schedule | None) -> Schedule | None:
    """A schedule from its short spelling; None and "constant" leave the rate as it is."""
    return text if text is None or isinstance(text, Schedule) else read_word(text, SCHEDULES, "schedule")


def heat(text: Any) -> Any:
    """A mechanism of private heat from a word, a number and settings by name: "rr:1", "rr:1,rows=50", "rr:p=0.9,q=0.1".

    "exact" is None; objects and dicts of numbers are themselves.
    """
    if not isinstance(text, str) or text == "exact":
        return None if text == "exact" else text
    kind, _, rest = text.partition(":")
    if kind not in HEATS:
        raise MethodError(f"heat must be an object, or one of exact, {', '.join(HEATS)}; {nearest(kind, HEATS)}")
    make, main = HEATS[kind]
    return _filled(f"heat={text!r}", kind, make, rest, f"{kind}:1", main)


def _filled(
    given: str, kind: str, make: Callable[..., Any], rest: str, example: str, main: str | None = None
) -> Any:  # fmt: skip
    """What a word makes with its own settings, "clip=0.5,eager": a flag alone is True, a bare first value ``main``."""
    of, set_already = (make.func, make.keywords) if isinstance(make, partial) else (make, {})
    own = [field for field in fields(of) if field.init and field.name not in set_already]  # type: ignore[arg-type]
    types = {field.name: str(field.type) for field in own}
    values: dict[str, Any] = {}
    for place, item in enumerate(filter(None, rest.split(","))):
        name, equals, value = (part.strip() for part in item.partition("="))
        if place == 0 and main is not None and not equals:
            name, value = main, name
        if name not in types:
            raise MethodError(f"{given}: {kind} has no setting {name!r}; {nearest(name, types)}")
        if "bool" in types[name]:
            if value not in ("", "true", "false"):
                raise MethodError(f"{given}: {name} is true or false, got {value!r}.")
            values[name] = value != "false"
        elif "float" in types[name] or "int" in types[name]:
            number = float if "float" in types[name] else int
            try:
                values[name] = number(value)
            except ValueError as err:
                kind_of = "number" if number is float else "whole number"
                raise MethodError(f"{given}: {name}={value} is no {kind_of}; write {example}.") from err
        else:
            values[name] = value
    needed = [field.name for field in own if field.default is MISSING and field.default_factory is MISSING]
    if lacking := [name for name in needed if name not in values]:
        raise MethodError(f"{given} lacks {' and '.join(lacking)}; write {example}.")
    return make(**values)


def word(value: Any) -> Any:
    """How a configuration file writes what a method fills in by itself; for reading only."""
    words = {kind: word for word, kind in SERVERS.items()} | {kind: word for word, (kind, _) in CODECS.items()}
    return words.get(value if isinstance(value, type) else type(value), value)


def refuse_other(name: str, setting: str, needed: Any, given: Any) -> NoReturn:
    raise MethodError(
        f"{name} is what it is by {setting}={needed!r}, and was given {given!r}; "
        "start from fedavg or fedsubavg for other combinations."
    )


def read_word(text: Any, words: Words, what: str, *, objects: bool = True) -> Any:
    """What a word of ``words`` makes, with the number behind its colon; ``objects``: whether one would do as well."""
    make, numbers = _read(text, words, what, objects)
    return make(*numbers)


def _read(text: Any, words: Words, what: str, objects: bool = True) -> tuple[Callable[..., Any], list[float]]:
    """What a word makes, and the number behind its colon, if there is one."""
    kind, colon, number = str(text).partition(":")
    if not isinstance(text, str) or kind not in words:
        one_of = "an object, or one of" if objects else "one of"
        raise MethodError(f"{what} must be {one_of} {', '.join(words)}; got {text!r}: {nearest(kind, words)}")
    make, takes = words[kind]
    if not colon:
        return make, []
    if takes is None:
        raise MethodError(f"{what} {kind} takes no number, got {text!r}; write {kind} alone.")
    try:
        value = float(number)
    except ValueError as err:
        raise MethodError(f"{what} {text!r}: {number!r} is not a number; write it like {kind}:1.") from err
    if takes is int and value != int(value):
        raise MethodError(f"{what} {kind} takes a whole number, got {text!r}.")
    return make, [takes(value)]
