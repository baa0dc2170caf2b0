"""Steps of known length, and a known slowdown in a real step, for workers on a GPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ladder.core.paths import ROOT
from ladder.core.protocol import CYCLE_STEPS

CONTRACT = 1
SPINS = "from tests.support.spinning import CONTRACT as CONTRACT, make_step as make_step\n"
SLOWER = """

_make_step = make_step


def make_step(*arguments, **options):
    from tests.support.spinning import slow_down

    return slow_down(_make_step(*arguments, **options), {seconds!r})
"""


def allowed_us(length_us: float) -> float:
    """Return how far a timed length may be from the true one: 0.5%, at least a microsecond."""
    return max(0.005 * length_us, 1.0)


def write_spins(folder: Path) -> None:
    """Write a `stylegan_lite` into `folder` whose steps only wait."""
    (folder / "stylegan_lite").mkdir(parents=True)
    (folder / "stylegan_lite" / "__init__.py").write_text(SPINS)


def write_slower_checkout(folder: Path, seconds: float) -> None:
    """Copy the measured packages into `folder`, each of their steps longer on the GPU."""
    for name in ("kernels", "stylegan_lite"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "stylegan_lite" / "__init__.py", "a") as file:
        file.write(SLOWER.format(seconds=seconds))


# --- in a worker ----------------------------------------------------------------------------------------------------


def make_step(workload: dict, recipe: dict, *, device: str, seed: int = 0) -> Spin:
    return Spin(**recipe)


class Spin:
    """A step of `calls` waits of `us` microseconds: a captured graph, chained over the cycle.

    The lengths of the cycles by the GPU's own clock go to the file `clock`. Neither CUDA events nor the host's clock
    have a part in them.
    """

    data_capacity = 0

    def __init__(self, us: int, calls: int, clock: str) -> None:
        import torch

        self.recipe, self.ns, self.calls, self.clock = (
            {"us": us, "calls": calls},
            1000 * us,
            calls,
            Path(clock),
        )
        self.state = torch.zeros(3, dtype=torch.int64, device="cuda")
        self.cycles: list[Any] = []

    def prepare(self) -> None:
        import torch

        from tests.support.spin_kernel import spin_kernel

        def wait() -> None:
            spin_kernel[(1,)](self.state, self.ns, chained=True, num_warps=1)

        wait()  # compiles it
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for _ in range(self.calls):
                wait()

    def cycle(self, lazy: bool = True) -> None:
        self.state.zero_()
        for _ in range(CYCLE_STEPS):
            self.graph.replay()
        self.cycles.append(self.state.clone())

    def check_finite(self) -> None:
        """Write the clock's times. The worker calls this after the last timed cycle."""
        waits = CYCLE_STEPS * self.calls
        spans = [state.tolist() for state in self.cycles]
        self.clock.write_text(json.dumps([(end - begin) / 1000 / waits for _, begin, end in spans]))

    def settings(self) -> dict:
        return {}

    def close(self) -> None:
        pass


def slow_down(step: Any, seconds: float) -> Any:
    """Make the GPU wait once in each step, after G_main."""
    import torch

    from tests.support.spin_kernel import spin_kernel

    run_phase, state = step.run_phase, torch.zeros(3, dtype=torch.int64, device="cuda")

    def run_and_wait(phase: str) -> None:
        run_phase(phase)
        if phase == "G_main":
            spin_kernel[(1,)](state, round(1e9 * seconds), chained=False, num_warps=1)

    step.run_phase = run_and_wait
    return step
