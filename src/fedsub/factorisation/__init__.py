"""Federated matrix factorisation: FedMAvg, its submodel form, and SFMF."""

from fedsub.factorisation.factorise import Factors, factorise, factorise_ratings
from fedsub.factorisation.projections import Projection
from fedsub.factorisation.settings import SFMF, FedMAvg

__all__ = ["SFMF", "Factors", "FedMAvg", "Projection", "factorise", "factorise_ratings"]
