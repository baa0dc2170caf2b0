"""The frame of all studies: a study declares options, cases, one observation and its tables; the rest is here.

A study is a module with a subclass of `Study`. The frame makes its command, resolves the request into a `Job`,
observes what its file lacks, saves after each case, resumes by key, and renders the file for a terminal, as
Markdown, CSV, HTML and JSON. A file holds the options, the cases and the observations; `derive` makes the rest.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

import click
import msgspec

from ladder.core import files, locks, text
from ladder.core import options as shared
from ladder.core.errors import EnvironmentFailure, UserError
from ladder.core.job import Job
from ladder.core.paths import ROOT
from ladder.core.progress import First
from ladder.core.records import (
    Fields,
    Line,
    Name,
    Record,
    Text,
    read_record,
    size_between,
    write_record,
)
from ladder.core.records import write_whole as write_whole
from ladder.core.starting import shorten_path
from ladder.results import identity, loading, plausible, store
from ladder.results import record as records
from ladder.results.combine import resuming
from ladder.results.derive import judge_parity
from ladder.results.file import Header, Status
from ladder.results.run import Merged, Parity
from ladder.results.store import FAILED_PARITY
from ladder.show.table import PIPE_WIDTH, Table, render_csv, render_markdown, render_text
from ladder.studies import STUDIES


class Options(Record):
    """Base of a study's own options. The frame adds the workload, the images, the device and the files."""


class Case(Record):
    """Base of what is to be observed, as a file has it."""


class RungCase(Case):
    """A rung with its recipe: the fields that differ from the defaults."""

    recipe: Fields


Rungs = Annotated[
    list[Name],
    size_between(100),
    shared.declare_option("Rungs, each with all below it.", argument=True, metavar="[RUNG]..."),
]


class Observation(Record, kw_only=True):
    """Base of what was observed of a case.

    `reason` is why there is no number. `stopped`: it was interrupted, and this is what was seen until then.
    """

    status: Status = "ok"
    reason: Text | None = None
    stopped: bool | None = None


class Compared(Observation, kw_only=True):
    """An observation that was, or was not, compared with the FP64 reference: parity's errors and budgets.

    `reported_then` is the verdict of a converted older file, which has no errors.
    """

    parity: Parity | None = None
    reported_then: Literal["ok", "failed: parity"] | None = None

    @property
    def verdict(self) -> str | None:
        """Return the verdict of parity: today's of stored errors, else that of the day."""
        judged = judge_parity(self.parity)
        return judged.verdict if judged else self.reported_then

    def describe_parity(self) -> str:
        """Return the verdict of parity, and whether it is today's."""
        return f"parity {self.verdict or self.status}{', as reported then' if self.reported_then else ''}"


@dataclass(frozen=True)
class Request:
    """The frame's own options, as the user gave them."""

    workload: str | None = None
    device: str | None = None
    data: str | None = None
    out: Path | None = None
    resume: Path | None = None
    budget: float | None = None
    as_json: bool = False


T = TypeVar("T")
P = TypeVar("P", bound=Options)
C = TypeVar("C", bound=Case)
O = TypeVar("O", bound=Observation)


class StudyFile(Header, Generic[P, C, O], kw_only=True):
    """A result of a study: nothing in it can be derived from the rest.

    `ladder` is the name of the ladder that the options point to. That of a user's file has a digest of its content.
    `merged` are the runs that the file was merged from.
    `setup` is what a study found out about the device or the request before its first case.
    """

    ladder: Name | None = None
    merged: Annotated[list[Merged], size_between(100, 2)] | None = None
    setup: Fields | None = None
    options: P
    cases: dict[Line, C]  # all that are to be observed, by key
    observed: dict[Line, O]

    @property
    def is_complete(self) -> bool:
        """Return whether every case was observed to its end."""
        stopped = any(each.stopped for each in self.observed.values())
        return not stopped and self.cases.keys() <= self.observed.keys()


