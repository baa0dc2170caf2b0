"""NVIDIA's step in a process that examines it and is never timed: gradients of each phase, or the phases' GPU time.

A step examines itself while it is prepared, and writes what it finds into the folder that its recipe names. Gradients
come from weights, images, latents and noise that are the same in every such process, whatever the ops and precision.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder.base.protocol import CYCLE_STEPS
from ladder.studies.upstream import step
from ladder.studies.upstream.step import NAMES, UpstreamStep

if TYPE_CHECKING:
    from ladder.results.types import Plain

SEEN = "seen.json"
GRADIENTS, EXACT, TIMES = "gradients", "exact gradients", "times"
MOVED = 0.1  # each weight moves by this times a normal number: biases and noise strengths begin at zero
REPEATS = 4  # profiled runs of each phase
# Images, latents and noise that gradients are computed from. One input says little: where FP16 flips the sign of a few
# activations of a small network, an error is ten times as large.
INPUTS = 6
ZERO = 1e-7  # of a phase's whole gradient: a smaller tensor counts as zero
MOST = 1e30  # the largest error; a file holds no infinity


def make_step(workload: Plain, recipe: Plain, *, device: str, seed: int = 0) -> UpstreamStep:
    """Build NVIDIA's step to be timed, or one that examines itself if the recipe names a folder for findings."""
    if "findings" not in recipe:
        return step.make_step(workload, recipe, device=device, seed=seed)
    kinds = {GRADIENTS: Gradients, EXACT: ExactGradients, TIMES: Times}
    return kinds[recipe["what"]](workload, recipe, device, seed)


