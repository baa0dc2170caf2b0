"""The step of a clone: NVIDIA's or R3GAN's, to be timed, or one that examines itself.

A step whose recipe names a folder `findings` is never timed. It examines itself while it is prepared, and writes what
it finds there: the gradients or the GPU time of each phase. Gradients come from weights, images, latents and noise that
are the same in every such process, whatever the ops and precision.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ladder.core.protocol import CYCLE_STEPS
from ladder.studies.upstream.loops import R3GANStep, UpstreamStep

if TYPE_CHECKING:
    from ladder.core.records import Fields

CONTRACT = 1
PACKAGE = "from ladder.studies.upstream.step import CONTRACT as CONTRACT, make_step as make_step\n"
SEEN = "seen.json"
GRADIENTS, EXACT, TIMES = "gradients", "exact gradients", "times"  # what is examined
REPEATS = 4  # profiled runs of each phase
# Images, latents and noise that gradients are computed from. One input says little: where FP16 flips the sign of a few
# activations of a small network, an error is ten times as large.
INPUTS = 6
ZERO = 1e-7  # of a phase's whole gradient: a smaller tensor counts as zero
MOST = 1e30  # the largest error; a file holds no infinity


def make_step(workload: Fields, recipe: Fields, *, device: str, seed: int = 0) -> UpstreamStep:
    """Build a clone's step to be timed, or one that examines itself if the recipe names a folder for findings.

    NVIDIA's, or R3GAN's if the recipe names a preset.
    """
    kind = R3GANStep if "preset" in recipe else UpstreamStep
    if "findings" not in recipe:
        return kind(workload, recipe, device, seed)
    examination = Times if recipe["what"] == TIMES else Gradients
    examined = type(examination.__name__, (examination, kind), {})
    return examined(workload | {"data": None}, recipe, device, seed)  # type: ignore[no-any-return]


# --- examinations -----------------------------------------------------------------------------------------------------


class Draws:
    """Random numbers that depend on the seed and the order of draws alone, not on a tensor's precision or device.

    While entered, `torch.randn`, `torch.randn_like` and `torch.rand` draw FP32 numbers on the CPU. `shapes` is a hash:
    it shows whether two processes have drawn the same shapes in the same order.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.shapes = hashlib.sha256()
        self.own = {name: getattr(torch, name) for name in ("randn", "rand", "randn_like")}

    def __enter__(self) -> Draws:
        torch.randn = functools.partial(self._draw, self.own["randn"])
        torch.rand = functools.partial(self._draw, self.own["rand"])
        torch.randn_like = lambda like, dtype=None, device=None, **_: self._draw(
            self.own["randn"], like.shape, dtype=dtype or like.dtype, device=device or like.device
        )
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self.own.items():
            setattr(torch, name, function)

    def _draw(
        self, draw: Callable[..., Any], *size: Any, dtype: Any = None, device: Any = None, **_: Any
    ) -> Any:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        self.shapes.update(f"{[int(n) for n in shape]}".encode())
        numbers = draw(shape, generator=self.generator, dtype=torch.float32)
        return numbers.to(device or "cpu", dtype or torch.get_default_dtype())


