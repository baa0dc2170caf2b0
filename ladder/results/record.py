"""The records of a run, made before the first visit and of what each visit showed, and the header of every result.

The figures of a result follow from them (`ladder.results.judging`).
"""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ladder.core import text
from ladder.core.git import commit_of
from ladder.core.job import Job, RunPlan
from ladder.core.paths import ROOT
from ladder.core.plain import Plain
from ladder.core.protocol import CYCLE_STEPS
from ladder.core.records import Fields, read_record, write_record
from ladder.machine import environment, neighbours
from ladder.machine.threads import QUIET
from ladder.plan import content
from ladder.results import code_digest, judging
from ladder.results import store as results
from ladder.results.file import SCHEMA, Images, KernelProfile, Round
from ladder.results.run import Choice, Inspection, Ladder, Parity, Protocol, Receipt, Run, Rung, Variant
from ladder.stats import rounds_budget

_COPIED = ("start_s", "build_s", "prepare_s", "capture_s", "cache_s", "compile_s", "compile_kernels_s", "visit_s",
           "beside", "lead_in_cycles", "settled", "alloc_retries", neighbours.KEY)  # fmt: skip


def new_run(job: Job) -> Run:
    """Return the run of a job that has not begun. Where the images lie on this machine is left out."""
    plan: RunPlan = job.options
    rungs = [
        Rung(
            name=each.name, title=each.title, recipe=each.recipe, reason=each.skipped, article_ms=each.article_ms,
            variant=Variant(**each.variant.stored()) if each.variant else None,
        )
        for each in plan.planned
    ]  # fmt: skip
    data = None if job.workload.get("data") is None else job.source or "user-images"
    trained = name_workload(job, data)
    head = make_header("ladder", job.machine, trained, images=plan.images, code=plan.code)
    head |= {environment.KEY: environment.read_variables(without=QUIET)}
    ladder = Ladder(plan.ladder.name, plan.ladder.title, [each.name for each in rungs], plan.ladder.digest)
    parts = {"ladder": ladder, "protocol": plan_protocol(job), "rungs": rungs}
    run = read_record(Run, text.fit_texts(head | {key: write_record(each) for key, each in parts.items()}))
    return replace(run, twins=judging.plan_twins(run.rungs, plan.mode, plan.quick))


def name_workload(job: Job, data: str | None) -> Fields:
    """Return what a file stores of a job's workload: `data` in place of a path, and no code of a user's pair."""
    own = {key: value for key, value in job.workload.items() if key not in content.OF_CODE}
    return {"name": job.name, **own, "data": data}


def plan_rounds(rounds: int, cycles: int, seed: int) -> Protocol:
    """Return the protocol of a staircase of so many rounds."""
    return Protocol(
        mode="cumulative", fixed=True, rounds=rounds, cycles=cycles, cycle_steps=CYCLE_STEPS, seed=seed
    )


def plan_protocol(job: Job) -> Protocol:
    """Return how a job measures.

    Without a number of rounds there are as many as the budget and the width of the intervals ask for. `fixed` says
    which it was; `rounds` in the file are those that were planned last.
    """
    plan: RunPlan = job.options
    rounds = 3 if plan.rounds is None and plan.quick else plan.rounds
    return replace(
        plan_rounds(rounds or rounds_budget.LEAST_ROUNDS, plan.cycles or (1 if plan.quick else 2), plan.seed),
        mode=plan.mode,
        fixed=rounds is not None,
        budget_s=None if rounds is not None or job.minutes is None else 60 * job.minutes,
        quick=plan.quick,
        gpu_memory_limit_gb=plan.gpu_memory_gb,
    )


