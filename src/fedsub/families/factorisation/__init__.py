"""Federated matrix factorisation: FedMAvg, its submodel form, and SFMF."""

from fedsub.families.factorisation.factorise import Factors, factorise, factorise_ratings
from fedsub.families.factorisation.projections import Projection
from fedsub.families.factorisation.settings import SFMF, FedMAvg

__all__ = ["SFMF", "Factors", "FedMAvg", "Projection", "factorise", "factorise_ratings"]
