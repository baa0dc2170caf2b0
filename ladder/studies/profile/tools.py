"""NVIDIA's tools: counters of a step's heaviest kernels by Nsight Compute, and a report of Nsight Systems.

Both run `python -m ladder.studies.profile.tools FILE`, which prepares a step and switches the profiler on for the part
that is watched. Nsight Compute watches phases that run eagerly: a replayed graph hides its kernels from some versions.
It watches the phases in which the profile has most of one of these kernels. The first launches of each grid are
counted, and the longest of each kernel is shown.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ladder.base.errors import UserError, one_line
from ladder.base.paths import ROOT
from ladder.base.protocol import IN_ORDER
from ladder.base.text import last_line, plain
from ladder.core.job import Job
from ladder.core.records import Fields
from ladder.receipts import kernel_names
from ladder.studies.profile.record import BETWEEN, Counted, Heavy

METRICS = {  # our name -> Nsight Compute's
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_hits": "l1tex__t_sector_hit_rate.pct",
    "of_sector": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "ns": "gpu__time_duration.sum",
}
# Launches that are counted of each grid and block. Kernels with the same grid and block may share them. ncu repeats
# each about ten times, and copies its memory between. A thousand take minutes, and a step has up to five thousand.
LAUNCHES = 3
ENOUGH_S = 100.0  # of counting, after which no other phase begins
COUNTING_S = 400.0
RUNNING_S = 400.0  # of Nsight Systems
SECTOR = 32  # bytes
RAN = re.compile(r"\bran (\w+)$", re.MULTILINE)  # the end of a line of the watched process
NSIGHT = Path("/opt/nvidia/nsight-compute")
TARGET = "ladder.studies.profile.tools"
INSTEAD = "`ladder profile RUNG --trace FILE.json.gz` records the same steps without nsys"


@dataclass(frozen=True)
class Launch:
    """A launched kernel with its counters by our names. A counter without a number is None."""

    kernel: str
    grid: list[int]
    values: dict[str, float | None]


class Refused(Exception):
    """The error that Nsight Compute is missing or did not count, with the reason in one line."""


def run_tool(line: Sequence[str], timeout_s: float) -> tuple[str, str, int]:
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
    return stdout, stderr, process.returncode


def find_ncu() -> str:
    """Return the path of `ncu`. Raises UserError where there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    for folder in (None, *(Path(home) / "bin" for home in homes if home)):
        if path := shutil.which("ncu", path=None if folder is None else str(folder)):
            return path
    # Its own package makes no link in a folder of PATH. The newest version counts.
    if own := sorted(NSIGHT.glob("*/ncu"), key=_version):
        return str(own[-1])
    raise UserError("--ncu: Nsight Compute (ncu) is not installed; it comes with the CUDA toolkit")


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
        stdout, stderr, status = run_tool(line, timeout_s)
    except TimeoutError:
        raise Refused(f"Nsight Compute was not done after {timeout_s:.0f} s") from None
    except OSError as error:
        raise Refused(f"Nsight Compute did not start: {error.strerror}") from None
    output, rows = f"{stdout}\n{stderr}", read_launches(stdout, metrics)
    if not rows:
        raise Refused(explain_refusal(output, status))
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


def find_nsys() -> str:
    """Return the path of `nsys`. Raises UserError where there is none."""
    if path := shutil.which("nsys"):
        return path
    raise UserError(f"Nsight Systems (nsys) is not installed; it comes with the CUDA toolkit. {INSTEAD}")


