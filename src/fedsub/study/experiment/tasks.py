"""Built-in tasks: data, a model and settings under one name, for a first run and for comparing with papers.

Settings are those of Ding et al. (NeurIPS 2022) where they are known; see docs/reproduce.md for those that are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsub.errors import ConfigError, DataError, nearest

if TYPE_CHECKING:
    from fedsub.data import Clients
    from fedsub.data.datasets.options import Option

LIBSVM, ENDINGS = "libsvm", (".libsvm", ".svm", ".svmlight")


@dataclass(frozen=True)
class Task:
    """``make(folder, scale, options)`` gives the data; ``config`` holds defaults as in a TOML file.

    ``options`` are the data set's own choices (``[data.options]``), such as how ties are read; unknown ones are errors.
    """

    name: str
    summary: str
    make: Callable[[Path | None, float | None, dict[str, Any]], Clients]
    config: dict[str, Any] = field(default_factory=dict)


def _twin(name: str, folder: Path | None, scale: float | None, options: dict[str, Any]) -> Clients:
    from fedsub.data import Clients
    from fedsub.data.twins import TWINS

    if folder is not None:
        if cut_before(folder):
            raise ConfigError(f"{folder} holds train and test apart; name one of them, or use fedsub run or compare.")
        if not _saved(folder):
            raise ConfigError(
                f"The task {name} is generated; {folder} holds no data that were generated before. Leave --data "
                "(data.path) out."
            )
        return Clients.open(folder)
    strange = sorted(options.keys() - {"seed"})
    if strange:
        raise ConfigError(f"The task {name} has no option {strange[0]!r}; {nearest(strange[0], ['seed'])}")
    return TWINS[name].make(scale=1.0 if scale is None else scale, **options)


def _real(name: str, folder: Path | None, scale: float | None, options: dict[str, Any]) -> Clients:
    from fedsub.data import Clients
    from fedsub.data.datasets import find, load
    from fedsub.data.store import provenance

    if scale is not None:
        raise ConfigError(f"The task {name} has one size; leave --scale (data.scale) out.")
    if folder is not None and _saved(folder) and "dataset" not in (provenance(folder) or {}):
        return Clients.open(folder)  # saved by its owner, who knows what it is
    try:
        return load(name, folder, **options)
    except DataError as error:
        if folder is not None or find(name) is not None:
            raise
        raise ConfigError(
            f"The task {name} needs the data; name the folder with --data DIR. {error} "
            f"Tasks that need none: {', '.join(TWINS)}."
        ) from error


def _convex(name: str, folder: Path | None, scale: float | None, options: dict[str, Any]) -> Clients:
    """Dense features, bundled with scikit-learn or generated, or a file in LibSVM's format."""
    from fedsub.data import Clients
    from fedsub.data.datasets.options import checked

    if scale is not None:
        raise ConfigError(f"The task {name} is sized by its options (data.options); leave --scale (data.scale) out.")
    if folder is not None and _saved(folder):
        return Clients.open(folder)
    if name == LIBSVM:
        if folder is None:
            raise ConfigError(f"The task {name} needs a file; name it with --data FILE (data.path).")
    elif folder is not None:
        raise ConfigError(f"The task {name} needs no data from disk; leave --data (data.path) out.")
    make = convex_reader(name)
    chosen = checked(convex_options(name), options, name)
    return make(folder, **chosen) if name == LIBSVM else make(**chosen)


def convex_reader(name: str) -> Callable[..., Clients]:
    """What makes the data of one of the tasks `CONVEX`."""
    from fedsub.data import convex

    made = {LIBSVM: convex.libsvm, "planted-logistic": convex.generate_logistic}
    made["planted-least-squares"] = convex.generate_least_squares
    return made[name] if name in made else partial(convex.bundled, name)


