"""Private heat: how many clients hold each row, without saying who holds what.

    RandomizedResponse, PermanentResponse   a random bit for every row        fedsub.privacy.heat.bits
    Hadamard                                a few bytes, for large tables     fedsub.privacy.heat.hadamard
    SecureCount, CentralHistogram           sums, exact or with noise         fedsub.privacy.heat.central

An average takes any of them: ``OverHolders(heat=RandomizedResponse(epsilon=1))``. `words` is where their randomness
comes from, `holdings` what they ask about, `response` the arithmetic of one bit.
"""

from fedsub.privacy.heat.bits import PermanentResponse, RandomizedResponse
from fedsub.privacy.heat.central import AddedHeat, CentralHistogram, SecureCount
from fedsub.privacy.heat.hadamard import Hadamard
from fedsub.privacy.heat.holdings import Holdings
from fedsub.privacy.heat.mechanism import Estimate, LocalHeat, PrivateHeat

__all__ = [
    "AddedHeat", "CentralHistogram", "Estimate", "Hadamard", "Holdings", "LocalHeat", "PermanentResponse",
    "PrivateHeat", "RandomizedResponse", "SecureCount",
]  # fmt: skip
