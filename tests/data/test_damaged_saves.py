"""Damage to saved data is named, and what a crash left can be restored."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import numpy as np
import pytest
from saves import assert_same, small

from fedsub.data import Clients, intact
from fedsub.errors import StoreError


@pytest.fixture
def saved(tmp_path):
    small().save(tmp_path / "saved")
    return tmp_path / "saved"


def edit(saved, **changes) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    (saved / "manifest.json").write_text(json.dumps(manifest | changes))


def test_truncated_file_is_named_with_both_sizes(saved):
    where = saved / "column0.npy"
    size = where.stat().st_size
    os.truncate(where, size - 4)
    with pytest.raises(StoreError, match=f"column0.npy has {size - 4} bytes, expected {size}"):
        Clients.open(saved)


def test_missing_file(saved):
    (saved / "offsets.npy").unlink()
    with pytest.raises(StoreError, match=r"lacks the file offsets\.npy"):
        Clients.open(saved)


def test_other_type_in_a_file_of_the_same_size(saved):
    where = saved / "column0.npy"
    np.save(where, np.load(where).view(np.float32))
    with pytest.raises(StoreError, match=r"holds <f4 \(4,\), expected <i4 \(4,\)"):
        Clients.open(saved)


def test_changed_content_is_found(saved):
    where = saved / "column3.npy"
    np.save(where, np.load(where)[::-1])
    Clients.open(saved, verify=False)
    for verify in (None, True):
        with pytest.raises(StoreError, match=r"column3\.npy was changed since it was written"):
            Clients.open(saved, verify=verify)


def test_a_directory_without_checksums_is_known_by_its_fingerprint(saved):
    """As an older fedsub wrote it."""
    manifest = json.loads((saved / "manifest.json").read_text())
    files = {name: {k: v for k, v in e.items() if k != "crc32"} for name, e in manifest["files"].items()}
    del manifest["seal"]
    (saved / "manifest.json").write_text(json.dumps(manifest | {"files": files}))
    Clients.open(saved)
    rewrite(saved, "column3", lambda array: array.__setitem__(0, 9))
    with pytest.raises(StoreError, match="fingerprint"):
        Clients.open(saved)


def test_files_are_read_once_per_process_unless_they_change(saved, monkeypatch):
    read = []
    real = intact.checksum
    monkeypatch.setattr(intact, "checksum", lambda path: read.append(path.name) or real(path))
    Clients.open(saved)
    assert len(read) == len(list(saved.glob("*.npy")))
    Clients.open(saved)
    assert len(read) == 2 * len(list(saved.glob("*.npy")))  # just written: a change might leave no trace in the times
    monkeypatch.setattr(intact, "RACY", -1)
    for _ in range(2):
        Clients.open(saved)
    assert len(read) == 3 * len(list(saved.glob("*.npy")))
    rewrite(saved, "column3", lambda array: array.__setitem__(0, 9))
    with pytest.raises(StoreError, match="checksum"):
        Clients.open(saved)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("column0", 1, 4, "column 'i' has an id that is none of the rows of its client 1"),
        ("column0", 0, -1, "column 'i' has an id that is none"),
        ("column1", 0, 4, "column 'h' has an id that is none"),
        ("space0.rows", 1, 5, "holds a row of space 'any/name' that is not one of its 5"),
        ("space0.rows", 1, 0, "fall within a client"),
        ("space0.rows", 0, 1, "fall within a client|lacks row 0"),
    ],
)
def test_ids_out_of_bounds_are_refused_even_unverified(saved, name, at, value, words, monkeypatch):
    Clients.open(saved, verify=False)
    rewrite(saved, name, lambda array: array.__setitem__(at, value))
    for block in (1 << 22, 8):  # also with blocks smaller than a client
        monkeypatch.setattr(intact, "BLOCK", block)
        with pytest.raises(StoreError, match=words):
            Clients.open(saved, verify=False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version 2.*upgrade fedsub"),
        ({"format": "other"}, "format 'other', expected 'fedsub-clients'"),
        ({"files": {}}, "damaged"),
        ({"columns": None}, "damaged"),
        ({"files": {"../../secret": {"shape": [1], "bytes": 1}}}, "lacks the file"),
    ],
)
def test_manifests_that_cannot_be_used(saved, changes, words):
    edit(saved, **changes)
    with pytest.raises(StoreError, match=words):
        Clients.open(saved)


def test_directories_that_are_not_saves(tmp_path, saved):
    with pytest.raises(StoreError, match="no directory"):
        Clients.open(tmp_path / "absent")
    (saved / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match="cannot be read"):
        Clients.open(saved)
    (saved / "manifest.json").unlink()
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        Clients.open(saved)
    shutil.rmtree(saved)


def rewrite(saved, name, change) -> None:
    """Change an array in place, keeping its type and shape."""
    array = np.load(saved / f"{name}.npy")
    change(array)
    np.save(saved / f"{name}.npy", array)


@pytest.mark.parametrize(
    ("name", "at", "value", "words"),
    [
        ("offsets", 0, 1, "offsets runs from 1 to 4, expected 0 to 4"),
        ("offsets", -1, 3, "column 'i' has 4 entries, expected 3"),
        ("offsets", 1, 4, "offsets falls"),
        ("column1.starts", 1, 9, "starts of column 'h' falls"),
        ("column1.starts", -1, 9, "starts of column 'h' runs from 0 to 9, expected 0 to 3"),
        ("space0.row_offsets", 1, -5, "row_offsets of space 'any/name' falls"),
    ],
)
def test_cuts_that_do_not_fit(saved, name, at, value, words):
    rewrite(saved, name, lambda array: array.__setitem__(at, value))
    with pytest.raises(StoreError, match=f"damaged.*({words}).*again"):
        Clients.open(saved)


def test_ids_that_are_no_integers(saved):
    array = np.load(saved / "space0.rows.npy").view(np.float32)
    np.save(saved / "space0.rows.npy", array)
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"]["space0.rows"]["dtype"] = "<f4"
    edit(saved, files=manifest["files"])
    with pytest.raises(StoreError, match="rows of space 'any/name' are float32, expected integers"):
        Clients.open(saved)


BAD_PARTS = [
    ("spaces", "size", 0),
    ("spaces", "size", 2**70),
    ("spaces", "size", "many"),
    ("spaces", "padding", 3),
    ("spaces", "columns", ["i", "nope"]),
    ("spaces", "columns", 7),
    ("spaces", "name", ["s"]),
    ("columns", "space", "nope"),
    ("columns", "space", {}),
    ("columns", "width", -1),
    ("columns", "width", None),
    ("columns", "name", "h"),
]


@pytest.mark.parametrize(("part", "key", "value"), BAD_PARTS)
def test_manifest_parts_of_the_wrong_kind(saved, part, key, value):
    parts = json.loads((saved / "manifest.json").read_text())[part]
    parts[0][key] = value
    edit(saved, **{part: parts})
    with pytest.raises(StoreError, match="damaged"):
        Clients.open(saved)
    del parts[0][key]
    edit(saved, **{part: parts})
    with pytest.raises(StoreError, match="damaged"):
        Clients.open(saved)


MASKS = (0x01, 0x8A)


def flipped(content: bytes, every: int):
    """The content with one byte changed, and where."""
    for at in range(0, min(len(content), 2500), every):
        for mask in MASKS:
            changed = bytearray(content)
            changed[at] ^= mask
            yield at, bytes(changed)


def opened(saved, **options) -> Clients | None:
    """None if it is refused; anything but a StoreError is an error."""
    try:
        return Clients.open(saved, **options)
    except StoreError:
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["offsets.npy", "column2.npy", "column1.starts.npy", "space0.vocabulary.npy"])
def test_a_flipped_byte_of_an_array_is_refused(saved, name):
    """Always, but for bytes of the header that mean nothing; unverified only where parts do not fit."""
    content, before = (saved / name).read_bytes(), small()
    begin = len(content) - np.load(saved / name).nbytes
    unseen = 0
    for at, changed in flipped(content, 1):
        (saved / name).write_bytes(changed)
        found = opened(saved, verify=True)
        if found is not None:
            assert at < begin, f"byte {at} of {name}"
            assert_same(before, found)
        assert opened(saved) is None or at < begin
        plain = opened(saved, verify=False)
        assert plain is not None or found is None
        unseen += at >= begin and plain is not None
        if plain is not None:  # the mark is of what was saved, so a run that kept it can tell
            assert plain.fingerprint == before.fingerprint
            assert {n: c.values.shape for n, c in plain.columns.items()} == {
                n: c.values.shape for n, c in before.columns.items()
            }
    # Entries are not read on opening; where things begin is.
    everything = len(MASKS) * (min(len(content), 2500) - begin)
    assert (unseen == everything) == (name in ("column2.npy", "space0.vocabulary.npy"))


@pytest.mark.filterwarnings("ignore")
def test_a_flipped_byte_of_the_manifest_is_refused_or_does_not_matter(saved):
    content, before = (saved / "manifest.json").read_bytes(), small()
    refused = 0
    for _, changed in flipped(content, 7):
        (saved / "manifest.json").write_bytes(changed)
        found = opened(saved, verify=True)
        refused += found is None
        if found is not None:
            assert_same(before, found)
        assert opened(saved) is not None or found is None
    assert refused > 300


def test_manifest_too_deep_to_read(saved):
    (saved / "manifest.json").write_text("[" * 200_000)
    with pytest.raises(StoreError, match="cannot be read"):
        Clients.open(saved)
    with pytest.raises(StoreError, match="not written by fedsub"):
        small().save(saved)


def test_the_save_before_a_crash_can_be_restored(saved):
    moved = saved.with_name(".saved.old-0123abcd")
    saved.rename(moved)
    with pytest.raises(StoreError, match=r"cut short.*To restore it: mv ") as caught:
        Clients.open(saved)
    subprocess.run(str(caught.value).split("To restore it: ")[1], shell=True, check=True)
    assert_same(small(), Clients.open(saved, verify=True))


def test_saving_clears_what_a_crash_left_half_written(saved):
    for name in (".saved.new-0123abcd", ".saved.new-mine", ".other.new-0123abcd"):
        saved.with_name(name).mkdir()
    small().save(saved)
    assert sorted(os.listdir(saved.parent)) == [".other.new-0123abcd", ".saved.new-mine", "saved"]
