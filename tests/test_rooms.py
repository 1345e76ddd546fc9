"""The rooms of the package: each imports only from those before it, and no file or function grows out of sight."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import fedsub
from fedsub.round.transport import play

ROOT = Path(fedsub.__file__).parent
# Of the package's entries, each may import from those that stand before it. Lazy imports count.
ORDER = (
    "errors", "rng", "torch_private", "trees", "checks", "disk", "secure", "data", "privacy", "objective", "method",
    "round", "families", "gossip", "methods", "running", "serving", "study", "node", "flower", "deploy", "vertical",
    "testing", "cli", "__main__",
)  # fmt: skip


def modules() -> dict[str, Path]:
    out = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        out[".".join(("fedsub", *(parts[:-1] if parts[-1] == "__init__" else parts)))] = path
    return out


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of fedsub that a file imports anywhere, but for what only a type checker reads."""
    tree = ast.parse(path.read_text())
    unread = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in (node for node in ast.walk(tree) if id(node) not in unread):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for target in names:
            while target and target not in known:
                target = target.rpartition(".")[0]
            if target.startswith("fedsub"):
                yield target


def entry(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_rooms_import_only_from_those_before() -> None:
    known, wrong = modules(), []
    for name, path in known.items():
        for target in imported(name, path, known):
            here, there = entry(name), entry(target)
            if here and there and ORDER.index(there) > ORDER.index(here):
                wrong.append(f"{name} imports {target}")
    assert not wrong, "\n".join(wrong)


def test_few_entries_and_all_of_them_in_the_order() -> None:
    entries = {p.stem for p in ROOT.iterdir() if p.name not in ("__pycache__", "py.typed")} - {"__init__"}
    assert entries == set(ORDER)
    assert len(entries) + 1 <= 26


def long_files(*folders: Path) -> dict[str, int]:
    """Python files of more than 400 lines; a folder that is not there has none."""
    return {
        str(path.relative_to(folder.parent)): count
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if (count := len(path.read_text().splitlines())) > 400
    }


def test_files_stay_short() -> None:
    """Tests, examples and experiments too; the package may be installed without the last two."""
    here = Path(__file__).parent
    assert not long_files(ROOT, here, here.parent / "examples", here.parent / "experiments")


def test_a_long_file_is_found_in_any_folder(tmp_path: Path) -> None:
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    (tmp_path / "tests" / "deep" / "long.py").write_text("\n" * 401)
    (tmp_path / "tests" / "fits.py").write_text("\n" * 400)
    assert long_files(tmp_path / "tests", tmp_path / "not there") == {"tests/deep/long.py": 401}


def test_a_round_reads_on_one_screen() -> None:
    assert len(inspect.getsource(play).splitlines()) <= 40


def test_the_direction_is_really_computed(tmp_path: Path) -> None:
    """An import that points up is found, also inside a function; one for the type checker is not."""
    file = tmp_path / "lazy.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from fedsub.cli import show\n"
        "def f():\n    from fedsub.study.costs import estimate\n"
    )
    assert list(imported("fedsub.data.lazy", file, modules())) == ["fedsub.study.costs.estimate"]


def test_files_of_tests_have_names_of_their_own():
    """Two of one name cannot be collected together, though each can alone."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(set(names)) == sorted(names)
