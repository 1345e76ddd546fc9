"""Whether torch can compute where it is asked to."""

from __future__ import annotations

import torch

from fedsub.errors import ConfigError


def check_device(device: str | torch.device) -> None:
    """Refuse a device that torch does not know or cannot see here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as err:
        reason = str(err).splitlines()[0]
        raise ConfigError(
            f'Cannot use device "{device}": {reason}. Give "cpu", or one that torch can see here.'
        ) from err
