"""Codecs: how a client writes its update, in fewer bytes than its values take.

A codec is the last part of a method. Every parameter of every client is compressed by itself; what the server
decodes is what the simulation goes on with, and the bytes are those of the real encoding (`fedsub.method.codecs.wire`).

    Sign                 1 bit per value, majority vote          signSGD
    ErrorFeedbackSign    1 bit per value and a scale             EF-signSGD
    TopK                 the largest values and their places     with memory
    RandomK              random values and a seed                with memory, or unbiased
    Int8                 1 byte per value and a scale            unbiased rounding
"""

from fedsub.method.codecs.base import Codec
from fedsub.method.codecs.quantise import Int8
from fedsub.method.codecs.sign import ErrorFeedbackSign, Sign
from fedsub.method.codecs.sparse import RandomK, TopK

__all__ = ["Codec", "ErrorFeedbackSign", "Int8", "RandomK", "Sign", "TopK"]
