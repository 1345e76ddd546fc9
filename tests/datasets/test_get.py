"""Where data sets are found, and `fedsub data`: downloads from a server of the test's own."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedsub.cli import app
from fedsub.data import Clients
from fedsub.data.convex import BUNDLED
from fedsub.data.datasets import DATASETS, File, cache_dir, find, load
from fedsub.data.datasets.download import fetch
from fedsub.errors import DataError, DownloadError

SMALL = "movielens-latest-small"


def fedsub_(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)


@dataclass
class Site:
    """One file at ``url``; every connection is cut after ``patience`` bytes; what was asked for is noted."""

    content: bytes
    url: str = ""
    patience: int = 1 << 60
    ranges: bool = True
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site(tmp_path: Path, releases: dict[str, Path]) -> Iterator[Site]:
    with zipfile.ZipFile(tmp_path / "small.zip", "w") as archive:
        for file in releases[SMALL].iterdir():
            archive.write(file, f"ml-latest-small/{file.name}")
    here = Site((tmp_path / "small.zip").read_bytes())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            here.asked.append(asked)
            begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and here.ranges else 0
            if self.path != "/small.zip":
                return self.send_error(404)
            total = len(here.content)
            if begin >= total:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{total}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206 if asked and here.ranges else 200)
            if asked and here.ranges:
                self.send_header("Content-Range", f"bytes {begin}-{total - 1}/{total}")
            self.send_header("Content-Length", str(total - begin))
            self.end_headers()
            self.wfile.write(here.content[begin : begin + here.patience])
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    here.url = f"http://127.0.0.1:{server.server_port}/small.zip"
    yield here
    server.shutdown()
    server.server_close()


@pytest.fixture
def offered(site: Site, monkeypatch: pytest.MonkeyPatch):
    """Let `fedsub data get movielens-latest-small` go to the test's server."""

    def offer(**known) -> None:
        file = File("ml-latest-small.zip", site.url, **known)
        monkeypatch.setitem(DATASETS, SMALL, replace(DATASETS[SMALL], files=(file,)))

    offer(sha256=hashlib.sha256(site.content).hexdigest())
    return offer


def test_get_downloads_checks_and_imports(site, offered, own_cache):
    said = fedsub_("get", SMALL)
    assert "Licence: GroupLens" in said
    assert "Cite: F. M. Harper" in said
    assert "checked." in said
    assert "2 clients, 3 samples saved in" in said
    assert (own_cache / SMALL / "ml-latest-small.zip").read_bytes() == site.content
    assert load(SMALL).samples == 3
    assert "--force replaces it" in fedsub_("get", SMALL, code=2)
    fedsub_("get", SMALL, "--option", "positive=2.5", "--to", str(own_cache / "mine"))
    assert len(site.asked) == 1  # what is in the cache is not fetched again
    assert load(SMALL, own_cache / "mine").columns["label"].values.tolist() == [1, 1, 1]


