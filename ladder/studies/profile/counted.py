"""The hardware counters of a step's heaviest kernels, by Nsight Compute, and one sentence for each.

`ncu` runs `python -m ladder.studies.profile.target`, which runs G_main and D_main eagerly: a replayed graph hides its
kernels from some versions of ncu. The first launches of each grid are counted, and the longest of each kernel is told.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ladder.base.text import plain
from ladder.engine import profiling
from ladder.results import parts
from ladder.results.raw import KernelFamily
from ladder.results.types import Plain
from ladder.studies.claims.hardware import counters
from ladder.studies.claims.hardware.counters import Launch
from ladder.studies.profile.record import Counted

METRICS = {  # our name -> Nsight Compute's
    "sm": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1_hits": "l1tex__t_sector_hit_rate.pct",
    "of_sector": "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "ns": "gpu__time_duration.sum",
}
PHASES = ("G_main", "D_main")
HEAVIEST = 8  # kernels
# Launches that are counted of each grid and block. ncu repeats each about ten times, and copies its memory between. A
# thousand take minutes. A step of plain PyTorch has five thousand.
LAUNCHES = 3
ENOUGH_S = 150.0  # of counting, after which no other phase begins
COUNTING_S = 400.0
BUSY = 60.0  # percent of a peak from which on it bounds a kernel, as in Nsight Compute's own rules
SECTOR = 32  # bytes
_SHORTENED = 58  # characters from which on a stored name may be cut
_COPIES = ("Memcpy", "Memset")


def function(name: str) -> str:
    """Return the name of a kernel's function, without namespaces and templates, of a name in a profile."""
    return re.split(r"[(<]", name, maxsplit=1)[0].rsplit("::", 1)[-1].split(" ")[-1]


def heaviest(kernels: Iterable[KernelFamily], most: int = HEAVIEST) -> list[str]:
    """Return the functions of the heaviest kernels of a profile, without copies."""
    names = (row.name for row in kernels if not row.name.endswith(parts.REST))
    functions = (function(name) for name in names if not name.startswith(_COPIES))
    return [*dict.fromkeys(name for name in functions if name)][:most]


def command(ncu: str, functions: Sequence[str], spec: Path) -> list[str]:
    """Return the command line that counts these functions in an eager run."""
    names = "|".join(re.escape(name) for name in functions)
    return [
        *counters.watching(ncu, METRICS), "--kernel-name-base", "function", "--kernel-name", f"regex:^({names}).*",
        "--filter-mode", "per-launch-config", "--launch-count", str(LAUNCHES),
        sys.executable, "-m", "ladder.studies.profile.target", str(spec),
    ]  # fmt: skip


@contextlib.contextmanager
def spec(workload: Plain, recipe: Plain, *, ranges: bool) -> Iterator[Path]:
    """Yield the file that tells the target what to run.

    ``ranges``: one step of each kind with NVTX ranges, as it is replayed; else two phases, eagerly.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.json"
        eager = {} if ranges else {"cuda_graphs": False, "whole_step_graph": False}
        told = {"workload": workload | {"data": None}, "recipe": recipe | eager, "ranges": ranges}
        how = {"phases": list(PHASES), "enough_s": ENOUGH_S}
        path.write_text(json.dumps(told | how), encoding="utf-8")
        yield path


def count(kernels: Iterable[KernelFamily], workload: Plain, recipe: Plain, ncu: str) -> list[Counted]:
    """Return the counters of a profile's heaviest kernels. Raises `counters.Refused`."""
    functions = heaviest(kernels)
    with spec(workload, recipe, ranges=False) as path:
        _, rows = counters.counted(command(ncu, functions, path), COUNTING_S, METRICS)
    return of_launches(functions, rows)


def of_launches(functions: Sequence[str], rows: Sequence[Launch]) -> list[Counted]:
    """Return each function's longest launch with its sentence, in the order of the functions."""
    found = []
    for name in functions:
        own = [
            row
            for row in rows
            if row.kernel == name or (len(name) > _SHORTENED and row.kernel.startswith(name))
        ]
        longest = max(own, key=lambda row: row.values.get("ns") or 0.0, default=None)
        if longest is None:
            unseen = f"no launch of {name} was counted in an eager {' or '.join(PHASES)}"
            found.append(_counted(name, {}, unseen))
        else:
            values = longest.values
            found.append(_counted(longest.kernel, values, sentence(values.get("sm"), values.get("dram"))))
    return found


def _counted(kernel: str, values: dict[str, float | None], said: str) -> Counted:
    ns, of_sector = values.get("ns"), values.get("of_sector")
    return Counted(
        kernel=profiling.text(plain(kernel)),
        us=None if ns is None else ns / 1000,
        sm=_percent(values.get("sm")),
        dram=_percent(values.get("dram")),
        l1_hits=_percent(values.get("l1_hits")),
        # 0: all loads pass by, as those of the tensor memory accelerator do
        sector_bytes=round(min(100.0, of_sector) * SECTOR / 100, 2) if of_sector else None,
        sentence=profiling.text(plain(said)),
    )


def _percent(value: float | None) -> float | None:
    """Return a percentage. Counters of several passes may exceed 100 a little."""
    return None if value is None else min(100.0, max(0.0, value))


def sentence(sm: float | None, dram: float | None) -> str:
    """Return what bounds a kernel, by the part of both peaks that it reaches."""
    if sm is None or dram is None:
        return "Nsight Compute has no number for one of the two peaks"
    reached = f"{dram:.0f} percent of the memory's peak, {sm:.0f} percent of the SMs'"
    if max(sm, dram) < BUSY:
        return f"latency bound: it reaches {reached}"
    return f"{'memory' if dram >= sm else 'compute'} bound: it reaches {reached}"
