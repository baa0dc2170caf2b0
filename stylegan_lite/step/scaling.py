"""Loss scaling for FP16 with everything on the device, so that a CUDA graph can hold it.

FP16 has no numbers below 6e-8: small gradients would be zero. So the loss is multiplied by a scale before backward and
the gradients are divided by it before Adam. The scale is found by trying. An update whose gradients overflow is skipped
and the scale halved. After many updates without overflow it is doubled (Micikevicius et al. 2018, arXiv:1710.03740). G
and D have gradients of different sizes, hence a scale each.

The rules are torch.amp.GradScaler's, and so are the operators behind them. GradScaler itself asks the GPU for each
update whether to skip it. A capture cannot do that, and an eager step waits for it. Here a fused optimizer reads the
answer on the device. If Adam is not fused, the step waits, as it does with GradScaler.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GROWTH, BACKOFF = 2.0, 0.5
LEAST = 2.0**-14  # a smaller scale is no search any more: the gradients are NaN at any scale
STATE = ("scale", "tracker", "skipped", "updates")


class LossScale:
    """The scale of one network's losses.

    Attributes:
        scale: [], float32.
        tracker: [], int32, updates since the last overflow or growth.
        found_inf: [], float32, not 0 if a gradient of this update is NaN or infinite.
        skipped, updates: [], int64, counted since the start.
    """

    def __init__(self, device: str, initial: float, interval: int) -> None:
        self.interval = interval
        self.scale = torch.full((), initial, dtype=torch.float32, device=device)
        self.tracker = torch.zeros((), dtype=torch.int32, device=device)
        self.found_inf = torch.zeros((), dtype=torch.float32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self.one = torch.ones((), dtype=torch.float32, device=device)

    @property
    def inverse(self) -> Tensor:
        """Return 1 / scale, [], as a new tensor each time."""
        return self.scale.double().reciprocal().float()

    def check(self, gradients: list[Tensor], inverse: Tensor | None = None) -> None:
        """Look for NaN and infinity in gradients, and multiply them by ``inverse``. Without it they stay as they are.

        Gradients in FP16 must stay: divided by the scale they would be too small for FP16.
        """
        inverse = self.one if inverse is None else inverse
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for gradient in gradients:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for same in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(same, self.found_inf, inverse)

    def update(self) -> None:
        """Count after the optimizer's step, move the scale, and forget the findings."""
        self.updates.add_(1)
        self.skipped.add_(self.found_inf.ne(0))
        torch._amp_update_scale_(self.scale, self.tracker, self.found_inf, GROWTH, BACKOFF, self.interval)
        self.found_inf.zero_()

    def state_dict(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in STATE}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load in place: captured graphs keep their addresses."""
        for name in STATE:
            getattr(self, name).copy_(state[name])


def describe(scales: dict[str, LossScale]) -> dict[str, Any]:
    """Return {"G": {"scale": x, "skipped": n, "updates": n}, "D": ...}. Synchronizes."""
    return {
        name: {"scale": float(s.scale), "skipped": int(s.skipped), "updates": int(s.updates)}
        for name, s in scales.items()
    }
