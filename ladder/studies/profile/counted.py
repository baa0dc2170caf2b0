"""The hardware counters of a step's heaviest kernels, by Nsight Compute, and one sentence for each.

`ncu` runs `python -m ladder.studies.profile.target`, which runs phases eagerly: a replayed graph hides its kernels from
some versions of ncu. It runs the phases in which the profile has most of one of these kernels. The first launches of
each grid are counted, and the longest of each kernel is told.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from ladder.base.protocol import IN_ORDER
from ladder.base.text import counted, plain
from ladder.receipts import kernel_names
from ladder.results.types import Plain
from ladder.studies.profile import counters
from ladder.studies.profile.counters import Launch
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
BUSY = 60.0  # percent of a peak from which on it bounds a kernel, as in Nsight Compute's own rules
FILLED = 0.5  # of the SMs: a launch with fewer blocks leaves most of the GPU without work
SECTOR = 32  # bytes
RAN = re.compile(r"\bran (\w+)$", re.MULTILINE)  # the end of a line of the target


def phases(heaviest: Sequence[Heavy]) -> list[str]:
    """Return the phases that have most of a heavy kernel. The one whose kernels take longest is first.

    A kernel whose phase is unknown may run in each of them.
    """
    took: dict[str, float] = defaultdict(float)
    for row in heaviest:
        if row.phase != BETWEEN:
            for phase in [row.phase] if row.phase in IN_ORDER else IN_ORDER:
                took[phase] += row.ms
    return sorted(took, key=lambda phase: -took[phase])


def command(ncu: str, heaviest: Sequence[Heavy], spec: Path) -> list[str]:
    """Return the command line that counts these kernels in an eager run."""
    return [
        *counters.begin_command(ncu, METRICS),
        "--kernel-name-base", "demangled", "--kernel-name", f"regex:{pattern(heaviest)}",
        "--filter-mode", "per-launch-config", "--launch-count", str(LAUNCHES),
        sys.executable, "-m", "ladder.studies.profile.target", str(spec),
    ]  # fmt: skip


def pattern(heaviest: Sequence[Heavy]) -> str:
    """Return the regular expression of these kernels' names with templates and arguments.

    It begins and ends with `.*`, so it may be searched for in a name, or matched with the whole of it.
    """
    each = (re.escape(row.function) + (f".*{re.escape(row.word)}" if row.word else "") for row in heaviest)
    return f"^(.*[ :])?({'|'.join(dict.fromkeys(each))}).*"


@contextlib.contextmanager
def spec(workload: Plain, recipe: Plain, phases: Sequence[str] | None = None) -> Iterator[Path]:
    """Yield the file that tells the target what to run: these phases, eagerly.

    Without phases it is one step of each kind with NVTX ranges, as it is replayed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        graphs = ("cuda_graphs", "whole_step_graph", "graph_fills")
        eager = {} if phases is None else dict.fromkeys(graphs, False)
        told = {"workload": workload | {"data": None}, "recipe": recipe | eager, "ranges": phases is None}
        how = {"phases": list(phases or ()), "enough_s": ENOUGH_S}
        path.write_text(json.dumps(told | how), encoding="utf-8")
        yield path


def count(
    heaviest: Sequence[Heavy], workload: Plain, recipe: Plain, ncu: str, sms: int | None
) -> list[Counted]:
    """Return the counters of a profile's heaviest kernels. Raises `counters.Refused`.

    Kernels of which no launch was counted are run once more without the others. Launches of those, with the same grid
    and block, may have come first.

    Args:
        sms: multiprocessors of the GPU, if known.
    """
    found = _tried(heaviest, workload, recipe, ncu, sms)
    lost = [heavy for heavy, seen in zip(heaviest, found, strict=True) if seen.us is None]
    if not lost or len(lost) == len(heaviest):
        return found
    try:
        again = {each.kernel: each for each in _tried(lost, workload, recipe, ncu, sms)}
    except counters.Refused:  # what was counted stays
        return found
    return [each if each.us is not None else again[each.kernel] for each in found]


def _tried(
    heaviest: Sequence[Heavy], workload: Plain, recipe: Plain, ncu: str, sms: int | None
) -> list[Counted]:
    with spec(workload, recipe, phases(heaviest)) as path:
        said, rows = counters.count_launches(command(ncu, heaviest, path), COUNTING_S, METRICS)
    return of_launches(heaviest, rows, RAN.findall(said), sms)


def of_launches(
    heaviest: Sequence[Heavy], rows: Sequence[Launch], ran: Sequence[str], sms: int | None
) -> list[Counted]:
    """Return each heavy kernel's longest launch with its sentence, in the order of the kernels.

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
    return [_counted(heavy, launches[heavy.kernel], ran, sms) for heavy in heaviest]


def _counted(heavy: Heavy, launches: Sequence[Launch], ran: Sequence[str], sms: int | None) -> Counted:
    longest = max(launches, key=lambda row: row.values.get("ns") or 0.0, default=None)
    values = {} if longest is None else longest.values
    blocks = None if longest is None else math.prod(longest.grid) or None
    ns, of_sector = values.get("ns"), values.get("of_sector")
    said = (
        uncounted(heavy.phase, ran)
        if longest is None
        else bound(values.get("sm"), values.get("dram"), blocks, sms)
    )
    return Counted(
        kernel=heavy.kernel,
        us=None if ns is None else ns / 1000,
        sm=_percent(values.get("sm")),
        dram=_percent(values.get("dram")),
        l1_hits=_percent(values.get("l1_hits")),
        # 0: all loads pass by, as those of the tensor memory accelerator do
        sector_bytes=round(min(100.0, of_sector) * SECTOR / 100, 2) if of_sector else None,
        sentence=said,
        blocks=blocks,
        sms=sms,
    )


def _percent(value: float | None) -> float | None:
    """Return a percentage. Counters of several passes may exceed 100 a little."""
    return None if value is None else min(100.0, max(0.0, value))


def uncounted(phase: str, ran: Sequence[str]) -> str:
    """Return why there is no launch of a kernel that has most of its time in a phase."""
    if phase == BETWEEN:
        return "it runs between phases"
    if phase in IN_ORDER and phase not in ran:
        return f"{phase}, which has most of it, did not begin within {ENOUGH_S:.0f} s"
    return f"no launch was counted in an eager {' or '.join(ran) or 'phase'}"


def bound(sm: float | None, dram: float | None, blocks: int | None, sms: int | None) -> str:
    """Return what bounds a kernel, by the part of both peaks that it reaches and by the blocks of its launch."""
    if sm is None or dram is None:
        return "no number for one of the peaks"
    if max(sm, dram) >= BUSY:
        return f"{'memory' if dram >= sm else 'compute'} bound"
    if not blocks or not sms or blocks >= sms:
        return "latency bound"
    short = "does not fill the GPU" if blocks < FILLED * sms else "latency bound"
    return f"{short}: {counted(blocks, 'block')} for {sms} SMs"
