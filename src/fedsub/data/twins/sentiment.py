"""Synthetic data in the shape of Sentiment140: short texts as lists of words, positive or negative.

    logit = intercept + sum over words of ± polarity[word],    - after a word that negates

The commonest words say nothing, as in any language. A few clients write in a language of their own, without
the common words, so that the commonest one is used by 1,451 of 1,473 clients, as in the real data; of the
vocabulary of 30,000, two fifths are used once.
"""

from __future__ import annotations

import numpy as np

from fedsub.data.clients import Array, Column, Space
from fedsub.data.twins import draws
from fedsub.data.twins.twin import Block, Table1, Twin, label_column, space
from fedsub.errors import DataError

CLIENTS, SAMPLES, HOTTEST, WORDS = 1473, 79_050, 1451, 30_000
LEAST = 41  # texts: the paper keeps users with more than 40
SHORTEST, LONGEST = 3, 23  # words of a text
ONCE = 0.4  # share of the vocabulary that is used by one client, in one text
COMMON = 0.01  # share of the other words that strangers do not use, and that say nothing
NEGATING = 4  # of the common words
TELLING, STRENGTH = 0.35, 1.6  # share of the other words with a polarity, and its standard deviation
POSITIVE = 0.5
LENGTH, WORD, OPENING, FELT = range(1, 5)  # purposes of draws


class SentimentPlan:
    """Who writes how much, the language, and what its words mean; the texts follow block by block."""

    def __init__(self, scale: float, seed: int) -> None:
        clients, samples, words = round(CLIENTS * scale), round(SAMPLES * scale), round(WORDS * scale**0.5)
        if clients < 2:
            raise DataError(f"sentiment-like: scale={scale} leaves {clients} clients; use 0.002 or more.")
        draw = np.random.default_rng([seed, 4])
        self.seed, self.words = seed, words
        self.sizes = draws.sizes(draw, clients, samples, least=LEAST, most=550, spread=0.35)
        once = min(int(ONCE * words), samples // 4)
        often = words - once
        common = max(int(COMMON * often), NEGATING + 1)
        named = 1 + draw.permutation(words)  # by rank; row 0 is padding, and numbers say nothing
        self.named = named
        self.weights = draws.cumulated(1 / (np.arange(often) + 2.7))
        self.strangers = np.zeros(clients, bool)
        self.strangers[draw.permutation(clients)[: clients - round(HOTTEST * clients / CLIENTS)]] = True
        self.floor = self.weights[common - 1]  # where a stranger's draws begin
        texts = draw.choice(samples, once, replace=False)
        self.once = draws.Given.of(texts, named[often:])  # by text: its last word
        self.begins = np.cumsum(self.sizes) - self.sizes
        self.negates = np.zeros(words + 1, bool)
        self.negates[named[common - NEGATING : common]] = True
        self.polarity = np.zeros(words + 1)
        telling = draw.random(often - common) < TELLING
        self.polarity[named[common:often]] = telling * draw.normal(0, STRENGTH, often - common)
        logits = self._logits(*self._texts(0, min(clients, 512)))  # clients are in no order: these stand for all
        self.intercept = draws.intercept(lambda shift: float(draws.sigmoid(logits + shift).mean()), POSITIVE)

    @property
    def spaces(self) -> tuple[Space, ...]:
        return (space("word", self.words + 1, "words", padding=True),)

    def block(self, begin: int, end: int) -> Block:
        words, lengths = self._texts(begin, end)
        probability = draws.sigmoid(self._logits(words, lengths) + self.intercept)
        sizes = self.sizes[begin:end]
        label = draws.uniforms(draws.client_keys(self.seed, FELT, begin, end), sizes) < probability
        starts = np.concatenate([[0], np.cumsum(lengths)])
        texts = Column("words", words, "word", starts, int(lengths.max()))
        return Block(sizes, [texts, label_column(label)], probability)

    def _texts(self, begin: int, end: int) -> tuple[Array, Array]:
        """(words of all texts, one behind the other; lengths)."""
        sizes = self.sizes[begin:end]
        keys = {purpose: draws.client_keys(self.seed, purpose, begin, end) for purpose in (LENGTH, WORD, OPENING)}
        span = LONGEST - SHORTEST + 1
        lengths = SHORTEST + (span * draws.uniforms(keys[LENGTH], sizes)).astype(np.int64)
        starts = np.cumsum(lengths) - lengths
        first = self.begins[begin:end] - self.begins[begin]  # of every client, among the texts of the block
        per_client = np.add.reduceat(lengths, first)
        chance = draws.uniforms(keys[WORD], per_client)
        floor = np.where(self.strangers[begin:end], self.floor, 0.0).repeat(per_client)
        words = self.named[np.searchsorted(self.weights, floor + (1 - floor) * chance, side="right")]
        # Everybody else uses the commonest word at least once: one of its texts begins with it.
        text = first + draws.uniforms(keys[OPENING], np.ones(end - begin, np.int64)) * sizes
        words[starts[text.astype(np.int64)[~self.strangers[begin:end]]]] = self.named[0]
        low = int(self.begins[begin])
        text, rare = self.once.within(low, low + len(lengths))
        words[starts[text] + lengths[text] - 1] = rare
        return words, lengths

    def _logits(self, words: Array, lengths: Array) -> Array:
        starts = np.cumsum(lengths) - lengths
        negated = np.concatenate([[False], self.negates[words[:-1]]])
        negated[starts] = False
        return np.add.reduceat(self.polarity[words] * np.where(negated, -1, 1), starts)


SENTIMENT = Twin(
    "sentiment-like",
    "positive or negative texts, as lists of words: Sentiment140",
    Table1(CLIENTS, SAMPLES, HOTTEST),
    SentimentPlan,
)