class Session:
    """What `observe` may use: the job, fresh workers, a watch over the GPU, a line for the user, a partial save."""

    def __init__(self, job: Job, file: Any, save: Callable[[Any], Any]) -> None:
        self.job, self.file = job, file
        self.key = ""  # of the running case
        self.growing: Observation | None = None  # what is kept of it if it is interrupted
        self._save = save
        self._stack = contextlib.ExitStack()
        self._shared: dict[Any, Any] = {}

    @functools.cached_property
    def _sitting(self) -> tuple[Any, Any]:
        from ladder.engine import visit

        return self._stack.enter_context(visit.open_sitting(self.job.device))

    @property
    def pool(self) -> Any:
        """Return the pool of worker processes, started at first use, with this host's lock on the device."""
        return self._sitting[0]

    @property
    def visits(self) -> Any:
        """Return the watch over the GPU (`ladder.engine.visit.Visits`)."""
        return self._sitting[1]

    @contextlib.contextmanager
    def prepare_worker(self, recipe: Fields, seed: int, **more: bool) -> Iterator[Any]:
        """Yield a worker that has built and prepared the step of a recipe; it ends with the block."""
        job = self.job
        with contextlib.closing(self.pool.take()) as worker:
            worker.call("build", workload=job.workload, recipe=recipe, device=job.device, seed=seed, **more)
            worker.call("prepare")
            yield worker

    def report(self, line: str) -> None:
        """Print a line for the user on stderr."""
        if not self.job.quiet:
            click.echo(line, err=True)

    def share(self, make: Callable[[Session], contextlib.AbstractContextManager[T]]) -> T:
        """Return what a context manager of the study yields: entered at first use, left at the end of all cases."""
        if make not in self._shared:
            self._shared[make] = self._stack.enter_context(make(self))
        return self._shared[make]  # type: ignore[no-any-return]

    def keep(self, key: str, observation: Observation) -> None:
        """Add an observation to the file and save it."""
        self.keep_all({key: observation})

    def keep_all(self, observations: Mapping[str, Observation]) -> None:
        """Add observations to the file and save it once."""
        self.growing = None
        observed = {**self.file.observed, **observations}
        self.file = self._save(msgspec.structs.replace(self.file, observed=observed))

    def close(self) -> None:
        """End the workers."""
        self._stack.close()


