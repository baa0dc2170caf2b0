"""`ladder profile --nsys`: a report of Nsight Systems, of one step of each kind with NVTX ranges."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.text import last_line
from ladder.results.types import Plain
from ladder.studies.profile import counted, counters

SUFFIX = ".nsys-rep"
RUNNING_S = 400.0
INSTEAD = "`ladder profile RUNG --trace FILE.json.gz` records the same steps without nsys"


def program() -> str:
    """Return the path of `nsys`. Raises UserError where there is none."""
    if found := shutil.which("nsys"):
        return found
    raise UserError(f"Nsight Systems (nsys) is not installed; it comes with the CUDA toolkit. {INSTEAD}")


def command(nsys: str, report: Path, spec: Path) -> list[str]:
    """Return the command line: CUDA and NVTX, each kernel of a graph, from the profiler's start to its stop.

    The CPU is not sampled, which needs privileges that a container seldom has.
    """
    output = str(report.with_suffix("")).replace("%", "%%")  # % begins a pattern
    return [
        nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
        "--cuda-graph-trace=node", "--force-overwrite=true", f"--output={output}",
        sys.executable, "-m", "ladder.studies.profile.target", str(spec),
    ]  # fmt: skip


def record(
    nsys: str, report: Path, workload: Plain, recipe: Plain, tell: Callable[[str], None],
    timeout_s: float = RUNNING_S,
) -> None:  # fmt: skip
    """Write a report, and tell the command line. UserError if nsys makes none, with its reason and another way."""
    report.parent.mkdir(parents=True, exist_ok=True)
    before = report.stat().st_mtime_ns if report.exists() else None
    with counted.spec(workload, recipe) as spec:
        line = command(nsys, report.absolute(), spec)
        tell(f"Nsight Systems records one step of each kind: {shlex.join(line)}")
        try:
            done = counters.run_tool(line, timeout_s)
            said, status = done.stdout + "\n" + done.stderr, str(done.status)
        except TimeoutError:
            said, status = "", f"none after {timeout_s:.0f} s"
        except OSError as error:
            said, status = str(error.strerror), "it did not start"
    after = report.stat().st_mtime_ns if report.exists() else None
    if after is None or after == before:
        raise UserError(
            f"nsys made no report on this machine (status {status}: {last_line(said)}); the profile is stored."
            f" {INSTEAD}"
        )
