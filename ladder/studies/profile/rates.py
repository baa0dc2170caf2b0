"""The rates of a profile: TFLOP/s of convolutions and matmuls, TB/s where the moved bytes are known.

FLOPs and the optimizer's bytes are those that the workload needs (`ladder.studies.roofline.floors`). Bytes of plain
PyTorch's operators follow from the shapes of their inputs, recorded in the eager run. Bytes of a kernel of ours are
those of the tensors that it is given there, each once, as the ops' `bytes_moved` count. Other categories have no rate.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.receipts import categories, operator_families
from ladder.receipts import kernel_families as families
from ladder.results.types import Plain
from ladder.studies.profile import tracing

SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long": 8, "long int": 8, "int": 4, "bool": 1,
    "unsigned char": 1, "signed char": 1, "short": 2,
}  # fmt: skip
COPY = re.compile("memcpy dtod", re.IGNORECASE)  # of a trace
WRITES_ALONE = ("fill_", "zero_")
TABLES = ("adam", "spectral")  # kernels that find their tensors in tables of addresses
KNOWN = 0.9  # of a category's time: with fewer known bytes it has no rate
TFLOPS, TBS = "TFLOP/s", "TB/s"
# Bytes that a copy reads and writes. Beyond, `copy_` in one piece is slower than memory is (docs/kernels.md).
SIZES_COPIED = tuple(2**power for power in range(14, 29))
COPIES = 5  # of each size
EVICTS = 2**28  # bytes that are written before each copy: more than any L2 holds


@dataclass(frozen=True)
class Rate:
    """A rate of a category, in 1e12 a second."""

    value: float
    unit: str


def moved(name: str, shapes: Sequence[Any], dtypes: Sequence[str]) -> int | None:
    """Return the bytes that an operator of plain PyTorch reads and writes at least, or None if its shapes do not tell.

    A tensor that is broadcast counts as it is given. A result counts with the shape that its inputs give together.
    """
    family = operator_families.family(name)
    if family not in (families.ELEMENTWISE, families.COPY, families.REDUCTION):
        return None
    tensors = [(shape, SIZES[kind]) for shape, kind in zip(shapes, dtypes, strict=False) if kind in SIZES]
    tensors = [(shape, size) for shape, size in tensors if all(isinstance(n, int) for n in shape)]
    if not tensors or not tensors[0][0]:
        return None
    read = sum(math.prod(shape) * size for shape, size in tensors)
    bare = name.removeprefix("aten::")
    if bare in WRITES_ALONE or bare == "copy_":
        return read  # the first tensor is only written
    if bare == "cat" or bare.startswith(("to", "_to", "contiguous", "clone", "repeat")):
        return None  # a list of tensors, or an operator whose copy_ counts
    if family == families.REDUCTION:
        return read
    result = math.prod(_broadcast([shape for shape, _ in tensors]))
    return read + result * max(size for _, size in tensors)


def _broadcast(shapes: Sequence[Sequence[int]]) -> list[int]:
    """Return the shape that shapes give together, by PyTorch's rules."""
    longest = max(map(len, shapes))
    padded = [[1] * (longest - len(shape)) + list(shape) for shape in shapes]
    return [max(sizes) for sizes in zip(*padded, strict=True)]


@contextlib.contextmanager
def given() -> Iterator[list[tuple[str, int]]]:
    """Note (kernel, bytes of the tensors that it is given) of each launch of our Triton kernels while entered."""
    found: list[tuple[str, int]] = []
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:  # no Triton, so no kernels of ours
        yield found
        return
    original = KernelInterface.__getitem__

    def noted(self: Any, grid: Any) -> Any:
        launch, function = original(self, grid), getattr(self, "fn", None)
        if not str(getattr(function, "__module__", "")).startswith("kernels."):
            return launch

        def run(*arguments: Any, **options: Any) -> Any:
            found.append((getattr(function, "__name__", ""), _given_bytes((*arguments, *options.values()))))
            return launch(*arguments, **options)

        return run

    KernelInterface.__getitem__ = noted
    try:
        yield found
    finally:
        KernelInterface.__getitem__ = original


def _given_bytes(arguments: Iterable[Any]) -> int:
    """Return the bytes of all tensors among a launch's arguments. A tensor that is given twice counts once."""
    sizes: dict[int, int] = {}
    for each in arguments:
        for tensor in each if isinstance(each, tuple | list) else (each,):
            if hasattr(tensor, "data_ptr") and hasattr(tensor, "nbytes"):
                at = tensor.data_ptr()
                sizes[at] = max(sizes.get(at, 0), tensor.nbytes)
    return sum(sizes.values())


