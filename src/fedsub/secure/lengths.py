"""Bytes of one secure sum, by participant, without a message being written. The tests write them all and compare."""

from __future__ import annotations

import numpy as np

from fedsub.secure import shamir, wire
from fedsub.secure.ciphers import KEY, TAG
from fedsub.secure.client import SEALED
from fedsub.secure.ring import Array
from fedsub.secure.setting import Setting

_FRAME = wire.HEAD.size + wire.DIGEST


def sum_bytes(setting: Setting, masked: Array, *, opened: bool = True) -> tuple[Array, Array]:
    """(down, up), int64 by place, of a sum in which all sent keys and shares.

    ``masked`` says whose masked values came, bool by place; these all stayed to the end. Not ``opened``: they were too
    few, and the server told nobody anything after that. The setting's own bytes count as sent to everybody.
    """
    count = len(setting.participants)
    listed, everybody = (count + 7) // 8, np.ones(count, bool)
    near = setting.neighbourhoods(everybody)
    degree = np.array([len(near[at]) for at in range(count)], np.int64)
    alive = np.array([int(masked[near[at]].sum()) for at in range(count)], np.int64)  # neighbours that came
    down = len(setting.write()) + _FRAME + listed + KEY * degree  # setting, roster
    down += _FRAME + listed + SEALED * degree  # inbox
    up = _FRAME + 3 * KEY + _FRAME + (KEY + SEALED) * degree  # keys, shares
    up = up + (_FRAME + setting.nbytes) * masked
    if opened:
        down = down + (_FRAME + listed + _FRAME + listed + TAG * alive) * masked  # survivors, agreed
        up = up + (_FRAME + TAG * alive + _FRAME + shamir.SHARE * (degree + 1)) * masked  # agree, unmask
    return down, up
