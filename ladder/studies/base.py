"""What a study declares: its options, its cases, what is observed of a case, and what follows from a file of them.

A study is a module with a subclass of `Study`; `ladder.studies.frame` makes its command and does everything else. A
file holds the options, the cases and the observations; `derive` makes the rest.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar, get_args

import click
from msgspec import structs

from ladder.core import options, records, text
from ladder.core.errors import EnvironmentFailure
from ladder.core.job import Job
from ladder.core.records import Fields, Line, Name, Record
from ladder.results.derive import judge_parity
from ladder.results.file import Header, Status
from ladder.results.run import Merged, Parity
from ladder.show.table import Table


class Options(Record):
    """Base of a study's own options. The frame adds the workload, the images, the device and the files."""


Rungs = Annotated[
    list[Name],
    records.size_between(100),
    options.declare_option("Rungs, each with all below it.", argument=True, metavar="[RUNG]..."),
]
Ladder = Annotated[str, options.declare_option("The ladder whose rungs are used.", metavar="NAME|FILE")]
Seed = Annotated[
    options.Seed, options.declare_option("Seed for weights, latents, and the order of images and visits.")
]


class Case(Record):
    """Base of what is to be observed, as a file has it."""

    @property
    def sizes(self) -> dict[str, int]:
        """Return the workload's fields that are others for this case, such as its batch."""
        return {}


class RungCase(Case):
    """A rung with its recipe: the fields that differ from the defaults."""

    recipe: Fields


class Observation(Record, kw_only=True):
    """Base of what was observed of a case.

    `reason` is why there is no number. `stopped`: it was interrupted, and this is what was seen until then. `ANSWER`
    is the field that an observation has if its status is ok, and only then.
    """

    ANSWER: ClassVar[str] = ""
    status: Status = "ok"
    reason: records.Text | None = None
    stopped: bool | None = None

    def list_times(self) -> Iterable[float]:
        """Return the ms a step that were measured: none may be shorter than the machine can compute."""
        return ()


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
    merged: Annotated[list[Merged], records.size_between(100, 2)] | None = None
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
        self._is_settled = False

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
    def prepare_worker(
        self, recipe: Fields, seed: int, over: Fields | None = None, **more: Any
    ) -> Iterator[Any]:
        """Yield a worker that has prepared a recipe's step, on the workload with `over`; it ends with the block."""
        workload = self.job.workload | (over or {})
        with contextlib.closing(self.pool.take()) as worker:
            worker.call("build", workload=workload, recipe=recipe, device=self.job.device, seed=seed, **more)
            worker.call("prepare")
            yield worker

    def settle(self) -> None:
        """Wait, at the first call, until nothing of ours disturbs a measurement: importing loads the CPU."""
        if not self._is_settled:
            self._is_settled = True
            self.pool.wait()
            self.visits.look_around()

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
        self.file = self._save(structs.replace(self.file, observed=observed))

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
    default_images: ClassVar[str | None] = None  # a folder, in place of the sample photographs
    case_seconds: ClassVar[Mapping[str, float]] = {}  # of a case of the default workload, by device
    gpu_minutes: ClassVar[float | None] = None  # the budget on a GPU where none is given
    budget_flag: ClassVar[str] = "--budget"
    uses_workload: ClassVar[bool] = True
    uses_images: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = False  # whether --model may name what is trained
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

    def load_workload(self, options: P, name: str | None, device: str) -> tuple[str, Fields]:
        """Return the workload that the user named, or the default, with its name. Raises UserError, one line."""
        from ladder.plan import catalog

        return catalog.load_workload(name or self.default_workload[device])

    def reads_images(self, workload: Fields) -> bool:
        """Return whether a workload's images are prepared."""
        return self.uses_images and bool(workload["resolution"])

    def describe_model(self, model: Any, pool: Any, device: str, options: P) -> tuple[str, Fields, Any]:
        """Return name, workload and facts of a user's pair (`ladder.engine.models`). Raises UserError."""
        from ladder.engine import models

        return models.describe_model(model, pool, device, getattr(options, "seed", 0))

    def restore_options(self, file: StudyFile[P, C, O]) -> P:
        """Return the options of a file that is resumed."""
        return file.options

    def list_cases(self, job: Job, file: StudyFile[P, C, O] | None) -> dict[str, C]:
        """Return all cases by key. A study that decides by what it saw is called again after each observation."""
        return self.plan_cases(job) if file is None or not file.cases else file.cases

    def plan_cases(self, job: Job) -> dict[str, C]:
        """Return all cases of a new file. Raises UserError for what cannot be observed here."""
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
            if observation.status == "skipped":
                continue  # the table has their number and the reason
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


AnyStudy = Study[Any, Any, Any]
AnyFile = StudyFile[Any, Any, Any]
