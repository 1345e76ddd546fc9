"""Scores samples with the model in this folder. It needs torch and safetensors, and nothing else.

    python score.py data.csv --out scored.csv

or from Python

    from score import Model

    model = Model()  # of the folder in which this file is
    model.score({"item": ["sku-17", "sku-4"]})  # {"score": [0.31, -0.2], "probability": [0.58, 0.45]}

config.json says what the columns are; vocabulary/*.json lists the original id of every row of a table. Ids that
training never saw count as a row of zeros (in lists they are left out), unless told otherwise; rows in which something
is missing have no score.
"""

import argparse
import codecs
import csv
import gzip
import io
import json
import math
import re
import sys
import warnings
from datetime import datetime, timedelta, timezone
from math import inf, nan  # noqa: F401 (the model may use them)
from pathlib import Path

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch tries it; nothing here needs it

import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch import device  # noqa: E402, F401 (the model may use it)

AT_ONCE = 1 << 14  # samples
EXACT = 2**53  # whole numbers that a float holds exactly
MISSING = {"int": -(2**63), "text": "(missing)"}  # in a vocabulary, the id of those that have none
GAPS = ("", "na", "n/a", "nan", "null", "none")  # texts that mean a missing number
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017 (for older Pythons, too)
UNKNOWN = ("zero", "empty", "refuse")
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


# <compute>
def compute(state, batch):
    raise RuntimeError("This model could not be written down as a function; give its module: Model(module=…).")


# </compute>


class BadData(Exception):
    """What is wrong with the data, in a sentence."""


