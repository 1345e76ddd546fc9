"""Words and objects: the same method however a setting is written, and no setting beside an object that has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fedsub as fs
from fedsub.errors import MethodError

S, C, P, R = fs.servers, fs.sampling, fs.codecs, fs.schedules
SAME = {  # words and what stands beside them -> objects
    "server": ({"server": "adam", "tau": 1e-5, "server_lr": 0.02}, {"server": S.Adam(lr=0.02, tau=1e-5)}),
    "no word": ({"server_momentum": 0.5, "server_lr": 2.0}, {"server": fs.Add(lr=2.0, momentum=0.5)}),
    "groups": (
        {"groups": {"a": {"lr": 0.5, "server_lr": 2.0, "temper": 0.5}}},
        {
            "solver": fs.SGD(groups={"a": {"lr": 0.5}}),
            "server": fs.Add(groups={"a": {"lr": 2.0}}),
            "groups": {"a": {"temper": 0.5}},
        },
    ),
    "codec": ({"codec": "topk:0.05"}, {"codec": P.TopK(0.05)}),
    "sampler": ({"sampler": "ucb:0.5", "clients_per_round": 20}, {"sampler": C.UCB(20, 0.5)}),
    "candidates": ({"sampler": "rpow-d", "clients_per_round": 20}, {"sampler": C.PowerOfChoice(20, 40, "rpow")}),
    "everyone": ({"clients_per_round": None}, {"sampler": fs.Everyone()}),
    "schedule": ({"schedule": "cosine:400"}, {"schedule": R.Cosine(400)}),
    "solver": ({"solver": "adam", "lr": 0.01, "local_epochs": 2}, {"solver": fs.Adam(0.01, None, 2)}),
    "heat": ({"heat": "rr:1,rows=9"}, {"heat": fs.privacy.RandomizedResponse(1.0, rows=9)}),
    "variates": ({"variates": "I:1"}, {"variates": fs.ControlVariates("I", 1.0)}),
}


@pytest.mark.parametrize("which", SAME)
def test_words_and_objects_make_the_same_method(which: str) -> None:
    words, objects = SAME[which]
    method = fs.methods.fedsubavg(**objects)
    assert fs.methods.fedsubavg(**words) == method
    assert fs.methods.make("fedsubavg", **words) == method
    assert method != fs.methods.fedsubavg()


@pytest.mark.parametrize("name", fs.methods.CATALOGUE)
def test_a_complete_list_of_settings_changes_nothing(name: str) -> None:
    """As configuration files are run: every setting written out."""
    entry = fs.methods.CATALOGUE[name]
    assert fs.methods.make(name, **entry.defaults).describe() == entry.make().describe()


@pytest.mark.parametrize(
    ("settings", "loose"),
    [
        *[({"server": S.Adam(), k: v}, k) for k, v in {"tau": 1e-3, "beta1": 0.5, "beta2": 0.5}.items()],
        ({"server": S.Adam(), "server_lr": 1.0}, "server_lr"),
        *[({"server": fs.Add(), k: v}, k) for k, v in {"server_momentum": 0.9, "sparse_server": True}.items()],
        ({"server": fs.Add(), "groups": {"a": {"server_lr": 2.0}}}, "groups"),
        ({"solver": fs.SGD(), "lr": 0.3}, "lr"),
        ({"solver": fs.SGD(), "schedule": "cosine:4"}, "schedule"),
        ({"sampler": C.UCB(20), "clients_per_round": 20}, "clients_per_round"),
        ({"sampler": C.Uniform(20), "replacement": True}, "replacement"),
    ],
)  # fmt: skip
def test_a_setting_beside_an_object_that_has_its_own_is_refused(settings: dict, loose: str) -> None:
    with pytest.raises(MethodError, match=rf"has its own settings, so that {loose}="):
        fs.methods.fedsubavg(**settings)


def test_what_a_method_is_made_of_stays() -> None:
    m = fs.methods
    assert m.fedadam(server=S.Adam(lr=0.5)).server == S.Adam(lr=0.5)
    assert m.fedadam(server="adam", server_lr=0.5).server == S.Adam(lr=0.5)
    assert m.power_of_choice(sampler="pow-d:100") == m.power_of_choice()
    others: list[tuple[Callable[..., fs.Method], dict[str, Any]]] = [
        (m.fedadam, {"server": "add"}),
        (m.fedadam, {"server": S.Yogi()}),
        (m.signsgd, {"codec": None}),
        (m.ef_signsgd, {"codec": P.Sign()}),
        (m.fednova, {"normalise": False}),
        (m.ucb_cs, {"sampler": "by-size"}),
        (m.scaffold, {"variates": "I"}),
    ]
    for make, settings in others:
        with pytest.raises(MethodError, match="is what it is by"):
            make(**settings)
    with pytest.raises(MethodError, match="without replacement"):
        m.ucb_cs(replacement=True)


def test_a_methods_own_default_is_no_request() -> None:
    """signsgd has server_lr and local_steps of its own; nobody asked for them beside an object."""
    method = fs.methods.signsgd(server=S.Yogi(lr=0.5), solver=fs.SGD(local_steps=7))
    assert method.server == S.Yogi(lr=0.5)
    assert method.local.local_steps == 7
    with pytest.raises(MethodError, match="server_lr"):
        fs.methods.signsgd(server=S.Yogi(lr=0.5), server_lr=0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tau": 1e-5}, "means nothing to server='add'; it has server_momentum, sparse_server"),
        ({"server": "frequency", "sparse_server": True}, "none of that kind"),
        ({"server": "adm"}, "did you mean 'adam'"),
        ({"server": None}, "leave it out"),
        ({"server": S.Adam}, "is a class"),
        ({"sampler": "uniform:3"}, "takes no number"),
        ({"sampler": "pow-d:20.5"}, "whole number"),
        ({"sampler": "poisson", "clients_per_round": None}, "needs a number"),
        ({"codec": "sign:1"}, "takes no number"),
        ({"codec": "topk:x"}, "not a number"),
        ({"variates": "dynamic:"}, "not a number; write it like dynamic:1"),
        ({"codec": "sign:"}, "takes no number"),
        ({"codec": fs.Prox()}, "codec must be"),
        ({"schedule": 3}, "schedule must be"),
        ({"solver": "adam", "momentum": 0.9}, "momentum belongs"),
    ],
)
def test_nonsense_is_refused(settings: dict, said: str) -> None:
    with pytest.raises(MethodError, match=said):
        fs.methods.fedavg(**settings)


@pytest.mark.parametrize("option", ["X", "I:many", "II:1"])
def test_words_of_a_methods_own_setting_are_read_like_all_others(option: str) -> None:
    with pytest.raises(MethodError, match="Scaffold's option"):
        fs.methods.scaffold(option=option)
