"""Adam for all parameters of a network in three launches, which also write the weights as the next step reads them.

It is Kingma & Ba 2015 (arXiv:1412.6980) as in torch.optim.Adam, without weight decay and amsgrad. A parameter may have
a compute copy: its weight times a gain, in the dtype and layout of its convolution. The copy's gradient is cast and
scaled as it is read, and the parameter's own gradient is added if it has one. The next copy is written with the next
weight. So a copy costs 2 + 2 bytes an element and nothing else.

With beta1 = 0, as in StyleGAN2, the first moment is the last gradient, and the next update never reads it. It is then
neither read nor written: four bytes of an element's 24. Its tensor keeps what it holds.

A kernel finds its tensors in a table of addresses. The addresses of weights, moments, step counts and copies never
change. Gradients have a table of their own, because each capture of a CUDA graph gives them other addresses. The
kernels are in `adam_kernels.py`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..common.launches import launch_grid
from ..common.tiles import alike, check_device, power_of_2, tl, tl_accumulator
from .adam_kernels import adam_kernel, adam_steps_kernel, adam_turned_kernel

BLOCK = 2048  # elements that a program updates
SIDE, HEIGHT = (
    64,
    32,
)  # input and output channels of a program's part of a tap: as many elements as others have
PART, ROWS = 256, 4  # a program's elements or rows at a time where its block ends beyond a parameter
ALIGNED = 16  # bytes, as vector loads need them
ROW = 9  # numbers in a parameter's row of the table


class Item(NamedTuple):
    """One parameter and its state. ``copy`` has the weight's shape, and its strides or those of a turned weight."""

    weight: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor  # [], float32: updates done
    copy: Tensor | None = None
    gain: float = 1.0
    energy: Tensor | None = (
        None  # [O, I]: its squares summed over taps, where that sum has a gradient of its own
    )


class Rates(NamedTuple):
    """Adam's constants."""

    lr: float
    beta1: float
    beta2: float
    eps: float


