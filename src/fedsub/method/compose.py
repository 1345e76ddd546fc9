"""From settings to slots: what every named federated method understands.

Any method may be told to use another local solver, server, sampler or codec, a proximal term, clipping or a
schedule: ``fedsubavg(server="adam", tau=1e-5, mu=0.01, codec="topk:0.05")``. Settings are plain values, so that
the command line and TOML files can say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

from fedsub.checks import check_number
from fedsub.errors import ConfigError, MethodError, nearest
from fedsub.method.average import OverHolders
from fedsub.method.local import SGD, Adam
from fedsub.method.parts import ClipRows, ControlVariates, NormalisedSteps, Personal, Prox
from fedsub.method.sampling import UCB, BySize, Everyone, Poisson, PowerOfChoice, Uniform
from fedsub.method.schedules import parse as parse_schedule
from fedsub.method.servers import Adagrad, Add, FrequencyAware, ScaffoldHistory, Yogi
from fedsub.method.servers import Adam as AdamServer
from fedsub.method.slots import Average, Local, Method, Part, Sampler, Server


class Common(TypedDict, total=False):
    """Settings that the federated methods share; see `DEFAULTS`."""

    lr: float
    local_steps: int
    local_epochs: int | None  # instead of local_steps
    batch_size: int | None  # None: all local data
    clients_per_round: int | None  # None: everyone
    server_lr: float | None  # None: what suits the server
    batches: str
    replacement: bool
    solver: str  # local: "sgd" or "adam"
    momentum: float  # local, reset every round
    weight_decay: float
    clip_norm: float | None
    schedule: str | None  # "exponential:0.999", "diminishing:100", "cosine:400"
    mu: float  # proximal term
    variates: str | None  # Scaffold's control variates: "II", "I" or, with another share of batches, "I:1"
    normalise: bool  # FedNova's normalised steps
    personal: str | list[str] | None  # parameters that stay with the client: patterns, or "last" (layer)
    personal_init: str  # "random" or "shared"
    clip_rows: float | None  # at the server: largest step of a row
    server: str
    server_momentum: float
    beta1: float | None  # None: what suits the server
    beta2: float
    tau: float
    sparse_server: bool
    codec: str | None  # "sign", "ef-sign", "topk:0.01", "randomk:0.01", "int8"
    sampler: str  # "uniform", "by-size", "poisson", "pow-d:20", "cpow-d:20", "rpow-d:20", "ucb:0.7"
    groups: dict[str, dict[str, float]] | None  # by pattern: lr, weight_decay, server_lr, temper, …


DEFAULTS = Common(
    lr=0.1, local_steps=10, local_epochs=None, batch_size=5, clients_per_round=50, server_lr=None, batches="shuffled",
    replacement=False, solver="sgd", momentum=0.0, weight_decay=0.0, clip_norm=None, schedule=None, mu=0.0,
    variates=None, normalise=False, personal=None, personal_init="random", clip_rows=None,
    server="add", server_momentum=0.0, beta1=None, beta2=0.99,
    tau=1e-3, sparse_server=False, codec=None, sampler="uniform", groups=None,
)  # fmt: skip

_LOCAL, _SERVER, _AVERAGE = ("lr", "weight_decay", "clip_norm"), ("server_lr",), ("temper", "max_coef")


def compose(name: str, average: Average, settings: Mapping[str, Any], known: Mapping[str, Any]) -> Method:
    """A method from settings, of which those left out take their defaults; ``known`` are all that ``name`` has."""
    for setting in settings:
        if setting not in DEFAULTS:
            raise ConfigError(f"{name} has no setting {setting!r}; {nearest(setting, known)}")
    if settings.get("local_steps") is not None and settings.get("local_epochs") is not None:
        raise MethodError(
            f"{name} was given local_steps={settings['local_steps']} and local_epochs={settings['local_epochs']}; "
            "give one of them."
        )
    s: dict[str, Any] = {**DEFAULTS, **settings}
    local_groups, server_groups, average_groups = _share_out(s["groups"])
    if average_groups:
        if not isinstance(average, OverHolders):
            raise MethodError(
                f"groups set temper or max_coef, the heat correction's exponent and cap, which {name} does not have; "
                "use fedsubavg."
            )
        average = replace(average, groups=average_groups)
    return Method(
        local=_local(s, local_groups),
        parts=_parts(s),
        average=average,
        server=_server(s, server_groups),
        sampler=_sampler(s),
        name=name,
    )


def _share_out(groups: Any) -> list[dict[str, dict[str, float]] | None]:
    """Settings by pattern, as each slot takes them: local solver, server, average."""
    if groups is None:
        return [None, None, None]
    if not isinstance(groups, Mapping) or not all(isinstance(v, Mapping) for v in groups.values()):
        raise MethodError(f'groups must map patterns to settings, like {{"items.*": {{"lr": 0.5}}}}; got {groups!r}.')
    for pattern, values in groups.items():
        for key in values:
            if key not in (*_LOCAL, *_SERVER, *_AVERAGE):
                raise MethodError(f"groups[{pattern!r}] sets {key!r}; {nearest(key, (*_LOCAL, *_SERVER, *_AVERAGE))}")
    shares: list[dict[str, dict[str, float]] | None] = []
    for keys in (_LOCAL, _SERVER, _AVERAGE):
        own = {
            p: {k.removeprefix("server_"): v for k, v in values.items() if k in keys} for p, values in groups.items()
        }
        own = {pattern: values for pattern, values in own.items() if values}
        shares.append(own or None)
    return shares


def _local(s: Mapping[str, Any], groups: Any) -> Local:
    steps = None if s["local_epochs"] is not None else s["local_steps"]
    options = {
        "lr": s["lr"], "local_steps": steps, "local_epochs": s["local_epochs"], "batch_size": s["batch_size"],
        "batches": s["batches"], "weight_decay": s["weight_decay"], "clip_norm": s["clip_norm"],
        "schedule": parse_schedule(s["schedule"]), "groups": groups,
    }  # fmt: skip
    if s["solver"] == "sgd":
        return SGD(**options, momentum=s["momentum"])
    if s["solver"] == "adam":
        if s["momentum"]:
            raise MethodError("momentum belongs to solver='sgd'; Adam has its own (beta1 0.9).")
        return Adam(**options)
    raise MethodError(f"solver must be 'sgd' or 'adam', got {s['solver']!r}.")


def _parts(s: Mapping[str, Any]) -> tuple[Part, ...]:
    parts: list[Part] = []
    if s["personal"] is not None:
        names = s["personal"]
        parts.append(Personal((names,) if isinstance(names, str) else tuple(names), init=s["personal_init"]))
    elif s["personal_init"] != DEFAULTS.get("personal_init"):
        raise MethodError(f"personal_init={s['personal_init']!r} means nothing without personal parameters.")
    check_number("mu", s["mu"])
    if s["mu"]:
        parts.append(Prox(s["mu"]))
    if s["variates"] is not None:
        option, share = _spelt(s["variates"], ("I", "II"), "variates (Scaffold's option)")
        if share is not None and option == "II":
            raise MethodError(f"Scaffold's option II takes no number, got {s['variates']!r}.")
        parts.append(ControlVariates(option) if share is None else ControlVariates(option, share))
    if s["normalise"]:
        parts.append(NormalisedSteps())
    if s["clip_rows"] is not None:
        parts.append(ClipRows(s["clip_rows"]))
    if s["codec"] is not None:
        parts.append(parse_codec(s["codec"]))
    return tuple(parts)


SERVERS: dict[str, Callable[..., Server]] = {
    "add": Add, "adam": AdamServer, "yogi": Yogi, "adagrad": Adagrad, "frequency": FrequencyAware,
    "history": ScaffoldHistory,
}  # fmt: skip


def _server(s: Mapping[str, Any], groups: Any) -> Server:
    kind = s["server"]
    if not isinstance(kind, str) or kind not in SERVERS:
        raise MethodError(f"server must be one of {', '.join(SERVERS)}; {nearest(str(kind), SERVERS)}")
    understood = {
        "add": ("server_momentum", "sparse_server"), "adam": ("tau", "beta1", "beta2", "sparse_server"),
        "yogi": ("tau", "beta1", "beta2", "sparse_server"), "adagrad": ("tau", "beta1", "sparse_server"),
        "frequency": (), "history": ("sparse_server",),
    }[kind]  # fmt: skip
    for setting in ("tau", "beta1", "beta2", "server_momentum", "sparse_server"):
        if setting not in understood and s[setting] != dict(DEFAULTS)[setting]:
            has = f"it has {', '.join(understood)}" if understood else "it has none of that kind"
            raise MethodError(f"{setting}={s[setting]!r} means nothing to server={kind!r}; {has}.")
    options: dict[str, Any] = {"groups": groups}
    if s["server_lr"] is not None:
        options["lr"] = s["server_lr"]
    if kind != "frequency":
        options["sparse_server"] = s["sparse_server"]
    if kind in ("adam", "yogi", "adagrad"):
        options["tau"] = s["tau"]
        if s["beta1"] is not None:
            options["beta1"] = s["beta1"]
        if kind != "adagrad":
            options["beta2"] = s["beta2"]
    if kind == "add":
        options["momentum"] = s["server_momentum"]
    return SERVERS[kind](**options)


CODECS = {"sign": "Sign", "ef-sign": "ErrorFeedbackSign", "topk": "TopK", "randomk": "RandomK", "int8": "Int8"}


def parse_codec(text: Any) -> Part:
    """A codec from its short spelling, like "topk:0.05"."""
    from fedsub.method import codecs

    kind, value = _spelt(text, CODECS, "codec")
    make: Callable[..., Part] = getattr(codecs, CODECS[kind])
    if value is None:
        return make()
    if kind not in ("topk", "randomk"):
        raise MethodError(f"codec {kind} takes no number, got {text!r}.")
    return make(value)


SAMPLERS = ("uniform", "by-size", "poisson", "pow-d", "cpow-d", "rpow-d", "ucb")


def _sampler(s: Mapping[str, Any]) -> Sampler:
    kind, value = _spelt(s["sampler"], SAMPLERS, "sampler")
    count = s["clients_per_round"]
    if count is None:
        if kind != "uniform":
            raise MethodError(f"clients_per_round=None takes everyone; the sampler {kind} needs a number.")
        return Everyone()
    if s["replacement"] and kind not in ("uniform", "by-size"):
        raise MethodError(f"The sampler {kind} draws without replacement; leave replacement out.")
    if value is not None and kind in ("uniform", "by-size", "poisson"):
        raise MethodError(f"The sampler {kind} takes no number, got {s['sampler']!r}; set clients_per_round.")
    if kind == "uniform":
        return Uniform(count, s["replacement"])
    if kind == "by-size":
        return BySize(count, s["replacement"])
    if kind == "poisson":
        return Poisson(count)
    if kind == "ucb":
        return UCB(count) if value is None else UCB(count, value)
    candidates = 2 * count if value is None else value
    if candidates != int(candidates):
        raise MethodError(f"{kind} draws a whole number of candidates, got {s['sampler']!r}.")
    return PowerOfChoice(count, int(candidates), kind.removesuffix("-d"))


def _spelt(text: Any, kinds: Any, what: str) -> tuple[str, float | None]:
    kind, _, number = str(text).partition(":")
    if not isinstance(text, str) or kind not in kinds:
        raise MethodError(f"{what} must be one of {', '.join(kinds)}; {nearest(kind, kinds)}")
    try:
        return kind, float(number) if number else None
    except ValueError as err:
        raise MethodError(f"{what} {text!r}: {number!r} is not a number.") from err