def test_a_cut_connection_goes_on_by_itself(site, offered, tmp_path):
    site.patience = len(site.content) // 3 + 1
    seen: list[tuple[int, int | None]] = []
    path = fetch(DATASETS[SMALL].files[0], tmp_path / "d", lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == site.content
    assert site.asked == ["", f"bytes={site.patience}-", f"bytes={2 * site.patience}-"]
    assert seen[-1] == (len(site.content), len(site.content))


def test_a_download_goes_on_after_an_interruption(site, offered, own_cache):
    folder = own_cache / SMALL
    folder.mkdir(parents=True)
    (folder / "ml-latest-small.zip.part").write_bytes(site.content[:100])
    fedsub_("get", SMALL)
    assert site.asked == ["bytes=100-"]
    assert sorted(p.name for p in folder.iterdir()) == ["ml-latest-small.zip", "saved"]


@pytest.mark.parametrize("kept", ["whole", "longer"])
def test_a_part_that_is_whole_or_too_long(kept, site, offered, tmp_path):
    part = tmp_path / "ml-latest-small.zip.part"
    part.write_bytes(site.content + (b"" if kept == "whole" else b"more"))
    assert fetch(DATASETS[SMALL].files[0], tmp_path).read_bytes() == site.content
    assert len(site.asked) == (1 if kept == "whole" else 2)


def test_a_site_without_ranges_starts_again(site, offered, tmp_path):
    site.ranges = False
    (tmp_path / "ml-latest-small.zip.part").write_bytes(b"x" * 50)
    assert fetch(DATASETS[SMALL].files[0], tmp_path).read_bytes() == site.content


def test_a_connection_that_brings_nothing_keeps_the_part(site, offered, tmp_path):
    site.patience = 0
    (tmp_path / "ml-latest-small.zip.part").write_bytes(site.content[:100])
    with pytest.raises(DownloadError, match=r"could not be fetched.*100 bytes are kept in .*\.part; the next call"):
        fetch(DATASETS[SMALL].files[0], tmp_path)
    assert (tmp_path / "ml-latest-small.zip.part").read_bytes() == site.content[:100]


@pytest.mark.parametrize("known", [{"sha256": "0" * 64}, {"md5": "0" * 32}, {"size": 7}])
def test_a_wrong_checksum_is_not_kept(known, site, offered, own_cache):
    offered(**known)
    said = fedsub_("get", SMALL, code=1)
    (kind,) = known
    assert ("expected 7" if kind == "size" else f"{kind} ") in said
    assert "It was deleted" in said
    assert "By hand: get ml-latest-small.zip from" in said
    assert list((own_cache / SMALL).iterdir()) == []


def test_without_a_network_it_says_how_to_place_the_file(site, offered, monkeypatch, own_cache):
    def unreachable(*_: object, **__: object):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    said = fedsub_("get", SMALL, code=1)
    assert "Name or service not known" in said
    assert f"fedsub data import {SMALL} PATH" in said
    assert "Traceback" not in said


def test_a_file_that_is_gone(site, offered, tmp_path):
    with pytest.raises(DownloadError, match="the site answered 404"):
        fetch(File("x.zip", site.url.replace("small", "other")), tmp_path)
    assert list(tmp_path.glob("x.zip*")) == []


def test_what_needs_a_login_is_placed_by_hand():
    said = fedsub_("get", "taobao-user-behaviour", code=1)
    assert "asks for a login" in said
    assert "fedsub data import taobao-user-behaviour PATH" in said


def test_import_works_offline_and_keeps_the_options(releases, tmp_path):
    amazon = str(releases["amazon-electronics"])
    options = ("--option", "history=released", "--option", "min_samples=3")
    assert "2 clients, 7 samples" in fedsub_("import", "amazon-electronics", amazon, *options)
    place = cache_dir() / "amazon-electronics" / "saved" / "history=released,min_samples=3"
    about = fedsub_("info", str(place))
    for part in ("2 clients, 7 samples, 3.5 per client", "Table item: 6 rows, row 0 is padding", "history=released",
                 "dispersion 2", Clients.open(place).fingerprint):  # fmt: skip
        assert part in about
    assert "--force" in fedsub_("import", "amazon-electronics", amazon, *options, code=2)
    fedsub_("import", "amazon-electronics", amazon, *options, "--force")
    assert load("amazon-electronics", history="released", min_samples=3).samples == 7
    with pytest.raises(DataError, match=r"imported with other options \(history=released,min_samples=3\).*import it"):
        load("amazon-electronics")
    assert "did you mean 'history'" in fedsub_("import", "amazon-electronics", amazon, "--option", "histry=x", code=2)
    assert "write it like" in fedsub_("import", "amazon-electronics", amazon, "--option", "history", code=2)


def test_an_import_knows_the_files_without_a_name(releases, tmp_path):
    for name in (SMALL, "movielens-1m", "amazon-electronics"):
        options = ("--option", "min_samples=3") if name == "amazon-electronics" else ()
        fedsub_("import", str(releases[name]), "--to", str(tmp_path / name), *options)
        assert f"/{name}: {name} " in fedsub_("info", str(tmp_path / name))
    assert f"fedsub data import {SMALL} PATH" in fedsub_("import", SMALL, code=2)
    assert "There is nothing at" in fedsub_("import", str(tmp_path / "nowhere"), code=2)
    (tmp_path / "ml.zip").write_bytes(b"no archive")
    assert "truncated or damaged" in fedsub_("import", str(tmp_path / "ml.zip"), code=2)
    (tmp_path / "thesis.txt").write_text("words")
    said = fedsub_("import", str(tmp_path / "thesis.txt"), code=2)
    assert "there is thesis.txt" in said
    assert "fedsub data import NAME" in said
    assert "one path" in fedsub_("import", SMALL, "a", "b", code=2)
    assert not (cache_dir() / SMALL).exists()


def test_an_import_does_not_replace_what_is_not_its_own(releases, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "thesis.txt").write_text("precious")
    said = fedsub_("import", SMALL, str(releases[SMALL]), "--to", str(tmp_path / "notes"), "--force", code=2)
    assert "not written by fedsub" in said
    assert (tmp_path / "notes" / "thesis.txt").read_text() == "precious"


def test_list_and_info(releases):
    listed = {
        row["name"]: row for row in json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)["datasets"]
    }
    assert list(listed) == [*DATASETS, *BUNDLED]
    assert listed["movielens-1m"]["clients"] == 6040
    assert listed[SMALL]["cached"] is None
    fedsub_("import", SMALL, str(releases[SMALL]))
    listed = json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)["datasets"]
    assert [row["name"] for row in listed if row["cached"]] == [SMALL]
    about = fedsub_("info", "amazon-electronics")
    for part in ("Licence:", "Cite:", "history=intended", "time_order=intended", "By hand:", "digest not known"):
        assert part in about
    assert "looks like MovieLens-1M" in fedsub_("info", str(releases["movielens-1m"]))
    assert "did you mean 'sentiment140'" in fedsub_("info", "sentiment14", code=2)
    bundled = fedsub_("info", "digits")
    assert "1,797 samples of 64 features" in bundled
    assert "split=sorted" in bundled
    assert "nothing to get" in fedsub_("get", "digits", code=2)


