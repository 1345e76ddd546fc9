"""Where each page stands on the site: tutorial, how-to, explanation, reference. `nav()` is what mkdocs is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
SECTIONS = {
    "Tutorial": ("tutorial",),
    "How to": (
        "data", "labels_and_files", "datasets", "twins", "models", "seeds", "lazy", "metrics", "ranking", "personal",
        "mixture", "factorisation", "tuning", "recipes", "runs", "report", "going_on", "serving", "nodes", "flower",
        "deployment", "extending", "cli",
    ),
    "Methods": ("methods", "zoo", "servers", "sampling", "codecs", "preconditioner"),
    "Explanation": (
        "heat", "private_heat", "architecture", "engines", "cluster", "shards", "scale", "planning", "costs", "leaks",
        "privacy",
        "secure_sum", "benchmarks", "reproduce", "results",
    ),
    "Reference": ("reference/index", "stability"),
}  # fmt: skip


def nav(reference: list[str], notebooks: list[str]) -> list[Any]:
    """The tree of pages; ``reference`` and ``notebooks`` are generated. What no section names ends "How to"."""
    there = {path.stem for path in DOCS.glob("*.md")} | {"reference/index"}
    rest = sorted(there - {page for pages in SECTIONS.values() for page in pages})
    out: list[Any] = [{"fedsub": "index.md"}]
    for title, pages in SECTIONS.items():
        own: list[Any] = [f"{page}.md" for page in pages if page in there]
        if title == "Tutorial":
            own += notebooks
        if title == "How to":
            own += [f"{page}.md" for page in rest]
        if title == "Methods":
            own += sorted(f"methods/{path.name}" for path in (DOCS / "methods").glob("*.md"))
        if title == "Reference":
            own += [page for page in reference if page != "reference/index.md"]
        out.append({title: own})
    return out
