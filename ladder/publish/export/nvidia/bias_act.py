"""Bias, activation, gain and clamp in one pass, as a drop-in for NVIDIA's `bias_act`."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import bias_act as _fused
from kernels.common.arguments import remember
from kernels.common.tiles import dense, is_nhwc, without_autocast
from kernels.pointwise.bias_act import Call, run_call
from ladder.publish.export.nvidia.shared import MOST, can_run, warn_once
from ladder.publish.export.nvidia.shared import _init as _init


class _Activation(dict[str, Any]):
    """The facts of an activation, as items and as attributes."""

    def __init__(
        self, number: int, function: Callable[..., Tensor], gain: float = 1, alpha: float = 0, ref: str = "y"
    ) -> None:
        # The last three entries told NVIDIA's kernel what to do. They stay for code that reads them.
        super().__init__(func=function, def_alpha=alpha, def_gain=gain)
        self |= {"cuda_idx": number, "ref": ref, "has_2nd_grad": ref == "x" or number > 3}
        self.__dict__ = self


_calls: dict[Hashable, Call] = {}  # by the shape and the arguments of a call
ROOT_2 = math.sqrt(2)
activation_funcs = {
    "linear": _Activation(1, lambda x, **_: x, ref=""),
    "relu": _Activation(2, lambda x, **_: F.relu(x), ROOT_2),
    "lrelu": _Activation(3, lambda x, alpha, **_: F.leaky_relu(x, alpha), ROOT_2, 0.2),
    "tanh": _Activation(4, lambda x, **_: torch.tanh(x)),
    "sigmoid": _Activation(5, lambda x, **_: torch.sigmoid(x)),
    "elu": _Activation(6, lambda x, **_: F.elu(x)),
    "selu": _Activation(7, lambda x, **_: F.selu(x)),
    "softplus": _Activation(8, lambda x, **_: F.softplus(x)),
    "swish": _Activation(9, lambda x, **_: x * torch.sigmoid(x), ROOT_2, ref="x"),
}


def bias_act(
    x: Tensor,
    b: Tensor | None = None,
    dim: int = 1,
    act: str = "linear",
    alpha: float | None = None,
    gain: float | None = None,
    clamp: float | None = None,
    impl: str = "cuda",
) -> Tensor:
    """Compute clamp(act(x + b) * gain). Differentiable twice.

    Args:
        x: any shape.
        b: one number for each index of dimension `dim`, or None.
        act: a name in `activation_funcs`, which also has the default `alpha` and `gain`.
        alpha: the slope of "lrelu" below zero.
        clamp: bound on |result|, or None.
        impl: "ref" for plain PyTorch; "cuda" for the fused op where it can run.

    Returns a tensor like x.
    """
    is_compiling, key = torch.compiler.is_compiling(), None
    if not is_compiling:
        of_bias = None if b is None else (b.shape, b.stride(), b.dtype, b.device)
        key = (x.shape, x.stride(), x.dtype, x.device, of_bias, dim, act, alpha, gain, clamp, impl)
        known = _calls.get(key)
        if known is not None:
            return run_call(known, x, b, None, None, None, x.dtype)
    if impl not in ("ref", "cuda"):
        raise ValueError(f'impl must be "ref" or "cuda", got {impl!r}')
    if act not in activation_funcs:
        raise ValueError(f"act must be one of {', '.join(activation_funcs)}, got {act!r}")
    if clamp is not None and clamp < 0:
        raise ValueError(f"clamp must be None or at least 0, got {clamp}")
    if b is not None and (b.dim() != 1 or not 0 <= dim < x.dim() or len(b) != x.shape[dim]):
        raise ValueError(f"b {list(b.shape)} does not fit dimension {dim} of x {list(x.shape)}")
    spec = activation_funcs[act]
    are_numbers = all(each is None or isinstance(each, int | float) for each in (alpha, gain, clamp))
    alpha = float(spec["def_alpha"] if alpha is None else alpha)
    gain = float(spec["def_gain"] if gain is None else gain)
    clamp = None if clamp is None else float(clamp)
    if act == "linear" and b is None and gain == 1 and clamp is None:
        return x
    if impl == "cuda" and x.numel() and can_run("bias_act", x) and _is_served(x, b, dim, act):
        slope = 1.0 if act == "linear" else 0.0 if act == "relu" else alpha
        if is_compiling:
            with without_autocast(x):
                return _fused(x, b, act="lrelu", slope=slope, gain=gain, clamp=clamp)
        inputs = dense(x), None if b is None else b.contiguous()
        call = Call(slope, gain, clamp, is_nhwc(inputs[0]), x.dtype)
        if are_numbers and inputs[0] is x and inputs[1] is b:
            remember(_calls, key, call, MOST)
        return run_call(call, *inputs, None, None, None, x.dtype)
    if b is not None:
        x = x + b.to(x.dtype).reshape([-1 if each == dim else 1 for each in range(x.dim())])
    x = spec["func"](x, alpha=alpha)
    x = x * gain if gain != 1 else x
    return x if clamp is None else x.clamp(-clamp, clamp)


def _is_served(x: Tensor, b: Tensor | None, dim: int, act: str) -> bool:
    if act not in ("linear", "relu", "lrelu"):
        warn_once("bias_act", f"activation {act}")
    elif b is not None and dim != 1:
        warn_once("bias_act", f"a bias along dimension {dim}")
    elif x.dim() not in (2, 4):
        warn_once("bias_act", f"a tensor of {x.dim()} dimensions")
    else:
        return True
    return False