def convex_options(name: str) -> dict[str, Option]:
    """The options (data.options) of one of the tasks `CONVEX`."""
    from fedsub.data.datasets.options import options_of

    reader = convex_reader(name)
    return options_of(reader.func if isinstance(reader, partial) else reader)


def is_libsvm(path: Path) -> bool:
    """Whether a file's name says that it is in LibSVM's format, packed or not."""
    return path.name.lower().removesuffix(".gz").removesuffix(".bz2").endswith(ENDINGS)


def _saved(folder: Path) -> bool:
    """Whether `Clients.save` wrote this directory."""
    from fedsub.data.store import MANIFEST

    return (folder / MANIFEST).is_file()


def cut_before(folder: Path) -> bool:
    """Whether the folder holds a twin's train and test parts, as `Twin.write` leaves them."""
    return _saved(folder / "train") and _saved(folder / "test")


def present(name: str, folder: Path | None) -> bool:
    """Whether a task's data are in ``folder``, in a folder below it, or without one in the cache."""
    from fedsub.data.datasets import find

    if folder is not None and not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}; name the one that holds the data with --data DIR.")
    return find(name, folder) is not None


# What is compared where nothing is asked for, and what is trained alone (docs/zoo.md): the plain mean, the correction
# as stated, tempered for servers that must stay stateless, and the server that was best where all were tuned alike.
ADVISED = "fedadagrad"
USUAL: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedsubavg": {},
    "FedSubAvg tempered": {"method": "fedsubavg", "temper": 0.5},
    ADVISED: {"tau": 1e-5},
}
_ALL = {"fedavg": {}, "fedprox": {"mu": 0.01}, **USUAL, "centralsgd": {}}

# Logistic regression without bias, 50 clients a round, 10 local steps on batches of 5.
_MOVIELENS: dict[str, Any] = {
    "split": {"by": "random", "train": 0.8, "seed": 0},
    "model": {"kind": "lr", "bias": False},
    "train": {"rounds": 200, "clients_per_round": 50, "local_steps": 10, "batch_size": 5, "lr": 0.1},
    "methods": _ALL,
    "run": {"target": "train.ce<=0.65"},
    "evaluate": {"every": 10, "samples": 10_000},
}
# Two-layer LSTM; the same training settings.
_SENTIMENT: dict[str, Any] = {
    **_MOVIELENS,
    "model": {"kind": "lstm"},
    "run": {"target": "train.ce<=0.38"},
}
# The last 30 words of a line, as for tweets; 15 % of the lines are longer, up to 54 words.
_CRITICS: dict[str, Any] = {**_SENTIMENT, "data": {"options": {"max_len": 30}}}
# The released code: batches of 4, gradients of at most norm 5, rate 0.1 × 0.999 a round, evaluated every round on all
# test samples. Of the training samples a part is enough to watch the loss.
_DIN: dict[str, Any] = {
    "model": {"kind": "din"},
    "train": {
        "rounds": 200, "clients_per_round": 100, "local_steps": 10, "batch_size": 4, "lr": 0.1, "clip_norm": 5.0,
        "schedule": "exponential:0.999",
    },
    "methods": _ALL,
    "run": {"target": "test.auc>=0.6"},
    "evaluate": {
        "every": 1, "samples": {"train": 2_000, "test": "all"},
        "slices": {"test_seen": {"split": "test", "columns": ["item"]}},
    },
}  # fmt: skip
# The released code has no limit; 8 % of the samples have more than 50 earlier purchases, which take much time.
_AMAZON: dict[str, Any] = {
    **_DIN,
    "model": {"kind": "din", "max_history": 50},
    "data": {"values": ["history_length"]},  # there with data.options.history = "released"
    "split": {"by": "column", "column": "holdout"},
}
# It has no times, and clients too small for the paper's batch of 32. The paper's rate of FedSubAvg and the released
# code's clipping: rows of a single client get 487 times their update, and at a norm of 5 nothing is learned.
_TAOBAO: dict[str, Any] = {
    **_DIN,
    "train": {**_DIN["train"], "lr": 0.3, "clip_norm": 0.1},
    "split": {"by": "random", "train": 0.8, "seed": 0},
}
# The paper's batch of 32, and the released code's clipping at 0.1.
_ALIBABA: dict[str, Any] = {
    **_AMAZON,
    "train": {**_DIN["train"], "batch_size": 32, "clip_norm": 0.1},
    "evaluate": {**_DIN["evaluate"], "every": 5, "samples": {"train": 2_000, "test": 20_000}},
}
# Dense features and a linear model; all clients in every round, as for the mixture methods. The settings are ours.
_LINEAR: dict[str, Any] = {
    "data": {"values": ["features"]},
    "split": {"by": "random", "train": 0.8, "seed": 0},
    "model": {"kind": "linear", "bias": True, "l2": 0.001},
    "train": {"rounds": 100, "clients_per_round": "all", "local_steps": 10, "batch_size": 5, "lr": 0.05},
    "methods": {"fedavg": {}, "fedprox": {"mu": 0.1}, "scaffold": {}},
    "evaluate": {"every": 10, "samples": "all"},
}
_CLASSES: dict[str, Any] = {**_LINEAR, "model": {**_LINEAR["model"], "loss": "cross_entropy"}}
_VALUES: dict[str, Any] = {**_LINEAR, "model": {**_LINEAR["model"], "loss": "squared"}}

REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "movielens-1m": ("MovieLens-1M, likes from five id columns", _MOVIELENS),
    "movielens-latest-small": ("MovieLens latest-small, likes from the movie", _MOVIELENS),
    "sentiment140": ("Sentiment140, mood of tweets by their authors", _SENTIMENT),
    "rotten-tomatoes-critics": ("film critics' lines, a stand-in for Sentiment140", _CRITICS),
    "amazon-electronics": ("Amazon Electronics, five stars or fewer", _AMAZON),
    "taobao-user-behaviour": ("Taobao, viewed or drawn at random", _ALIBABA),
    "taobao-cart-buy": ("Taobao, bought or only put into the cart", _TAOBAO),
}
TWINS: dict[str, tuple[str, dict[str, Any]]] = {
    "movielens-like": ("synthetic MovieLens-1M: same sizes and skew, labels from a known model", _MOVIELENS),
    "sentiment-like": ("synthetic Sentiment140", _SENTIMENT),
    "amazon-like": ("synthetic Amazon Electronics", _AMAZON),
    "alibaba-like": ("synthetic Alibaba click log", _ALIBABA),
}
CONVEX: dict[str, tuple[str, dict[str, Any]]] = {
    "breast-cancer": ("569 samples of scikit-learn, benign or not, in 20 clients sorted by label", _LINEAR),
    "digits": ("1,797 digits of scikit-learn, ten classes", _CLASSES),
    "wine": ("178 wines of scikit-learn, three classes", _CLASSES),
    "iris": ("150 plants of scikit-learn, three classes", _CLASSES),
    "diabetes": ("442 patients of scikit-learn, a value to predict", _VALUES),
    "planted-logistic": ("generated logistic regression with a known truth", _LINEAR),
    "planted-least-squares": ("generated least squares with a known truth", _VALUES),
    LIBSVM: ("a file in LibSVM's format (needs --data FILE)", _LINEAR),
}
TASKS: dict[str, Task] = {
    **{name: Task(name, text, partial(_twin, name), config) for name, (text, config) in TWINS.items()},
    **{
        name: Task(name, f"{text} (needs --data DIR)", partial(_real, name), config)
        for name, (text, config) in REAL.items()
    },
    **{name: Task(name, text, partial(_convex, name), config) for name, (text, config) in CONVEX.items()},
}


def get(name: str) -> Task:
    if name not in TASKS:
        raise ConfigError(f"There is no task {name!r}; {nearest(name, TASKS)}")
    return TASKS[name]