class Model:
    """The model of a folder; ``module`` is for one that could not be written down here (see config.json)."""

    def __init__(self, folder=None, module=None):
        self.folder = Path(folder) if folder is not None else Path(__file__).resolve().parent
        self.config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self.columns, self.spaces = self.config["columns"], self.config["spaces"]
        self.state = load_file(self.folder / "model.safetensors")
        self.module = module.eval() if module is not None else None
        if self.module is not None:
            self.module.load_state_dict(self.state)
        if (self.folder / "constants.safetensors").exists():
            self.state.update(load_file(self.folder / "constants.safetensors"))
        self.rows = {}
        for name, space in self.spaces.items():
            if space["vocabulary"] is not None:
                ids = json.loads((self.folder / space["vocabulary"]).read_text(encoding="utf-8"))
                first = 1 if space["padding"] else 0  # row 0 means "nothing here"
                self.rows[name] = {value: row for row, value in enumerate(ids) if row >= first}
        self.personal = self.config["personal"]
        if self.personal:
            self.own = load_file(self.folder / "personal.safetensors")
            held = self.folder / "held.safetensors"
            self.held = load_file(held) if held.exists() else {}
            ids = json.loads((self.folder / "clients.json").read_text(encoding="utf-8"))
            self.clients = {value: place for place, value in enumerate(ids)}

    def score(self, data, clients=None, unknown="zero"):
        """New columns by name, for columns by name; None where something is missing.

        ``clients`` are the owners of the samples, if each has parameters of its own. ``counts`` then says how many
        ids training never saw, and how many entries are missing, by column.
        """
        if unknown not in UNKNOWN:
            raise BadData(f"unknown is {unknown!r}, expected one of {', '.join(UNKNOWN)}.")
        for name in self.columns:
            if name not in data:
                raise BadData(f"There is no column {name!r} in the data, which the model reads.")
        self.counts = {"unknown": {}, "incomplete": {}, "new clients": 0}
        count = len(next(iter(data.values()))) if self.columns else 0
        batch, whole = {}, [True] * count
        for name, column in self.columns.items():
            read = self._numbers if column["space"] is None else self._ids
            values, gaps = read(name, column, data[name], unknown)
            batch[name] = torch.tensor(values, dtype=getattr(torch, column["dtype"]))
            for at in gaps:
                whole[at] = False
        if self.personal and clients is None:
            raise BadData("Clients have parameters of their own: say whose the samples are (clients).")
        if self.personal:
            whole = [there and client is not None for there, client in zip(whole, clients or [])]  # noqa: B905
        chosen = [at for at in range(count) if whole[at]]
        with torch.no_grad():
            parts = list(self._outputs(batch, chosen, clients))
        found = self._answers(torch.cat([said for _, said in parts])) if parts else {"score": []}
        places = [at for some, _ in parts for at in some]
        out = {name: [None] * count for name in found}
        for name, values in found.items():
            for at, value in zip(places, values):  # noqa: B905 (as many of both)
                out[name][at] = value
        return out

    def _ids(self, name, column, entries, unknown):
        """(rows of the tables, samples without an id)."""
        space = self.spaces[column["space"]]
        spare = 0 if space["padding"] else space["spare"]
        rows, gaps, missing, strange = [], [], 0, 0
        for at, entry in enumerate(entries):
            if column["kind"] == "list":
                ids = [self._row(column["space"], space, e) for e in (entry or [])[-column["width"] :]]
                strange += ids.count(-1)
                ids = [row for row in ids if row is not None and row >= 0]
                rows.append(ids + [0] * (column["width"] - len(ids)))
                continue
            found = [self._row(column["space"], space, e) for e in (entry if column["kind"] == "fixed" else [entry])]
            new = found.count(-1)
            strange += new
            missing += None in found
            if None in found or (new and unknown == "empty"):
                gaps.append(at)
            found = [spare if row is None or row < 0 else row for row in found]
            rows.append(found if column["kind"] == "fixed" else found[0])
            if new and not space["padding"] and unknown == "zero":
                self._grow(space)
        if strange:
            self.counts["unknown"][name] = strange
            if unknown == "refuse":
                raise BadData(f"{strange} ids of {name!r} were not in training; see unknown.")
        if missing:
            self.counts["incomplete"][name] = missing
        return rows, gaps

    def _row(self, name, space, entry):
        """The row of an id; −1 if training never saw it, None if it is missing and has no row of its own."""
        rows = self.rows.get(name)
        if rows is None:
            number = None if _gap(entry) else _whole(entry)
            return None if _gap(entry) else number if number is not None and 0 <= number < space["size"] else -1
        if _gap(entry):
            return rows.get(MISSING[space["ids"]])
        key = str(entry) if space["ids"] == "text" else _whole(entry)
        return rows.get(key, -1)

    def _grow(self, space):
        """A row of zeros behind all others, for ids that training never saw."""
        if space["whole"]:
            raise BadData("The model uses a table as a whole, so unknown ids cannot count as zero; see unknown.")
        for table in space["tables"]:
            value = self.state[table]
            if len(value) <= space["spare"]:
                more = value.new_zeros(space["spare"] + 1 - len(value), *value.shape[1:])
                self.state[table] = torch.cat([value, more])
                self._put(table, self.state[table])

    def _put(self, name, value):
        owner, _, attribute = name.rpartition(".")
        if self.module is not None:
            setattr(self.module.get_submodule(owner), attribute, torch.nn.Parameter(value))

    def _numbers(self, name, column, entries, unknown):
        """(numbers, samples in which one is missing)."""
        zero = 0 if column["dtype"].startswith(("int", "uint")) else 0.0
        out, gaps = [], []
        for at, entry in enumerate(entries):
            found = [_number(name, at, e, zero) for e in (entry if column["kind"] == "fixed" else [entry])]
            if None in found:
                gaps.append(at)
            found = [zero if value is None else value for value in found]
            out.append(found if column["kind"] == "fixed" else found[0])
        if gaps:
            self.counts["incomplete"][name] = len(gaps)
        return out, gaps

    def _outputs(self, batch, chosen, clients):
        """(samples, what the model says to them), batch by batch; of personal models client by client."""
        if not self.personal:
            for low in range(0, len(chosen), AT_ONCE):
                some = chosen[low : low + AT_ONCE]
                yield some, self._said(batch, some)
            return
        owners = {}
        for at in chosen:
            owners.setdefault(clients[at], []).append(at)
        for client, some in owners.items():
            place = self.clients.get(client, self.clients.get(_whole(client)))  # ids of a file are text
            shared = self._wear(place) if place is not None else {}
            self.counts["new clients"] += place is None
            yield some, self._said(batch, some)
            for name, (rows, value) in shared.items():
                if rows is None:
                    self.state[name] = value
                else:
                    self.state[name][rows] = value

    def _wear(self, place):
        """Put a client's own parameters in place of the shared ones, which are returned."""
        shared = {}
        for name in self.personal["names"]:
            space = self.personal["tables"].get(name)
            if space is None:
                shared[name] = None, self.state[name]
                self.state[name] = self.own[name][place]
                continue
            begin, end = self.held[f"offsets/{space}"][place : place + 2].tolist()
            rows = self.held[f"rows/{space}"][begin:end].long()
            shared[name] = rows, self.state[name][rows].clone()
            self.state[name][rows] = self.own[name][begin:end]
        return shared

    def _said(self, batch, some):
        at = torch.tensor(some)
        given = {name: values[at] for name, values in batch.items()}
        if self.config["sample_mask"]:
            given["sample_mask"] = torch.ones(len(some))
        if self.module is None:
            return compute(self.state, given)
        if self.personal:
            for name in self.personal["names"]:
                self._put(name, self.state[name])
        inputs = self.config["inputs"]
        return self.module(given) if inputs is None else self.module(*[given[name] for name in inputs])

    def _answers(self, output):
        """What the output means, by the loss that was trained with."""
        kind = self.config["output"]
        if kind == "HalfCrossEntropy":
            output = output[..., 0] - output[..., 1]
        elif output.ndim == 2 and output.shape[1] == 1:
            output = output[:, 0]
        if kind == "CrossEntropy" and output.ndim == 2:
            best = output.argmax(-1)
            top = best.unsqueeze(-1)
            names = self.config["classes"] or list(range(output.shape[1]))
            return {
                "class": [names[i] for i in best.tolist()],
                "probability": output.softmax(-1).gather(-1, top)[:, 0].tolist(),
                "score": output.gather(-1, top)[:, 0].tolist(),
            }
        if output.ndim > 1:
            flat = output.reshape(len(output), -1)
            return {f"score_{i}": flat[:, i].tolist() for i in range(flat.shape[1])}
        if kind in ("Binary", "HalfCrossEntropy"):
            return {"score": output.tolist(), "probability": output.sigmoid().tolist()}
        return {"score": output.tolist()}


