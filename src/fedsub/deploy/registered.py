"""Who may join: the public keys in `keys/`, and nobody else. A new file is registered, one that goes is revoked."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from fedsub.deploy.flower import Flower
from fedsub.deploy.keys import read_public
from fedsub.deploy.site import Site
from fedsub.disk.files import dump, write_atomic
from fedsub.disk.reading import read_json
from fedsub.errors import ConfigError, RunError


class Registered:
    """Keeps Flower's register like the folder. Flower has numbers of its own for nodes; which is whose is kept here."""

    def __init__(self, site: Site, flower: Flower):
        self.site, self.flower = site, flower
        self.path = site.state / "registered.json"
        known = {str(node["node-id"]) for node in flower.nodes()}
        self.kept = {name: entry for name, entry in self._read().items() if entry.get("node") in known}
        self._bad: dict[str, str] = {}

    def follow(self) -> Iterator[str]:
        """Register what is new, revoke what is gone; yields a sentence for each."""
        there = self.site.registered
        for name, entry in list(self.kept.items()):
            if name not in there or _digest(there[name]) != entry["key"]:
                self.flower.unregister(entry["node"])
                del self.kept[name]
                self._write()
                yield f"Revoked the key of {name}"
        new: dict[str, Path] = {}
        for name in [name for name in there if name not in self.kept]:
            if self._bad.get(name) != _digest(there[name]):
                try:
                    read_public(there[name])
                    new[name] = there[name]
                except ConfigError as error:
                    yield self._refused(name, there[name], str(error))
        if not new:
            return
        digests, done = {name: _digest(path) for name, path in new.items()}, []
        for name, node in self.flower.register(new).items():
            if isinstance(node, RunError):
                yield self._refused(name, new[name], str(node))
            else:
                self.kept[name] = {"node": node, "key": digests[name]}
                done.append(name)
        self._write()
        if done:
            yield f"Registered the keys of {', '.join(done[:5])}{' …' if len(done) > 5 else ''} ({len(done)})"

    def _refused(self, name: str, path: Path, why: str) -> str:
        self._bad[name] = _digest(path)  # said once
        return f"The key of {name} is not registered: {why}"

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            found = read_json(self.path)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        write_atomic(self.path, dump(self.kept))


def _digest(path: Path) -> str:
    try:
        return blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""