class Study(Generic[P, C, O]):
    """What a study declares. `name` is its command, `kind` is what its files call it, `folder` is below results/."""

    name: ClassVar[str]
    kind: ClassVar[str]
    folder: ClassVar[str]
    help: ClassVar[str]
    examples: ClassVar[str]
    types: ClassVar[tuple[Any, Any, Any]]  # of its options, cases and observations
    default_workload: ClassVar[Mapping[str, str]] = {"cuda": "article", "cpu": "tiny"}
    case_seconds: ClassVar[Mapping[str, float]] = {}  # of a case of the default workload, by device
    gpu_minutes: ClassVar[float | None] = None  # the budget on a GPU where none is given
    budget_flag: ClassVar[str] = "--budget"
    uses_workload: ClassVar[bool] = True
    uses_images: ClassVar[bool] = True
    needs_gpu: ClassVar[str] = ""  # why the CPU must be asked for by name
    save_every_s: ClassVar[float] = 0.0  # of a study whose cases are shorter than the writing of its file
    extendable: ClassVar[tuple[str, ...]] = ()  # options that may differ from those of a file that is resumed
    unstored: ClassVar[tuple[str, ...]] = ()  # options that name files of the user's
    answers: ClassVar[tuple[str, ...]] = ("ok", "oom")  # any other status ends the command with status 1
    final: ClassVar[tuple[str, ...]] = ("ok", "oom")  # statuses that a resumed run does not try again
    in_order: ClassVar[bool] = False  # the order of `list_cases` counts, so a failed case is not tried last

    def __init_subclass__(cls) -> None:
        """Take the three types from the base, `Study[Options, Case, Observed]`."""
        cls.types = get_args(cls.__orig_bases__[0])  # type: ignore[attr-defined]

    def list_cases(self, job: Job, file: StudyFile[P, C, O] | None) -> dict[str, C]:
        """Return all cases by key. A study that decides by what it saw is called again after each observation.

        Raises:
            UserError: the options ask for what cannot be observed here.
        """
        raise NotImplementedError

    def observe(self, session: Session, key: str, case: C) -> O:
        """Return one observation. `WorkerFailure` becomes an observation without a number."""
        raise NotImplementedError

    def observe_all(self, session: Session) -> None:
        """Observe what the file lacks, case after case. A study whose cases are alive together has its own order."""
        from ladder.engine.pool import WorkerFailure

        begin, before, minutes = time.monotonic(), len(session.file.observed), session.job.minutes
        while waiting := [key for key in session.file.cases if key not in session.file.observed]:
            key = session.key = waiting[0]
            if minutes is not None and time.monotonic() - begin > 60 * minutes:
                break
            try:
                observation = self.observe(session, key, session.file.cases[key])
            except WorkerFailure as failure:
                observation = self.types[2](status=failure.status, reason=text.make_display(failure.reason))
            except EnvironmentFailure as failure:  # a resumed run makes it last, after the others
                session.keep(key, self.types[2](status="failed", reason=text.make_display(str(failure))))
                raise
            session.keep(key, observation)
            done = len(session.file.observed) - before
            left = len(session.file.cases.keys() - session.file.observed.keys())
            reason = f"{observation.status}: {observation.reason}"
            if line := self.describe(observation) if observation.status == "ok" else reason:
                more = left * (time.monotonic() - begin) / done / 60
                session.report(f"{key}: {line} ({done} of {done + left}, about {more:.0f} min left)")

    def pick_kept(self, file: StudyFile[P, C, O]) -> dict[str, O]:
        """Return the observations that a resumed run keeps: those to their end whose status is final."""
        return {
            key: each for key, each in file.observed.items() if each.status in self.final and not each.stopped
        }

    def has_answers(self, file: StudyFile[P, C, O]) -> bool:
        """Return whether every observation answers its question, if only by running out of memory."""
        return all(each.status in self.answers for each in file.observed.values())

    def find_status(self, file: StudyFile[P, C, O]) -> int:
        """Return the exit status of a complete measurement."""
        return 0 if self.has_answers(file) else 1

    def answer(self, options: P) -> int | None:
        """Do what the options ask for in place of measuring, and return the exit status; None if they do not."""
        return None

    def describe(self, observation: O) -> str:
        """Return what a line on stderr says of an observation that was just made, such as its time; "" for none."""
        return ""

    def finish(self, job: Job, file: StudyFile[P, C, O]) -> None:
        """Do what the options ask for beside the file, when it is written. Raises UserError where that fails."""

    def derive(self, file: StudyFile[P, C, O]) -> Any:
        """Return what follows from the file: the record that `ladder report --json` prints."""
        return file

    def list_tables(self, file: StudyFile[P, C, O]) -> Iterable[Table]:
        """Return the tables, derived from the file."""
        raise NotImplementedError

    def summarize(self, file: StudyFile[P, C, O]) -> list[str]:
        """Return the title of the page, then sentences above its tables."""
        return [f"{self.name} on {file.machine.gpu or file.machine.cpu}"]

    def list_problems(self, file: StudyFile[P, C, O]) -> Iterable[str]:
        """Return which observations no genuine machine makes, a line each, such as a step beyond its peak."""
        return ()

    def is_interrupted(self, file: StudyFile[P, C, O]) -> bool:
        """Return whether the figures must not be quoted because cases are missing."""
        return not file.is_complete

    def list_cautions(self, file: StudyFile[P, C, O]) -> list[str]:
        """Return why the figures must not be quoted, beside what holds for every study."""
        return []

    def draw(self, file: StudyFile[P, C, O], kind: str) -> bytes | None:
        """Return the chart as "png" or "svg" bytes, None if the study has none."""
        return None

    def name_file(self, file: StudyFile[P, C, O]) -> list[str]:
        """Return the words of the file's name."""
        return [file.machine.name, *([str(file.workload["name"])] if file.workload else [])]

    def announce(self, job: Job, cases: Mapping[str, C]) -> str:
        """Return the first line of the command: what is measured, and about how long the cases take."""
        about = f"{job.name} on {job.device}: {text.format_count(len(cases), 'case')}"
        if job.name == self.default_workload[job.device] and job.device in self.case_seconds:
            minutes = max(1, math.ceil(len(cases) * self.case_seconds[job.device] / 60))
            about += f", about {text.format_count(minutes, 'minute')}"
        return about if job.minutes is None else f"{about}, at most {job.minutes:g}"

    @classmethod
    def file_type(cls) -> Any:
        """Return the type of the study's files."""
        return StudyFile[cls.types]  # type: ignore[misc, name-defined]


