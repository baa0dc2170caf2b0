"""The calls of `make sanitize`: every op, on inputs that are then differentiated twice.

CUDA C++ and walks over large maps are separate calls.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

CUDA = ("cuda_norm", "cuda_pairs")  # need a build of CUDA C++
NAMES = (
    *(
        "bias_act",
        "bias_act_scaled",
        "bias_act_residual",
        "fork_upfirdn2d",
        "to_rgb",
        "from_rgb",
        "scale_act",
    ),
    *("spectral_norm", "minibatch_std", "modulate", "demodulate", "demodulate_group", "demodulate_styles"),
    *("instance_norm_act", "instance_norm_planes", "dense", "dense_group", "dense_split", "adam"),
    *("upfirdn2d", "upsample", "downsample", "act_filter", "filter_act", "filter_act_modulate"),
    *("walk_bias_act", "walk_modulate", "walk_instance_norm"),
    *CUDA,
)  # names of all calls, known without a GPU, so that no call is left out unseen
WALKED = 1024  # pixels of a map large enough for a walk


class Call(NamedTuple):
    """An op on some inputs, all of which are differentiated."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def calls(kernels, x) -> Iterator[Call]:
    """Yield each op on x."""
    import torch

    n, c, h, w = x.shape
    bias, scale, shift = (torch.randn(s, device=x.device) for s in ((c,), (n, c), (n, c)))
    strength, noise = torch.tensor(0.3, device=x.device), torch.randn(n, 1, h, w, device=x.device)
    weight = torch.randn(6, c, 3, 3, device=x.device)
    full = (x, bias, strength, scale)
    yield Call("bias_act", kernels.bias_act, (x, bias))
    yield Call("bias_act_scaled", scaled_bias_act(kernels, noise), full)
    if hasattr(kernels, "bias_act_residual"):
        yield Call("bias_act_residual", kernels.bias_act_residual, (x, bias, x.flip(1)))
        yield Call(
            "fork_upfirdn2d",
            lambda x: torch.cat([t.flatten() for t in kernels.fork_upfirdn2d(x, [1, 3, 3, 1], padding=2)]),
            (x,),
        )
    if hasattr(kernels, "to_rgb"):
        rgb, image = torch.randn(3, c, device=x.device), torch.randn(n, 3, h, w, device=x.device)
        yield Call("to_rgb", kernels.to_rgb, (x, rgb, scale, torch.randn(3, device=x.device)))
        from_rgb = (image, rgb, bias)
        yield Call("from_rgb", lambda i, k, b: kernels.from_rgb(i.to(x.dtype), k.t(), b), from_rgb)
    if hasattr(kernels, "scale_act"):
        yield Call("scale_act", kernels.scale_act, (x, scale))
    if hasattr(kernels, "spectral_norm"):
        yield Call("spectral_norm", spectral(kernels), (weight, torch.randn(9, 5 * c, device=x.device)))
    if hasattr(kernels, "minibatch_std"):
        yield Call("minibatch_std", lambda x: kernels.minibatch_std(x, 2, multiple=8), (x,))
    yield Call("modulate", kernels.modulate, (x, scale))
    yield Call("demodulate", kernels.demodulate, (weight, scale))
    if hasattr(kernels, "demodulate_group"):
        group, styles = grouped(kernels), (scale, scale.flip(1))
        yield Call("demodulate_group", group, (weight, weight[:3], *styles))
        as_path_length_does = lambda *s: group(weight, weight[:3], *s)  # noqa: E731
        yield Call("demodulate_styles", as_path_length_does, styles)
    norm = instance_norm_act(kernels, noise)
    yield Call("instance_norm_act", norm, (x, scale, shift, strength))
    yield from plane_calls(norm, (x, scale, shift, strength))
    if hasattr(kernels, "dense"):
        yield from dense_calls(kernels, scale)
    if hasattr(kernels, "adam"):
        yield Call("adam", adam, (x,))
    if hasattr(kernels, "upfirdn2d"):
        for name, up, down in (("upfirdn2d", 1, 1), ("upsample", 2, 1), ("downsample", 1, 2)):
            how = {"up": up, "down": down, "padding": 2}
            yield Call(name, lambda x, how=how: kernels.upfirdn2d(x, [1, 3, 3, 1], **how), (x,))
    if x.device.type == "cuda":
        yield from cuda_calls(x, scale, shift, noise, strength)
    if hasattr(kernels, "act_filter"):
        yield Call("act_filter", lambda x, b: kernels.act_filter(x, b, [1, 3, 3, 1], padding=2), (x, bias))
        how = {"noise": noise, "padding": (2, 1)}
        yield Call(
            "filter_act",
            lambda x, b, k, s: kernels.filter_act(x, [1, 3, 3, 1], b, strength=k, scale=s, **how),
            (x, bias, strength, scale.abs() + 0.5),
        )
    if hasattr(kernels, "filter_act_modulate"):
        how = {"noise": noise, "padding": (2, 1)}
        yield Call(
            "filter_act_modulate",
            lambda x, t, b, k, s: kernels.filter_act_modulate(
                x, [1, 3, 3, 1], t, b, strength=k, scale=s, **how
            ),
            (x, shift, bias, strength, scale.abs() + 0.5),
        )
    if h * w >= WALKED:
        with walking():
            yield Call("walk_bias_act", scaled_bias_act(kernels, noise), full)
            yield Call("walk_modulate", kernels.modulate, (x, scale))
            yield Call("walk_instance_norm", norm, (x, scale, shift, strength))


