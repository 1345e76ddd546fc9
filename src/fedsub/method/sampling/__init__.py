"""Samplers: who takes part in a round.

    Uniform, Everyone, BySize, Poisson    by chance alone                     fedsub.method.sampling.uniform
    PowerOfChoice                         the worst of a few candidates       fedsub.method.sampling.power_of_choice
    UCB                                   a bandit on the training losses     fedsub.method.sampling.ucb
    Available                             any of these, of those at hand      fedsub.method.sampling.availability
    InTurns                               any of these, for a few rounds      fedsub.method.sampling.turns

A sampler holds settings only; `bind` fits it to a population, and what is bound may learn from the rounds.
"""

from fedsub.method.sampling.availability import Availability, Available, Daily, Mask, Random
from fedsub.method.sampling.base import BoundSampler, Sampler
from fedsub.method.sampling.power_of_choice import PowerOfChoice
from fedsub.method.sampling.turns import InTurns
from fedsub.method.sampling.ucb import UCB
from fedsub.method.sampling.uniform import BySize, Everyone, Poisson, Uniform

__all__ = [
    "UCB",
    "Availability",
    "Available",
    "BoundSampler",
    "BySize",
    "Daily",
    "Everyone",
    "InTurns",
    "Mask",
    "Poisson",
    "PowerOfChoice",
    "Random",
    "Sampler",
    "Uniform",
]
