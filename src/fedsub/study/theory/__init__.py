"""What the papers say of these methods, as functions, in float64: bounds, rates, constants, closed forms.

A file by theme: `submodels` (FedSubAvg: norms, conditioning, rate), `fedavg` (three rates), `fednova` (what FedAvg
minimises where steps differ), `fedmavg` (constants of matrix factorisation).
"""

from fedsub.study.theory.fedavg import (
    LocalSGDBound,
    NonConvexBound,
    NonIIDBound,
    best_local_steps,
    heterogeneity,
    local_sgd_bound,
    local_sgd_rate,
    longest_interval,
    longest_period,
    non_convex_bound,
    non_convex_lr,
    non_convex_rate,
    non_iid_bound,
    rounds_shape,
)
from fedsub.study.theory.fedmavg import (
    h_factor,
    least_gamma2,
    lipschitz_of_h,
    lipschitz_of_w,
    steps_on_w,
    w_factor,
)
from fedsub.study.theory.fednova import (
    NovaConstants,
    accumulation,
    effective_steps,
    mismatch,
    nova_constants,
    slowdown,
    surrogate_weights,
)
from fedsub.study.theory.submodels import (
    Corollary,
    Example1,
    RateBound,
    condition_lower_bound,
    condition_number,
    corollary,
    drift_fixed_point,
    elementwise_norm,
    example1,
    heat_matrix,
    hessian,
    k_bound,
    k_hat_bound,
    preconditioned,
    preconditioned_upper_bound,
    rate_bound,
    squared_norm,
    suboptimality_bound,
    suboptimality_bound_from_squared,
    suggested_lr,
    true_optimum,
)

__all__ = [
    "Corollary", "Example1", "LocalSGDBound", "NonConvexBound", "NonIIDBound", "NovaConstants", "RateBound",
    "accumulation", "best_local_steps", "condition_lower_bound", "condition_number", "corollary", "drift_fixed_point",
    "effective_steps", "elementwise_norm", "example1", "h_factor", "heat_matrix", "hessian", "heterogeneity", "k_bound",
    "k_hat_bound", "least_gamma2", "lipschitz_of_h", "lipschitz_of_w", "local_sgd_bound", "local_sgd_rate",
    "longest_interval", "longest_period", "mismatch", "non_convex_bound", "non_convex_lr", "non_convex_rate",
    "non_iid_bound", "nova_constants", "preconditioned", "preconditioned_upper_bound", "rate_bound", "rounds_shape",
    "slowdown", "squared_norm", "steps_on_w", "suboptimality_bound", "suboptimality_bound_from_squared",
    "suggested_lr", "surrogate_weights", "true_optimum", "w_factor",
]  # fmt: skip