def scaled_bias_act(kernels, noise):
    more = {"noise": noise, "clamp": 2.0}
    return lambda x, b, k, s: kernels.bias_act(x, b, strength=k, scale=s, **more)


def instance_norm_act(kernels, noise):
    return lambda x, s, b, k: kernels.instance_norm_act(x, s, b, noise=noise, strength=k)


@contextlib.contextmanager
def walking() -> Iterator[None]:
    """Make programs walk over several tiles each, loading ahead, as on maps that are too large for this check."""
    from kernels.choices import Choice, forced
    from kernels.common import tiles

    tiles.tiling.cache_clear()
    try:
        with forced(Choice(tile=256, columns=32, warps=4, per_sm=1, stages=3)):
            yield
    finally:
        tiles.tiling.cache_clear()


def plane_calls(norm, inputs):
    """Yield instance norm in NCHW, by two programs that walk over planes in blocks of 32 pixels."""
    try:
        from kernels.norm import instance_norm_act_planes as planes
    except ImportError:  # code of old commits
        return
    more = dict.fromkeys({"hints", "back"} & set(planes.Walk._fields), True)  # older code lacks these fields
    usual, planes.walk = planes.walk, lambda x, tensors=1: planes.Walk(2, 32, 4, **more)
    try:
        yield Call("instance_norm_planes", lambda x, *more: norm(x.contiguous(), *more), inputs)
    finally:
        planes.walk = usual


def cuda_calls(x, scale, shift, noise, strength):
    """Yield the kernels in CUDA C++, if they exist and can be built. The pairs have no gradients."""
    try:
        from kernels import cuda
    except ImportError:  # code of old commits
        return
    if cuda.available():
        return
    yield Call("cuda_norm", instance_norm_act(cuda, noise), (x, scale, shift, strength))

    def pairs(x):
        for pair in (cuda.strided_act, cuda.coalesced_act, cuda.scalar_copy, cuda.vector_copy):
            pair(x)
        for pair in (cuda.shared_sum, cuda.shuffle_sum):
            pair(x.flatten(1))
        for pair in (cuda.divergent, cuda.predicated):
            pair(x.float())
        cuda.empty()
        return x.square()

    yield Call("cuda_pairs", pairs, (x,))


