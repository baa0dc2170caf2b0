"""The op y = act(x @ (weight * weight_gain)^T + bias * bias_gain) * gain: fully connected layers of small batches.

Plain PyTorch needs six launches: for the gains of an equalized learning rate (Karras et al. 2018, section 4.1), the
bias, the product, its sum over parts and the activation. The scaled weight crosses memory twice more. Batches are so
small that launches are most of the time. Here a layer is one launch. Any number of layers that read the same tensor are
one launch together (`dense_group`: all style affines of a generator). All gradients of either are one launch, too. One
layer of 2,048 inputs or more leaves those of many samples to PyTorch's products (`dense_launches.PRODUCTS`).

The product is bilinear. Its derivatives of any order are among three operations, which call each other:

    y = x @ w^T        dx = g @ w        dw = g^T @ x

Our products and sums are float32 (float64 for float64), never TF32. PyTorch's are TF32 only if its matmuls may be.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.arguments import (
    ANY_WHOLE,
    check_flags,
    check_numbers,
    check_once,
    check_tensors,
    each,
    is_number,
    listed,
)
from ..common.needed import is_recorded, needed
from ..common.tiles import accumulator, check_device, without_autocast
from .dense_launches import Call, backward, forward
from .weight_gradients import defer

# Elements of weights from which on their gradient is worth a launch of its own, beside that of x
LARGE = 1 << 20


def dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    weight_gain: float = 1.0,
    bias_gain: float = 1.0,
    act: bool = False,
    slope: float = 0.2,
    gain: float = 1.0,
) -> Tensor:
    """Compute one fully connected layer, fused. Differentiable to any order.

    Args:
        x: [N, I].
        weight: [O, I].
        bias: [O].
        weight_gain, bias_gain: factors on weight and bias.
        act: leaky ReLU of this positive slope, then a positive gain. Without it there is neither.

    Returns [N, O] in float32 (float64 if any input is), also under autocast.
    Raises ValueError for what does not fit, RuntimeError for a CPU tensor outside Triton's interpreter.
    """
    biases = None if bias is None else [bias]
    call = _plan(x, [weight], biases, [0], weight_gain, bias_gain, act, slope, gain, dims=2)
    return _run(x, [weight], biases, call)[0]


def dense_group(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
    slots: Sequence[int],
    *,
    weight_gain: float = 1.0,
    bias_gain: float = 1.0,
) -> list[Tensor]:
    """Compute several layers without activation, fused: [x[:, slot] @ (weight * weight_gain)^T + bias * bias_gain,
    ...].

    Args:
        x: [N, S, I].
        weights: [O, I] each, with widths of their own.
        biases: [O] each.
        slots: one of 0..S-1 for each layer.

    Returns and raises as `dense`. The results are contiguous slices of one buffer, and so are the gradients of weights
    and biases.
    """
    call = _plan(x, weights, biases, slots, weight_gain, bias_gain, False, 1.0, 1.0, dims=3)
    return _run(x, weights, biases, call)


def dense_reference(
    x, weight, bias=None, *, weight_gain=1.0, bias_gain=1.0, act=False, slope=0.2, gain=1.0
) -> Tensor:
    """Compute `dense` in plain PyTorch. Arguments and result dtype as `dense`."""
    biases = None if bias is None else [bias]
    call = _plan(x, [weight], biases, [0], weight_gain, bias_gain, act, slope, gain, dims=2)
    return _plain(x, [weight], biases, call)[0]


def dense_group_reference(x, weights, biases, slots, *, weight_gain=1.0, bias_gain=1.0) -> list[Tensor]:
    """Compute `dense_group` in plain PyTorch. Arguments and result dtypes as `dense_group`."""
    call = _plan(x, weights, biases, slots, weight_gain, bias_gain, False, 1.0, 1.0, dims=3)
    return _plain(x, weights, biases, call)


def bytes_moved(x: Tensor, weight: Tensor, *, backward: bool = False) -> int:
    """Return the bytes that must cross memory: x and weight in, y out; backward: g and those in, dx and dweight out."""
    y = x.shape[0] * weight.shape[0] * accumulator(x.dtype).itemsize
    return (2 if backward else 1) * (x.nbytes + weight.nbytes) + y


@check_once
def _plan(x, weights, biases, slots, weight_gain, bias_gain, act, slope, gain, *, dims: int) -> Call:
    """Validate the arguments, and return the call's facts."""
    check_tensors({"x": x} | each("weights", weights) | ({} if biases is None else each("biases", biases)))
    check_numbers(weight_gain=weight_gain, bias_gain=bias_gain, slope=slope, gain=gain)
    check_flags(act=act)
    shapes = [tuple(w.shape) for w in weights]
    if x.dim() != dims or not shapes or any(len(s) != 2 or s[1] != x.shape[-1] for s in shapes):
        form = "[N, I]" if dims == 2 else "[N, S, I]"
        raise ValueError(f"need x {form} and weights [O, I], got {tuple(x.shape)} and {shapes}")
    if biases is not None and [tuple(b.shape) for b in biases] != [s[:1] for s in shapes]:
        raise ValueError(f"need one bias [O] for each weight, got {[tuple(b.shape) for b in biases]}")
    found = listed(slots) or []
    if (
        len(found) != len(shapes)
        or not all(is_number(s, ANY_WHOLE) for s in found)
        or (dims == 3 and any(not 0 <= s < x.shape[1] for s in found))
    ):
        raise ValueError(f"need a slot below {x.shape[1]} for each of {len(shapes)} weights, got {slots!r}")
    if act and not (slope > 0 and gain > 0):  # y and the input of the activation must have the same sign.
        raise ValueError(f"slope and gain must be positive, got {slope} and {gain}")
    slope, gain = (float(slope), float(gain)) if act else (1.0, 1.0)
    return Call(float(weight_gain), float(bias_gain), act, slope, gain, tuple(slots), biases is not None)


