"""Devices with round numbers."""

from __future__ import annotations

from fedsub.study import costs

PLAIN = costs.Devices("boxes", download=100.0, upload=50.0, latency=0.5, speed=10.0)