def _gap(entry):
    return entry is None or entry == "" or (isinstance(entry, float) and math.isnan(entry))


def _whole(entry):
    """An id as a whole number; None if it is none."""
    if isinstance(entry, str):
        text = entry.strip()
        if re.fullmatch(r"[+-]?\d+", text):
            return int(text)
        if text in ("true", "false"):
            return int(text == "true")
        try:
            entry = float(text)
        except ValueError:
            return None
    if isinstance(entry, float):
        return int(entry) if math.isfinite(entry) and entry == math.floor(entry) and abs(entry) <= EXACT else None
    return int(entry)


def _number(name, at, entry, zero):
    """A plain number; None if it is missing."""
    value = entry
    if isinstance(entry, str):
        text = entry.strip()
        if text.lower() in GAPS:
            return None
        value = _read(text)
        if value is None:
            raise BadData(f"Column {name!r}, row {at}: {entry!r} is not a number.")
    if value is None or not math.isfinite(value):
        return None
    if zero == 0 and isinstance(zero, int):
        if value != math.floor(value):
            raise BadData(f"Column {name!r}, row {at}: {entry!r} is a fraction, and training had whole numbers.")
        return int(value)
    return float(value)


def _read(text):
    if re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if text in ("true", "false"):
        return int(text == "true")
    if "_" not in text:
        try:
            return float(re.sub(r"^([+-]?\d+),(\d+)$", r"\1.\2", text))
        except ValueError:
            pass
    try:  # a point in time: microseconds since 1970
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment.replace(tzinfo=moment.tzinfo or EPOCH.tzinfo)
    return (moment - EPOCH) // timedelta(microseconds=1)