def _dtype(*tensors: Tensor) -> torch.dtype:
    return torch.float64 if torch.float64 in [t.dtype for t in tensors] else torch.float32


def _plain(x, weights, biases, call: Call) -> list[Tensor]:
    dtype, ys = _dtype(x, *weights, *(biases or [])), []
    with without_autocast(x):
        for k, (weight, slot) in enumerate(zip(weights, call.slots, strict=True)):
            bias = None if biases is None else biases[k].to(dtype) * call.bias_gain
            own = x if x.dim() == 2 else x[:, slot]
            y = F.linear(own.to(dtype), weight.to(dtype) * call.weight_gain, bias)
            ys.append(F.leaky_relu(y, call.slope) * call.gain if call.act else y)
    return ys


def _run(x, weights, biases, call: Call) -> list[Tensor]:
    if torch.compiler.is_compiling():  # The compiler fuses the operations around the products itself.
        return _plain(x, weights, biases, call)
    check_device(x)
    tensors = [x, *weights, *(biases or [])]
    dtype = _dtype(*tensors)
    # Casts and copies belong out here, where autograd sees them. Double backward does not see those of a Function.
    tensors = [t if t.dtype is dtype and t.is_contiguous() else t.to(dtype).contiguous() for t in tensors]
    if not is_recorded(*tensors):
        return forward(tensors[0], tensors[1 : 1 + len(weights)], tensors[1 + len(weights) :] or None, call)
    return list(_Dense.apply(*tensors, call))


# ---- autograd ----------------------------------------------------------------------------------------------------


class _Dense(torch.autograd.Function):
    """The layers as a Function. Its inputs are x, weights, biases if there are any, and the call."""

    @staticmethod
    def forward(ctx, x, *rest):
        call = ctx.call = rest[-1]
        layers = len(call.slots)
        weights, biases = rest[:layers], rest[layers:-1] or None
        ys = forward(x, weights, biases, call)
        ctx.size = tuple(x.shape)
        ctx.biases = biases or ()  # Only their number is read.
        ctx.save_for_backward(x, *weights, *(ys if call.act else ()))
        return tuple(ys)

    @staticmethod
    def backward(ctx, *gs):
        call, layers = ctx.call, len(ctx.call.slots)
        x, weights = ctx.saved_tensors[0], ctx.saved_tensors[1 : 1 + layers]
        ys = ctx.saved_tensors[1 + layers :] or None
        asked = needed(ctx)
        needs = asked[0], any(asked[1 : 1 + layers]), call.biased and any(asked[1 + layers : -1])
        with without_autocast(x):
            if not torch.is_grad_enabled():
                if needs[1] and (needs[2] or not call.biased) and _worth_deferring(weights):
                    size, only = ctx.size, (False, True, call.biased)

                    def compute() -> list[Tensor]:
                        _, found, sums = backward(gs, ys, x, weights, size, call, only)
                        return [*found, *(sums if call.biased else ())]

                    if defer((*weights, *ctx.biases), compute):
                        needs = needs[0], False, False
                dx, dweights, dbiases = backward(gs, ys, x, weights, ctx.size, call, needs)
            else:
                dx, dweights, dbiases = _again(gs, ys, x, weights, call, needs)
        return dx, *dweights, *(dbiases if call.biased else ()), None


