"""Programs under NVIDIA's profilers, and the hardware counters of launched kernels by Nsight Compute.

If `ncu` is missing or may not read the counters, `Refused` says why in one line.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import one_line
from ladder.base.paths import ROOT

NSIGHT = Path("/opt/nvidia/nsight-compute")


@dataclass(frozen=True)
class Launch:
    """A launched kernel with its counters by our names. A counter without a number is None."""

    kernel: str
    grid: list[int]
    values: dict[str, float | None]


class Refused(Exception):
    """The error that Nsight Compute is missing or did not count, with the reason in one line."""


@dataclass(frozen=True)
class Done:
    """The output of a tool that has ended, and its exit status."""

    stdout: str
    stderr: str
    status: int


def run_tool(line: Sequence[str], timeout_s: float) -> Done:
    """Run a command line in the project's folder.

    The tool starts the program that it watches. Ended alone, it would leave that program on the GPU. So both are in a
    session of their own, which is killed as a whole, also after Ctrl-C.

    Raises:
        TimeoutError: it was not done after so many seconds.
        OSError: it did not start.
    """
    process = subprocess.Popen(
        line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    finally:
        with contextlib.suppress(OSError):  # all gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return Done(stdout, stderr, process.returncode)


def find_ncu() -> str:
    """Return the path of `ncu`. Raises Refused where there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    for folder in (None, *(Path(home) / "bin" for home in homes if home)):
        if path := shutil.which("ncu", path=None if folder is None else str(folder)):
            return path
    # Its own package makes no link in a folder of PATH. The newest version counts.
    if own := sorted(NSIGHT.glob("*/ncu"), key=_version):
        return str(own[-1])
    raise Refused("Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit")


def _version(program: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", program.parent.name)]


def begin_command(ncu: str, metrics: Mapping[str, str]) -> list[str]:
    """Return the beginning of a command line: `ncu` with its options, before the program that it watches.

    It writes no file, leaves the clocks alone, empties the L2 before each kernel, prints base units, and names
    kernels with templates and arguments. `metrics` maps our names to Nsight Compute's.
    """
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "demangled",
        "--profile-from-start", "off", "--target-processes", "application-only", "--clock-control", "none",
        "--cache-control", "all", "--replay-mode", "kernel", "--metrics", ",".join(metrics.values()),
    ]  # fmt: skip


def count_launches(
    line: Sequence[str], timeout_s: float, metrics: Mapping[str, str]
) -> tuple[str, list[Launch]]:
    """Run a command line of `ncu`. Return all that it printed, and the launched kernels. Raises Refused."""
    try:
        done = run_tool(line, timeout_s)
    except TimeoutError:
        raise Refused(f"Nsight Compute was not done after {timeout_s:.0f} s") from None
    except OSError as error:
        raise Refused(f"Nsight Compute did not start: {error.strerror}") from None
    output, rows = done.stdout + "\n" + done.stderr, read_launches(done.stdout, metrics)
    if not rows:
        raise Refused(explain_refusal(output, done.status))
    return output, rows


def read_launches(text: str, metrics: Mapping[str, str]) -> list[Launch]:
    """Return the launches in ncu's CSV, with these metrics. Other lines of the output are skipped.

    `--page raw` has a line of units, then a line for each kernel. The page of details, which some versions print
    instead, has a line for each kernel and metric.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    rows: dict[int, Launch] = {}
    for line in csv.DictReader(lines[head:]) if head is not None else ():
        if not (line.get("ID") or "").strip().isdigit():
            continue  # the line of units
        grid = [int(n) for n in re.findall(r"\d+", line.get("Grid Size") or "")] or [0]
        number = int(line["ID"])
        row = rows.setdefault(number, Launch((line.get("Kernel Name") or "").strip(), grid, {}))
        values = {line["Metric Name"]: line.get("Metric Value")} if "Metric Name" in line else line
        row.values.update(
            {name: _number(values[theirs]) for name, theirs in metrics.items() if theirs in values}
        )
    return list(rows.values())


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None  # ncu writes nan for a ratio of nothing


_FAILED = "application returned an error code"


def explain_refusal(text: str, status: int) -> str:
    """Return the line in which ncu says why it did not count.

    If the program failed, ncu says no more than its status. The program's own last line then says why.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    program = next((line for line in reversed(lines) if not line.startswith("==")), None)
    for line in lines:
        if "==ERROR==" in line or "ERR_NVGPUCTRPERM" in line:
            failed = f" {program}" if _FAILED in line and program else ""
            return one_line(f"Nsight Compute: {line.split('==')[-1].strip()}{failed}")
    return one_line(
        f"Nsight Compute counted nothing (status {status}): {lines[-1] if lines else 'no message'}"
    )
