"""What the site adds to the pages: README as its front page, notebooks, the API reference, files that pages link to.

Pages are written for reading in the repository, where a link may lead to a source file. On the site those files become
pages of their own (``source/…``), so that every link works without the repository.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # a hook is loaded by its path: its neighbours are not found otherwise

from cells import pages as notebooks  # noqa: E402
from reference import pages  # noqa: E402
from sections import nav  # noqa: E402

LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)]*)?\))")
FENCE = re.compile(r"^\s*(```|~~~)")
ITEM = re.compile(r"^\s*([-*]|\d+\.)\s")
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml", ".yaml": "yaml"}


# iframe-worker 1.0.4, as published: with it the search works in pages that are opened from the disk.
SHIM = "assets/javascripts/iframe-worker.js"
WIDE = "assets/stylesheets/wide.css"
STYLE = ".md-grid { max-width: 78rem; }\n"  # tables as a terminal prints them are wide


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.extra["polyfills"] = [SHIM]
    config.extra_css.append(WIDE)
    config.nav = nav(list(pages()), [name for name in notebooks() if name.endswith(".md")])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README as index.md, and the files outside docs/ that some page links to."""
    texts = {"index.md": (ROOT / "README.md").read_text()}
    texts |= {f.src_uri: Path(f.abs_src_path or "").read_text() for f in files.documentation_pages()}
    files.append(File.generated(config, "index.md", content=texts["index.md"]))
    for name, content in {**pages(), **notebooks()}.items():
        files.append(File.generated(config, name, content=content))
    files.append(File.generated(config, SHIM, content=(Path(__file__).parent / "iframe-worker.js").read_text()))
    files.append(File.generated(config, WIDE, content=STYLE))
    for folder in sorted(_folders(texts)):  # within docs/, where the files themselves are part of the site
        files.append(File.generated(config, f"{folder}/index.md", content=_listing(f"docs/{folder}", "")))
    todo, done = list(texts), set()
    while todo:
        page = todo.pop()
        for target in _outside(page, texts[page]):
            if (name := _source_page(target)) in done:
                continue
            done.add(name)
            text = (
                _listing(target, f"{PurePosixPath(target).name}/")
                if (ROOT / target).is_dir()
                else (ROOT / target).read_text()
            )
            if not target.endswith(".md") and (ROOT / target).is_file():
                text = f"# {target}\n\n````{LANGUAGES.get(Path(target).suffix, 'text')}\n{text}\n````\n"
            files.append(File.generated(config, name, content=text))
            texts[name] = text
            todo.append(name)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files outside docs/ lead to their pages; a list that follows a sentence stands by itself."""
    out, fenced, before = [], False, ""
    for line in markdown.split("\n"):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            line = LINK.sub(lambda m: m[1] + _moved(page.file.src_uri, m[2]) + m[3], line)
            # GitHub begins a list wherever a line starts with a dash; Python-Markdown wants an empty line before it.
            if ITEM.match(line) and before.strip() and not ITEM.match(before) and not before.startswith((" ", "|")):
                out.append("")
        out.append(line)
        before = line
    return "\n".join(out)


def _home(page: str) -> PurePosixPath:
    """The folder of the repository that a page of the site was written for."""
    if page == "index.md":
        return PurePosixPath(".")
    if page.startswith("source/"):
        return PurePosixPath(page.removeprefix("source/")).parent
    return PurePosixPath("docs") / PurePosixPath(page).parent


def _target(page: str, link: str) -> str | None:
    """The file of the repository that a relative link means; None for addresses and for what is not there."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = normpath(str(_home(page) / link))
    return target if not target.startswith("..") and target != "docs" and (ROOT / target).exists() else None


def _listing(folder: str, here: str) -> str:
    """A page about a folder: links to what is in it, which begin with ``here``."""
    names = sorted(path.name for path in (ROOT / folder).iterdir() if path.is_file())
    return f"# {folder}\n\n" + "".join(f"- [{name}]({here}{name})\n" for name in names)


def _folders(texts: dict[str, str]) -> set[str]:
    """The folders within docs/ that pages link to."""
    found = {_target(page, m[2]) for page, text in texts.items() for m in LINK.finditer(text)}
    return {t.removeprefix("docs/") for t in found if t and t.startswith("docs/") and (ROOT / t).is_dir()}


def _outside(page: str, text: str) -> list[str]:
    found = [_target(page, m[2]) for m in LINK.finditer(text)]
    return [t for t in found if t is not None and not t.startswith("docs/") and t != "README.md"]


def _source_page(target: str) -> str:
    return f"source/{target.removesuffix('.md')}.md"


def _moved(page: str, link: str) -> str:
    target = _target(page, link)
    if target is None:
        return link
    if target == "README.md":
        there = "index.md"
    elif target.startswith("docs/"):
        there = target.removeprefix("docs/") + ("/index.md" if (ROOT / target).is_dir() else "")
        if PurePosixPath(there).stem != PurePosixPath(page).stem:  # a page's own notebook is a file to download
            there = re.sub(r"\.ipynb$", ".md", there)
    else:
        there = _source_page(target)
    return relpath(there, str(PurePosixPath(page).parent))