@functools.cache
def load_studies() -> dict[str, Study[Any, Any, Any]]:
    """Return every study by the kind of its files."""
    return {study.kind: study for study in map(load_study, STUDIES)}


def load_study(command: str) -> Study[Any, Any, Any]:
    """Return the study of a command."""
    return importlib.import_module(f"ladder.studies.{STUDIES[command]}").STUDY  # type: ignore[no-any-return]


def plan_rungs(job: Job, ladder: str, rungs: Sequence[str]) -> dict[str, Fields]:
    """Return the recipes of a ladder's rungs that run here, in the ladder's order; of `rungs` alone if some are named.

    Raises:
        UserError: no such rung, or it cannot run here.
    """
    from ladder.machine import system
    from ladder.plan import catalog, needs
    from stylegan_lite.config import suggestion

    able = needs.join_capabilities(system.list_capabilities(job.device), job.workload)
    planned = {each.name: each for each in catalog.plan_climb(catalog.load_ladder(ladder), able)}
    recipes = {name: each.recipe for name, each in planned.items() if each.recipe is not None}
    if not recipes:
        raise UserError(f"ladder {ladder}: none of its rungs runs here")
    for rung in rungs:
        if rung not in planned:
            raise UserError(f"ladder {ladder} has no rung {rung!r}{suggestion(rung, planned, 'its rungs')}")
        if rung not in recipes:
            raise UserError(f"rung {rung} cannot run here: {planned[rung].skipped}")
    return {name: recipes[name] for name in dict.fromkeys(rungs)} if rungs else recipes


def describe_software(file: Header) -> str:
    """Return the last sentence above a table: PyTorch's version and the commit."""
    changed = " with changes" if file.dirty else ""
    return f"PyTorch {file.machine.torch}, commit {(file.commit or 'unknown')[:12]}{changed}."


def describe_workload(file: Header) -> str:
    """Return name, resolution and batch of a file's workload."""
    work = file.workload or {}
    return f"{work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}"


def find_floor_ms(file: Header, **fields: int) -> float:
    """Return the ms below which no machine of a file computes a step of its workload with other `fields`; 0 if unknown.

    Every study refuses a file with a shorter step.
    """
    least = plausible.floor_ms(write_whole(file.machine), (file.workload or {}) | fields)
    return least[0] if least else 0.0


# --- files ------------------------------------------------------------------------------------------------------------


