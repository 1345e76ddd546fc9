"""A clip norm that follows a quantile of the norms of clients' updates, learnt in private.

G. Andrew, O. Thakkar, H. B. McMahan and S. Ramaswamy, "Differentially Private Learning with Adaptive Clipping",
NeurIPS 2021. A client that clips to C also tells b_i = 1[‖Δ_i‖ ≤ C]. The server learns the share

    b̃ = ½ + (Σ (b_i − ½) + N(0, σ_b²)) / (q N)

and the next clip norm is C · exp(−η_C (b̃ − γ)), which is still where a share γ of the updates is not longer than C. A
client moves Σ (b_i − ½) by ½ at most, so that noise σ_b is worth 2 σ_b sensitivities, and update and bit together cost
what one Gaussian mechanism of noise z costs, if z⁻² = z_Δ⁻² + (2 σ_b)⁻².
"""

from __future__ import annotations

import math

from fedsub.errors import MethodError

SHARE = 1 / 20  # σ_b as a share of the clients expected in a round, the paper's choice


def usual_bit_noise(expected: float, noise: float) -> float:
    """σ_b where nobody gave one: a twentieth of the clients, and in small rounds so much that z_Δ ≤ 1.16 z."""
    return max(SHARE * expected, noise)


def noise_of_values(noise: float, bit_noise: float) -> float:
    """z_Δ = (z⁻² − (2 σ_b)⁻²)^(−½): the noise of the sum of updates, where bits have their part of z."""
    if not noise:
        return 0.0
    if 2 * bit_noise <= noise:
        raise MethodError(
            f"bit_noise={bit_noise:g} leaves nothing for the updates: bits alone tell more than noise={noise:g} "
            f"allows. Give bit_noise above {noise / 2:g}, such as a twentieth of the clients in a round."
        )
    return 1 / math.sqrt(noise**-2 - (2 * bit_noise) ** -2)


def next_clip(clip: float, share: float, quantile: float, rate: float) -> float:
    """C · exp(−η_C (b̃ − γ))."""
    return clip * math.exp(-rate * (share - quantile))
