"""`fedsub deploy` on the command line, as far as nothing has to run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("cryptography")

from fedsub.cli import app
from fedsub.deploy.site import Site


def call(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, ["deploy", *words])
    assert done.exit_code == status, done.output
    return done.output


def _json(text: str) -> dict:
    return json.loads(text[text.index('{\n  "command"') :])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cli") / "demo-cli"
    said = call("new", str(made), "--nodes", "2", "--port", "18000", "--entrance", "18443", "--page", "18080",
                "--name", "fed.example.org")  # fmt: skip
    assert "keys for 2 nodes" in said
    assert "make run" in said
    return made


def test_what_was_asked_for_is_in_the_folder(folder):
    site = Site.open(folder)
    assert (site.settings.server.port, site.listens[1], site.settings.page.port) == (18000, 18443, 18080)
    assert site.settings.server.names == ["fed.example.org", "server"]
    assert [*site.registered] == ["node-0", "node-1"]


def test_status_and_stop_before_anything_was_started(folder):
    assert "Nothing was started yet." in call("status", "-C", str(folder))
    found = _json(call("status", "-C", str(folder), "--json"))
    assert (found["state"], found["rounds"]) == ("nothing", 20)
    assert 'fedsub_state{state="nothing"} 1' in call("status", "-C", str(folder), "--metrics")
    assert "Nothing runs." in call("stop", "-C", str(folder))
    call("stop", "-C", str(folder.parent), status=2)  # no deployment


def test_check_says_everything_and_ends_with_1_if_something_is_refused(folder):
    key = folder / "keys" / "node-1"
    key.chmod(0o644)
    try:
        text = call("check", "-C", str(folder), "--without-app", "--json", status=1)
    finally:
        key.chmod(0o600)
    found = _json(text)
    assert found["good"] is False
    assert any("can be read by others (mode 644)" in one["sentence"] for one in found["findings"])


def test_what_run_and_resume_refuse(folder):
    assert "There is no run in" in call("resume", "-C", str(folder), status=2)
    assert "expected 0 or more" in call("run", "-C", str(folder), "--nodes", "-1", status=2)
    assert "expected HOST:PORT" in call("run", "-C", str(folder), "--listen", "8443", status=2)
    out = folder / "runs" / "first"
    out.mkdir(parents=True)
    (out / "config.json").write_text('{"rounds": 20}')
    said = call("run", "-C", str(folder), status=2)
    assert "holds a run already" in said
    assert "fedsub deploy resume" in said
    assert call("status", "-C", str(folder), status=1).startswith("Interrupted after round 0 of 20")


def test_certificates_and_keys(folder, tmp_path):
    site = Site.open(folder)
    before = [(site.certificates / name).read_bytes() for name in ("ca.crt", "server.crt", "runtime.secret")]
    call("certificates", "-C", str(folder), "--name", "192.0.2.7")
    after = [(site.certificates / name).read_bytes() for name in ("ca.crt", "server.crt", "runtime.secret")]
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert before[2] != after[2]
    call("key", str(tmp_path / "node-7"))
    assert (tmp_path / "node-7.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert "never overwritten" in call("key", str(tmp_path / "node-7"), status=2)