def test_find_looks_in_the_folder_then_in_the_cache(releases, tmp_path, monkeypatch):
    everything = releases[SMALL].parent
    assert find(SMALL, everything) == releases[SMALL]
    assert find(SMALL, releases[SMALL]) == releases[SMALL]
    assert find(SMALL, tmp_path / "nowhere") is None
    assert find("movielens-1m", releases[SMALL]) is None
    fedsub_("import", SMALL, str(releases[SMALL]))
    assert find(SMALL, tmp_path / "nowhere") == find(SMALL) == cache_dir() / SMALL
    with pytest.raises(DataError, match="no data set 'movielens'; did you mean"):
        find("movielens")
    monkeypatch.delenv("FEDSUB_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "fedsub"


def test_load_says_how_to_get_the_data(releases, tmp_path):
    assert load("movielens-1m", releases["movielens-1m"].parent, positive=5).columns["label"].values.sum() == 1
    with pytest.raises(DataError, match=r"To have it: fedsub data get movielens-1m, or get ml-1m\.zip from"):
        load("movielens-1m")
    with pytest.raises(DataError, match=r"looks like MovieLens latest-small \(.*expected MovieLens-1M"):
        load("movielens-1m", releases[SMALL])
    with pytest.raises(DataError, match="There is nothing at"):
        load("movielens-1m", tmp_path / "nowhere")
    with pytest.raises(DataError, match="has no option 'positve'"):
        load("movielens-1m", positve=3)


def test_load_reads_originals_in_the_cache_once(releases, own_cache, monkeypatch):
    (own_cache / "movielens-1m").mkdir(parents=True)
    for file in releases["movielens-1m"].iterdir():
        file.rename(own_cache / "movielens-1m" / file.name)
    first = load("movielens-1m", positive=5)
    reader = DATASETS["movielens-1m"]
    monkeypatch.setitem(DATASETS, "movielens-1m", replace(reader, reader=lambda path, *, positive=4: 1 / 0))
    monkeypatch.setattr(type(reader), "options", reader.options)
    assert load("movielens-1m", positive=5).fingerprint == first.fingerprint
