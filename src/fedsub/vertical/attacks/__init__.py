"""Attacks of a curious feature party on labels, and what protections leave of them."""

from fedsub.study.attacked import Attacked
from fedsub.vertical.attacks.scores import Known
from fedsub.vertical.attacks.study import ATTACKS, attack, attack_study

__all__ = ["ATTACKS", "Attacked", "Known", "attack", "attack_study"]