@contextlib.contextmanager
def set_default(dtype: torch.dtype) -> Iterator[None]:
    """Make a precision that of new tensors inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


if TYPE_CHECKING:
    Examined = UpstreamStep
else:
    Examined = object  # the step of a clone comes behind it


class Gradients(Examined):
    """Compare each phase's gradients with exact ones, which another examination wrote into the folder `exact`.

    That one computes in FP64: where a clone's networks name float32, they get float64. No update follows, so every
    phase sees the same weights.
    """

    def __init__(self, workload: Fields, recipe: Fields, device: str, seed: int) -> None:
        self.findings, self.exact, self.draws = Path(recipe["findings"]), Path(recipe["exact"]), Draws(seed)
        self.is_exact = recipe["what"] == EXACT
        self.dtype = torch.float64 if self.is_exact else torch.get_default_dtype()
        with set_default(self.dtype), self.draws:
            super().__init__(workload, recipe, device, seed)
            with torch.no_grad():
                for weight in [*self.G.parameters(), *self.D.parameters()]:
                    # in FP32, so that FP64 gets the same numbers
                    moves = torch.randn(weight.shape, device=self.device, dtype=torch.float32)
                    weight.copy_(self._place(weight, moves))

    def prepare(self) -> None:
        """Compute the gradients, and write their errors; exact ones are written rounded by 3e-8."""
        if self.is_exact:
            torch.backends.cudnn.benchmark = False  # trying every algorithm in FP64 takes minutes
        errors: dict[str, list[Any]] = {}
        shape = (self.workload["batch"], 3, *2 * (self.workload["resolution"],))
        with set_default(self.dtype), self.draws:
            torch.manual_seed(0)  # for whole numbers, which are drawn on the device
            for number in range(INPUTS):
                levels = torch.randint(256, shape, generator=self.draws.generator).to(torch.float32)
                images = (levels / 127.5 - 1).to(self.device, torch.get_default_dtype())
                for update in self.updates:
                    z = torch.randn([len(images), self.z_dim], device=self.device)
                    self.accumulate(update, images, z)
                    phase, weights = self.names[update[0]], [*update[1].parameters()]
                    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
                    values = torch.cat([each.flatten() for each in grads]).double().cpu().numpy()
                    path = self.exact / f"{phase}-{number}.npy"
                    if self.is_exact:
                        np.save(path, values.astype(np.float32), allow_pickle=False)
                        continue
                    exact = np.load(path, mmap_mode="r", allow_pickle=False)
                    error = derive_error(exact, values, [each.numel() for each in grads])
                    errors.setdefault(phase, []).append(error)
        digest = hashlib.sha256()
        for weight in [*self.G.parameters(), *self.D.parameters()]:
            digest.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        findings = {"weights": digest.hexdigest(), "draws": self.draws.shapes.hexdigest(), "errors": errors}
        (self.findings / SEEN).write_text(json.dumps(findings))


class Times(Examined):
    """Write the GPU time in ms of each phase with its update: the union of its kernels and copies, under a profiler."""

    def __init__(self, workload: Fields, recipe: Fields, device: str, seed: int) -> None:
        self.findings = Path(recipe["findings"])
        super().__init__(workload, recipe, device, seed)

    def prepare(self) -> None:
        """Warm up, profile and write."""
        from ladder.engine import profiling
        from ladder.receipts import traces

        super().prepare()
        self.step()  # every phase once more: its convolutions are tuned, its kernels compiled
        profiling.load_profiler()
        runs = [(update, *drawn) for update, drawn in zip(self.updates, self.draw(), strict=True)] * REPEATS
        recorded = profiling.Recorded()

        def run_phase(update: Any, images: Any, z: Any) -> None:
            self.accumulate(update, images, z)
            self._update(update[1], update[2])
            torch.cuda.synchronize()

        def run_phases() -> None:
            for each in runs:
                recorded.run(functools.partial(run_phase, *each))

        recorded.profile = traces.profile_cycle(run_phases)
        times = tabulate_times([self.names[update[0]] for update, *_ in runs], recorded.cycles())
        (self.findings / SEEN).write_text(json.dumps(times))


def tabulate_times(phases: list[str], events: list[Any]) -> dict[str, dict[str, Any]]:
    """Return by phase the GPU time in ms of each run and the median number of kernels, of each run's events."""
    from ladder.receipts import traces

    times: dict[str, list[float]] = {}
    kernels: dict[str, list[int]] = {}
    for phase, each in zip(phases, events, strict=True):
        times.setdefault(phase, []).append(
            traces.busy_ms(each) * CYCLE_STEPS
        )  # a phase is no cycle of 16 steps
        kernels.setdefault(phase, []).append(len(traces.list_kernels(each)))
    return {phase: {"gpu_ms": times[phase], "kernels": statistics.median(kernels[phase])} for phase in times}


def derive_error(exact: Any, got: Any, sizes: list[int]) -> tuple[float, float]:
    """Return the relative L2 error of all gradients together, and the root mean square of each tensor's.

    In the second, a small tensor counts as much as a large one. A tensor whose exact gradient is 0, or FP64's rounding
    of it (biases in R1), is left out. No tensor's error counts for more than 1.
    """
    wrong, right, shares, begin = 0.0, 0.0, [], 0
    least = (ZERO * float(np.linalg.norm(np.asarray(exact, dtype=np.float64)))) ** 2
    for size in sizes:
        tensor = np.asarray(exact[begin : begin + size], dtype=np.float64)
        off = float(np.linalg.norm(np.asarray(got[begin : begin + size], dtype=np.float64) - tensor)) ** 2
        norm, begin = float(np.linalg.norm(tensor)) ** 2, begin + size
        wrong, right = wrong + off, right + norm
        if norm > least:
            shares.append(off / norm if off < norm else 1.0)  # also for what is no number
    whole = math.sqrt(wrong / right) if right else math.sqrt(wrong)
    return whole if math.isfinite(whole) else MOST, math.sqrt(sum(shares) / max(len(shares), 1))
