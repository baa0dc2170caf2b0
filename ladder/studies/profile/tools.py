"""NVIDIA's tools: counters of a step's heaviest kernels by Nsight Compute, and a report of Nsight Systems.

Both run `python -m ladder.studies.profile.tools FILE`, which prepares a step and switches the profiler on for the part
that is watched. Nsight Compute watches eager runs of the phases with most of one of these kernels, since a replayed
graph hides its kernels from some versions. The first launches of each grid are counted; the longest is shown.
"""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from ladder.core.errors import UserError, one_line
from ladder.core.job import Job
from ladder.core.paths import ROOT
from ladder.core.protocol import IN_ORDER
from ladder.core.records import Fields
from ladder.core.text import clean_line, last_line
from ladder.engine.pool import WorkerFailure
from ladder.receipts import kernel_names
from ladder.studies.profile.record import BETWEEN, Counted, Heavy

TITLES = {"ncu": "Nsight Compute", "nsys": "Nsight Systems"}
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
ENOUGH_S = 100.0  # of counting, after which no other phase begins: ncu prints its counters up to then
COUNTING_S = 400.0
RUNNING_S = 400.0  # of Nsight Systems
SECTOR = 32  # bytes
RAN = re.compile(r"\bran (\w+)$", re.MULTILINE)  # the end of a line of the watched process
NSIGHT = Path("/opt/nvidia/nsight-compute")
TARGET = (sys.executable, "-m", "ladder.studies.profile.tools")


class Launch(NamedTuple):
    """A launched kernel, its blocks, and its counters by our names. A counter without a number is None."""

    kernel: str
    blocks: int
    values: dict[str, float | None]


def run_tool(line: Sequence[str], timeout_s: float) -> tuple[str, int]:
    """Run a command line in the project's folder. Return its output and its exit status.

    The tool and the program that it watches are in a session of their own, which is killed as a whole at the end.
    Raises TimeoutError if it was not done after so many seconds, and OSError if it did not start.
    """
    with subprocess.Popen(
        line, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"was not done after {timeout_s:.0f} s") from None
        finally:
            with contextlib.suppress(OSError):  # all gone
                os.killpg(process.pid, signal.SIGKILL)
    return f"{stdout}\n{stderr}", process.returncode


