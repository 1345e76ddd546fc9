"""Everything of torch that is no public interface, in one place: what to look at when a new torch comes out.

Nothing else in fedsub reads a name of torch that begins with an underscore. What only the traced engine needs is
looked for when it is called, so that a torch without it costs speed (the serial engine takes over) and no run.
"""

from __future__ import annotations

from typing import Any

import torch

# Minor releases with which every test of fedsub was run.
TESTED = ("2.13",)

# One call for a list of tensors, by which torch.optim itself steps: x += α y, x *= α, x = y, x = 0 for each.
foreach_add_ = torch._foreach_add_
foreach_mul_ = torch._foreach_mul_
foreach_copy_ = torch._foreach_copy_
foreach_zero_ = torch._foreach_zero_

# Adam's step in one pass over memory, the kernel of torch.optim.Adam(fused=True); takes its arguments in that order.
fused_adam_ = torch._fused_adam_


def property_read(func: Any) -> str | None:
    """The property of a tensor that a call seen by a TorchFunctionMode reads, such as "T"; None for other calls.

    Relies on properties arriving as ``__get__`` bound to a descriptor that knows its name.
    """
    if getattr(func, "__name__", "") != "__get__":
        return None
    return getattr(getattr(func, "__self__", None), "__name__", "__get__")
