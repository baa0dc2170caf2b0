"""Made-up comparisons of two commits, on a CPU or a GPU, and jobs for code that sleeps."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ladder.core.job import Job
from ladder.core.plain import Plain
from ladder.core.records import write_record
from ladder.machine import system
from ladder.plan import catalog
from ladder.results.file import ProfiledCycle, Round
from ladder.studies import frame
from ladder.studies.commits.judging import HEAD, SIDES
from ladder.studies.commits.record import GENERATION, Case, Commit, File, Observed, Options, Visit
from ladder.studies.commits.study import STUDY

FAKE = Path(__file__).resolve().parent / "fake_code"
Change = Callable[[Visit], Visit | None]


def make_job(out: Path, **options: Any) -> Job:
    """The job of a comparison on the CPU."""
    _, workload = catalog.load_workload("tiny")
    work, facts = workload | {"data": "/pictures"}, system.describe_machine("cpu")
    return Job("cpu", "tiny", work, "sample-photographs", facts, Options(**options), out, quiet=True)


def begin(job: Job, rounds: int, **recipes: Plain) -> File:
    """The file of a comparison that has not begun."""
    base, head = (Commit(letter * 40, name, {}) for letter, name in (("a", "main"), ("b", "HEAD")))
    case = Case(replace(base, measured_code={"kernels": "0" * 16}), head, recipes)
    return replace(frame.begin_file(STUDY, job), cases={f"{GENERATION}{k + 1}": case for k in range(rounds)})


def made_up(head: float = 1.0, rounds: int = 5, noise: float = 0.0002) -> File:
    """A comparison of one rung: HEAD takes `head` times as long."""
    draw = random.Random(1)
    file = begin(make_job(Path()), rounds, baseline={})
    observed: dict[str, dict[str, Visit]] = {key: {} for key in file.cases}
    for side in SIDES:
        for number, visits in enumerate(observed.values()):
            samples = [1000 * (head if side == HEAD else 1.0) * (1 + draw.gauss(0, noise)) for _ in range(2)]
            one = Round(round=number, samples_ms=samples, prepare_s=1.0, lead_in_cycles=1, alloc_retries=0)
            visits[f"baseline {side}"] = Visit(round=one)
    return replace(
        file, seconds=60.0, observed={key: Observed(programs=each) for key, each in observed.items()}
    )


def on_a_gpu(
    wall: float = 1.0, gpu: float = 1.0, noise: float = 0.0002, rounds: int = 3, void: str = ""
) -> File:
    """A comparison on a GPU: HEAD takes `wall` times as long, and its GPU works `gpu` times as long."""
    rng, file = np.random.default_rng(4), made_up(wall, rounds=rounds, noise=noise)
    for side in SIDES:

        def profile(visit: Visit, size: float = gpu if side == HEAD else 1.0) -> Visit:
            ms = 800 * size * float(np.exp(rng.normal(0, 0.0005)))
            cycles = [ProfiledCycle(ms, 1100.0, 9.0, 1980)] * 2
            return replace(visit, round=replace(visit.round, profiled=cycles, gpu_void=void or None))

        file = with_side(file, side, profile)
    return replace(
        file, machine=replace(file.machine, device="cuda", gpu="NVIDIA Some GPU", name="nvidia-some-gpu")
    )


def with_side(file: File, side: str, change: Change) -> File:
    """The comparison with other visits of one side; None leaves a visit out."""
    observed = {}
    for key, each in file.observed.items():
        visits = {
            name: change(visit) if name.endswith(side) else visit for name, visit in each.programs.items()
        }
        observed[key] = replace(each, programs={name: visit for name, visit in visits.items() if visit})
    return replace(file, observed=observed)


def fail(status: str, reason: str) -> Change:
    """A visit without a number, for `with_side`."""
    return lambda visit: Visit(status=status, reason=reason)


def with_commits(file: File, **commits: str) -> File:
    """The comparison of other commits: `base` and `head`."""
    case = next(iter(file.cases.values()))
    sides = {side: replace(getattr(case, side), commit=commit) for side, commit in commits.items()}
    return replace(file, cases=dict.fromkeys(file.cases, replace(case, **sides)))


def stored(file: File) -> Plain:
    """What a file holds of a comparison."""
    return write_record(file)