class Draws:
    """Random numbers that depend on the seed and the order of draws alone, not on a tensor's precision or device.

    While entered, `torch.randn`, `torch.randn_like` and `torch.rand` draw FP32 numbers on the CPU. `digest` tells
    whether two processes have drawn the same shapes in the same order.
    """

    NAMES = ("randn", "randn_like", "rand")

    def __init__(self, seed: int) -> None:
        import torch

        self.torch = torch
        self.generator = torch.Generator().manual_seed(seed)
        self.own = {name: getattr(torch, name) for name in self.NAMES}
        self._shapes = hashlib.sha256()

    def __enter__(self) -> Draws:
        for name in self.NAMES:
            setattr(self.torch, name, getattr(self, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self.own.items():
            setattr(self.torch, name, function)

    @property
    def digest(self) -> str:
        return self._shapes.hexdigest()[:16]

    def randn(self, *size: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return self._drawn(self.own["randn"], size, dtype, device)

    def rand(self, *size: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return self._drawn(self.own["rand"], size, dtype, device)

    def randn_like(self, like: Any, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return self._drawn(self.own["randn"], (like.shape,), dtype or like.dtype, device or like.device)

    def _drawn(self, draw: Callable[..., Any], size: tuple[Any, ...], dtype: Any, device: Any) -> Any:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        self._shapes.update(f"{[int(n) for n in shape]}".encode())
        numbers = draw(shape, generator=self.generator, dtype=self.torch.float32)
        return numbers.to(device or "cpu", dtype or self.torch.get_default_dtype())


class Gradients(UpstreamStep):
    """Compare each phase's gradients with exact ones, which lie in the folder of another examination.

    No update follows, so every phase sees the same weights.
    """

    def __init__(self, workload: Plain, recipe: Plain, device: str, seed: int) -> None:
        self.findings, self.draws = Path(recipe["findings"]), Draws(seed)
        self.exact = Path(recipe["exact"]) if "exact" in recipe else None
        with self.draws:
            super().__init__(workload | {"data": None}, Path(recipe["folder"]), device, seed)
            self._move()

    def _move(self) -> None:
        import torch

        with torch.no_grad():
            for net in (self.G, self.D):
                for weight in net.parameters():  # in FP32, so that FP64 gets the same numbers
                    moves = torch.randn(weight.shape, device=self.device, dtype=torch.float32)
                    weight.copy_(weight.float() + MOVED * moves)

    def prepare(self) -> None:
        """Compute the gradients, and write what is found."""
        import torch

        errors: dict[str, list[Any]] = {}
        with self.draws:
            torch.manual_seed(0)  # for whole numbers, which are drawn on the device
            for number in range(INPUTS):
                images = self._images_of_its_own()
                for update in self.updates:
                    z = torch.randn([len(images), self.workload["z_dim"]], device=self.device)
                    self.accumulate(update, images, z)
                    found = self._found(f"{NAMES[update[0]]}-{number}.npy", update[1])
                    errors.setdefault(NAMES[update[0]], []).append(found)
        seen = {
            "weights": self._digest(),
            "draws": self.draws.digest,
            "sizes": self._sizes(),
            "errors": errors,
        }
        (self.findings / SEEN).write_text(json.dumps(seen))

    def _images_of_its_own(self) -> Any:
        import torch

        shape = (self.workload["batch"], 3, *2 * (self.workload["resolution"],))
        images = torch.randint(256, shape, generator=self.draws.generator).to(torch.float32) / 127.5 - 1
        return images.to(self.device, torch.get_default_dtype())

    def _found(self, name: str, module: Any) -> Any:
        """Return the errors of the gradients that are there."""
        import numpy as np

        exact = np.load(self.exact / name, mmap_mode="r", allow_pickle=False)
        return error(exact, self._gradients(module), [each.numel() for each in module.parameters()])

    def _gradients(self, module: Any) -> Any:
        """Return the gradients of all weights as one array."""
        import torch

        found = [torch.zeros_like(each) if each.grad is None else each.grad for each in module.parameters()]
        return torch.cat([each.flatten() for each in found]).double().cpu().numpy()

    def _sizes(self) -> dict[str, list[int]]:
        nets = {"G": self.G, "D": self.D}
        return {name: [each.numel() for each in net.parameters()] for name, net in nets.items()}

    def _digest(self) -> str:
        import torch

        whole = hashlib.sha256()
        for net in (self.G, self.D):
            for weight in net.parameters():
                whole.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        return whole.hexdigest()[:16]


class ExactGradients(Gradients):
    """Write each phase's gradients in FP64: where NVIDIA's networks name float32, they get float64."""

    fp16_resolutions = 0

    def __init__(self, workload: Plain, recipe: Plain, device: str, seed: int) -> None:
        import torch

        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            super().__init__(workload, recipe, device, seed)
        finally:
            torch.set_default_dtype(self.default)

    def _networks(self) -> tuple[Any, Any]:
        import torch

        self.modules.networks.torch = _Wide(torch)
        return super()._networks()

    def prepare(self) -> None:
        import torch

        torch.backends.cudnn.benchmark = False  # trying every algorithm in FP64 takes minutes
        torch.set_default_dtype(torch.float64)
        try:
            super().prepare()
        finally:
            torch.set_default_dtype(self.default)

    def _found(self, name: str, module: Any) -> None:
        import numpy as np

        exact = self._gradients(module).astype(np.float32)  # rounded by 3e-8, and half as large a file
        np.save(self.findings / name, exact, allow_pickle=False)


class _Wide:
    """The module torch, whose float32 is float64."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, "float64" if name == "float32" else name)


class Times(UpstreamStep):
    """Write the GPU time in ms of each phase with its update: the union of its kernels and copies, under a profiler."""

    def __init__(self, workload: Plain, recipe: Plain, device: str, seed: int) -> None:
        self.findings = Path(recipe["findings"])
        super().__init__(workload | {"data": None}, Path(recipe["folder"]), device, seed)

    def prepare(self) -> None:
        """Warm up, profile and write."""
        super().prepare()
        self.step()  # every phase once more: its convolutions are tuned, its kernels compiled
        (self.findings / SEEN).write_text(json.dumps(self._profiled()))

    def _profiled(self) -> dict[str, dict[str, Any]]:
        import torch

        from ladder.engine import profiling
        from ladder.receipts import traces

        profiling.load()
        images, latents = self.drawn()
        runs = [*zip(self.updates, latents.split(self.workload["batch"]), strict=True)] * REPEATS
        recorded = profiling.Recorded()

        def phase(update: Any, z: Any) -> None:
            self.accumulate(update, images, z)
            self._update(update[1], update[2])
            torch.cuda.synchronize()

        def phases() -> None:
            for each in runs:
                recorded.run(functools.partial(phase, *each))

        recorded.profile = traces.profiled(phases)
        return tabulated([NAMES[update[0]] for update, _ in runs], recorded.cycles())


def tabulated(phases: list[str], events: list[Any]) -> dict[str, dict[str, Any]]:
    """Return by phase the GPU time in ms of each run and the median number of kernels, of each run's events."""
    from ladder.receipts import traces

    found: dict[str, dict[str, Any]] = {}
    for phase, each in zip(phases, events, strict=True):
        row = found.setdefault(phase, {"gpu_ms": [], "kernels": []})
        row["gpu_ms"].append(traces.busy_ms(each) * CYCLE_STEPS)  # a phase is no cycle of 16 steps
        row["kernels"].append(len(traces.kernels(each)))
    return {phase: row | {"kernels": statistics.median(row["kernels"])} for phase, row in found.items()}


def error(exact: Any, got: Any, sizes: list[int]) -> tuple[float, float]:
    """Return the relative L2 error of all gradients together, and the root mean square of each tensor's.

    In the second, a small tensor counts as much as a large one. A tensor whose exact gradient is 0, or FP64's rounding
    of it (biases in R1), is left out. No tensor's error counts for more than 1.
    """
    import numpy as np

    wrong, right, each, begin = 0.0, 0.0, [], 0
    least = (ZERO * float(np.linalg.norm(np.asarray(exact, dtype=np.float64)))) ** 2
    for size in sizes:
        want = np.asarray(exact[begin : begin + size], dtype=np.float64)
        off = float(np.linalg.norm(np.asarray(got[begin : begin + size], dtype=np.float64) - want)) ** 2
        norm, begin = float(np.linalg.norm(want)) ** 2, begin + size
        wrong, right = wrong + off, right + norm
        if norm > least:
            share = off / norm
            each.append(share if share < 1 else 1.0)  # also for what is no number
    whole = math.sqrt(wrong / right) if right else math.sqrt(wrong)
    return whole if math.isfinite(whole) else MOST, math.sqrt(sum(each) / max(len(each), 1))