def spectral(kernels):
    """Return a function of two weights: both over their norms after a step of the power iteration, side by side."""
    import torch

    def run(*weights):
        vectors = [[w.new_ones(n) for w, n in zip(weights, sizes, strict=True)] for sizes in ends(weights)]
        kernels.power_iteration([w.detach() for w in weights], *vectors)
        return torch.cat([y.flatten() for y in kernels.spectral_norm(weights, *vectors, gains=(1.0, 0.7))])

    def ends(weights):
        return [len(w) for w in weights], [w[0].numel() for w in weights]

    return run


def grouped(kernels):
    """Return a function of weights and styles: the demodulation coefficients of two layers, side by side."""
    import torch

    def run(first, second, style, other):
        energies = kernels.weight_energies([first, second])
        return torch.cat(kernels.demodulate_group(energies, [style, other]), 1)

    return run


def dense_calls(kernels, x):
    """Yield fully connected layers on x [N, C]: one after another, side by side and, for C = 5, with a split sum."""
    import torch

    n, c = x.shape
    first, second, bias = (torch.randn(s, device=x.device) for s in ((6, c), (3, 6), (6,)))

    def chain(x, first, bias, second):
        return kernels.dense(kernels.dense(x, first, bias, act=True), second, act=True)

    def group(x, first, second, bias):
        return torch.cat(kernels.dense_group(x, [first, second], [bias, bias[:5]], (1, 0)), 1)

    yield Call("dense", chain, (x, first, bias, second))
    wide, other = torch.randn(n, 2, c, device=x.device), torch.randn(5, c, device=x.device)
    yield Call("dense_group", group, (wide, first, other, bias))
    if c == 5:
        split = (torch.randn(1, 2049, device=x.device), torch.randn(1, 2049, device=x.device))
        yield Call("dense_split", kernels.dense, split)


def adam(x):
    """Return x^2 after steps of Adam, without and with momentum.

    The weights have no copy, a copy, and a copy in a transposed layout. The last two run again with gradients of
    their energies.
    """
    import torch

    from kernels.weights.adam import AdamPlan, Item, Rates

    weight = torch.randn(70, x.shape[1], 3, 3, device=x.device).contiguous(memory_format=torch.channels_last)
    turned = torch.empty_like(weight.transpose(0, 1), memory_format=torch.channels_last).transpose(0, 1)
    copies = (None, torch.empty_like(weight, dtype=torch.bfloat16), turned.bfloat16())
    copies += tuple(copy.clone() for copy in copies[1:])
    state = [[torch.zeros_like(weight) for _ in range(3)] + [weight.new_zeros(())] for _ in copies]
    items = [Item(*each, copy) for each, copy in zip(state, copies, strict=True)]
    if "energy" in Item._fields:
        energy = weight.sum((2, 3))
        items[3:] = [item._replace(energy=energy) for item in items[3:]]
    gradients = [(weight, None if copy is None else torch.ones_like(copy)) for copy in copies]
    gradients[3:] = [
        (*pair, getattr(item, "energy", None)) for pair, item in zip(gradients, items, strict=True)
    ][3:]
    for beta1 in (0.0, 0.9):
        plan = AdamPlan(items, Rates(0.1, beta1, 0.9, 1e-8))
        rows, _ = plan.addresses(gradients)
        (table,) = plan.gradient_tables()
        plan.launch(table.copy_(torch.tensor(rows)))
        if "inverse" in inspect.signature(plan.launch).parameters:  # with a loss scale
            plan.launch(table, weight.new_ones(()), weight.new_zeros(()))
    return x.square()


def differentiate_twice(function, inputs) -> None:
    import torch

    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    g = torch.randn_like(y).requires_grad_()
    torch.autograd.grad(y, inputs, g, retain_graph=True)  # some ops have their own kernel for this case
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    second = [d for d in first if d.requires_grad]
    directions = [torch.randn_like(d) for d in second]
    torch.autograd.grad(second, [g, *inputs], directions, allow_unused=True)
