"""A made-up result of `ladder kernels` on an H200, for tables and charts: plausible times, no measurement."""

import math
import random

import msgspec

from ladder.core.records import read_record
from ladder.core.text import NO_TIME
from ladder.plan import catalog
from ladder.studies.kernelbench import cases as kernelcases
from ladder.studies.kernelbench import record, study
from ladder.studies.kernelbench.record import Measured, Observed, Samples
from ladder.studies.kernelbench.study import STUDY
from stylegan_lite.config import Workload
from tests.support import made_up

COPY_BYTES_PER_US = 4.2e6  # 4.2 TB/s
SLOWER = {"ours": 1.1, "plain": 3.2, "compile": 1.25}
Timed = tuple[kernelcases.Case, Measured]


def row(case, direction, repeats=5, slower=None, noise=0.004) -> Timed:
    """One measured direction of a case; `slower`: by how much each contender is behind the copy."""
    dice = random.Random(f"{case.name} {direction}")
    size = 2 * math.prod(case.shape) * (3 if direction == "backward" else 2)
    copy = size / COPY_BYTES_PER_US + 1.5
    times = {name: copy * factor for name, factor in (slower or SLOWER).items()}
    reasons = {}
    if direction == "double backward":
        reasons = {"compile": "AOTAutograd has no double backward"}
        times.pop("compile", None)
    else:
        times["copy"] = copy
    if "ours" in times:
        times["twin"] = times["ours"]
    cold = {n: [t * dice.gauss(1, noise) for _ in range(repeats)] for n, t in times.items()}
    hot = {n: [0.6 * t for _ in range(3)] for n, t in times.items() if n not in ("twin", "copy")}
    return case, Measured(
        direction=direction, bytes=None if reasons else size, method="graph", reasons=reasons,
        samples_us=Samples(cold=cold, hot=hot),
    )  # fmt: skip


def change(timed: Timed, **values) -> Timed:
    """Return a direction with other values."""
    return timed[0], msgspec.structs.replace(timed[1], **values)


def cases(**more):
    workloads = {n: Workload.from_dict(catalog.load_workload(n)[1]) for n in study.USUAL}
    return kernelcases.list_cases(workloads, **more)


def file(rows=None, without_time=()) -> record.File:
    """Return a file of these directions; a direction that a case has already begins the case again."""
    if rows is None:
        rows = [row(case, d) for case in cases() for d in case.directions]
    planned, observed = {}, {}
    for case, measured in rows:
        key, number = case.name, 2
        while any(each.direction == measured.direction for each in observed.get(key, ())):
            key, number = f"{case.name} {number}", number + 1
        planned[key] = study.describe_case(case)
        observed.setdefault(key, []).append(measured)
    seen = {key: Observed(rows=each) for key, each in observed.items()}
    for case in without_time:
        planned[case.name] = study.describe_case(case)
        seen[case.name] = Observed(status="skipped", reason=NO_TIME)
    empty = {
        "schema": 2, "kind": "kernels", "machine": made_up.gpu_run()["machine"], "commit": "a" * 40, "dirty": False,
        "started": "2026-01-01T00:00:00+00:00", "seconds": 200.0, "options": {}, "cases": {}, "observed": {},
        "setup": {"l2_bytes": 50 * 2**20, "evict": 3, "graph_ms": 5.0, "compile": "torch.compile(inductor)",
                  "workloads": ",".join(study.USUAL)},
    }  # fmt: skip
    return msgspec.structs.replace(read_record(STUDY.file_type(), empty), cases=planned, observed=seen)


def rows(timed) -> list[record.Row]:
    """Return what follows from a file of these directions."""
    return record.derive_rows(file(timed))