def read_file(study: Study[P, C, O], path: Path) -> StudyFile[P, C, O]:
    """Return the file of a study, judged as if a stranger had sent it. Raises UserError, one line."""
    try:
        data = store.parse(loading.read_bytes(path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {loading.why(error)}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a result file: {error}") from None
    return decode_file(study, data, str(path))


def decode_file(study: Study[P, C, O], data: Any, where: str = "") -> StudyFile[P, C, O]:
    """Return the file that plain data hold. Raises UserError, one line."""
    file = read_record(study.file_type(), data, where)
    if problem := find_problem(study, file):
        raise UserError(f"{where}: {problem}" if where else problem)
    return file


def find_problem(study: Study[P, C, O], file: StudyFile[P, C, O]) -> str | None:
    """Return why a file of the right form cannot be genuine, in one line, or None."""
    if file.kind != study.kind:
        return f"a result of the kind {file.kind}, not {study.kind}"
    if problem := loading.find_header_problem(file):
        return problem
    if unknown := [key for key in file.observed if key not in file.cases]:
        return f"observed: {unknown[0]!r} is none of its cases"
    for key, case in file.cases.items():
        place = f"cases.{text.escape_controls(key)}.recipe"
        if problem := identity.find_recipe_problem(getattr(case, "recipe", None), place):
            return problem
    for key, each in file.observed.items():
        if isinstance(each, Compared) and each.status == "ok" and each.verdict == FAILED_PARITY:
            return f"{key}: ok, and beyond the budgets of parity"
    return next(iter(study.list_problems(file)), None)


def read_header(file: Header) -> dict[str, Any]:
    """Return the header of a file as plain data."""
    return {name: write_whole(getattr(file, name)) for name in Header.__struct_fields__}


def list_cautions(study: Study[P, C, O], file: StudyFile[P, C, O]) -> list[str]:
    """Return why the figures of a file must not be quoted, a line each; none if they may."""
    from ladder.machine import environment

    return [
        *([store.SMOKE_NOTE] if file.machine.device == "cpu" else []),
        *study.list_cautions(file),
        *environment.describe_variables(file.environment),
        *(["dirty work tree: not to be published"] if file.dirty else []),
        *(["interrupted"] if study.is_interrupted(file) else []),
    ]


def write_row(case: Case, observation: Observation) -> dict[str, Any]:
    """Return a case with what was observed of it, as plain data."""
    observed = write_whole(observation)
    return {**write_whole(case), **{key: observed[key] for key in observed if key != "stopped"}}


def write_derived(study: Study[P, C, O], file: StudyFile[P, C, O]) -> dict[str, Any]:
    """Return what `ladder report --json` prints: the header, whether it is complete, and what the study derives."""
    return read_header(file) | {"complete": file.is_complete} | write_whole(study.derive(file))


def save_file(study: Study[P, C, O], file: StudyFile[P, C, O], folder: Path, pages: bool) -> list[Path]:
    """Write the file and, with `pages`, what is derived from it. Return the paths, that of the file first.

    The name ends in "-partial" until the file is complete. What another host or commit left under that name stays.
    """
    stem = "-".join(map(text.make_slug, study.name_file(file)))
    partial = _find_place(study, folder / f"{stem}-partial.json", file)
    path = _find_place(study, folder / f"{stem}.json", file) if file.is_complete else partial
    paths = write_file(study, file, path, pages)
    if file.is_complete and partial.exists():
        for each in paths:
            each.with_name(each.name.replace(path.stem, partial.stem, 1)).unlink(missing_ok=True)
    return paths


def write_file(study: Study[P, C, O], file: StudyFile[P, C, O], path: Path, pages: bool) -> list[Path]:
    """Write the file to `path` and, with `pages`, what is derived from it beside it. Return all paths."""
    content = json.dumps(text.fit_texts(write_record(file)), indent=1, allow_nan=False) + "\n"
    files.write_file(path, content)
    return [path, *(write_pages(study, file, path) if pages else [])]


def write_pages(study: Study[P, C, O], file: StudyFile[P, C, O], path: Path) -> list[Path]:
    """Write the page and the chart beside a file, and return their paths."""
    page = path.with_suffix(".md")
    files.write_file(page, render_page(study, file))
    if study.draw(file, "svg") is None:
        return [page]
    return [page, *files.try_draw(path.with_suffix(""), lambda kind: study.draw(file, kind) or b"")]


def _find_place(study: Study[P, C, O], path: Path, file: StudyFile[P, C, O]) -> Path:
    """Return `path`, or a name with the time of the run where another host, commit or unfinished run has it."""
    if not path.exists():
        return path
    with contextlib.suppress(UserError):
        before = read_file(study, path)
        is_earlier = before.is_complete and (before.machine, before.commit) == (file.machine, file.commit)
        if before.started == file.started or is_earlier:
            return path
    return path.with_stem(f"{path.stem}-{text.format_stamp(file.started)}")


def continue_file(study: Study[P, C, O], job: Job, file: StudyFile[P, C, O]) -> StudyFile[P, C, O]:
    """Return the file to go on with. Observations without a number are made again, after all others.

    Raises:
        UserError: it was made on another machine, with other software, images or code, or of another workload.
    """
    assert job.resume is not None
    fresh = begin_file(study, job)
    if file.ladder not in (None, fresh.ladder):
        raise UserError(
            f"{job.resume}: --resume: the ladder {job.options.ladder} has changed since; start a new run"
        )
    header = resuming.continue_header(job.resume, file, fresh)
    kept = study.pick_kept(file)
    failed = [key for key, each in file.observed.items() if key not in kept and not each.stopped]
    last = [] if study.in_order else failed
    cases = {key: case for key, case in file.cases.items() if key not in last}
    cases |= {key: file.cases[key] for key in last}
    return msgspec.structs.replace(fresh, **header, cases=cases, observed=kept)


def as_kind(study: Study[Any, Any, Any]) -> loading.Kind:
    """Return how `ladder validate` judges the files of a study."""
    judge, caution = functools.partial(find_problem, study), functools.partial(list_cautions, study)
    return loading.Kind(study.kind, study.file_type(), judge, caution)


# --- pages ------------------------------------------------------------------------------------------------------------


def render_page(study: Study[P, C, O], file: StudyFile[P, C, O]) -> str:
    """Return the Markdown page beside a file."""
    title, *sentences = study.summarize(file)
    blocks = [f"# {text.escape_markdown(title)}", *map(text.escape_markdown, sentences)]
    blocks += map(render_markdown, study.list_tables(file))
    blocks.append("\n".join(f"- {text.escape_markdown(line)}" for line in list_cautions(study, file)))
    return "\n\n".join(blocks).rstrip() + "\n"


def render_terminal(study: Study[P, C, O], file: StudyFile[P, C, O], width: int = PIPE_WIDTH) -> str:
    """Return what the command prints at its end."""
    tables = [render_text(table, width) for table in study.list_tables(file)]
    return "\n\n".join([*study.summarize(file)[1:2], *tables, "\n".join(list_cautions(study, file))]).rstrip()


def open_stored(path: Path) -> tuple[Study[Any, Any, Any], StudyFile[Any, Any, Any]] | None:
    """Return the study and the file that a path holds; None if it is a folder, or of another kind."""
    data = store.read(path) if path.is_file() else None
    study = load_studies().get(str(data.get("kind"))) if isinstance(data, dict) else None
    return None if study is None else (study, decode_file(study, data, str(path)))


def report_stored(paths: Sequence[Path], as_json: bool, markdown: Path | None, csv: Path | None) -> bool:
    """Print the stored results of studies, and write their tables; return False if a path is of another kind."""
    from ladder.report import output

    opened = [open_stored(path) for path in paths]
    stored = [each for each in opened if each is not None]
    if len(stored) < len(opened) or not stored:
        return False
    if as_json:
        derived = [write_derived(study, file) for study, file in stored]
        click.echo(json.dumps(derived[0] if len(derived) == 1 else derived, indent=1, allow_nan=False))
    for study, file in stored if not as_json else ():
        click.echo(render_terminal(study, file, output.measure_width()))
    if markdown is not None:
        files.write_file(markdown, "\n".join(render_page(study, file) for study, file in stored))
    if csv is not None:
        files.write_file(
            csv, render_csv([table for study, file in stored for table in study.list_tables(file)])
        )
    return True


# --- the command ------------------------------------------------------------------------------------------------------


def resolve_job(study: Study[Any, Any, Any], options: Any, request: Request, machine: dict[str, Any]) -> Job:
    """Return the job of a request with its workload; images are not prepared yet.

    Raises:
        UserError: no such workload, or a folder that cannot be written.
    """
    from ladder.plan import catalog

    device = machine["device"]
    out = request.resume.parent if request.resume else request.out or ROOT / "results" / study.folder
    files.refuse_unwritable(out)
    name, workload = "", {}
    if study.uses_workload:
        name, workload = catalog.load_workload(request.workload or study.default_workload[device])
        images = request.data or workload["data"] if study.uses_images else None
        workload = workload | {"data": images}
    return Job(
        device, name, workload, None, machine, options, out, request.resume,
        request.budget or (study.gpu_minutes if device == "cuda" else None), request.as_json,
    )  # fmt: skip


def begin_file(study: Study[P, C, O], job: Job) -> StudyFile[P, C, O]:
    """Return the file of a measurement that begins now."""
    from ladder.plan import catalog

    trained: Fields | None = None
    if study.uses_workload:
        trained = {"name": job.name, **job.workload, "data": job.source if study.uses_images else None}
    images = identity.of_images(str(job.workload["data"])) if study.uses_images else None
    header = records.make_header(study.kind, job.machine, trained, images=images)
    options = msgspec.structs.replace(job.options, **dict.fromkeys(study.unstored))
    empty = {"options": write_record(options), "cases": {}, "observed": {}}
    if (ladder := getattr(job.options, "ladder", None)) is not None:
        empty["ladder"] = catalog.load_ladder(ladder).name
    return read_record(study.file_type(), text.fit_texts(header) | empty)


def run_study(study: Study[P, C, O], job: Job) -> int:
    """Observe what the file lacks, write it, print it, and return the exit status."""
    from ladder.images import for_workload
    from ladder.machine import environment

    paths: list[Path] = []
    with locks.folder_lock(job.out, text.make_slug(job.machine["name"]), movable=job.resume is None):
        earlier = read_file(study, job.resume) if job.resume else None  # another run may have continued it
        cases = study.list_cases(job, earlier)  # before images are made: it refuses what cannot be observed
        kept = {} if earlier is None else study.pick_kept(earlier)
        missing = {key: case for key, case in cases.items() if key not in kept}
        first = First(study.announce(job, missing), job.quiet)
        if study.uses_images:
            pictures = for_workload.prepare_images(job.workload["data"], job.workload, job.quiet, first)
            job = replace(job, workload=job.workload | {"data": pictures.path}, source=pictures.source)
        if earlier is None:
            file = msgspec.structs.replace(begin_file(study, job), cases=cases)
        else:
            file = update_cases(study, job, continue_file(study, job, earlier))
        first()
        environment.print_conditions(job.quiet)
        file = observe_cases(study, job, file, paths)
        paths[:] = save_file(study, file, job.out, pages=True)
        study.finish(job, file)
    show_result(study, file, paths, job.quiet)
    return study.find_status(file) if file.is_complete else 130


def update_cases(study: Study[P, C, O], job: Job, file: StudyFile[P, C, O]) -> StudyFile[P, C, O]:
    """Return the file with all cases that the study lists now, those of the file in their order.

    A case that was observed stays, also where the study would not list it any more.
    """
    listed = study.list_cases(job, file)
    known = {
        key: listed.get(key, case) for key, case in file.cases.items() if key in {**listed, **file.observed}
    }
    cases = {**listed, **known} if study.in_order else known | listed
    return msgspec.structs.replace(file, cases=cases)


def observe_cases(
    study: Study[P, C, O], job: Job, file: StudyFile[P, C, O], paths: list[Path]
) -> StudyFile[P, C, O]:
    """Observe what the file lacks; save it after each case. An interrupt ends it with what there is."""
    begin, spent = time.monotonic(), file.seconds
    saved = -math.inf

    def save(current: StudyFile[P, C, O]) -> StudyFile[P, C, O]:
        nonlocal saved
        seconds = round(spent + time.monotonic() - begin, 1)
        current = update_cases(study, job, msgspec.structs.replace(current, seconds=seconds))
        if time.monotonic() - saved >= study.save_every_s:
            paths[:] = save_file(study, current, job.out, pages=False)
            saved = time.monotonic()
        return current

    session = Session(job, file, save)
    try:
        study.observe_all(session)
    except KeyboardInterrupt:
        if session.growing is not None:
            session.keep(session.key, msgspec.structs.replace(session.growing, stopped=True))
    except EnvironmentFailure as failure:
        if study.save_every_s:
            with contextlib.suppress(UserError, EnvironmentFailure):
                paths[:] = save_file(study, session.file, job.out, pages=False)
        where = next((f"; go on with --resume {shorten_path(path)}" for path in paths[:1]), "")
        raise EnvironmentFailure(f"{failure}{where}") from failure
    finally:
        session.close()
    return session.file


def show_result(study: Study[P, C, O], file: StudyFile[P, C, O], paths: list[Path], as_json: bool) -> None:
    """Print the tables, or JSON alone, and where the files are."""
    from ladder.report import output

    if as_json:
        click.echo(json.dumps(write_derived(study, file), indent=1, allow_nan=False))
    else:
        click.echo(render_terminal(study, file, output.measure_width()))
    output.say_files(paths, as_json, again=not (file.is_complete and study.has_answers(file)))


def run_request(study: Study[Any, Any, Any], options: Any, request: Request) -> int:
    """Resolve and run the request of the current command, and return the exit status. Raises UserError."""
    from ladder.machine import environment, system

    if request.resume is not None:
        file, given = read_file(study, request.resume), shared.list_given(options)
        for name, value in given.items():
            if name not in study.extendable and getattr(file.options, name) != value:
                raise UserError(f"{request.resume}: --resume: that run has another {name}: leave it out")
        more = {name: given[name] for name in study.extendable if name in given}
        options = msgspec.structs.replace(file.options, **more)
        workload = request.workload or (str(file.workload["name"]) if file.workload else None)
        request = replace(request, workload=workload, device=request.device or file.machine.device)
    device = system.choose_device(request.device)
    if study.needs_gpu and device == "cpu" and request.device != "cpu":
        raise UserError(f"{study.needs_gpu}, and there is none; --device cpu is a smoke test")
    environment.refuse_variables(device)
    return run_study(study, resolve_job(study, options, request, system.describe_machine(device)))


def study_command(study: Study[Any, Any, Any]) -> click.Command:
    """Return the command of a study: its options are the fields of `Options`, with the frame's own behind them."""

    def call(options: Any, **values: Any) -> None:
        if (status := study.answer(options)) is not None:
            sys.exit(status)
        sys.exit(run_request(study, options, Request(**values)))

    default = f"{study.default_workload['cuda']} on a GPU, {study.default_workload['cpu']} on the CPU"
    budget = "no limit" if study.gpu_minutes is None else f"{study.gpu_minutes:g}; CPU: no limit"
    has_minutes = "minutes" in study.types[0].__struct_fields__
    extra = [
        *([shared.workload_option(default)] if study.uses_workload else []),
        *([shared.data_option] if study.uses_images else []),
        *([] if has_minutes else [shared.budget_option(budget, study.budget_flag)]),
        *(shared.device_option, shared.resume_option, shared.out_option(f"results/{study.folder}")),
        shared.json_option,
    ]
    return shared.make_command(study.name, study.types[0], call, study.help, study.examples, extra)
