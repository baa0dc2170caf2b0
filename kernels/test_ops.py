"""Each op of this package beside plain PyTorch: results, gradients and gradients of gradients.

Run `python -m NAME.test_ops`, where NAME is this package. A GPU is used if PyTorch finds one. Without it an op is plain
PyTorch itself, unless TRITON_INTERPRET=1 is set.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import can_run_fused
from .double_backward import fast_double_backward

# The largest relative error. A wrong formula shows in float64; second derivatives in float32 lose digits.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}
TAPS = (1.0, 3.0, 3.0, 1.0)
MOST_PROCESSES = 8  # each takes some hundred megabytes of the GPU

New = Callable[..., Tensor]  # a random tensor of the shape
Call = Callable[..., Any]  # the op on the tensors that follow it
Pairs = Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]]  # name -> op and its reference


# ---- a call of each op: the call, and the tensors that are differentiated ----------------------------------------


def case_bias_act(new: New) -> tuple[Call, list[Tensor]]:
    noise = new(2, 1, 5, 6)
    return (
        lambda op, x, bias, strength, scale: op(x, bias, noise=noise, strength=strength, scale=scale),
        [new(2, 3, 5, 6), new(3), new(), new(2, 3)],
    )


def case_bias_act_modulate(new: New) -> tuple[Call, list[Tensor]]:
    noise = new(2, 1, 5, 6)
    return (
        lambda op, x, bias, style, strength, scale: op(
            x, bias, style, noise=noise, strength=strength, scale=scale
        ),
        [new(2, 3, 5, 6), new(3), new(2, 3), new(), new(2, 3)],
    )


def case_bias_act_residual(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(2, 3, 5, 6), new(3), new(2, 3, 5, 6)]


def case_bias_act_skip(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(2, 3, 5, 6), new(3), new(2, 4, 5, 6), new(3, 4, 1, 1)]


def case_scale_act(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(2, 3, 5, 6), new(2, 3)]


def case_modulate(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(2, 3, 5, 6), new(2, 3)]


def case_scale_channels(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(2, 3, 5, 6), new(2, 3)]


def case_instance_norm_act(new: New) -> tuple[Call, list[Tensor]]:
    noise = new(1, 1, 5, 6)
    return (
        lambda op, x, scale, bias, strength: op(x, scale, bias, noise=noise, strength=strength),
        [new(2, 3, 5, 6), new(2, 3), new(2, 3), new()],
    )


def case_group_norm_act(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, x, *affine: op(x, 2, *affine, silu=True), [new(2, 4, 5, 6), new(4), new(4)]


def case_batch_norm_act(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors, slope=0.2), [new(2, 3, 5, 6), new(3), new(3)]


def case_weight_norm(new: New) -> tuple[Call, list[Tensor]]:
    # Lengths come first: the directions of gradients begin with the same numbers, and along v the gradient is zero.
    return lambda op, g, h, v, w: op([v, w], [g, h]), [
        new(4, 1, 1, 1),
        new(5, 1, 1),
        new(4, 3, 3, 3),
        new(5, 2, 3),
    ]


def case_minibatch_std(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, x: op(x, 4, multiple=4), [new(8, 3, 3, 2)]


def case_upfirdn2d(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, x: op(op(x, TAPS, up=2, padding=(2, 1)), TAPS, down=2, padding=1), [new(2, 3, 4, 5)]


def case_fork_upfirdn2d(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, x: op(x, TAPS, down=2, padding=1), [new(2, 3, 4, 6)]


def case_act_filter(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, x, bias: op(x, bias, TAPS, padding=2, filter_gain=1 / 64), [new(2, 3, 4, 5), new(3)]


def case_filter_act(new: New) -> tuple[Call, list[Tensor]]:
    noise = new(2, 1, 3, 4)
    return (
        lambda op, x, bias, strength, scale: op(
            x, TAPS, bias, noise=noise, strength=strength, scale=scale.abs() + 0.5, padding=1
        ),
        [new(2, 3, 4, 5), new(3), new(), new(2, 3)],
    )


def case_filter_act_modulate(new: New) -> tuple[Call, list[Tensor]]:
    noise = new(2, 1, 3, 4)
    return (
        lambda op, x, style, bias, strength, scale: op(
            x, TAPS, style, bias, noise=noise, strength=strength, scale=scale.abs() + 0.5, padding=1
        ),
        [new(2, 3, 4, 5), new(2, 3), new(3), new(), new(2, 3)],
    )


def case_conv2d(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors, stride=2, padding=1), [new(2, 3, 6, 5), new(4, 3, 3, 3)]


def case_conv_transpose2d(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors, stride=2), [new(2, 3, 4, 3), new(3, 4, 3, 3)]


def case_dense(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors, weight_gain=0.5, act=True), [new(3, 5), new(4, 5), new(4)]


def case_dense_group(new: New) -> tuple[Call, list[Tensor]]:
    return (
        lambda op, x, a, b, bias_a, bias_b: op(x, [a, b], [bias_a, bias_b], [0, 1]),
        [new(3, 2, 5), new(4, 5), new(6, 5), new(4), new(6)],
    )


def case_from_rgb(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(2, 3, 4, 5), new(6, 3), new(6)]


def case_to_rgb(new: New) -> tuple[Call, list[Tensor]]:
    return (
        lambda op, x, weight, style, bias, image: op(x, weight, style, bias, image=image),
        [new(2, 6, 4, 5), new(3, 6), new(2, 6), new(3), new(2, 3, 4, 5)],
    )


def case_demodulate(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(*tensors), [new(4, 3, 3, 3), new(2, 3)]


def case_weight_energies(new: New) -> tuple[Call, list[Tensor]]:
    return lambda op, *tensors: op(tensors), [new(4, 3, 3, 3), new(5, 4, 3, 3)]


def case_demodulate_group(new: New) -> tuple[Call, list[Tensor]]:
    return (
        lambda op, a, b, style_a, style_b: op([a.square() + 0.1, b.square() + 0.1], [style_a, style_b]),
        [new(4, 3), new(5, 4), new(2, 3), new(2, 4)],
    )


def case_demodulate_group_fork(new: New) -> tuple[Call, list[Tensor]]:
    def call(op: Callable[..., Any], a: Tensor, b: Tensor, *given: Tensor) -> list[Tensor]:
        ds, styles = op([a.square() + 0.1, b.square() + 0.1], given)
        return [*ds, *(2 * style for style in styles)]

    return call, [new(4, 3), new(5, 4), new(2, 3), new(2, 4)]


def case_spectral_norm(new: New) -> tuple[Call, list[Tensor]]:
    us, vs = [new(4), new(5)], [new(27), new(4)]
    return lambda op, *weights: op(weights, us, vs, gains=(1.0, 0.5)), [new(4, 3, 3, 3), new(5, 4)]


def case_power_iteration(new: New) -> tuple[Call, list[Tensor]]:
    us, vs = [new(4), new(5)], [new(27), new(4)]

    def call(op: Callable[..., Any], *weights: Tensor) -> list[Tensor]:
        written = [t.clone() for t in (*us, *vs)]
        op([w.detach() for w in weights], written[:2], written[2:])
        return written

    return call, [new(4, 3, 3, 3), new(5, 4)]


# ---- the comparison ----------------------------------------------------------------------------------------------


def derivatives(
    call: Call, op: Callable[..., Any], inputs: Sequence[Tensor], number: int
) -> dict[str, list[Tensor]]:
    """Return direction -> tensors of one op on these inputs. An op without gradients has the forward pass only."""
    inputs = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in inputs]
    found = call(op, *inputs)
    results = [found] if isinstance(found, Tensor) else list(found)
    torch.manual_seed(number)
    directions = [drawn(y).requires_grad_() for y in results]
    if not results[0].requires_grad:
        return {"forward": results}
    first = torch.autograd.grad(results, inputs, directions, create_graph=True)
    further = [drawn(d) for d in first]
    # A linear op's gradient depends on the direction alone.
    second = torch.autograd.grad(
        first, [*inputs, *directions], further, allow_unused=True, materialize_grads=True
    )
    return {"forward": results, "backward": list(first), "double backward": list(second)}


def drawn(like: Tensor) -> Tensor:
    """Return random numbers of this shape: the same ones for every memory format."""
    return torch.randn(like.shape, dtype=like.dtype, device=like.device)


def error(got: Tensor, want: Tensor) -> float:
    """Return the relative L2 error. Numbers around zero are compared as they are."""
    got, want = got.detach().double(), want.detach().double()
    return float((got - want).norm() / max(float(want.norm()), 1e-6))


def check(ops: Pairs, device: str | None = None) -> None:
    """Compare each op with its reference, in two precisions and two memory formats.

    Raises AssertionError: the op, the case and the error.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and len(ops) > 1:
        check_together(list(ops))
        return
    tf32, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        for name, pair in ops.items():
            for dtype, bound in TOLERANCE.items():
                for layout in (torch.contiguous_format, torch.channels_last):
                    compare(name, pair, device, dtype, layout, bound)
    finally:
        torch.backends.cudnn.allow_tf32 = tf32


