"""Parts: what a method adds to the work of clients and server."""

from fedsub.parts.clip_rows import ClipRows
from fedsub.parts.nova import NormalisedSteps
from fedsub.parts.personal import Personal
from fedsub.parts.prox import Prox
from fedsub.parts.scaffold import ControlVariates

__all__ = ["ClipRows", "ControlVariates", "NormalisedSteps", "Personal", "Prox"]
