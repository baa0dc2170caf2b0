"""`make sanitize`: every fused kernel under compute-sanitizer's memcheck and racecheck; needs a CUDA GPU.

Runs `small_calls` in parts side by side, PyTorch's caching allocator off: in its larger blocks reading past the end
of a tensor would go unnoticed. Exit status: 0 clean, 1 findings, 2 not all could run.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ladder.core.paths import ROOT
from ladder.machine import system
from tests.support.small_calls import NAMES, calls, differentiate_twice

TOOLS = ("memcheck", "racecheck")
SHAPES = ((2, 5, 3, 7), (2, 64, 16, 16), (2, 32, 40, 40))  # some divide tiles, some do not
SETTINGS = tuple(itertools.product(SHAPES, ("contiguous_format", "channels_last"), ("float32", "bfloat16")))
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) .*")
LAUNCHED = "launched: "
PARTS = max(1, min(6, (os.cpu_count() or 2) // len(TOOLS)))  # 5 GB of memory each
FIRST_PORT, PORTS = 49152, 16  # between a tool and what it watches


def launch(device: str, names: Collection[str], settings: Collection[tuple] = SETTINGS) -> list[str]:
    """Run these calls forward, backward and backward again, and return the names of the launched kernels."""
    import torch

    from kernels import alternatives
    from ladder.receipts.watch import count_launches

    with alternatives.off(), count_launches() as seen:
        for setting in settings:
            for call in calls(make_tensor(device, *setting)):
                if call.name in names:
                    differentiate_twice(call.function, call.inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return sorted(seen)


def make_tensor(device: str, shape: tuple[int, ...], layout: str, dtype: str) -> Any:
    """Return a random tensor of this shape, memory format and dtype."""
    import torch

    x = torch.randn(shape, device=device, dtype=getattr(torch, dtype))
    return x.contiguous(memory_format=getattr(torch, layout))


def watch(program: str, tool: str, number: int) -> tuple[str, str]:
    """Run a part of the calls under a tool and return (its name, its findings; empty if it is clean)."""
    part, names = f"{tool} part {number + 1}", ",".join(NAMES[number::PARTS])
    port = FIRST_PORT + PORTS * (number * len(TOOLS) + TOOLS.index(tool))
    command = [program, "--tool", tool, "--target-processes", "application-only", "--launch-timeout", "300"]
    command += ["--port", str(port), "--max-connections", str(PORTS)]
    command += [sys.executable, "-m", "tests.support.sanitize", names]
    uncached = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=uncached, capture_output=True, text=True)
    summary = SUMMARY.search(done.stdout)
    if summary and summary[1] == "0" and not done.returncode and LAUNCHED in done.stdout:
        return part, ""
    return (
        part,
        f"{summary[0] if summary and summary[1] != '0' else 'did not finish'}\n{done.stdout}{done.stderr}",
    )


def main() -> int:
    if sys.argv[1:]:  # under a tool
        print(LAUNCHED + " ".join(launch("cuda", sys.argv[1].split(","))))
        return 0
    from kernels import available
    from kernels.precompile import compile_ahead

    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    program = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:{home}/bin")
    if program is None or (why := available()) is not None:
        why = why if program else "compute-sanitizer is not installed (it comes with the CUDA toolkit)"
        print(f"sanitize: {why}", file=sys.stderr)
        return 2
    with system.hold_untimed("cuda"), ThreadPoolExecutor(PARTS * len(TOOLS)) as pool:
        compile_ahead(lambda: launch("cuda", NAMES))
        jobs = [pool.submit(watch, program, tool, number) for number in range(PARTS) for tool in TOOLS]
        found = [job.result() for job in jobs]
    for part, text in found:
        print(f"{part}: {text or 'clean'}")
    wrong = [text for _, text in found if text]
    return 0 if not wrong else 2 if any(text.startswith("did not finish") for text in wrong) else 1


if __name__ == "__main__":
    sys.exit(main())
