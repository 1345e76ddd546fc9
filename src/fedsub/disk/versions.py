"""What runs here: the versions that results may depend on in their last digits."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Of python, torch, numpy, fedsub and the platform, as text."""
    found = {"python": platform.python_version()}
    for name in ("torch", "numpy", "fedsub"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # run from a source tree
            found[name] = "not installed"
    return {**found, "platform": platform.platform()}