def make_header(
    kind: str,
    facts: Mapping[str, Any] | None,
    workload: Fields | None = None,
    *,
    images: Images | None = None,
    code: Path | None = None,
) -> Plain:
    """Return the fields of `ladder.results.file.Header` for a measurement that begins now.

    Args:
        facts: the machine (`ladder.machine.system.describe_machine`).
        workload: the workload with its name. The source of its images stands for their path.
        images: which images of a user's they are (`ladder.results.identity.of_images`).
        code: the folder of the measured packages, if they are not from here.
    """
    commit, dirty = commit_of(ROOT)
    return {
        "schema": SCHEMA,
        "kind": kind,
        "machine": facts,
        **({"workload": workload} if workload else {}),
        environment.KEY: environment.read_variables(),
        **({"images": write_record(images)} if images else {}),
        "commit": commit,
        "dirty": dirty,
        code_digest.KEY: code_digest.digests(code=code),
        "started": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
    }


def new_round(number: int, prepared: Plain, seen: Plain) -> Plain:
    """Return the fields of a round, from the worker's replies: times in ms for one step, in time order.

    Where its seconds went: starting the process, building, preparing (`prepare_s`, of it `capture_s` for
    graphs, `cache_s` for images, `compile_s` for torch.compile, `compile_kernels_s` for Triton kernels that were not
    in its cache), and lead-in with timing.
    """
    replies = {"beside": 0} | prepared | seen
    return {
        "round": number,
        "samples_ms": [1000 * s for s in seen["samples_s"]],
        "event_ms": None if seen["event_s"] is None else [1000 * s for s in seen["event_s"]],
        "main_ms": None if seen["main_s"] is None else 1000 * seen["main_s"],
        "lazy_ms": seen.get("lazy_s") and {phase: 1000 * s for phase, s in seen["lazy_s"].items()},
        **{key: replies.get(key) for key in _COPIED},
        **{key: value for key, value in seen.items() if key.startswith("peak_")},
    }


def read_round(made: Mapping[str, Any]) -> Round:
    """Return the round that has these fields."""
    return read_record(Round, text.fit_texts(dict(made)))


def read_profile(made: Mapping[str, Any]) -> KernelProfile:
    """Return what a rung's profiled step consists of, as a worker tells it."""
    return read_record(KernelProfile, text.fit_texts(dict(made)))


def read_findings(found: Mapping[str, Any]) -> Plain:
    """Return the fields of a rung that an inspection fills: its findings as records."""
    kinds: Plain = {"inspection": Inspection, "parity": Parity, "receipts": dict[str, Receipt]}
    records: Plain = {}
    for key, value in found.items():
        if key == "parity" and value is not None:  # the verdict follows from the errors and the problems
            value = {each: value[each] for each in value if each not in ("verdict", "reason")}
        records[key] = None if value is None else read_record(kinds[key], text.fit_texts(value))
    return records


def add_choices(
    known: Sequence[Choice] | None, rung: str, used: Sequence[Mapping[str, Any]] | None
) -> list[Choice] | None:
    """Return the rows of tables that decided, each once with its rungs, after a rung has used some.

    `used` None: the measured code does not say.
    """
    if used is None:
        return None if known is None else list(known)
    rows = {repr(replace(row, rungs=[])): row for row in known or []}
    for each in used:
        row = read_record(Choice, {**each, "rungs": [rung]})
        row = rows.setdefault(repr(replace(row, rungs=[])), row)
        rows[repr(replace(row, rungs=[]))] = replace(row, rungs=[*dict.fromkeys([*row.rungs, rung])])
    return list(rows.values())


def name_file(out: Path, run: Run) -> Path:
    """Return the file of a new run, with a number where one of that name is there already (two in one second)."""
    marks = [run.workload["name"], run.ladder.name]
    if run.protocol.mode not in ("cumulative", run.ladder.name):
        marks.append(run.protocol.mode)
    if run.protocol.gpu_memory_limit_gb is not None:
        marks.append("limited")
    stem = "-".join([*(text.make_slug(str(each)) for each in marks), text.format_stamp(run.started)])
    return results.unused(Path(out) / text.make_slug(run.machine.name) / f"{stem}.json")
