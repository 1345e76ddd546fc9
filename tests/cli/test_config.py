"""Configurations: what is accepted, how layers combine, what a mistake is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import composed, there

from fedsub.cli.options import Flags
from fedsub.cli.what import experiment
from fedsub.errors import ConfigError, DataNotice
from fedsub.study.experiment import tasks
from fedsub.study.experiment.config import Config, merge, parse, parse_set
from fedsub.study.experiment.experiment import Experiment


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"train": {"round": 3}}, "there is no setting 'train.round'; did you mean 'train.rounds'?"),
        ({"trian": {}}, "there is no setting 'trian'; did you mean 'train'?"),
        ({"rounds": 3}, "there is no setting 'rounds'; did you mean 'train.rounds'?"),
        ({"run": {"lr": 3}}, "there is no setting 'run.lr'; did you mean 'train.lr'?"),
        ({"train": {"rounds": "3"}}, "train.rounds is the text '3', expected a whole number."),
        ({"train": {"rounds": 0}}, "train.rounds is 0, expected a number greater than or equal to 1."),
        ({"train": {"batch_size": "al"}}, """expected a whole number or "all"."""),
        ({"train": {"seeds": True}}, "train.seeds is true, expected a whole number or a list of whole numbers."),
        ({"train": {"seeds": [1, 1]}}, "seeds must be different"),
        ({"train": {"local_steps": 2, "local_epochs": 1}}, "exclude each other"),
        ({"train": {"clients_per_round": 2, "clients_fraction": 0.1}}, "exclude each other"),
        ({"train": 3}, "train is 3, expected a table."),
        ({"data": {"tables": 3}}, "data.tables is 3, expected a list of names or a table."),
        ({"methods": {"fedavg": 3}}, "methods.fedavg is 3, expected a table."),
        (
            {"split": {"by": "tim"}},
            """split.by is the text 'tim', expected "random", "time", "last", "ending", """,
        ),
        ({"split": {"by": "time"}}, "needs split.column"),
        ({"model": {"dim": 3}}, """dim is no option of kind = "lr"."""),
        ({"task": "a", "data": {"client": "u"}}, "brings its own data, so data.client has no meaning"),
        ({"run": {"lost": 1.0}}, "run.lost is 1.0, expected a number less than 1."),
        ({"run": {"stop_at_target": True}}, "needs run.target"),
    ],
)
def test_a_mistake_is_named_by_its_path(raw, message):
    with pytest.raises(ConfigError) as caught:
        parse(raw)
    assert message in str(caught.value)


def test_plain_reads_back_as_the_same():
    config = parse({"task": "movielens-like", "data": {"scale": 0.5}, "methods": {"fedavg": {"lr": 1}}})
    assert parse(config.plain()) == config
    assert config.plain()["evaluate"] == {"every": 10, "samples": 10_000, "final_samples": 200_000, "slices": {}}


@pytest.mark.parametrize("name", tasks.TASKS)
def test_tasks_have_valid_defaults(name):
    config = parse({"task": name, **tasks.get(name).config})
    methods = Experiment(config, Path()).methods(6040)
    tables = ["FedAvg", "FedProx", "FedSubAvg", "FedSubAvg tempered", "FedAdagrad", "CentralSGD"]
    assert list(methods) == (["FedAvg", "FedProx", "Scaffold"] if name in tasks.CONVEX else tables)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("train.lr=0.3", {"train": {"lr": 0.3}}),
        ("run.target=train.ce<=0.6", {"run": {"target": "train.ce<=0.6"}}),
        ("split.by = last", {"split": {"by": "last"}}),
        ('data.tables=["a", "b"]', {"data": {"tables": ["a", "b"]}}),
        ('methods."A b".lr=1', {"methods": {"A b": {"lr": 1}}}),
        ("run.compile=true", {"run": {"compile": True}}),
    ],
)
def test_set_takes_toml_values_and_falls_back_to_text(text, found):
    assert parse_set(text) == found


@pytest.mark.parametrize("text", ["train.lr", "=3", "a b=3", "a=1\nb=2"])
def test_set_refuses(text):
    with pytest.raises(ConfigError, match="Cannot read --set"):
        parse_set(text)


def test_merge_goes_table_by_table():
    assert merge({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}, "b": {"z": 1}}) == {
        "a": {"x": 1, "y": 3},
        "b": {"z": 1},
    }


def settings(methods: dict, **train) -> dict:
    return Experiment(Config(methods=methods, train=parse({"train": train}).train), Path()).settings(10)


def test_own_settings_win_over_train_which_wins_over_defaults():
    made = settings({"fedavg": {"lr": 0.5}, "fedsgd": {}}, lr=0.3, local_steps=4, batch_size="all")
    assert made["FedAvg"]["lr"] == 0.5
    assert made["FedAvg"]["batch_size"] is None
    assert made["FedSGD"]["lr"] == 0.3
    assert "local_steps" not in made["FedSGD"]


def test_own_steps_replace_shared_epochs():
    made = settings({"fedavg": {"local_steps": 3}, "fedprox": {}}, local_epochs=2)
    assert (made["FedAvg"]["local_steps"], made["FedAvg"]["local_epochs"]) == (3, None)
    assert made["FedProx"]["local_epochs"] == 2


def test_the_cohort_is_never_larger_than_the_population_by_default():
    assert settings({"fedavg": {}})["FedAvg"]["clients_per_round"] == 10
    assert settings({"fedavg": {}}, clients_per_round="all")["FedAvg"]["clients_per_round"] is None


def test_a_share_of_the_clients_is_a_number_of_them_for_every_method():
    made = settings({"fedavg": {}, "centralsgd": {}, "fedsubavg": {"clients_fraction": 0.5}}, clients_fraction=0.11)
    assert (made["FedAvg"]["clients_per_round"], made["CentralSGD"]["clients_per_round"]) == (2, 2)
    assert made["FedSubAvg"]["clients_fraction"] == 0.5
    flags = Flags(clients_fraction=0.25)
    assert experiment("movielens-like", flags).config.train.clients_per_round is None  # the task says 50


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"fedavgg": {}}, "methods.fedavgg: there is no method 'fedavgg'; did you mean 'fedavg'?"),
        ({"Mine": {"method": "fedsub"}}, "methods.Mine.method: there is no method 'fedsub'"),
        ({"fedavg": {"temper": 1}}, "FedAvg has no setting 'methods.fedavg.temper'"),
        ({"fedavg": {"lr": "big"}}, "methods.fedavg.lr is the text 'big', expected a number."),
        ({"fedavg": {}, "FedAvg": {}}, "methods has FedAvg twice"),
    ],
)
def test_bad_methods(methods, message):
    with pytest.raises(ConfigError) as caught:
        settings(methods)
    assert message in str(caught.value)


def test_flags_speak_for_all_methods_and_set_has_the_last_word(folder):
    made = experiment("study.toml", Flags(lr=0.7, set=["methods.Capped.max_coef=9"])).settings(10)
    assert {label: s["lr"] for label, s in made.items()} == {"FedAvg": 0.7, "Capped": 0.7}
    assert made["Capped"]["max_coef"] == 9


def test_flags_about_data(folder):
    flags = Flags(client="user", label="liked", table=["item=item,genre", "time"], seed=4)
    config = experiment("ratings.csv", flags).config
    assert config.data.tables == {"item": ["item", "genre"], "time": ["time"]}
    assert config.train.seed_list == [4]


def test_choosing_methods_keeps_their_settings(folder):
    made = experiment("study.toml", Flags(), ["capped", "FedProx"]).settings(10)
    assert list(made) == ["Capped", "FedProx"]
    assert made["Capped"]["max_coef"] == 5


def test_a_toml_file_changes_a_task(folder):
    (folder / "task.toml").write_text('task = "movielens-like"\n[train]\nlocal_epochs = 1\n[methods]\nfedavg = {}\n')
    config = experiment("task.toml", Flags()).config
    assert list(config.methods) == ["fedavg"]
    assert (config.train.local_epochs, config.train.local_steps, config.train.batch_size) == (1, None, 5)


def test_where_nothing_is_asked_for_the_advice_is_followed(folder):
    """FedAdagrad with a small tau alone; beside others, tempered FedSubAvg too. What is asked for is what there is."""
    flags = Flags(client="user", label="liked", table=["item"])
    usual = experiment("ratings.csv", flags, usual=True).settings(10)
    assert list(usual) == ["FedAvg", "FedSubAvg", "FedSubAvg tempered", "FedAdagrad"]
    assert (usual["FedSubAvg tempered"]["temper"], usual["FedAdagrad"]["tau"]) == (0.5, 1e-5)

    def alone(what: str, flags: Flags = flags, chosen: list[str] | None = None) -> dict[str, Any]:
        return experiment(what, flags, chosen, usual=True, alone=True).settings(10)

    for what in ("ratings.csv", "movielens-like"):
        given = flags if what == "ratings.csv" else Flags()
        assert {label: s["tau"] for label, s in alone(what, given).items()} == {"FedAdagrad": 1e-5}
        assert alone(what, given, ["fedadagrad"])["FedAdagrad"]["tau"] == 1e-5
        assert list(alone(what, given, ["fedsubavg tempered"])) == ["FedSubAvg tempered"]
        about = alone(what, replace(given, set=["methods.fedavg.lr=0.7"]))
        assert {label: s["lr"] for label, s in about.items()} == {"FedAvg": 0.7}
    assert list(alone("study.toml", Flags())) == ["FedAvg", "Capped"]
    assert list(alone("breast-cancer", Flags())) == ["FedAvg", "FedProx", "Scaffold"]  # no heat: no advice


def test_another_kind_of_model_leaves_the_options_of_the_tasks_own(folder):
    made = experiment("amazon-electronics", Flags(model="user-item", set=["model.own_bias=true"])).config.model
    assert made.options == {"own_bias": True}
    assert experiment("amazon-electronics", Flags()).config.model.options == {"max_history": 50}
    with pytest.raises(ConfigError, match='max_history is no option of kind = "user-item"'):
        experiment("amazon-electronics", Flags(model="user-item", set=["model.max_history=20"]))


def test_the_time_to_split_by_is_no_feature(folder):
    flags = Flags(client="user", label="liked", table=["item"], split="time", time_column="time")
    made = experiment("ratings.csv", flags)
    train, test = made.split(made.clients())
    assert test is not None
    assert set(train.columns) == set(test.columns) == {"item", "liked"}
    whole = made.clients().split(0.8, by="time", column="time")
    assert (train.fingerprint, test.fingerprint) == tuple(part.drop("time").fingerprint for part in whole)
    kept = experiment("ratings.csv", replace(flags, value=["time"]))
    assert "time" in kept.split(kept.clients())[0].columns


def test_a_saved_directory_is_opened(folder):
    made = experiment("ratings.csv", Flags(client="user", label="liked", table=["item"]))
    made.clients().save(folder / "saved")
    again = experiment("saved", Flags())
    assert again.clients().fingerprint == made.clients().fingerprint


# Methods of one's own --------------------------------------------------------------------------------


def own_methods(folder: Path, methods: dict, **train) -> Experiment:
    return Experiment(Config(methods=methods, train=parse({"train": train}).train), folder)


def test_a_method_of_ones_own_gets_its_settings_and_the_shared_ones_that_it_takes(folder):
    mine = {"method": "my_method.py:dynamic", "alpha": 0.4}
    made = own_methods(folder, {"Mine": mine, "fedavg": {}}, lr=0.7, batch_size=3, clients_per_round="all")
    assert made.settings(10)["Mine"] == {
        "name": "my_method.py:dynamic",
        "alpha": 0.4,
        "lr": 0.7,
        "clients_per_round": None,
    }  # fmt: skip
    method: Any = made.methods(10)["Mine"]
    assert (method.parts[0].alpha, method.local.lr, type(method.sampler).__name__) == (0.4, 0.7, "Everyone")


def test_one_with_common_takes_all_shared_settings(folder):
    made = own_methods(folder, {"Mine": {"method": "my_method:shared"}}, lr=0.7, batch_size=3, local_steps=2)
    local = composed(made.methods(10)["Mine"]).local
    assert (local.lr, local.batch_size, local.local_steps) == (0.7, 3, 2)


def test_the_file_lies_beside_the_configuration(folder, monkeypatch):
    (folder / "deep").mkdir()
    monkeypatch.chdir(folder / "deep")
    text = (folder / "study.toml").read_text().replace("fedavg = {", '"Mine" = { method = "my_method.py:dynamic",')
    (folder / "mine.toml").write_text(text)
    assert list(experiment("../mine.toml", Flags()).methods(10)) == ["Mine", "Capped"]


def test_a_method_of_ones_own_is_chosen_by_a_flag(folder):
    made = experiment("study.toml", Flags(lr=0.6), ["my_method.py:dynamic", "capped"])
    assert list(made.methods(10)) == ["dynamic", "Capped"]
    assert made.settings(10)["dynamic"]["lr"] == 0.6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "nowhere.py:dynamic"}, "methods.Mine: there is no file nowhere.py in"),
        ({"method": "my_method.py:dynamik"}, "has no function 'dynamik'; did you mean 'dynamic'?"),
        ({"method": "my_method.py:"}, "expected file:function, such as my_method.py:dynamic"),
        ({"method": "my_method.py:nothing"}, "my_method.py:nothing returned int 3, expected a fedsub.Method"),
        ({"method": "my_method.py:fails"}, "my_method.py:fails raised ZeroDivisionError"),
        ({"method": "my_method.py:needs"}, "my_method.py:needs needs the setting 'alpha'"),
        ({"method": "my_method.py:dynamic", "beta": 1}, "has no setting 'methods.Mine.beta'"),
        (
            {"method": "my_method.py:dynamic", "alpha": "much"},
            "methods.Mine.alpha is the text 'much', expected a number",
        ),
    ],
)
def test_bad_methods_of_ones_own(folder, given, message):
    with pytest.raises(ConfigError) as caught:
        own_methods(folder, {"Mine": given}).methods(10)
    assert message in str(caught.value)


def test_two_files_of_one_name_stay_apart(folder):
    for name, lr in (("a", 0.1), ("b", 0.2)):
        (folder / name).mkdir()
        (folder / name / "same.py").write_text(
            f"import fedsub as fs\ndef mine():\n    return fs.methods.fedavg(lr={lr})\n"
        )
    both = {name: {"method": f"{name}/same.py:mine"} for name in "ab"}
    made: dict[str, Any] = {**own_methods(folder, both).methods(10)}
    assert [made[name].local.lr for name in "ab"] == [0.1, 0.2]


def test_a_changed_file_is_read_again(folder):
    made = own_methods(folder, {"Mine": {"method": "my_method.py:dynamic"}})
    first: Any = made.methods(10)["Mine"]
    again: Any = made.methods(10)["Mine"]
    assert type(first.parts[0]) is type(again.parts[0])  # the same class: the file is read once
    path = folder / "my_method.py"
    path.write_text(path.read_text().replace("lr: float = 0.3", "lr: float = 0.9"))
    changed: Any = made.methods(10)["Mine"]
    assert (first.local.lr, changed.local.lr) == (0.3, 0.9)


# Parts of the data ----------------------------------------------------------------------------------


def parts_of(folder: Path, **split) -> Experiment:
    data = {"path": "ratings.csv", "client": "user", "label": "liked", "tables": ["item"]}
    return Experiment(parse({"data": data, "split": split}), folder)


def test_validation_is_cut_from_the_training_part_as_for_tuning(folder):
    made = parts_of(folder, validation=0.25)
    found = made.splits()
    assert list(found) == ["train", "validation", "test"]
    train, validation, both, test = made.split_with_validation(made.clients(), 0.25)
    assert [p.fingerprint for p in found.values()] == [p.fingerprint for p in (train, validation, there(test))]
    assert found["train"].samples + found["validation"].samples == both.samples
    assert made.parts()[0].fingerprint == train.fingerprint
    assert list(parts_of(folder).splits()) == ["train", "test"]


def test_a_split_for_every_seed(folder):
    made = parts_of(folder, per_seed=True, validation=0.2, seed=5)
    cut, whole = made.cuts(), made.clients()
    for seed in (0, 3):
        train, test = whole.split(0.8, seed=5 + seed)
        found = cut(seed)
        assert found["test"].fingerprint == test.fingerprint
        assert found["train"].fingerprint == train.split(0.8, seed=6 + seed)[0].fingerprint
    once = parts_of(folder, seed=5).cuts()
    assert once(0) is once(3)
    with pytest.raises(ConfigError, match="per_seed cuts at random"):
        parts_of(folder, per_seed=True, by="time", column="time")
    with pytest.raises(ConfigError, match="leave it out here"):
        made.split_with_validation(whole, 0.1)


def test_a_file_as_it_comes(folder):
    lines = [line.replace(",", ";") for line in (folder / "ratings.csv").read_text().splitlines()]
    (folder / "raw.csv").write_bytes(("\ufeff" + "\n".join([*lines, "u0;;g0;3;1"]) + "\n").encode())
    flags = Flags(client="user", label="liked==1", table=["item"], nulls="drop")
    with pytest.warns(DataNotice, match="Dropped 1 of"):
        made = experiment("raw.csv", flags).clients()
    assert made.label == "liked==1"
    assert made.samples == len(lines) - 1
    (folder / "raw.toml").write_text(
        '[data]\npath = "raw.csv"\nclient = "user"\nlabel = "liked==1"\ntables = ["item"]\nnulls = "drop"\n'
        'separator = ";"\nencoding = "utf-8"\n'
    )
    with pytest.warns(DataNotice):
        assert experiment("raw.toml", Flags()).clients().fingerprint == made.fingerprint
    with pytest.raises(ConfigError, match=r"data\.nulls is the text 'keep'"):
        experiment("raw.csv", replace(flags, nulls="keep"))