def check_together(names: Sequence[str]) -> None:
    """Check ops of this package in several processes. Triton compiles kernels one by one: all ops have some hundred."""
    processes = min(len(names), os.cpu_count() or 1, MOST_PROCESSES)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(check_one, name) for name in names]:
            done.result()


def check_one(name: str) -> None:
    """Check one op of this package."""
    check({name: importlib.import_module(__package__ or "").OPS[name]})


def compare(
    name: str,
    pair: tuple[Callable[..., Any], Callable[..., Any]],
    device: str,
    dtype: torch.dtype,
    layout: torch.memory_format,
    bound: float,
) -> None:
    """Compare one op with its reference in one setting. Raises AssertionError."""

    def new(*shape: int) -> Tensor:
        t = torch.randn(shape, dtype=torch.float64, generator=generator).to(device, dtype)
        return t.contiguous(memory_format=layout) if t.dim() == 4 else t

    generator = torch.Generator().manual_seed(len(name))
    call, inputs = globals()[f"case_{name}"](new)
    ours, plain = (derivatives(call, op, inputs, len(name)) for op in pair)
    assert ours.keys() == plain.keys(), f"{name}: only one of the two has a gradient"
    for direction, tensors in plain.items():
        for got, want in zip(ours[direction], tensors, strict=True):
            wrong = error(got, want)
            assert got.shape == want.shape and wrong <= bound, (
                f"{name}, {direction}, {dtype}, {layout}: {got.shape}, relative error {wrong:.1e}"
            )