def adam_reference(
    items: list[Item],
    gradients: list[tuple[Tensor | None, ...]],
    rates: Rates,
    inverse: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    """Update the parameters in plain PyTorch, in place.

    Gradients are (the parameter's, its copy's, its energy's), None where there is none. The last may be left out. With
    a loss scale, ``inverse`` [] is one over it. Nothing is updated or counted where ``found_inf`` [] is not 0.
    """
    if found_inf is not None and float(found_inf):
        return
    for item, (own, copys, *energys) in zip(items, gradients, strict=True):
        energys = energys[0] if energys else None
        if own is None and copys is None and energys is None:
            continue
        g = torch.zeros_like(item.weight) if own is None else own
        if copys is not None:
            g = g + copys.to(g.dtype) * item.gain
        if energys is not None:
            g = g + 2 * item.weight * energys[:, :, None, None]
        if inverse is not None:
            g = g * inverse.to(g.dtype)
        item.step.add_(1)
        count = float(item.step)
        item.exp_avg.lerp_(g, 1 - rates.beta1)
        item.exp_avg_sq.mul_(rates.beta2).addcmul_(g, g, value=1 - rates.beta2)
        root = item.exp_avg_sq.sqrt() / math.sqrt(1 - rates.beta2**count) + rates.eps
        item.weight.addcdiv_(item.exp_avg, root, value=-rates.lr / (1 - rates.beta1**count))
        if item.copy is not None:
            item.copy.copy_(item.weight * item.gain)


def bytes_moved(
    items: list[Item], gradients: list[tuple[Tensor | None, ...]], *, momentum: bool = False
) -> int:
    """Return the bytes that must cross memory: gradients, weights and moments in; weights, moments and copies out.

    momentum: beta1 is not 0, so the first moment is read and written, too.
    """
    total = 0
    for item, pair in zip(items, gradients, strict=True):
        given = [g.nbytes for g in pair if g is not None]
        copy = 0 if item.copy is None else item.copy.nbytes
        total += bool(given) * (sum(given) + (4 + 2 * momentum) * item.weight.nbytes + copy)
    return total


# ---- tables ------------------------------------------------------------------------------------------------------


class AdamPlan:
    """Adam for these parameters. Its tables are made once, on their device. Later calls never wait for the GPU.

    Raises:
        ValueError: tensors that do not belong together; one line.
        RuntimeError: CPU tensors outside Triton's interpreter.
    """

    def __init__(self, items: list[Item], rates: Rates) -> None:
        self.items, self.rates = items, rates
        for number, item in enumerate(items):
            problem = _problem(item, items[0])
            if problem:
                raise ValueError(f"adam: parameter {number}: {problem}")
        check_device(items[0].weight)
        self.device = items[0].weight.device
        self.turned = [item.copy is not None and not alike(item.copy, item.weight) for item in items]
        kinds = {item.copy.dtype for item in items if item.copy is not None}
        nhwc = {item.weight.stride(1) == 1 for item in self._squared()}
        if len(kinds) > 1 or len(nhwc) > 1:
            raise ValueError("adam: all copies need one dtype, all turned ones one memory format")
        self.nhwc = nhwc == {True}
        self.table = self._tensor([_row(item) for item in items], torch.int64)
        self.gains = self._tensor([item.gain for item in items], torch.float64)
        logs = (math.log(b) if b else -math.inf for b in rates[1:3])
        constants = [rates.lr, 1 - rates.beta1, rates.beta2, 1 - rates.beta2, rates.eps, *logs]
        self.constants = self._tensor(constants, torch.float64)
        self.corrections = torch.empty(len(items), 2, device=self.device, dtype=torch.float64)
        self.flat, self.squares, self.planes = (self._tensor(jobs, torch.int32) for jobs in self._blocks())

    def addresses(self, gradients: list[tuple[Tensor | None, ...]]) -> tuple[list[list[int]], list[Tensor]]:
        """Return rows for a table of gradients, and copies of gradients with wrong alignment or layout.

        Keep those copies until the update is launched.
        """
        rows, held = [], []
        for item, given in zip(self.items, gradients, strict=True):
            row, given = [], (*given, None)[:3]
            for g, like in zip(given, (item.weight, item.copy, item.energy), strict=True):
                if g is not None and (not alike(g, like) or g.data_ptr() % ALIGNED or g.dtype != like.dtype):
                    g = torch.empty_like(like).copy_(g)
                    held.append(g)
                row.append(0 if g is None else g.data_ptr())
            rows.append(row)
        return rows, held

    def gradient_tables(self, count: int = 1) -> tuple[Tensor, ...]:
        """Return tables for the addresses of gradients. Fill each before an update reads it."""
        return torch.zeros(count, len(self.items), 3, device=self.device, dtype=torch.int64).unbind()

    def launch(
        self, gradients: Tensor, inverse: Tensor | None = None, found_inf: Tensor | None = None
    ) -> None:
        """Update every parameter whose row in ``gradients`` [parameters, 3] has an address.

        A loss scale gives two float32 scalars on the device. Gradients are multiplied by ``inverse``, and nothing
        happens where ``found_inf`` is not 0. The kernels read both, so a captured launch follows their values.
        """
        n, weight = len(self.items), self.items[0].weight
        copy = next((item.copy for item in self.items if item.copy is not None), weight)
        launch_grid(
            adam_steps_kernel,
            (1,),
            (self.table, gradients, self.constants, self.corrections, found_inf, n),
            ROW=ROW,
            BLOCK=power_of_2(n),
            num_warps=4,
        )
        tables = (self.table, gradients, self.gains, self.corrections, self.constants)
        types = {"W": _TYPES[weight.dtype](), "C": _TYPES[copy.dtype](), "ACC": tl_accumulator(weight.dtype)}
        scale = (inverse, found_inf)
        options = {"ROW": ROW, "MOMENTUM": self.rates.beta1 != 0, "num_warps": 8, **types}
        if len(self.flat):
            launch_grid(
                adam_kernel,
                (len(self.flat),),
                (*tables, self.flat, *scale),
                BLOCK=BLOCK,
                PART=PART,
                **options,
            )
        for jobs, turned in ((self.squares, True), (self.planes, False)):
            if len(jobs):
                shape = {"HEIGHT": HEIGHT, "ROWS": ROWS, "SIDE": SIDE, "NHWC": self.nhwc, "TURNED": turned}
                launch_grid(adam_turned_kernel, (len(jobs),), (*tables, jobs, *scale), **shape, **options)

    def _squared(self) -> list[Item]:
        """Return the parameters to be updated in squares of channels: a copy lies turned, or an
        energy has gradients.
        """
        return [
            i for i, turned in zip(self.items, self.turned, strict=True) if turned or i.energy is not None
        ]

    def _blocks(self) -> tuple[list[tuple[int, ...]], ...]:
        """Return each program's work: (parameter, block), or (parameter, tap, rows, columns) for a square.

        Squares of turned copies come first.
        """
        flat, squares, planes = [], [], []
        for k, (item, turned) in enumerate(zip(self.items, self.turned, strict=True)):
            if not turned and item.energy is None:
                flat += [(k, b) for b in range(-(-item.weight.numel() // BLOCK))]
                continue
            o, i, *taps = item.weight.shape
            own = squares if turned else planes
            rows, columns = range(-(-o // HEIGHT)), range(-(-i // SIDE))
            own += [(k, t, r, c) for r in rows for t in range(math.prod(taps)) for c in columns]
        return flat, squares, planes

    def _tensor(self, values: list, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(self.device)


_TYPES = {
    torch.float32: lambda: tl.float32,
    torch.float64: lambda: tl.float64,
    torch.bfloat16: lambda: tl.bfloat16,
    torch.float16: lambda: tl.float16,
}


def _row(item: Item) -> list[int]:
    w = item.weight
    o, i, *taps = w.shape if w.dim() == 4 else (0, 0, 0)
    tensors = (w, item.exp_avg, item.exp_avg_sq, item.copy, item.step)
    return [0 if t is None else t.data_ptr() for t in tensors] + [w.numel(), o, i, math.prod(taps)]


def _dense(t: Tensor) -> bool:
    return t.is_contiguous() or (t.dim() == 4 and t.is_contiguous(memory_format=torch.channels_last))


def _beside(energy: Tensor, w: Tensor) -> bool:
    return energy.shape == w.shape[:2] and energy.dtype == w.dtype and energy.is_contiguous()


def _problem(item: Item, first: Item) -> str | None:
    w, dtype = item.weight, first.weight.dtype
    state = (item.exp_avg, item.exp_avg_sq)
    if w.dtype not in (torch.float32, torch.float64) or any(t.dtype != dtype for t in (w, *state)):
        return f"need weights and moments all float32 or all float64, got {[t.dtype for t in (w, *state)]}"
    if not _dense(w) or not all(t.shape == w.shape and alike(t, w) for t in state):
        return "weight and moments must be dense in NCHW or channels_last memory, and lie alike"
    if item.step.numel() != 1 or item.step.dtype != torch.float32 or item.step.device != w.device:
        return f"need a step count in float32 beside the weight, got {item.step.dtype} on {item.step.device}"
    tensors = [w, *state, *(t for t in (item.copy, item.energy) if t is not None)]
    if any(t.device != first.weight.device for t in tensors):
        return "not all tensors are on one device"
    if any(t.data_ptr() % ALIGNED for t in tensors):
        return f"tensors must begin at multiples of {ALIGNED} bytes"
    if item.energy is not None and (w.dim() != 4 or not _beside(item.energy, w)):
        return f"an energy {list(item.energy.shape)} in {item.energy.dtype} of a weight {list(w.shape)}"
    if item.copy is None:
        return None
    if item.copy.shape != w.shape or item.copy.dtype not in _TYPES:
        return f"a copy {list(item.copy.shape)} in {item.copy.dtype} of a weight {list(w.shape)}"
    if alike(item.copy, w):
        return None
    format = torch.channels_last if w.stride(1) == 1 else torch.contiguous_format
    if w.dim() != 4 or not item.copy.transpose(0, 1).is_contiguous(memory_format=format):
        return "a copy lies as its weight does, or turned in the same memory format"
    return None
