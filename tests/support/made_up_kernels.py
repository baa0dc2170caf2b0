"""A made-up result of `ladder kernels` on an H200, for tables and charts: plausible times, no measurement."""

import random
from dataclasses import replace

from ladder.plan import catalog
from ladder.results.types import Machine, build
from ladder.studies.kernelbench import verdicts as kernelverdicts
from ladder.studies.kernelbench.bench import skipped
from ladder.studies.kernelbench.cases import registry as kernelcases
from ladder.studies.kernelbench.schema import Kernels, Protocol, Samples
from stylegan_lite.config import Workload
from tests.support import made_up

COPY_BYTES_PER_US = 4.2e6  # 4.2 TB/s
SLOWER = {"ours": 1.1, "plain": 3.2, "compile": 1.25}


def row(case, direction, repeats=5, slower=None, noise=0.004):
    """One measured row; `slower`: by how much each contender is behind the copy."""
    dice = random.Random(f"{case.name} {direction}")
    made = replace(skipped(case, "")[0].record(), direction=direction, reasons={}, method="graph")
    size = 2 * _elements(case) * (3 if direction == "backward" else 2)
    copy = size / COPY_BYTES_PER_US + 1.5
    times = {name: copy * factor for name, factor in (slower or SLOWER).items()}
    if direction == "double backward":
        made = replace(made, reasons={"compile": "AOTAutograd has no double backward"})
        times.pop("compile", None)
    else:
        made = replace(made, bytes=size)
        times["copy"] = copy
    if "ours" in times:
        times["twin"] = times["ours"]
    cold = {n: [t * dice.gauss(1, noise) for _ in range(repeats)] for n, t in times.items()}
    hot = {n: [0.6 * t for _ in range(3)] for n, t in times.items() if n not in ("twin", "copy")}
    return replace(made, samples_us=Samples(cold=cold, hot=hot))


def _elements(case):
    count = 1
    for n in case.shape:
        count *= n
    return count


def cases(**more):
    workloads = {n: Workload.from_dict(catalog.load_workload(n)[1]) for n in kernelcases.WORKLOADS}
    return kernelcases.cases(workloads, **more)


def result(rows=None):
    if rows is None:
        rows = [row(case, d) for case in cases() for d in case.directions]
    protocol = Protocol(
        minutes=4.0, quick=False, smoke=False, seed=0, workloads=list(kernelcases.WORKLOADS), ops=[],
        l2_bytes=50 * 2**20, evict=3, graph_ms=5.0, compile="torch.compile(inductor)", notes=[],
    )  # fmt: skip
    return Kernels(
        schema=1, kind="kernels", machine=build(Machine, made_up.gpu_run()["machine"]), commit="a" * 40, dirty=False,
        complete=True, started="2026-01-01T00:00:00+00:00", seconds=200.0, protocol=protocol,
        rows=kernelverdicts.derive(rows),
    )  # fmt: skip
