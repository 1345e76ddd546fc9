"""The one place where Ray is attached to, or started on this machine."""

from __future__ import annotations

import logging
import os
import socket
import warnings
from pathlib import Path
from typing import Any

from fedsub.errors import ConfigError, lacking

ADDRESS = "RAY_ADDRESS"  # the variable by which Ray itself is told of a running cluster
TOKEN = "RAY_AUTH_TOKEN"
WAIT = 10  # seconds for a cluster that does not answer


def connect(address: str | None = None, *, cpus: int | None = None) -> Any:
    """The module ``ray``, connected: to the cluster at ``address``, else at RAY_ADDRESS, else to one of its own.

    A cluster of its own lives in this process's shadow: it has ``cpus`` slots for work (at least one per core), no
    dashboard, says nothing unless something is wrong, and ends with this process, also by ``kill -9``. A process has
    one connection, which a second call finds; an ``address`` then has to be the same one.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # and devices stay visible as they are
    where = address or os.environ.get(ADDRESS) or None
    if where not in (None, "local") and (TOKEN in os.environ or (Path.home() / ".ray" / "auth_token").exists()):
        os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when Ray is imported; a cluster of Ray 2.60 asks for it
    ray = import_ray()
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", "local", there, f"ray://{there}"):
            raise ConfigError(
                f"This process is connected to the Ray cluster at {there} already, and {address} is asked for; use "
                "one cluster per process, or call ray.shutdown() first."
            )
        return ray
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": "fedsub"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        if where in (None, "local"):
            cores = os.cpu_count() or 1
            ray.init(address="local", num_cpus=max(cores, cpus or 1), include_dashboard=False, **quiet)
            return ray
        try:
            _knock(where)
            ray.init(address=where, **quiet)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as err:
            said = str(err).strip().splitlines()
            raise ConfigError(
                f"No Ray cluster answers at {where} ({said[0] if said else type(err).__name__}). Start one with "
                "'ray start --head', give each machine its token (docs/cluster.md), or leave out the "
                f"address and {ADDRESS} to start one here."
            ) from err
    return ray


def _knock(where: str) -> None:
    """Whether anybody listens there: Ray itself would try for minutes."""
    host, _, port = where.rpartition(":")
    if host and "/" not in host and port.isdigit():
        socket.create_connection((host, int(port)), WAIT).close()


def import_ray() -> Any:
    """The module ``ray``; a MissingExtra that says how to get it."""
    try:
        import ray
    except ImportError as err:
        raise lacking("Ray, for work on several processes and machines,", "ray") from err
    return ray