@contextlib.contextmanager
def write_spec(workload: Fields, recipe: Fields, phases: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield the file that says what the watched process runs: these phases, eagerly.

    Without phases it is one step of each kind with NVTX ranges, as it is replayed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        eager = dict.fromkeys(("cuda_graphs", "whole_step_graph", "graph_fills"), False)
        spec = {
            "workload": workload | {"data": None},
            "recipe": recipe if phases is None else recipe | eager,
            "ranges": phases is None,
            "phases": list(phases or ()),
            "enough_s": ENOUGH_S,
        }
        path.write_text(json.dumps(spec), encoding="utf-8")
        yield path


# --- counters ---------------------------------------------------------------------------------------------------------


def list_phases(heaviest: Sequence[Heavy]) -> list[str]:
    """Return the phases that have most of a heavy kernel. The one whose kernels take longest is first.

    A kernel whose phase is unknown may run in each of them.
    """
    took: dict[str, float] = defaultdict(float)
    for row in heaviest:
        if row.phase != BETWEEN:
            for phase in [row.phase] if row.phase in IN_ORDER else IN_ORDER:
                took[phase] += row.ms
    return sorted(took, key=lambda phase: -took[phase])


def make_ncu_command(ncu: str, heaviest: Sequence[Heavy], spec: Path) -> list[str]:
    """Return the command line that counts these kernels in an eager run."""
    return [
        *begin_command(ncu, METRICS),
        "--kernel-name-base", "demangled", "--kernel-name", f"regex:{match_kernels(heaviest)}",
        "--filter-mode", "per-launch-config", "--launch-count", str(LAUNCHES),
        sys.executable, "-m", TARGET, str(spec),
    ]  # fmt: skip


def match_kernels(heaviest: Sequence[Heavy]) -> str:
    """Return the regular expression of these kernels' names with templates and arguments.

    It begins and ends with `.*`, so it may be searched for in a name, or matched with the whole of it.
    """
    each = (re.escape(row.function) + (f".*{re.escape(row.word)}" if row.word else "") for row in heaviest)
    return f"^(.*[ :])?({'|'.join(dict.fromkeys(each))}).*"


def count(
    heaviest: Sequence[Heavy], workload: Fields, recipe: Fields, ncu: str, sms: int | None
) -> list[Counted]:
    """Return the counters of a profile's heaviest kernels. Raises Refused.

    Kernels of which no launch was counted are run once more without the others. Launches of those, with the same grid
    and block, may have come first.

    Args:
        sms: multiprocessors of the GPU, if known.
    """

    def run(rows: Sequence[Heavy]) -> list[Counted]:
        with write_spec(workload, recipe, list_phases(rows)) as path:
            output, launches = count_launches(make_ncu_command(ncu, rows, path), COUNTING_S, METRICS)
        return pick_launches(rows, launches, RAN.findall(output), sms)

    rows = run(heaviest)
    lost = [heavy for heavy, row in zip(heaviest, rows, strict=True) if row.us is None]
    if not lost or len(lost) == len(heaviest):
        return rows
    try:
        again = {each.kernel: each for each in run(lost)}
    except Refused:  # what was counted stays
        return rows
    return [each if each.us is not None else again[each.kernel] for each in rows]


def pick_launches(
    heaviest: Sequence[Heavy], rows: Sequence[Launch], ran: Sequence[str], sms: int | None
) -> list[Counted]:
    """Return each heavy kernel's longest launch, in the order of the kernels.

    Args:
        ran: the phases that were run.
        sms: multiprocessors of the GPU.
    """
    launches: dict[str, list[Launch]] = defaultdict(list)
    for row in rows:
        launches[plain(kernel_names.label(row.kernel))].append(row)
    for heavy in heaviest:  # a spelling that the label does not know: the function is the same
        if heavy.kernel not in launches:
            others = launches.keys() - {each.kernel for each in heaviest}
            alike = [
                name
                for name in others
                if kernel_names.function(launches[name][0].kernel).startswith(heavy.function)
            ]
            launches[heavy.kernel] = [row for name in alike for row in launches[name]]
    return [_pick_longest(heavy, launches[heavy.kernel], ran, sms) for heavy in heaviest]


def _pick_longest(heavy: Heavy, launches: Sequence[Launch], ran: Sequence[str], sms: int | None) -> Counted:
    longest = max(launches, key=lambda row: row.values.get("ns") or 0.0, default=None)
    values = {} if longest is None else longest.values
    ns, of_sector = values.get("ns"), values.get("of_sector")
    return Counted(
        kernel=heavy.kernel,
        us=None if ns is None else ns / 1000,
        sm=_clip_percent(values.get("sm")),
        dram=_clip_percent(values.get("dram")),
        l1_hits=_clip_percent(values.get("l1_hits")),
        # 0: all loads pass by, as those of the tensor memory accelerator do
        sector_bytes=round(min(100.0, of_sector) * SECTOR / 100, 2) if of_sector else None,
        sentence=explain_missing(heavy.phase, ran) if longest is None else None,
        blocks=None if longest is None else math.prod(longest.grid) or None,
        sms=sms,
    )


def _clip_percent(value: float | None) -> float | None:
    """Return a percentage. Counters of several passes may exceed 100 a little."""
    return None if value is None else min(100.0, max(0.0, value))


def explain_missing(phase: str, ran: Sequence[str]) -> str:
    """Return why there is no launch of a kernel that has most of its time in a phase."""
    if phase == BETWEEN:
        return "it runs between phases"
    if phase in IN_ORDER and phase not in ran:
        return f"{phase}, which has most of it, did not begin within {ENOUGH_S:.0f} s"
    return f"no launch was counted in an eager {' or '.join(ran) or 'phase'}"


# --- Nsight Systems ---------------------------------------------------------------------------------------------------


def make_nsys_command(nsys: str, report: Path, spec: Path) -> list[str]:
    """Return the command line: CUDA and NVTX, each kernel of a graph, from the profiler's start to its stop.

    The CPU is not sampled, which needs privileges that a container seldom has.
    """
    output = str(report.with_suffix("")).replace("%", "%%")  # % begins a pattern
    return [
        nsys, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop",
        "--cuda-graph-trace=node", "--force-overwrite=true", f"--output={output}",
        sys.executable, "-m", TARGET, str(spec),
    ]  # fmt: skip


def record_report(job: Job, recipe: Fields, timeout_s: float = RUNNING_S) -> None:
    """Write a report of one step of each kind with NVTX ranges, and print the command line.

    Raises:
        UserError: nsys makes none; with its reason and another way.
    """
    nsys, report = find_nsys(), job.options.nsys
    report.parent.mkdir(parents=True, exist_ok=True)
    before = report.stat().st_mtime_ns if report.exists() else None
    with write_spec(job.workload, recipe) as spec:
        line = make_nsys_command(nsys, report.absolute(), spec)
        click.echo(f"Nsight Systems records one step of each kind: {shlex.join(line)}", err=True)
        try:
            stdout, stderr, code = run_tool(line, timeout_s)
            output, status = f"{stdout}\n{stderr}", str(code)
        except TimeoutError:
            output, status = "", f"none after {timeout_s:.0f} s"
        except OSError as error:
            output, status = str(error.strerror), "it did not start"
    after = report.stat().st_mtime_ns if report.exists() else None
    if after is None or after == before:
        raise UserError(
            f"nsys made no report on this machine (status {status}: {last_line(output)}); the profile is stored."
            f" {INSTEAD}"
        )


# --- the watched process ----------------------------------------------------------------------------------------------


def run_target(path: Path, device: str = "cuda") -> None:
    """Run the step of a file. `device` is another one in tests."""
    from stylegan_lite import make_step

    spec = json.loads(path.read_text(encoding="utf-8"))
    step = make_step(spec["workload"], spec["recipe"], device=device)
    try:
        step.prepare()  # runs every phase
        if spec["ranges"]:
            step.cycle()  # under ncu each launch costs more, and nothing there depends on earlier cycles
        with _switch_profiler(device):
            if spec["ranges"]:
                run_with_ranges(step)
            else:
                run_phases(step, spec["phases"], spec["enough_s"])
    finally:
        step.close()


@contextlib.contextmanager
def _switch_profiler(device: str) -> Iterator[None]:
    """Let the profiler record what runs meanwhile."""

    def switch(name: str) -> None:
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
            getattr(torch.cuda.cudart(), name)()

    switch("cudaProfilerStart")
    try:
        yield
    finally:
        switch("cudaProfilerStop")


def run_phases(step: Any, phases: list[str], enough_s: float) -> None:
    """Run phases as they are, and print each that ran.

    After so many seconds no phase begins, so that the counters up to then are printed by ncu, and not lost.
    """
    begin = time.monotonic()
    for phase in phases:
        if time.monotonic() - begin < enough_s:
            step.run_phase(phase)
            print(f"ran {phase}", flush=True)


def run_with_ranges(step: Any) -> None:
    """Run one step of each kind with NVTX ranges of steps, phases and, where no graph hides them, layers."""
    import torch

    from ladder.studies.profile import tracing

    ranges = contextlib.ExitStack()
    with ranges:
        if step.device == "cuda":
            ranges.enter_context(torch.autograd.profiler.emit_nvtx())
            ranges.enter_context(tracing.name_uncompiled_layers(step))
        tracing.run_named(step, tracing.list_kinds(step))


if __name__ == "__main__":
    run_target(Path(sys.argv[1]))
