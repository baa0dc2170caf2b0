"""PyTorch's own convolutions differentiated twice by convolutions: one line for a training that exists.

For the second derivative by the weight, PyTorch convolves with the image as the kernel, one group after another.
cuDNN has no good algorithm for that, so R1, R2 and other gradient penalties are slow. But the derivatives of a
bilinear map are that map and its two gradients again (`linear/conv2d.py`). `fast_double_backward` puts this formula
in the place of PyTorch's: the operator `aten::_convolution_double_backward` of PyTorch's dispatcher.

Why there. All convolutions end in that operator: functions, modules with any padding, names imported earlier, calls
from C++, modules inside DDP. All threads share it, among them those of the autograd engine and of DataParallel.
Forward passes and first backward passes do not reach it. They stay PyTorch's own, and no graph holds anything of
ours.

Two other places are worse. New functions in `torch.nn.functional` miss whoever imported the old ones. A
`TorchFunctionMode` ends at its thread, and costs a call of Python in every operation of a network. Both would also
have to repeat the arguments of eight functions, and put nodes of our own into each graph.

The terms of the formula are operators that autograd can differentiate, so third derivatives are convolutions too.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from .common.tiles import without_autocast

OPERATOR = torch.ops.aten._convolution_double_backward
KEYS = ("AutogradCPU", "AutogradCUDA")


class Replacement:
    """A use of `fast_double_backward`. It ends with `undo`, or with the block of a `with`.

    Attributes:
        calls: second derivatives of convolutions that were computed during this use.
    """

    calls = 0

    def undo(self) -> None:
        """End this use. PyTorch's formula is back once all uses have ended. A second call changes nothing."""
        with _shared["lock"]:
            _shared["uses"].discard(self)
            if not _shared["uses"]:
                _shared["library"] = None  # a library that nobody holds is taken back

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


# PyTorch allows one replacement of an operator. Copies of this package in one process share it, and its uses.
_shared: dict[str, Any] = vars(OPERATOR).setdefault(
    "fast_double_backward", {"lock": threading.Lock(), "uses": set(), "library": None}
)


def fast_double_backward() -> Replacement:
    """Differentiate PyTorch's convolutions twice by convolutions from now on, in all threads of this process.

    What counts is whether it is on while the second backward pass runs, no matter when the network was built or
    called. So the penalty's `backward()` belongs inside of the `with`:

        fast_double_backward()  # for good, or until `.undo()` of the result

        with fast_double_backward():
            penalty.backward()

    It serves `F.conv1d` to `conv3d`, `F.conv_transpose1d` to `conv_transpose3d` and their modules, with all
    arguments, dtypes and memory formats, on CPUs and CUDA GPUs. Other devices run as before. Regions of
    `torch.compile` are left alone: they stay as compiled, and PyTorch refuses to differentiate them twice.

    Uses may nest and overlap. Switch while no other thread runs a backward pass. A process that was spawned switches
    on its own.

    Returns:
        This use: a context manager with a method `undo`.
    """
    use = Replacement()
    with _shared["lock"]:
        if _shared["library"] is None:
            library = torch.library.Library("aten", "IMPL")
            for key in KEYS:
                library.impl("_convolution_double_backward", differentiate_gradients, key)
            _shared["library"] = library
        _shared["uses"].add(use)
    return use


def differentiate_gradients(
    ggx: Tensor | None,
    ggweight: Tensor | None,
    ggbias: Tensor | None,
    g: Tensor,
    weight: Tensor,
    x: Tensor,
    *how: Any,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients by g, x and weight of a convolution's backward pass.

    Args:
        ggx, ggweight, ggbias: what arrives for the three results of that pass; None for zero.
        g: the gradient of the convolution's result, from which that pass started.
        how: stride, padding, dilation, transposed, output_padding, groups; then which of the three are wanted.
    """
    for use in _shared["uses"]:
        use.calls = getattr(use, "calls", 0) + 1
    *geometry, (wants_g, wants_x, wants_weight) = how
    convolution, gradients = torch.ops.aten.convolution, torch.ops.aten.convolution_backward
    terms, dx, dweight = [], None, None
    with without_autocast(g):
        if wants_g and ggx is not None:
            terms.append(convolution(ggx, weight, None, *geometry))
        if wants_g and ggweight is not None:
            terms.append(convolution(x, ggweight, None, *geometry))
        if wants_g and ggbias is not None:
            terms.append(ggbias.reshape(-1, *(1,) * (g.dim() - 2)).expand_as(g))
        if wants_x and ggweight is not None:
            dx = gradients(g, x, ggweight, None, *geometry, [True, False, False])[0]
        if wants_weight and ggx is not None:
            dweight = gradients(g, ggx, weight, None, *geometry, [False, True, False])[1]
    return sum(terms[1:], terms[0]) if terms else None, dx, dweight