def read_csv(path, needed, separator=None, encoding=None):
    """(header, rows, separator) of a text file; the separator is one under which all ``needed`` columns are there."""
    raw = Path(path).read_bytes()
    raw = gzip.decompress(raw) if str(path).endswith(".gz") else raw
    seen = next((name for mark, name in MARKS.items() if raw.startswith(mark)), None)
    if seen is not None and encoding in (None, "utf-8"):
        encoding = seen
    try:
        text = raw.decode(encoding or "utf-8")
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not in the encoding {encoding or 'utf-8'} ({error}); see --encoding.") from error
    candidates = [separator] if separator else [",", ";", "\t", "|"]
    for one in candidates:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=one) if row]
        if rows and set(needed) <= set(rows[0]):
            return rows[0], rows[1:], one
    raise BadData(f"{path} has not all columns that the model reads ({', '.join(needed)}); see --separator.")


def main():
    parser = argparse.ArgumentParser(description="Append scores to the rows of a CSV file.")
    parser.add_argument("data")
    parser.add_argument("--out", help="where to write; default: to the screen")
    parser.add_argument("--unknown", choices=UNKNOWN, default="zero", help="ids that training never saw")
    parser.add_argument("--client", help="the column of clients, if they have parameters of their own")
    parser.add_argument("--prefix", default="", help="of the names of the new columns")
    parser.add_argument("--separator")
    parser.add_argument("--encoding")
    given = parser.parse_args()
    model = Model()
    owner = (given.client or model.config["client"]) if model.personal else None
    if model.personal and owner is None:
        raise BadData("Clients have parameters of their own: name their column with --client.")
    needed = [*model.columns, *([owner] if owner else [])]
    separator, encoding = given.separator or model.config["separator"], given.encoding or model.config["encoding"]
    header, rows, separator = read_csv(given.data, needed, separator, encoding)
    for line, row in enumerate(rows, 2):
        if len(row) > len(header):
            raise BadData(f"Row {line - 1} of {given.data} has {len(row)} fields, the header has {len(header)}.")
    at = {name: header.index(name) for name in needed}
    data = {name: [row[place] if place < len(row) else None for row in rows] for name, place in at.items()}
    clients = [entry or None for entry in data[owner]] if owner else None
    found = model.score(data, clients, given.unknown)
    if taken := [given.prefix + name for name in found if given.prefix + name in header]:
        raise BadData(f"{given.data} has a column {taken[0]!r} already; see --prefix.")
    out = open(given.out, "w", encoding="utf-8", newline="") if given.out else sys.stdout  # noqa: SIM115
    with out:
        writer = csv.writer(out, delimiter=separator, lineterminator="\n")
        writer.writerow([*header, *(given.prefix + name for name in found)])
        for number, row in enumerate(rows):
            more = [_shown(values[number]) for values in found.values()]
            writer.writerow([*row, *[""] * (len(header) - len(row)), *more])
    without = sum(value is None for value in next(iter(found.values())))
    print(f"{len(rows):,} rows, {without:,} of them without a score; {_told(model.counts)}", file=sys.stderr)


def _shown(value):
    return "" if value is None else f"{value:.9g}" if isinstance(value, float) else value


def _told(counts):
    said = [f"{n:,} ids of {name!r} were not in training" for name, n in counts["unknown"].items()]
    said += [f"{n:,} rows have no {name!r}" for name, n in counts["incomplete"].items()]
    said += [f"{counts['new clients']:,} clients were not in training"] if counts["new clients"] else []
    return "; ".join(said) or "every id was in training"


if __name__ == "__main__":
    try:
        main()
    except BadData as problem:
        sys.exit(f"Error: {problem}")
