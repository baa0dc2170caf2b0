"""The process that Nsight Compute and Nsight Systems watch: `python -m ladder.studies.profile.target FILE`.

It prepares a step, and switches the profiler on for the part that is watched. FILE says what to run
(`ladder.studies.profile.counted.spec`).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(path: Path, device: str = "cuda") -> int:
    """Run the step of a file. ``device`` is another one in tests."""
    from stylegan_lite import make_step

    told = json.loads(path.read_text(encoding="utf-8"))
    step = make_step(told["workload"], told["recipe"], device=device)
    try:
        step.prepare()  # runs every phase
        if told["ranges"]:
            step.cycle()  # under ncu each launch costs more, and nothing there depends on earlier cycles
        with watched(device):
            ranged(step) if told["ranges"] else run(step, told["phases"], told["enough_s"])
    finally:
        step.close()
    return 0


class watched:
    """The part of the program that the profiler records."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __enter__(self) -> None:
        self._switch("cudaProfilerStart")

    def __exit__(self, *_: object) -> None:
        self._switch("cudaProfilerStop")

    def _switch(self, name: str) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()
            getattr(torch.cuda.cudart(), name)()


def run(step: Any, phases: list[str], enough_s: float) -> None:
    """Run phases as they are, and print each that ran.

    After so many seconds no phase begins, so that the counters up to then are printed by ncu, and not lost.
    """
    begin = time.monotonic()
    for phase in phases:
        if time.monotonic() - begin < enough_s:
            step.run_phase(phase)
            print(f"ran {phase}", flush=True)


def ranged(step: Any) -> None:
    """Run one step of each kind with NVTX ranges of steps, phases and, where no graph hides them, layers."""
    import torch

    from ladder.studies.profile import tracefile

    places = tracefile.kinds(step)
    if step.device != "cuda":
        tracefile.run_named(step, places)
        return
    with torch.autograd.profiler.emit_nvtx(), tracefile.named_layers(step):
        tracefile.run_named(step, places)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
