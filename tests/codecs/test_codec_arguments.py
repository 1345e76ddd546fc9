"""Codecs refuse settings, corrections and types that they cannot carry."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sending import CODECS, send_one

import fedsub as fs
from fedsub.errors import MethodError
from fedsub.method.codecs import Codec, ErrorFeedbackSign, Int8, RandomK, Sign, TopK


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        (TopK(0), "above 0 and at most 1"), (TopK(1.5), "got 1.5"), (TopK(math.nan), "finite"),
        (TopK("some"), "finite number"), (TopK(True), "finite number"), (RandomK(-1), "share of RandomK"),  # type: ignore[arg-type]
        (TopK(feedback=1), "True or False"), (Int8(feedback="yes"), "feedback of Int8"),  # type: ignore[arg-type]
        (RandomK(scale=2), "got 2"), (RandomK(scale=True), "without bound"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_bad_arguments(codec: Codec, words: str):
    with pytest.raises(MethodError, match=words):
        codec.check(_method())


def _method(average: Any = None) -> Any:
    return SimpleNamespace(average=average or fs.OverClients(), sampler=fs.Uniform(3))


def test_good_arguments():
    for codec in CODECS:
        codec.check(_method())
        assert codec.codec
        assert codec.client_slots == (("residual",) if codec.feedback else ())


def test_sign_refuses_a_correction_that_it_would_lose():
    from fedsub.method.average import OverClients, OverHolders, OverSampledHolders

    for lost in (OverHolders(), OverHolders(temper=0.5), OverHolders(temper=0, groups={"*": {"temper": 1.0}})):
        with pytest.raises(MethodError, match=r"ErrorFeedbackSign\(\)"):
            Sign().check(_method(lost))
        ErrorFeedbackSign().check(_method(lost))
    for fine in (OverClients(), OverSampledHolders(), OverHolders(temper=0), OverHolders(max_coef=1)):
        Sign().check(_method(fine))


def test_other_types_are_refused():
    with pytest.raises(MethodError, match=r"w is torch\.bfloat16"):
        send_one(Int8(), torch.ones(3, dtype=torch.bfloat16))
