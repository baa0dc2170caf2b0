"""Arguments of NVIDIA's training loops that newer versions of PyTorch refuse, accepted again.

The first import of `torch_utils` runs this, so in the processes of a training and in no others.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.data import Sampler

_create = torch.optim.Adam.__init__


@functools.wraps(_create)
def _create_adam(
    self: Any, params: Any, lr: Any = 1e-3, betas: Any = (0.9, 0.999), *more: Any, **others: Any
) -> None:
    """Create the optimizer. Its betas may be integers, as in `betas=[0, 0.99]`."""
    betas = tuple(float(beta) if isinstance(beta, int) else beta for beta in betas)
    _create(self, params, lr, betas, *more, **others)


torch.optim.Adam.__init__ = _create_adam  # type: ignore[method-assign]
if "__init__" not in vars(Sampler):  # `misc.InfiniteSampler` gives it the data set
    Sampler.__init__ = lambda self, data_source=None: None  # type: ignore[misc]