def _again(gs, ys, x, weights, call: Call, needs: tuple[bool, bool, bool]):
    """Compute `backward` by operations that can be differentiated themselves."""
    if ys is not None:  # The sign of y is a constant: where it changes there is no derivative.
        slopes = (y.detach().gt(0).to(y.dtype) * (1 - call.slope) + call.slope for y in ys)
        gs = [g * (slope * call.gain) for g, slope in zip(gs, slopes, strict=True)]
    product, nothing = call.product(), [None] * len(weights)
    gs = [g.contiguous() for g in gs]
    dx = _ByInput.apply(*gs, *weights, x.shape[1:], product) if needs[0] else None
    dweights = _ByWeight.apply(x, *gs, product) if needs[1] else nothing
    dbiases = [g.sum(0) * call.bias_gain for g in gs] if needs[2] else nothing
    return dx, dweights, dbiases


class _ByInput(torch.autograd.Function):
    """The map dx = sum over layers of g @ w, as a function of all g and all w."""

    @staticmethod
    def forward(ctx, *inputs):
        *tensors, shape, call = inputs
        ctx.call = call
        ctx.save_for_backward(*tensors)
        gs, weights = tensors[: len(call.slots)], tensors[len(call.slots) :]
        return backward(gs, None, gs[0], weights, (len(gs[0]), *shape), call, (True, False, False))[0]

    @staticmethod
    def backward(ctx, u):
        call, layers = ctx.call, len(ctx.call.slots)
        gs, weights = ctx.saved_tensors[:layers], ctx.saved_tensors[layers:]
        asked, u = needed(ctx), u.contiguous()
        with without_autocast(u):
            dgs = _products(u, weights, call) if any(asked[:layers]) else [None] * layers
            needs_weights = any(asked[layers:-2])
            if needs_weights and _worth_deferring(weights):
                needs_weights = not defer(weights, lambda: _weight_gradients_now(u, gs, call))
            dweights = _weight_gradients(u, gs, call) if needs_weights else [None] * layers
        return *dgs, *dweights, None, None


class _ByWeight(torch.autograd.Function):
    """The map dw = g^T @ x of each layer, as a function of x and all g."""

    @staticmethod
    def forward(ctx, x, *rest):
        *gs, call = rest
        ctx.call = call
        ctx.save_for_backward(x, *gs)
        return tuple(_weight_gradients_now(x, gs, call))

    @staticmethod
    def backward(ctx, *us):
        call, (x, *gs) = ctx.call, ctx.saved_tensors
        asked, us = needed(ctx), [u.contiguous() for u in us]
        with without_autocast(x):
            dx = None
            if asked[0] and torch.is_grad_enabled():
                dx = _ByInput.apply(*gs, *us, x.shape[1:], call)
            elif asked[0]:
                dx = backward(gs, None, x, us, tuple(x.shape), call, (True, False, False))[0]
            dgs = _products(x, us, call) if any(asked[1:-1]) else [None] * len(gs)
        return dx, *dgs, None


def _worth_deferring(weights: Sequence[Tensor]) -> bool:
    return sum(weight.numel() for weight in weights) >= LARGE


def _products(x: Tensor, weights: Sequence[Tensor], call: Call) -> Sequence[Tensor]:
    return _Dense.apply(x, *weights, call) if torch.is_grad_enabled() else forward(x, weights, None, call)


def _weight_gradients(x: Tensor, gs: Sequence[Tensor], call: Call) -> Sequence[Tensor]:
    return _ByWeight.apply(x, *gs, call) if torch.is_grad_enabled() else _weight_gradients_now(x, gs, call)


def _weight_gradients_now(x: Tensor, gs: Sequence[Tensor], call: Call) -> list[Tensor]:
    shapes = [g.new_empty((g.shape[1], 0)) for g in gs]  # shapes of the weights; nothing else of them is read
    return backward(gs, None, x, shapes, tuple(x.shape), call, (False, True, False))[1]
