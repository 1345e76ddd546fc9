"""Parts: what a method adds to the work of clients and server."""

from fedsub.method.parts.agreeing import Dynamic, Multipliers, Splitting
from fedsub.method.parts.anchored import AnchoredSteps
from fedsub.method.parts.central_dp import CentralDP
from fedsub.method.parts.clip_rows import ClipRows
from fedsub.method.parts.local_dp import LocalDP
from fedsub.method.parts.nova import NormalisedSteps
from fedsub.method.parts.personal import Personal
from fedsub.method.parts.prox import Prox
from fedsub.method.parts.scaffold import ControlVariates
from fedsub.method.parts.secure_sum import SecureSum

__all__ = [
    "AnchoredSteps",
    "CentralDP",
    "ClipRows",
    "ControlVariates",
    "Dynamic",
    "LocalDP",
    "Multipliers",
    "NormalisedSteps",
    "Personal",
    "Prox",
    "SecureSum",
    "Splitting",
]
