"""The hardware counters of the contenders, by Nsight Compute: achieved occupancy, DRAM bytes, sectors and requests.

`ncu` runs `python -m ladder.studies.claims.target` as a separate process, which calls each contender once while the
profiler is on. A marker kernel goes before each call. Its grid is the contender's number, which assigns the rows that
follow. If `ncu` is missing or may not read the counters, there is one line why, and no counters.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import one_line
from ladder.studies.claims.hardware import watched
from ladder.studies.claims.schema import Counted

MARKER = "claim_marker_kernel"
NSIGHT = Path("/opt/nvidia/nsight-compute")
METRICS = {  # our name -> Nsight Compute's
    "occupancy": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "dram_read": "dram__bytes_read.sum",
    "dram_written": "dram__bytes_write.sum",
    "load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "ns": "gpu__time_duration.sum",
}
# Experiments whose kernels are nearly those of others. They are left out to count within COUNTING_S.
UNCOUNTED = ("norm forward fp32", "norm backward fp32", "launch bounds", "block size of the norm")


@dataclass
class Counts:
    """The counters of one launched kernel, by the names of `METRICS`. `occupancy` is in percent."""

    kernel: str
    grid: list[int]
    occupancy: float | None = None
    dram_read: float | None = None  # bytes
    dram_written: float | None = None
    load_requests: float | None = None
    load_sectors: float | None = None
    store_requests: float | None = None
    store_sectors: float | None = None
    ns: float | None = None


@dataclass(frozen=True)
class Launch:
    """A launched kernel with the counters that were asked for, by our names. A counter without a number is None."""

    kernel: str
    grid: list[int]
    values: dict[str, float | None]


class Refused(Exception):
    """The error that Nsight Compute is missing or did not count, with the reason in one line."""


def _version(program: Path) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", program.parent.name)]


def program() -> str:
    """Return the path of `ncu`. Raises Refused where there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    for folder in (None, *(Path(home) / "bin" for home in homes if home)):
        if found := shutil.which("ncu", path=None if folder is None else str(folder)):
            return found
    # Its own package makes no link in a folder of PATH. The newest version counts.
    if own := sorted(NSIGHT.glob("*/ncu"), key=_version):
        return str(own[-1])
    raise Refused("Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit")


def command(ncu: str, names: list[str]) -> list[str]:
    """Return the command line of `ncu` for the contenders of these experiments."""
    return [*watching(ncu, METRICS), sys.executable, "-m", "ladder.studies.claims.target", *names]


def watching(ncu: str, metrics: Mapping[str, str], names: str = "function") -> list[str]:
    """Return the beginning of a command line: `ncu` with its options, before the program that it watches.

    It writes no file, leaves the clocks alone, empties the L2 before each kernel and prints base units. Kernels are
    named by their function, or "demangled" with templates and arguments.
    """
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", names,
        "--profile-from-start", "off", "--target-processes", "application-only", "--clock-control", "none",
        "--cache-control", "all", "--replay-mode", "kernel", "--metrics", ",".join(metrics.values()),
    ]  # fmt: skip


def count(names: list[str], timeout_s: float, ncu: str | None = None) -> dict[str, list[Counts]]:
    """Return {"EXPERIMENT: CONTENDER": its kernels in order, each with `METRICS`}. Raises Refused."""
    said, rows = counted(command(ncu or program(), names), timeout_s, METRICS)
    return by_contender([_counts(row) for row in rows], announced(said))


def counted(line: list[str], timeout_s: float, metrics: Mapping[str, str]) -> tuple[str, list[Launch]]:
    """Run a command line of `ncu`. Return all that it printed, and the launched kernels. Raises Refused."""
    try:
        done = watched.run(line, timeout_s)
    except TimeoutError:
        raise Refused(f"Nsight Compute was not done after {timeout_s:.0f} s") from None
    except OSError as error:
        raise Refused(f"Nsight Compute did not start: {error.strerror}") from None
    said, rows = done.stdout + "\n" + done.stderr, launched(done.stdout, metrics)
    if not rows:
        raise Refused(why(said, done.status))
    return said, rows


_FAILED = "application returned an error code"
ANNOUNCED = re.compile(r"^claim (\d+): (.+)$", re.MULTILINE)


def announced(text: str) -> dict[int, str]:
    """Return the calls that the target announced: number -> "EXPERIMENT: CONTENDER"."""
    return {int(number): name.strip() for number, name in ANNOUNCED.findall(text)}


def parse(text: str) -> list[Counts]:
    """Return the kernels of ncu's CSV, in the order of their launches."""
    return [_counts(row) for row in launched(text, METRICS)]


def _counts(row: Launch) -> Counts:
    return Counts(row.kernel, row.grid, **row.values)


def launched(text: str, metrics: Mapping[str, str]) -> list[Launch]:
    """Return the launches in ncu's CSV, with these metrics. Other lines of the output are skipped.

    `--page raw` has a line of units, then a line for each kernel. The page of details, which some versions print
    instead, has a line for each kernel and metric.
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    found: dict[int, Launch] = {}
    for line in csv.DictReader(lines[head:]) if head is not None else ():
        if not (line.get("ID") or "").strip().isdigit():
            continue  # the line of units
        grid = [int(n) for n in re.findall(r"\d+", line.get("Grid Size") or "")] or [0]
        number = int(line["ID"])
        row = found.setdefault(number, Launch((line.get("Kernel Name") or "").strip(), grid, {}))
        values = {line["Metric Name"]: line.get("Metric Value")} if "Metric Name" in line else line
        row.values.update(
            {name: _number(values[theirs]) for name, theirs in metrics.items() if theirs in values}
        )
    return list(found.values())


def by_contender(rows: list[Counts], names: dict[int, str]) -> dict[str, list[Counts]]:
    """Assign kernels to contenders. Those behind a marker belong to the contender of its number."""
    found: dict[str, list[Counts]] = {}
    current: str | None = None
    for row in rows:
        if row.kernel == MARKER:
            current = names.get(row.grid[0])
        elif current is not None:
            found.setdefault(current, []).append(row)
    return found


def why(text: str, status: int) -> str:
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


def totals(rows: list[Counts]) -> Counted:
    """Return sums over one contender's kernels, and their occupancy weighted by time.

    A value is None where a kernel lacks it.
    """

    def total(values: list[float | None]) -> float | None:
        return None if None in values else sum(values)

    time, occupancies = total([row.ns for row in rows]), [row.occupancy for row in rows]
    weighted = None
    if time and None not in occupancies:
        weighted = sum(row.occupancy * row.ns for row in rows) / time
    loads, load_sectors = (
        total([row.load_requests for row in rows]),
        total([row.load_sectors for row in rows]),
    )
    stores, store_sectors = (
        total([row.store_requests for row in rows]),
        total([row.store_sectors for row in rows]),
    )
    return Counted(
        dram_read=total([row.dram_read for row in rows]),
        dram_written=total([row.dram_written for row in rows]),
        load_requests=loads,
        load_sectors=load_sectors,
        store_requests=stores,
        store_sectors=store_sectors,
        ns=time,
        occupancy=None if weighted is None else weighted / 100,
        sectors_a_load=_ratio(load_sectors, loads),
        sectors_a_store=_ratio(store_sectors, stores),
    )


def _ratio(sectors: float | None, requests: float | None) -> float | None:
    return sectors / requests if requests and sectors is not None else None


def _number(text: str | None) -> float | None:
    try:
        number = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None  # ncu writes nan for a ratio of nothing