def check_double_backward(device: str) -> None:
    """Compare PyTorch's own convolutions with themselves while `fast_double_backward` is on. Raises AssertionError."""
    for function in (F.conv2d, F.conv_transpose2d):
        shapes = (2, 4, 9, 8), (4, 2, 3, 3), (4,)
        inputs = [torch.randn(shape, dtype=torch.float64, device=device) for shape in shapes]

        def call(op: Callable[..., Any], x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return op(x, weight, bias, stride=2, padding=1, groups=2).sin()

        plain = derivatives(call, function, inputs, 0)
        with fast_double_backward():
            ours = derivatives(call, function, inputs, 0)
        for direction, tensors in plain.items():
            wrong = max(map(error, ours[direction], tensors))
            assert wrong <= TOLERANCE[torch.float64], (
                f"{function.__name__}, {direction}: relative error {wrong:.1e}"
            )


# ---- this package ------------------------------------------------------------------------------------------------


def test_ops() -> None:
    """Compare all ops of the package. One that this copy lacks is not asked for."""
    from . import OPS

    check(OPS)
    check_double_backward("cuda" if torch.cuda.is_available() else "cpu")


if __name__ == "__main__":
    test_ops()
    runs = can_run_fused(torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu"))
    print(
        "every op agrees with plain PyTorch" + ("" if runs else "; no fused kernel can run on this machine")
    )
