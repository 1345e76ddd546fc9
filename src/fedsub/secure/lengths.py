"""Bytes of one secure sum, by participant, without a message being written. The tests write them all and compare."""

from __future__ import annotations

import numpy as np

from fedsub.secure import shamir, wire
from fedsub.secure.ciphers import KEY, SIGNATURE, TAG
from fedsub.secure.client import SEALED
from fedsub.secure.ring import Array
from fedsub.secure.setting import Setting

_FRAME = wire.HEAD.size + wire.DIGEST


def sum_bytes(setting: Setting, masked: Array, *, opened: bool = True, signed: bool = False) -> tuple[Array, Array]:
    """(down, up), int64 by place, of a sum in which all sent keys and shares.

    ``masked`` says whose masked values came, bool by place; these all stayed to the end. Not ``opened``: they were too
    few, and the server told nobody anything after that. ``signed``: with registered identities. The setting's own
    bytes count as sent to everybody.
    """
    count = len(setting.participants)
    listed, everybody = (count + 7) // 8, np.ones(count, bool)
    near = setting.neighbourhoods(everybody)
    degree = np.array([len(near[at]) for at in range(count)], np.int64)
    alive = np.array([int(masked[near[at]].sum()) for at in range(count)], np.int64)  # neighbours that came
    roster = KEY * count + SIGNATURE * degree if signed else KEY * degree
    down = len(setting.write()) + _FRAME + listed + roster  # setting, roster
    down += _FRAME + listed + SEALED * degree  # inbox
    up = _FRAME + 3 * KEY + SIGNATURE * signed + _FRAME + (KEY + SEALED) * degree  # keys, shares
    up = up + (_FRAME + setting.nbytes) * masked
    if opened:
        vouched = SIGNATURE * int(masked.sum()) * signed
        down = down + (_FRAME + listed + _FRAME + listed + TAG * alive + vouched) * masked  # survivors, agreed
        up = up + (_FRAME + TAG * alive + SIGNATURE * signed) * masked  # agree
        up = up + (_FRAME + shamir.SHARE * (degree + 1)) * masked  # unmask
    return down, up
