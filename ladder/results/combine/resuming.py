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

from ladder.base import text
from ladder.base.errors import UserError
from ladder.core.job import Job
from ladder.machine import environment
from ladder.plan import content
from ladder.results import code_digest, identity, loading, sources
from ladder.results import store as results
from ladder.results.derive import INTERRUPTED
from ladder.results.run import Run, Rung, Twin
from ladder.results.store import FAILED_PARITY, NOT_ENGAGED
from ladder.results.types import head

TRIED_AGAIN = ("failed",)  # statuses of rungs
RESUMED = "resumed"  # a note
Part = TypeVar("Part", Rung, Twin)
MACHINE = (*results.SERIES, "driver", "python")  # what must not have changed


def load(path: Path) -> Run:
    """Read an unfinished (or finished) run. Raises `UserError` if it cannot be gone on with."""
    if path.exists() and not path.is_file():  # a pipe without a writer would wait for ever
        raise UserError(f"{path}: --resume: not a regular file, and the run would be written back into it")
    run = loading.load_record(path)
    if run.reported_then:
        raise UserError(f"{path}: --resume: a run in visits cannot be gone on with; start a new run")
    return run


def continued(
    path: Path, before: dict[str, Any], fresh: dict[str, Any], differences: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the keys of the header with which a measurement continues that of the file: not complete, of all commits.

    Args:
        before, fresh: the headers of the file and of the measurement that would begin now (`types.head`).
        differences: what else differs, in the kind's own settings. The first of them is reported.

    Raises:
        UserError: the two are not the same measurement; one line that names the difference.
    """
    fresh = text.fit(fresh)  # as the texts of the file were when it was written
    refuse_another_machine(path, before, fresh)
    if "workload" in fresh:
        refuse_other_workload(path, before, fresh)
    for each in differences:
        raise UserError(f"{path}: --resume: {each}")
    refuse_other_code(path, before, fresh)
    refuse_other_environment(path, before, fresh)
    same = {key: before[key] for key in ("started", "seconds")}
    return same | sources.gone_on_with(before, fresh) | {"complete": False}


def refuse_another_machine(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, unless `fresh`, made fit for a file, is of the machine and software of the file."""
    for key in MACHINE:
        was, now = before["machine"].get(key), fresh["machine"].get(key)
        if was != now:
            raise UserError(f"{path}: --resume: {key} was {was} and is {now} here; start a new run")


def refuse_other_code(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, unless the code that would be measured now is that of the file."""
    if found := code_digest.differences(before, fresh):
        raise UserError(f"{path}: --resume: other code is measured here: {'; '.join(found)}; start a new run")


def refuse_other_workload(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, unless the file and `fresh` train the same on the same images: by fields, not by name."""
    was, now = before["workload"], fresh["workload"]
    held = [content.fields_of(each) for each in (was, now)]
    for key in sorted({*held[0], *held[1]}):
        if held[0].get(key) != held[1].get(key):
            raise UserError(
                f"{path}: --resume: another workload: {key} was {held[0].get(key)} and is {held[1].get(key)} here"
            )
    refuse_other_images(path, before, fresh)


def refuse_other_images(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, unless the images are those of the file, as far as it says which they were."""
    was, now = before["workload"].get("data"), fresh["workload"].get("data")
    if was != now:
        raise UserError(
            f"{path}: --resume: its images were {was or 'random ones'} and are {now or 'random ones'} here"
        )
    if found := identity.other_images(before, fresh):
        raise UserError(
            f"{path}: --resume: other pictures: it was made with {found[0]}, and {found[1]} are given"
        )


def refuse_other_environment(path: Path, before: dict[str, Any], fresh: dict[str, Any]) -> None:
    """`UserError`, one line, where a variable that changes what is measured was another, as far as the file says."""
    if found := environment.list_differences(before, fresh):
        said = "; ".join(f"{name} was {was} and is {now} here" for name, was, now in found)
        raise UserError(f"{path}: --resume: {said}; set it as it was, or start a new run")


def ask_for_images(path: Path, before: dict[str, Any], data: str | None, own: str | None = None) -> None:
    """`UserError` where the file was made with images of the user's and none are given, or the other way round.

    `data` is what `--data` says, `own` what the workload's file says.
    """
    from ladder.images import prepare as images

    was = before["workload"].get("data")
    if was == images.USER and data is None and own is None:
        raise UserError(f"{path}: --resume: it was made with your images: give the same ones with --data")
    if was == images.SAMPLE and data is not None:
        raise UserError(f"{path}: --resume: it was made with the sample photographs: leave out --data")


def other_plans(before: Run, fresh: Run) -> Iterator[str]:
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
        if other := [key for key in sorted(now) if was.get(key) != now[key]]:
            key = other[0]
            yield f"another recipe of {rung.name}: {key} was {was.get(key)} and is {now[key]} here"


def other_rules(before: object, fresh: object, rules: Iterable[str]) -> Iterator[str]:
    """Yield, in one line each, the differences of two protocols in these keys."""
    for key in rules:
        was, now = getattr(before, key), getattr(fresh, key)
        if was != now:
            yield f"{key} was {was} and is {now} here"


def take_up(path: Path, fresh: Run, job: Job) -> Run:
    """Return the run in `path`, ready to continue, if `fresh`, the run of this job, is the same measurement.

    The rounds are those that the job names, if any; else the file's count, or the job's budget. Rungs that failed are
    tried again. Rungs that ran out of memory or were invalid stay out. Rungs without receipt or parity stay out too,
    except at another commit, which may have mended them. Raises `UserError` as `continued` does.
    """
    run = load(path)
    header = continued(path, head(run), head(fresh), other_plans(run, fresh))
    again = [*TRIED_AGAIN]
    if fresh.commit and sources.commits(head(run))[-1:] != [fresh.commit]:
        again += [NOT_ENGAGED, FAILED_PARITY]
    protocol = run.protocol
    if job.options.rounds is not None:
        protocol = replace(protocol, rounds=job.options.rounds, fixed=True, budget_s=None)
    elif not protocol.fixed:
        protocol = replace(protocol, budget_s=fresh.protocol.budget_s)
    notes = [note for note in protocol.notes if not note.startswith((INTERRUPTED, RESUMED))]
    return replace(
        run,
        commit=header["commit"],
        commits=header.get("commits"),
        dirty=header["dirty"],
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
