"""The mixture of global and local models: every client its own x_i, pulled to the mean by λ.

functions, quadratics    the local functions of all clients at once; quadratics with closed forms
constants, curvature     step sizes, rates and bounds from (L, μ, λ, m); estimates of L and μ
solver, coin             the frame of every algorithm; what those with a coin share
gd, sgd                  LGD, L2GD, L2GD+; L2SGD, L2SGD2, L2SGD+
proximal, inner          APGD1, APGD2, IAPGD; local proxes
katyusha                 AL2SGD+
path, reach              x(λ) from local to global; ways to a point of it; the link with MAML
layout, modules, memory  the functions of any torch module
method, trainer, named   the algorithms as methods of `fedsub.run`
"""

from typing import TYPE_CHECKING

from fedsub.families.mixture.constants import Constants
from fedsub.families.mixture.curvature import Curvature, curvature, estimate_constants
from fedsub.families.mixture.functions import Functions, Memory
from fedsub.families.mixture.gd import L2GD, LGD, L2GDPlus
from fedsub.families.mixture.katyusha import AL2SGDPlus
from fedsub.families.mixture.path import PathPoint, lambda_grid, maml_gap, trace_path
from fedsub.families.mixture.proximal import APGD1, APGD2, IAPGD
from fedsub.families.mixture.quadratics import Quadratics
from fedsub.families.mixture.sgd import L2SGD, L2SGD2, L2SGDPlus
from fedsub.families.mixture.solver import Solver, State, Step

if TYPE_CHECKING:
    from fedsub.families.mixture.method import Mixture

SOLVERS = {
    solver.name: solver for solver in (LGD, L2GD, L2GDPlus, L2SGD, L2SGD2, L2SGDPlus, APGD1, APGD2, IAPGD, AL2SGDPlus)
}

__all__ = [
    "APGD1",
    "APGD2",
    "IAPGD",
    "L2GD",
    "L2SGD",
    "L2SGD2",
    "LGD",
    "SOLVERS",
    "AL2SGDPlus",
    "Constants",
    "Curvature",
    "Functions",
    "L2GDPlus",
    "L2SGDPlus",
    "Memory",
    "Mixture",
    "PathPoint",
    "Quadratics",
    "Solver",
    "State",
    "Step",
    "curvature",
    "estimate_constants",
    "lambda_grid",
    "maml_gap",
    "trace_path",
]


def __getattr__(name: str):
    """What trains modules needs these algorithms itself, so it is imported at first use."""
    from importlib import import_module

    homes = {"Mixture": "method"}
    if name not in homes:
        raise AttributeError(f"module 'fedsub.families.mixture' has no attribute {name!r}")
    return getattr(import_module(f"fedsub.families.mixture.{homes[name]}"), name)
