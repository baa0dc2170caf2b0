"""Made-up comparisons of two commits, on a CPU or a GPU."""

import random
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from ladder.base.plain import Plain
from ladder.core.job import Job
from ladder.core.records import read_record, write_record
from ladder.machine import system
from ladder.plan import catalog
from ladder.publish.regressions import comparing, judging
from ladder.publish.regressions.judging import HEAD
from ladder.publish.regressions.schema import Compared, Judged
from ladder.results.file import ProfiledCycle, Round

FAKE = Path(__file__).resolve().parent / "fake_code"


def make_job(
    out: Path, rungs: list[catalog.Planned], base: Path = FAKE, head: Path = FAKE, **plan: Any
) -> Job:
    """The job of a comparison on the CPU, with code that sleeps."""
    _, workload = catalog.load_workload("tiny")
    sides = [
        comparing.Side(letter * 40, label, code)
        for letter, label, code in (("a", "main", base), ("b", "HEAD", head))
    ]
    options = comparing.Plan(rungs, *sides, **plan)
    return Job("cpu", "tiny", workload, "sample-photographs", system.facts("cpu"), options, out, minutes=10.0)


def made_up(head: float = 1.0, rounds: int = 5, noise: float = 0.0002) -> Judged:
    """A comparison of one rung: HEAD takes `head` times as long."""
    draw = random.Random(1)
    result = comparing.start_file(make_job(Path(), [catalog.Planned("baseline", "Baseline", {}, None, None)]))

    def visits(side: str) -> list[Round]:
        size = head if side == HEAD else 1.0
        samples = [[1000 * size * (1 + draw.gauss(0, noise)) for _ in range(2)] for _ in range(rounds)]
        more = {"prepare_s": 1.0, "lead_in_cycles": 1, "alloc_retries": 0}
        return [Round(round=number, samples_ms=ms, **more) for number, ms in enumerate(samples)]

    programs = [replace(each, status="ok", rounds=visits(each.side)) for each in result.programs]
    return judging.judge(replace(result, complete=True, programs=programs))


def on_a_gpu(
    wall: float = 1.0, gpu: float = 1.0, noise: float = 0.0002, rounds: int = 3, void: str = ""
) -> Judged:
    """A comparison on a GPU: HEAD takes `wall` times as long, and its GPU works `gpu` times as long."""
    rng, result = np.random.default_rng(4), made_up(wall, rounds=rounds, noise=noise)

    def cycles(side: str) -> list[ProfiledCycle]:
        ms = 800 * (gpu if side == HEAD else 1.0) * float(np.exp(rng.normal(0, 0.0005)))
        return [ProfiledCycle(ms, 1100.0, 9.0, 1980)] * 2

    programs = [
        replace(
            each, rounds=[replace(r, profiled=cycles(each.side), gpu_void=void or None) for r in each.rounds]
        )
        for each in result.programs
    ]
    machine = replace(result.machine, device="cuda", gpu="NVIDIA Some GPU", name="nvidia-some-gpu")
    return rejudge(result, machine=machine, programs=programs)


def stored(result: Judged) -> Plain:
    """What a file holds of a comparison."""
    data = {key: value for key, value in write_record(result).items() if key in Compared.__struct_fields__}
    names = ("name", "title", "skipped")
    return data | {"rungs": [{key: rung[key] for key in names if key in rung} for rung in data["rungs"]]}


def rejudge(result: Judged, **changes: Any) -> Judged:
    """The comparison with other observations, judged anew."""
    return judging.judge(read_record(Compared, stored(replace(result, **changes))))


def with_side(result: Judged, side: str, **changes: Any) -> Judged:
    """The comparison with other visits of one side, judged anew."""
    programs = [replace(each, **changes) if each.side == side else each for each in result.programs]
    return rejudge(result, programs=programs)
