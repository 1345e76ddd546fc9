"""Made data in the shape of FedAds: impressions, clicks and conversions, known to a publisher and an ads platform.

(P. Wei et al., "FedAds: a benchmark for privacy-preserving CVR estimation with vertical federated learning", SIGIR
2023.) A publisher shows an ad (impression), some are clicked, and of those some end in a purchase at the advertiser's
(conversion). The publisher knows the user, the page and what is clicked there; the ads platform knows the ad, how often
the shop was visited, and the conversion, which is to be predicted of a click. Not all clicks come from this publisher:
the others are unaligned, the ads platform has them and their labels and nothing more.

    click       logit = c + appeal[ad] + eye[position] + pull · match
    conversion  logit = b + quality[ad] + price[band] + visits[band]
                      + intent[segment] + mood[user] + page[page] + fit · match
    match       the ad's category is among the user's interests

All draws are functions of (seed, purpose, number), and labels are drawn from a probability that is known
(`AdsWorld.conversion`). So the AUC that no model can pass is known, with both sides' columns and with those of the ads
platform alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsub import rng
from fedsub.checks import check_decay, check_seed, check_share, check_whole
from fedsub.data.clients import Array, Clients
from fedsub.data.ingest import from_arrays
from fedsub.data.twins.draws import intercept, sigmoid
from fedsub.errors import DataError
from fedsub.vertical.data.sides import Sides

SEGMENTS, PAGES, POSITIONS, CATEGORIES, PRICES, VISITS, INTERESTS = 12, 40, 4, 20, 8, 6, 4
ASIDE = 2048  # impressions drawn to average over what the publisher knows
(USER, PAGE, POSITION, AD, VISIT, CLICK, CONVERSION, NAME, SEEN, SHUFFLE_ADS, SHUFFLE_PUBLISHER) = range(
    11
)  # by impression
(SEGMENT, INTEREST, MOOD, INTENT, CATEGORY, PRICE, APPEAL, QUALITY, BAND, VISITED, ON_PAGE, EYE) = range(
    20, 32
)  # effects
PULL, FIT = 1.0, 1.2
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class AdsWorld:
    """The made world: ``sides()`` draws its samples, `conversion` is the truth about any of them.

    ``clicked`` and ``converted`` are the shares of impressions that are clicked and of clicks that convert, ``aligned``
    the share of clicks that this publisher knows.
    """

    impressions: int = 200_000
    users: int = 2000
    ads: int = 400
    aligned: float = 0.3
    clicked: float = 0.1
    converted: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("impressions", 100), ("users", 2), ("ads", 2)):
            check_whole(name, getattr(self, name), least, error=DataError)
        check_share("aligned", self.aligned, hint="of the clicks, those that this publisher knows", error=DataError)
        for name in ("clicked", "converted"):
            if not check_decay(name, getattr(self, name), error=DataError):
                raise DataError(f"{name} is 0: nothing would be left to learn from; give a share such as 0.1.")
        check_seed("seed", self.seed, error=DataError)

    def sides(self) -> Sides:
        """The tables of the ads platform ("ads", with the label) and the publisher ("publisher")."""
        clicked = self._clicked
        ads = self._ads_columns(clicked)
        publisher = self._publisher_columns(np.arange(self.impressions))
        truth = self._conversion(ads, {name: values[clicked] for name, values in publisher.items()})
        label = self._uniform(CONVERSION, clicked) < truth
        names = (self._words(NAME, np.arange(self.impressions)) >> np.uint64(1)).astype(np.int64)
        elsewhere = np.zeros(self.impressions, bool)
        elsewhere[clicked] = self._uniform(SEEN, clicked) >= self.aligned
        theirs = np.flatnonzero(~elsewhere)
        hit = np.zeros(self.impressions)
        hit[clicked] = 1
        own = from_arrays(
            ads | {"label": label}, names[clicked], ids=list(ads), label="label",
            sizes={"ad": self.ads, "category": CATEGORIES, "price": PRICES, "visits": VISITS},
        )  # fmt: skip
        other = from_arrays(
            {name: values[theirs] for name, values in publisher.items()} | {"clicked": hit[theirs]}, names[theirs],
            ids=list(publisher), values=["clicked"],
            sizes={
                "user": self.users, "segment": SEGMENTS, "page": PAGES, "position": POSITIONS, "interests": CATEGORIES,
            },
        )  # fmt: skip
        return Sides({"ads": own, "publisher": other}, "ads")

    def conversion(self, aligned: Sides) -> Array:
        """The probability of a conversion, given all that both parties know of a click."""
        return self._conversion(_columns(aligned.parties["ads"]), _columns(aligned.parties["publisher"]))

    def conversion_alone(self, ads: Clients) -> Array:
        """The probability of a conversion, given what the ads platform knows and that there was a click.

        The mean of `conversion` over what the publisher may know, weighted by the chance of a click, over 2,048
        impressions of its own draw.
        """
        columns = _columns(ads)
        _, first, back = np.unique(
            columns["ad"] * VISITS + columns["visits"],
            return_index=True, return_inverse=True,
        )  # fmt: skip
        kinds = {name: values[first][:, None] for name, values in columns.items()}
        others = self._publisher_columns(self.impressions + np.arange(ASIDE))
        weight = sigmoid(self._clicks_at + self._click(kinds, others))
        return ((weight * self._conversion(kinds, others)).sum(1) / weight.sum(1))[back]

    # Draws: by impression, and by row of a table of effects.

    def _words(self, purpose: int, numbers: Array) -> Array:
        return rng.key(rng.SIDES, self.seed, purpose, numbers)

    def _uniform(self, purpose: int, numbers: Array) -> Array:
        return rng.uniform(self._words(purpose, numbers))

    def _effect(self, purpose: int, rows: int, spread: float) -> Array:
        return spread * rng.normal(self._words(purpose, np.arange(rows)))

    def _row(self, purpose: int, numbers: Array, rows: int, skew: float = 1.0) -> Array:
        return (rows * self._uniform(purpose, numbers) ** skew).astype(np.int32)

    def _publisher_columns(self, at: Array) -> dict[str, Array]:
        user = self._row(USER, at, self.users, 1.3)
        return {
            "user": user,
            "segment": self._row(SEGMENT, np.arange(self.users), SEGMENTS)[user],
            "page": self._row(PAGE, at, PAGES, 1.5),
            "position": self._row(POSITION, at, POSITIONS),
            "interests": self._interests[user],
        }

    def _ads_columns(self, at: Array) -> dict[str, Array]:
        ad = self._row(AD, at, self.ads, 1.5)
        return {
            "ad": ad,
            "category": self._category[ad],
            "price": self._row(PRICE, np.arange(self.ads), PRICES)[ad],
            "visits": self._row(VISIT, at, VISITS, 1.5),
        }

    @cached_property
    def _interests(self) -> Array:
        who = np.arange(self.users * INTERESTS).reshape(self.users, INTERESTS)
        return self._row(INTEREST, who, CATEGORIES)

    @cached_property
    def _category(self) -> Array:
        return self._row(CATEGORY, np.arange(self.ads), CATEGORIES)

    def _match(self, ads: Columns, publisher: Columns) -> Array:
        return (np.asarray(publisher["interests"]) == np.asarray(ads["category"])[..., None]).any(-1)

    def _click(self, ads: Columns, publisher: Columns) -> Array:
        seen = self._effect(APPEAL, self.ads, 0.5)[ads["ad"]] + self._effect(EYE, POSITIONS, 0.5)[publisher["position"]]
        return seen + PULL * self._match(ads, publisher)

    def _bought(self, ads: Columns, publisher: Columns) -> Array:
        ours = self._effect(QUALITY, self.ads, 0.5)[ads["ad"]] + self._effect(BAND, PRICES, 0.5)[ads["price"]]
        ours = ours + self._effect(VISITED, VISITS, 0.7)[ads["visits"]]
        theirs = self._effect(INTENT, SEGMENTS, 0.9)[publisher["segment"]]
        theirs = theirs + self._effect(MOOD, self.users, 0.3)[publisher["user"]]
        theirs = theirs + self._effect(ON_PAGE, PAGES, 0.6)[publisher["page"]]
        return ours + theirs + FIT * self._match(ads, publisher)

    def _conversion(self, ads: Columns, publisher: Columns) -> Array:
        return sigmoid(self._converts_at + self._bought(ads, publisher))

    @cached_property
    def _impression_logits(self) -> Array:
        at = np.arange(self.impressions)
        return self._click(self._ads_columns(at), self._publisher_columns(at))

    @cached_property
    def _clicks_at(self) -> float:
        return intercept(lambda shift: float(sigmoid(self._impression_logits + shift).mean()), self.clicked)

    @cached_property
    def _clicked(self) -> Array:
        """The impressions that were clicked."""
        at = np.arange(self.impressions)
        return np.flatnonzero(self._uniform(CLICK, at) < sigmoid(self._clicks_at + self._impression_logits))

    @cached_property
    def _converts_at(self) -> float:
        logits = self._bought(self._ads_columns(self._clicked), self._publisher_columns(self._clicked))
        return intercept(lambda shift: float(sigmoid(logits + shift).mean()), self.converted)


def _columns(clients: Clients) -> Columns:
    """Table rows of every sample, by column."""
    return clients.gather(np.arange(clients.samples), [n for n, c in clients.columns.items() if c.space], local=False)


def expected_auc(scores: Array, probability: Array) -> float:
    """The AUC that scores have in expectation, where sample i is positive with probability p_i.

        Σ_{i≠j} p_i (1 − p_j) ([s_i > s_j] + ½ [s_i = s_j])  /  Σ_{i≠j} p_i (1 − p_j)

    With ``scores = probability`` no other scores have more.
    """
    p, q = probability, 1 - probability
    _, group = np.unique(scores, return_inverse=True)
    within = np.bincount(group, weights=q)
    below = np.cumsum(within) - within / 2
    itself = float((p * q).sum())
    return float((float((p * below[group]).sum()) - itself / 2) / (p.sum() * q.sum() - itself))