def of_launches(kernels: Sequence[str], launches: Iterable[tuple[str, int]]) -> list[int | None]:
    """Return the bytes of each kernel of a trace, by the launches that were noted; None where they do not tell.

    The launches of a name are matched in order, if as many were noted as ran.
    """
    noted: dict[str, list[int]] = defaultdict(list)
    for name, size in launches:
        if not name.startswith(TABLES):
            noted[name].append(size)
    for name in noted:
        if kernels.count(name) != len(noted[name]):
            noted[name] = []
    waiting = {name: iter(sizes) for name, sizes in noted.items()}
    return [next(waiting[name], None) if name in waiting else None for name in kernels]


def copies(device: str) -> list[tuple[int, int]]:
    """Return (bytes read and written, nanoseconds of the GPU) of copies with a cold L2; on a CPU none.

    Source: medians of `COPIES` traced calls of ``Tensor.copy_`` for each of `SIZES_COPIED`. Raises what torch raises if
    the memory is short.
    """
    if device != "cuda":
        return []
    import torch

    from ladder.receipts import traces

    other = torch.empty(EVICTS, dtype=torch.uint8, device=device)
    pairs = [torch.randint(256, (2, size // 2), dtype=torch.uint8, device=device) for size in SIZES_COPIED]

    def run() -> None:
        for pair in pairs:
            for turn in range(COPIES):
                other.fill_(turn)
                pair[1].copy_(pair[0])

    run()
    found = [event for event in traces.events(tracing.profiled(run, device)) if event[1]]
    took = [end - begin for name, _, _, begin, end in sorted(found, key=lambda e: e[3]) if COPY.match(name)]
    if len(took) != COPIES * len(SIZES_COPIED):
        return []
    rows = [took[k : k + COPIES] for k in range(0, len(took), COPIES)]
    return [(size, round(statistics.median(row))) for size, row in zip(SIZES_COPIED, rows, strict=True)]


def copied_ns(copied: Sequence[tuple[int, int]], size: int) -> float:
    """Return the nanoseconds of a copy of ``size`` bytes, between those that were measured."""
    sizes, took = zip(*copied, strict=True)
    if size > sizes[-1]:
        return float(took[-1] * size / sizes[-1])
    return float(np.exp(np.interp(math.log(max(size, 1)), np.log(sizes), np.log(took))))


def by_shapes(known: Mapping[str, tuple[int, int]], took_ns: Mapping[str, int]) -> dict[str, Rate]:
    """Return TB/s of the categories whose kernels' bytes are known.

    Args:
        known: (nanoseconds, bytes) of the kernels with known bytes, by category.
        took_ns: nanoseconds of all kernels, by category.
    """
    return {
        name: Rate(moved_bytes / ns / 1000, TBS)
        for name, (ns, moved_bytes) in known.items()
        if ns and ns >= KNOWN * took_ns.get(name, 0)
    }


def by_floors(fields: Plain, precision: str, took_ms: Mapping[str, float]) -> dict[str, Rate]:
    """Return the rates of categories whose work the workload tells: of necessary FLOPs and bytes a step.

    Depthwise kernels of a cheaper model lie in `resampling`, beside its filters. Then convolutions have no rate.
    """
    from ladder.studies.roofline import command, floors, in_step
    from stylegan_lite.config import Workload

    counted = floors.count(Workload.from_dict(fields), precision)
    often = command.frequencies(fields)
    work = command.amounts(counted, fields)
    pointwise = sum(flops for op, flops in command.weigh(counted, fields).items() if command.pointwise(op))
    matmuls = sum(counted[phase].matmul_flops * times for phase, times in often.items())
    purposes = ("optimizer", "moving average")
    updates = sum(
        sum(counted[phase].bytes[each] for each in purposes) * times for phase, times in often.items()
    )
    needed = {
        categories.CONVOLUTION: (work[in_step.CONVOLUTIONS], TFLOPS),
        categories.MATMUL: (matmuls + pointwise, TFLOPS),
        categories.OPTIMIZER: (updates, TBS),
    }
    if fields.get("convolution", "full") != "full":
        needed = {categories.OPTIMIZER: needed[categories.OPTIMIZER]}
    return {
        name: Rate(amount / took_ms[name] / 1e9, unit)
        for name, (amount, unit) in needed.items()
        if took_ms.get(name) and amount
    }
