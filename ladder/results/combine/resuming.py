"""The resuming of a measurement of any kind: its file is the plan, and only what it lacks is measured.

Everything that decides a number must be unchanged, as between runs that are merged: machine, software, code, workload,
images, settings and the environment variables of `ladder.machine.environment`. A file of an earlier version is held to
what it says. Each kind adds its own settings, and knows which of its rows are done.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import asdict, replace

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.results import loading, sources, store
from ladder.results.combine import merging
from ladder.results.derive import INTERRUPTED
from ladder.results.file import Header
from ladder.results.run import Run, Rung, Twin

RESUMED = "resumed"  # a note
Part = TypeVar("Part", Rung, Twin)


def load(path: Path) -> Run:
    """Read an unfinished (or finished) run. Raises `UserError` if it cannot be resumed."""
    if path.exists() and not path.is_file():  # a pipe without a writer would wait for ever
        raise UserError(f"{path}: --resume: not a regular file, and the run would be written back into it")
    run = loading.load_record(path)
    if run.reported_then:
        raise UserError(f"{path}: --resume: a run in visits cannot be gone on with; start a new run")
    return run


def continue_header(
    path: Path, before: Header, fresh: Header, differences: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the fields of the header with which a measurement continues that of the file: of all commits.

    Args:
        before, fresh: the file and the measurement that would begin now.
        differences: what else differs, in the kind's own settings.

    Raises:
        UserError: the two are not the same measurement; one line that names the differences.
    """
    if lines := [*merging.list_origin_differences(before, fresh), *differences]:
        raise UserError(f"{path}: --resume: another measurement: {'; '.join(lines)}; start a new run")
    dirty = bool(before.dirty or fresh.dirty) if before.commit else before.dirty
    same = {"started": before.started, "seconds": before.seconds, "dirty": dirty}
    return same | sources.join_commits([before, fresh])


def take_up(path: Path, fresh: Run, job: Job) -> Run:
    """Return the run in `path`, ready to continue, if `fresh`, the run of this job, is the same measurement.

    The rounds are those that the job names, if any; else the file's count, or the job's budget. Rungs that failed are
    tried again. Rungs that ran out of memory or were invalid stay out. Rungs without receipt or parity stay out too,
    except at another commit, which may have mended them. Raises `UserError` as `continue_header` does.
    """
    run = load(path)
    ladders = asdict(run.ladder), asdict(fresh.ladder)
    lines = merging.compare_fields("ladder", ladders[0], ladders[1], ladders[0])
    lines += merging.list_recipe_differences([rung for rung in run.rungs if rung.rounds], fresh.rungs)
    header = continue_header(path, run, fresh, lines)
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
    part = replace(part, status="ok" if part.rounds else "n/a", reason=None, failed_at=None)
    if isinstance(part, Rung) and part.inspection is None:
        part = replace(part, parity=None, receipts=None)
    return part
