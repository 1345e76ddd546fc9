"""One set of refusals: which values pass, and what the message says of the others."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fedsub import checks
from fedsub.errors import ConfigError, MethodError

NO_NUMBERS = (math.nan, math.inf, -math.inf, True, "1", None, 1j, [1])


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (checks.check_number, (0, -1.5, np.float32(2), np.int64(3), Fraction(1, 2)), ()),
        (checks.check_positive, (1e-300, 1, np.float64(2)), (0, -1e-9)),
        (checks.check_share, (1e-9, 0.5, 1), (0, 1 + 1e-9, -1)),
        (checks.check_mix, (0, 0.5, 1), (-1e-9, 1 + 1e-9)),
        (checks.check_decay, (0, 0.999), (1, -1e-9)),
    ],
)
def test_limits(check: Any, good: tuple, bad: tuple):
    for value in good:
        found = check("x", value)
        assert found == float(value)
        assert type(found) is float
    for value in bad:
        with pytest.raises(MethodError, match=r"^x must be .*, got "):
            check("x", value)
    for value in NO_NUMBERS:
        with pytest.raises(ConfigError, match=r"^x must be a finite number, got "):
            check("x", value, error=ConfigError)


def test_whole_numbers():
    assert checks.check_whole("x", np.int32(3), 3) == 3
    assert type(checks.check_whole("x", np.int32(3))) is int
    with pytest.raises(MethodError, match=r"^x must be a whole number of at least 1, got 2\.0\.$"):
        checks.check_whole("x", 2.0, 1)
    with pytest.raises(MethodError, match=r"^x must be a whole number of at least 1, got 0\.$"):
        checks.check_whole("x", 0, 1)
    for value in (True, "3", None, math.nan):
        with pytest.raises(MethodError, match=r"^x must be a whole number, got "):
            checks.check_whole("x", value)


def test_least_hint_flag_and_seed():
    assert checks.check_number("x", 1, least=1) == 1
    with pytest.raises(MethodError, match=r"^x must be a finite number of at least 1, got 0\.5\.$"):
        checks.check_number("x", 0.5, least=1)
    with pytest.raises(MethodError, match=r"^x must be above 0 and at most 1, got 2: a half is enough\.$"):
        checks.check_share("x", 2, hint="a half is enough")
    checks.check_flag("x", False)
    with pytest.raises(MethodError, match=r"^x must be True or False, got 1\.$"):
        checks.check_flag("x", 1)
    assert checks.check_seed("x", 2**63 - 1) == 2**63 - 1
    assert checks.check_seed("x", 0, bits=32) == 0
    for value, bits in ((2**63, 63), (2**32, 32), (-1, 63), (1.0, 63), (True, 63)):
        with pytest.raises(ConfigError, match=r"^x must be a whole number with 0 ≤ x < "):
            checks.check_seed("x", value, bits=bits)
