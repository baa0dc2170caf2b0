"""The calls of `make sanitize`: every op of the table of timed ops, on small inputs that are differentiated twice.

Programs that walk over large maps or over planes, a split sum, the optimizer and CUDA C++ are calls of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from ladder.studies.kernelbench.cases import OPS, Case

CUDA = ("cuda_norm", "cuda_pairs")  # need a build of CUDA C++
CONVOLUTIONS = ("conv2d", "conv_transpose2d")  # PyTorch's launches, none of ours
SIXTEEN = ("bias_act_skip",)  # ops whose kernels take 16 bits in channels_last
TABLE = [name for name, op in OPS.items() if not op.needs and op.function not in CONVOLUTIONS]
WALKED = ("bias_act noise scale", "modulate", "instance_norm_act")
PIXELS = 1024  # of a map large enough for a walk
NAMES = (
    *(name.replace(" ", "_") for name in TABLE),
    *("demodulate_styles", "instance_norm_planes", "dense_split", "adam", "styled_group", "logistic_loss"),
    *("fill_words", "grouped_conv"),
    *(f"walk_{name.replace(' ', '_')}" for name in WALKED),
    *CUDA,
)  # names of all calls, known without a GPU, so that no call is left out unseen


class Call(NamedTuple):
    """An op on some inputs, all of which are differentiated."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]


def calls(x) -> Iterator[Call]:
    """Yield each op on inputs of the shape, precision and memory format of x, [N, C, H, W]."""
    import torch

    import kernels

    for name in TABLE:
        yield of_table(name, x if name not in SIXTEEN else _in_16_bits(x))
    energies = [name for name in OPS["demodulate_group"].inputs if name.startswith("energy")]
    yield of_table("demodulate_group", x, data=energies)._replace(
        name="demodulate_styles"
    )  # as path length does
    with by_planes():
        yield of_table("instance_norm_act", x.contiguous())._replace(name="instance_norm_planes")
    if x.shape[1] == 5:
        rows = torch.randn(2, 1, 2049, device=x.device)
        yield Call("dense_split", kernels.dense, tuple(rows))
    yield Call("adam", adam, (x,))
    weight, style = (torch.randn(rows, x.shape[1], device=x.device) for rows in (3, len(x)))
    yield Call("styled_group", styled_group, (weight, style))
    yield Call("logistic_loss", logistic_loss, (torch.randn(len(x), 1, device=x.device),))
    yield Call("fill_words", functools.partial(fill, x.device), ())
    images, weight = (
        torch.randn(shape, device=x.device) for shape in ((len(x), 32, *x.shape[2:]), (32, 16, 3, 3))
    )
    grouped = functools.partial(kernels.conv2d, padding=1, groups=2)
    yield Call("grouped_conv", grouped, tuple(map(_in_16_bits, (images, weight))))
    if x.device.type == "cuda":
        yield from cuda_calls(x)
    if x.shape[2] * x.shape[3] >= PIXELS:
        with walking():
            for name in WALKED:
                yield of_table(name, x)._replace(name=f"walk_{name.replace(' ', '_')}")


def _in_16_bits(x):
    """Return x as the kernels of SIXTEEN take it. Other calls of those ops are no kernel of theirs."""
    import torch

    dtype = x.dtype if x.dtype.itemsize == 2 else torch.bfloat16
    return x.to(dtype).contiguous(memory_format=torch.channels_last)


def of_table(name: str, x, *, function: Callable[..., Any] | None = None, data: Collection[str] = ()) -> Call:
    """Return an op of the table on fresh inputs like x. The inputs in `data` are not differentiated either.

    `function` stands for the op's own, and takes the same tensors by name.
    """
    import torch

    entry, layout = OPS[name], torch.channels_last
    if not x.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    n, c, h, w = x.shape
    # The table's maps are square. Here the noise behind a filter has P x Q pixels.
    sizes = {"N": n, "C": c, "H": h, "W": w, "P": h - 1, "Q": w - 1, "O": 6, "I": c, "K": 9 * c}
    given, fixed = {}, {}
    for each, letters in entry.inputs.items():
        t = torch.randn([sizes.get(k) or int(k) for k in letters.replace("RR", "PQ")], device=x.device)
        t = t.abs() + 0.5 if each in entry.positive else t
        t = t.to(x.dtype) if each in entry.activations else t
        t = t.contiguous(memory_format=layout) if t.dim() == 4 else t
        (fixed if each in (*entry.data, *data) else given)[each] = t
    run = function or Case(name, (), "fp32", "NCHW").fused()

    def call(*inputs):
        found = run(**dict(zip(given, inputs, strict=True)), **fixed)
        return found if isinstance(found, torch.Tensor) else torch.cat([t.flatten() for t in found])

    return Call(name.replace(" ", "_"), call, tuple(given.values()))


def styled_group(weight, style):
    """Call the op of toRGB's weights, which no table times, for two layers of different widths."""
    import torch

    from kernels.linear import rgb_weights

    found = rgb_weights.styled_group([weight, weight[:, 1:]], [style, style[:, 1:]])
    return torch.cat([each.flatten() for each in found])


def logistic_loss(logits):
    """Call the loss of an update, which no table times."""
    from kernels.pointwise.logistic_loss import logistic_loss as loss

    return loss(logits, 1)


def fill(device) -> None:
    """Call the fill of a captured graph, which no table times, on a block of words and one more."""
    import torch

    from kernels.common.fill import BLOCK, fill_words

    words = torch.empty(BLOCK + 1, dtype=torch.int32, device=device)
    fill_words(words.data_ptr(), len(words), 0)


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


@contextlib.contextmanager
def by_planes() -> Iterator[None]:
    """Run instance norm in NCHW by two programs that walk over planes in blocks of 32 pixels."""
    from kernels.norm import instance_norm_act_planes as planes

    usual, planes.walk = planes.walk, lambda x, tensors=1: planes.Walk(2, 32, 4, hints=True, back=True)
    try:
        yield
    finally:
        planes.walk = usual


def cuda_calls(x) -> Iterator[Call]:
    """Yield the kernels in CUDA C++, if they can be built. The pairs have no gradients."""
    from kernels import cuda

    if cuda.available():
        return
    yield of_table("instance_norm_act", x, function=cuda.instance_norm_act)._replace(name="cuda_norm")

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
    energy = weight.sum((2, 3))
    items[3:] = [item._replace(energy=energy) for item in items[3:]]
    gradients = [(weight, None if copy is None else torch.ones_like(copy)) for copy in copies]
    gradients[3:] = [(*pair, energy) for pair in gradients[3:]]
    for beta1 in (0.0, 0.9):
        plan = AdamPlan(items, Rates(0.1, beta1, 0.9, 1e-8))
        rows, _ = plan.addresses(gradients)
        (table,) = plan.gradient_tables()
        plan.launch(table.copy_(torch.tensor(rows)))
        plan.launch(table, weight.new_ones(()), weight.new_zeros(()))  # with a loss scale
    return x.square()


def differentiate_twice(function, inputs) -> None:
    import torch

    if not inputs:  # an op without gradients
        function()
        return
    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    g = torch.randn_like(y).requires_grad_()
    torch.autograd.grad(y, inputs, g, retain_graph=True)  # some ops have their own kernel for this case
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    second = [d for d in first if d.requires_grad]
    directions = [torch.randn_like(d) for d in second]
    torch.autograd.grad(second, [g, *inputs], directions, allow_unused=True)
