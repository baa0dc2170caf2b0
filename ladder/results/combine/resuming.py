"""The resuming of a measurement of any kind: its file is the plan, and only what it lacks is measured.

Everything that decides a number must be unchanged: machine, software, code, workload, images, settings and the
environment variables of `ladder.machine.environment`. A file of an earlier version is held to what it says. Each kind
adds its own settings, and knows which of its rows are done.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.machine import environment
from ladder.plan import content
from ladder.results import code_digest, identity, loading, sources, store
from ladder.results.derive import INTERRUPTED
from ladder.results.file import Header
from ladder.results.run import Run, Rung, Twin

RESUMED = "resumed"  # a note
Part = TypeVar("Part", Rung, Twin)
MACHINE = (*store.SERIES, "driver", "python")  # what must not have changed


def load(path: Path) -> Run:
    """Read an unfinished (or finished) run. Raises `UserError` if it cannot be resumed."""
    if path.exists() and not path.is_file():  # a pipe without a writer would wait for ever
        raise UserError(f"{path}: --resume: not a regular file, and the run would be written back into it")
    run = loading.load_record(path)
    if run.reported_then:
        raise UserError(f"{path}: --resume: a run in visits cannot be gone on with; start a new run")
    return run


def continue_header(
    path: Path, before: Header, fresh: Header, differences: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the fields of the header with which a measurement continues that of the file: of all commits.

    Args:
        before, fresh: the file and the measurement that would begin now, whose workload may be None.
        differences: what else differs, in the kind's own settings. The first of them is reported.

    Raises:
        UserError: the two are not the same measurement; one line that names the difference.
    """
    problem = next(iter([*_list_differences(before, fresh), *differences]), None)
    if problem is None and (found := code_digest.list_differences(before, fresh)):
        problem = f"other code is measured here: {'; '.join(found)}; start a new run"
    if problem is None and (rows := environment.list_differences(before.environment, fresh.environment)):
        changed = "; ".join(f"{name} was {was} and is {now} here" for name, was, now in rows)
        problem = f"{changed}; set it as it was, or start a new run"
    if problem is not None:
        raise UserError(f"{path}: --resume: {problem}")
    dirty = bool(before.dirty or fresh.dirty) if before.commit else before.dirty
    same = {"started": before.started, "seconds": before.seconds, "dirty": dirty}
    return same | sources.join_commits([before, fresh])


def _list_differences(before: Header, fresh: Header) -> Iterator[str]:
    """Yield what differs in machine, software, workload and images, a line each."""
    for key in MACHINE:
        was, now = getattr(before.machine, key), getattr(fresh.machine, key)
        if was != now:
            yield f"{key} was {was} and is {now} here; start a new run"
    if fresh.workload is None or before.workload is None:
        return
    held, wanted = content.fields_of(before.workload), content.fields_of(fresh.workload)
    for key in sorted({*held, *wanted}):
        if held.get(key) != wanted.get(key):
            yield f"another workload: {key} was {held.get(key)} and is {wanted.get(key)} here"
    images, now = (each.get("data") or "random ones" for each in (before.workload, fresh.workload))
    if images != now:
        yield f"its images were {images} and are {now} here"
    if found := identity.other_images(before, fresh):
        yield f"other pictures: it was made with {found[0]}, and {found[1]} are given"


def ask_for_images(path: Path, before: Run, data: str | None, own: str | None = None) -> None:
    """Raise `UserError` where a run of the user's images has none now, or the other way round.

    `data` is the value of `--data`, `own` that of the workload's file.
    """
    from ladder.images import prepare as images

    was = before.workload.get("data")
    if was == images.USER and data is None and own is None:
        raise UserError(f"{path}: --resume: it was made with your images: give the same ones with --data")
    if was == images.SAMPLE and data is not None:
        raise UserError(f"{path}: --resume: it was made with the sample photographs: leave out --data")


def list_other_plans(before: Run, fresh: Run) -> Iterator[str]:
    """Yield, in one line each, the differences of two runs' ladders, and of the recipes of rungs that were timed."""
    from stylegan_lite.config import Recipe

    if before.ladder != fresh.ladder:
        yield "another ladder than this file's was asked for"
    usual = {field.name: field.default for field in dataclasses.fields(Recipe)}
    planned = {rung.name: rung.recipe for rung in fresh.rungs}
    for rung in before.rungs:
        was, now = rung.recipe, planned.get(rung.name)
        if not rung.rounds or was is None or now is None:
            continue
        was, now = usual | was, usual | now
        for key in sorted(now):
            if was.get(key) != now[key]:
                yield f"another recipe of {rung.name}: {key} was {was.get(key)} and is {now[key]} here"


def take_up(path: Path, fresh: Run, job: Job) -> Run:
    """Return the run in `path`, ready to continue, if `fresh`, the run of this job, is the same measurement.

    The rounds are those that the job names, if any; else the file's count, or the job's budget. Rungs that failed are
    tried again. Rungs that ran out of memory or were invalid stay out. Rungs without receipt or parity stay out too,
    except at another commit, which may have mended them. Raises `UserError` as `continue_header` does.
    """
    run = load(path)
    header = continue_header(path, run, fresh, list_other_plans(run, fresh))
    again = ["failed"]
    if fresh.commit and sources.commits(run)[-1:] != [fresh.commit]:
        again += [store.NOT_ENGAGED, store.FAILED_PARITY]
    protocol = run.protocol
    if job.options.rounds is not None:
        protocol = replace(protocol, rounds=job.options.rounds, fixed=True, budget_s=None)
    elif not protocol.fixed:
        protocol = replace(protocol, budget_s=fresh.protocol.budget_s)
    notes = [note for note in protocol.notes if not note.startswith((INTERRUPTED, RESUMED))]
    return replace(
        run,
        **header,
        protocol=replace(protocol, notes=[*notes, RESUMED]),
        rungs=[_try_again(rung) if rung.status in again else rung for rung in run.rungs],
        twins=[_try_again(twin) if twin.status in again else twin for twin in run.twins],
    )


def _try_again(part: Part) -> Part:
    """Return a rung or twin that is no longer out. What spoke against it was found by the other code."""
    changed: dict[str, Any] = {"status": "ok" if part.rounds else "n/a", "reason": None, "failed_at": None}
    if isinstance(part, Rung) and part.inspection is None:
        changed |= {"parity": None, "receipts": None}
    return replace(part, **changed)