def find_tool(name: str) -> str:
    """Return the path of `ncu` or `nsys`. Raises UserError where there is none."""
    homes = [os.environ.get(home) for home in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    folders = os.pathsep.join([os.environ.get("PATH", ""), *(f"{home}/bin" for home in homes if home)])
    # Nsight Compute's own package makes no link in a folder of PATH. The newest version counts.
    own = sorted(NSIGHT.glob(f"*/{name}"), key=lambda path: [*map(int, re.findall(r"\d+", path.parent.name))])
    if path := shutil.which(name, path=folders) or (own and str(own[-1])):
        return path
    raise UserError(f"--{name}: {TITLES[name]} ({name}) is not installed; it comes with the CUDA toolkit")


def write_spec(folder: str, workload: Fields, recipe: Fields, phases: Sequence[str] = ()) -> str:
    """Write the file of what the watched process runs, and return its path: these phases, eagerly.

    Without phases it is one step of each kind with NVTX ranges, as it is replayed.
    """
    eager = dict.fromkeys(("cuda_graphs", "whole_step_graph", "graph_fills"), False) if phases else {}
    path = Path(folder) / "step.json"
    spec = {"workload": workload | {"data": None}, "recipe": recipe | eager, "phases": list(phases)}
    path.write_text(json.dumps(spec), encoding="utf-8")
    return str(path)


def count(
    heaviest: Sequence[Heavy], workload: Fields, recipe: Fields, ncu: str, sms: int | None,
    order: Sequence[str] = IN_ORDER,
) -> list[Counted]:  # fmt: skip
    """Return the counters of a profile's heaviest kernels. `sms`: multiprocessors of the GPU, if known.

    Kernels of which no launch was counted are run once more without the others, whose launches with the same grid and
    block may have come first. Raises WorkerFailure if ncu counted nothing.
    """
    rows: dict[str, Counted] = {}
    lost = list(heaviest)
    for turn in range(2):
        with tempfile.TemporaryDirectory() as folder:
            spec = write_spec(folder, workload, recipe, list_phases(lost, order))
            try:
                output, status = run_tool(make_ncu_command(ncu, lost, spec), COUNTING_S)
            except (TimeoutError, OSError) as error:
                raise WorkerFailure("failed", f"--ncu: {error.strerror or error}") from None
        launches = read_launches(output)
        if not launches and not turn:
            raise WorkerFailure("failed", f"--ncu: {explain_refusal(output, status)}")
        rows |= {row.kernel: row for row in pick_launches(lost, launches, RAN.findall(output), sms)}
        lost = [each for each in heaviest if rows[each.kernel].us is None and each.phase != BETWEEN]
        if not lost or len(lost) == len(heaviest):
            break
    return [rows[each.kernel] for each in heaviest]


def list_phases(heaviest: Sequence[Heavy], order: Sequence[str] = IN_ORDER) -> list[str]:
    """Return the phases that have most of a heavy kernel. The one whose kernels take longest is first.

    A kernel whose phase is unknown may run in each of them.
    """
    ms: Counter[str] = Counter()
    for row in heaviest:
        phases = (row.phase,) if row.phase in (*order, BETWEEN) else order
        ms.update(dict.fromkeys(phases, row.ms))  # type: ignore[arg-type]
    return [phase for phase, _ in ms.most_common() if phase != BETWEEN]


def make_ncu_command(ncu: str, heaviest: Sequence[Heavy], spec: str) -> list[str]:
    """Return the command line that counts these kernels in an eager run, with its clocks and an empty L2."""
    return [
        ncu, "--csv", "--page", "raw", "--print-units", "base", "--print-kernel-base", "demangled",
        "--profile-from-start", "off", "--target-processes", "application-only", "--clock-control", "none",
        "--cache-control", "all", "--replay-mode", "kernel", "--metrics", ",".join(METRICS.values()),
        "--kernel-name-base", "demangled", "--kernel-name", f"regex:{match_kernels(heaviest)}",
        "--filter-mode", "per-launch-config", "--launch-count", str(LAUNCHES), *TARGET, spec,
    ]  # fmt: skip


def match_kernels(heaviest: Sequence[Heavy]) -> str:
    """Return the regular expression of these kernels' names with templates and arguments.

    It begins and ends with `.*`, so it may be searched for in a name, or matched with the whole of it.
    """
    each = (re.escape(row.function) + (f".*{re.escape(row.word)}" if row.word else "") for row in heaviest)
    return f"^(.*[ :])?({'|'.join(dict.fromkeys(each))}).*"


def read_launches(text: str) -> list[Launch]:
    """Return the launches in ncu's CSV. Other lines of the output, and the line of units, are skipped."""

    def read_number(cell: str | None) -> float | None:
        try:
            number = float((cell or "").replace(",", ""))
        except ValueError:
            return None
        return number if math.isfinite(number) else None  # ncu writes nan for a ratio of nothing

    lines = [line for line in text.splitlines() if line.startswith('"')]
    head = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches = []
    for row in csv.DictReader(lines[head:]):
        if (row["ID"] or "").isdigit():
            blocks = math.prod(map(int, re.findall(r"\d+", row["Grid Size"])))
            values = {name: read_number(row.get(theirs)) for name, theirs in METRICS.items()}
            launches.append(Launch(row["Kernel Name"].strip(), blocks, values))
    return launches


def explain_refusal(text: str, status: int) -> str:
    """Return the line in which ncu says why it did not count; if the program failed, with its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line.split("==")[-1].strip() for line in lines if line.startswith("==ERROR==")), None)
    if reason is None:
        return one_line(f"nothing was counted (status {status}): {last_line(text)}")
    if "application returned an error code" in reason:
        reason += f" {next((line for line in reversed(lines) if not line.startswith('==')), '')}"
    return one_line(reason)


def pick_launches(
    heaviest: Sequence[Heavy], launches: Sequence[Launch], ran: Sequence[str], sms: int | None
) -> list[Counted]:
    """Return each heavy kernel's longest launch, in the order of the kernels. `ran`: the phases that were run."""
    rows = []
    for heavy in heaviest:
        own = [row for row in launches if clean_line(kernel_names.name_label(row.kernel)) == heavy.kernel]
        # a kernel may be spelled so that its label differs: the function is the same
        own = own or [row for row in launches if re.match(match_kernels([heavy]), row.kernel)]
        if not own:
            reason = f"no launch was counted in an eager {' or '.join(ran) or 'phase'}"
            rows.append(Counted(kernel=heavy.kernel, sentence=reason, sms=sms))
            continue
        _, blocks, values = max(own, key=lambda row: row.values["ns"] or 0.0)
        us, of_sector = values["ns"], values["of_sector"]  # 0: all loads pass by, as those of the TMA do
        shares = {
            key: n and min(100.0, n) for key, n in values.items()
        }  # several passes may exceed 100 a little
        counted = Counted(
            kernel=heavy.kernel,
            us=us and us / 1000,
            sm=shares["sm"],
            dram=shares["dram"],
            l1_hits=shares["l1_hits"],
            sector_bytes=round(of_sector * SECTOR / 100, 2) if of_sector else None,
            blocks=blocks,
            sms=sms,
        )
        rows.append(counted)
    return rows


def record_report(job: Job, recipe: Fields, timeout_s: float = RUNNING_S) -> None:
    """Write a report of one step of each kind: CUDA and NVTX ranges, each kernel of a graph.

    The CPU is not sampled, which needs privileges that a container seldom has.

    Raises:
        UserError: nsys makes none; with its reason and another way.
    """
    click.echo("Nsight Systems records one step of each kind", err=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "step.nsys-rep"
        line = [
            find_tool("nsys"), "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
            "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--cuda-graph-trace=node",
            f"--output={report}", *TARGET, write_spec(folder, job.workload, recipe),
        ]  # fmt: skip
        try:
            output, status = run_tool(line, timeout_s)
            reason = f"status {status}: {last_line(output)}"
        except (TimeoutError, OSError) as error:
            reason = str(error)
        if not report.exists():
            instead = "`ladder profile RUNG --trace FILE.json.gz` records the same steps without nsys"
            raise UserError(f"nsys made no report ({reason}); the profile is stored. {instead}")
        job.options.nsys.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(report, job.options.nsys)


def run_target(path: Path, device: str = "cuda") -> None:
    """Run the step of a file under the profiler, and print each phase that ran. `device` is another one in tests."""
    import torch

    from ladder.studies.profile import tracing
    from stylegan_lite import make_step

    spec = json.loads(path.read_text(encoding="utf-8"))
    with contextlib.ExitStack() as stack:
        step = stack.enter_context(
            contextlib.closing(make_step(spec["workload"], spec["recipe"], device=device))
        )
        step.prepare()  # runs every phase
        if not spec["phases"]:
            step.cycle()  # under ncu each launch costs more, and nothing there depends on earlier cycles
        if device == "cuda":
            torch.cuda.synchronize()
            stack.enter_context(torch.cuda.profiler.profile())
            stack.callback(torch.cuda.synchronize)
        begin = time.monotonic()
        for phase in spec["phases"]:
            if time.monotonic() - begin < ENOUGH_S:
                step.run_phase(phase)
                print(f"ran {phase}", flush=True)
        if not spec["phases"]:
            if device == "cuda":
                stack.enter_context(torch.autograd.profiler.emit_nvtx())
            stack.enter_context(tracing.name_layers(step))  # where no graph hides them
            tracing.run_named(step)


if __name__ == "__main__":
    run_target(Path(sys.argv[1]))
