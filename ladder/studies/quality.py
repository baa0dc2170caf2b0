"""`ladder quality`: whether rungs train models as good as the baseline's, and how soon.

Parity compares one step, and errors of many steps could still add up. Here every rung trains from several seeds, and
samples are compared with the data after equally many images.

The answer is an equivalence test: two one-sided t tests (Schuirmann 1987) of a rung's n distances at the end against
the baseline's 2n, at 5% each. The margin follows from the baseline alone and is known before another rung is trained:
it is what two sets of n seeds of the baseline stay within with 99%. Rungs that train alike are called worse
with at most 5%, all of a file together.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, structs

from ladder.core import locks, options, text
from ladder.core import records as r
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import declare_option
from ladder.images import idx
from ladder.report import drawing
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.base import RungCase, Session, Study, StudyFile
from ladder.training.point import Point

CONFIDENCE = 0.99  # of the margin
TESTS = 0.90  # the interval that lies within the margin if both tests at 5% reject
INSPECTIONS, TRAINING = ("parity", "receipts"), "training"
WORSE = ("worse", "broke")  # answers that find a bug
BUGS = "bugs"  # of ladder/plan/, and the module of their patches
MEASURES = {"frechet": "Fréchet distance", "swd": "sliced Wasserstein distance x 1000"}


class Options(frame.Options):
    """The options of `ladder quality`."""

    rungs: Annotated[
        str | None,
        declare_option(
            "Rungs to compare, each with all below it; or bugs. [default: the highest; all]",
            metavar="A,B,...",
        ),
    ] = None
    ladder: frame.Ladder = "full"
    seeds: Annotated[
        int, Meta(ge=2, le=100), declare_option("Trainings of each rung; the baseline has twice as many.")
    ] = 5
    steps: Annotated[int, Meta(ge=1, le=10**7), declare_option("Training steps.")] = 2000
    points: Annotated[
        int, Meta(ge=1, le=100), declare_option("How often samples are compared with the data.")
    ] = 10
    target: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        declare_option("The distance to reach. [default: the baseline's at the end]"),
    ] = None
    jobs: Annotated[
        int,
        Meta(ge=1, le=64),
        declare_option(
            "Parallel trainings; with more than one, steps are captured, and seconds do not count."
        ),
    ] = 1
    bugs: Annotated[bool, declare_option(
        "Plant twenty bugs in the highest rung, each alone, and list what finds them.")] = False  # fmt: skip
    by: Annotated[str | None, declare_option(
        "With --bugs: what is to find them. [default: parity,receipts,training]", metavar="A,...")] = None  # fmt: skip


class Case(RungCase, kw_only=True):
    """A training of a rung from a seed, or an inspection by parity or receipts. `bug` is planted in its step."""

    rung: r.Name
    seed: r.Count
    bug: r.Name | None = None
    by: Literal["parity", "receipts"] | None = None

    @property
    def variant(self) -> list[str] | None:
        """Return what is planted, as a worker takes it."""
        return [BUGS, self.bug] if self.bug else None


class Observed(frame.Observation, kw_only=True):
    """The points of a training, and how many images were compared at each; or what an inspection found, if anything."""

    finding: r.Line | None = None
    points: Annotated[list[Point], r.size_between(100)] = []
    samples: r.Count = 0

    def list_times(self) -> Iterable[float]:
        return (
            1000 * point.seconds / point.step for point in self.points[-1:] if point.seconds and point.step
        )


File = StudyFile[Options, Case, Observed]


class Rung(r.Record, kw_only=True):
    """What follows from the trainings of a rung.

    `mean` is that of the distances at the end. `low` and `high` are the 90% interval of its difference from the
    baseline's. `to_target` are the seconds to the target: the median of the seeds, None if half of them fail it.
    `speedup` is that of a step, `quality_speedup` that of the seconds to the target.
    """

    name: r.Name
    distances: list[float | None]
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: r.Text | None = None
    step_ms: float | None = None
    speedup: float | None = None
    to_target: float | None = None
    quality_speedup: float | None = None


class Bug(r.Record, kw_only=True):
    """A planted bug: what parity and the receipts find, None if nothing, and the answer of its trainings."""

    name: r.Name
    parity: r.Line | None = None
    receipts: r.Line | None = None
    training: r.Text | None = None
    tried: list[r.Name] = []

    @property
    def is_found(self) -> bool:
        """Return whether any of them finds it."""
        return bool(self.parity or self.receipts or self.training in WORSE)


class Quality(r.Record, kw_only=True):
    """What follows from a file: the measure, half of the data beside the other half, the margin, and every rung."""

    ladder: r.Name | None
    measure: r.Name
    floor: float | None
    margin: float | None
    target: float | None
    rungs: list[Rung]
    bugs: list[Bug] = []


class QualityStudy(Study[Options, Case, Observed]):
    """Each rung from each seed; the baseline first, with twice the seeds."""

    name, kind, folder = "quality", "quality", "quality"
    help = """Find out whether a faster step trains as well.

    The baseline and the highest rung, or those that you name, are trained from several seeds. Their samples are
    compared with the data: Fréchet distance, kernel distance, precision and recall in the features of a small
    classifier of 32x32 images, and the sliced Wasserstein distance, which alone is used for other sizes.
    A rung is as good if two one-sided tests place it within the margin, which two sets of seeds of the baseline
    keep; worse if its distance is significantly longer; otherwise that many seeds do not decide it.

    Exit status: 0 if no rung is worse. 1 if one is worse or broke. 2 if the request is impossible. 130 if interrupted.
    """
    examples = """
ladder quality                                 the highest rung of full, on a sample of Fashion-MNIST
ladder quality --data FOLDER --seeds 10        on the images of a folder, or on MNIST's files
ladder quality --ladder article --rungs bf16,graph_fills
ladder quality --model my_pair.py --data photos      the rungs on a pair of your own
ladder quality --bugs                          what finds a bug? Twenty are planted, each alone
"""
    default_workload = {"cuda": "fashion", "cpu": "tiny"}
    default_images = str(idx.SAMPLE)
    takes_pairs = True
    extendable = ("jobs",)
    answers, final = ("ok",), ("ok",)

    def plan_cases(self, job: Job) -> dict[str, Case]:
        own = job.options
        if not job.workload["resolution"]:
            raise UserError(
                "this pair reads no images (no Input of source images), which samples are compared with"
            )
        if own.bugs and "pair" in job.workload:
            raise UserError("--bugs are planted in StyleGAN2: leave out --model")
        if own.bugs:
            return plan_bugs(job)
        if own.by is not None:
            raise UserError("--by is for --bugs")
        base, *higher = frame.plan_rungs(job, own.ladder, ()).items()
        named = (
            frame.plan_rungs(job, own.ladder, options.split_names(own.rungs))
            if own.rungs
            else dict(higher[-1:])
        )
        captured = capture_untimed(job, dict([base]) | named)
        rungs = [(base[0], captured.pop(base[0]))] * 2 + [*captured.items()]
        return {
            f"{name}, seed {seed}": Case(rung=name, recipe=recipe, seed=seed)
            for number, (name, recipe) in enumerate(rungs)
            for seed in (range(own.seeds, 2 * own.seeds) if number == 1 else range(own.seeds))
        }

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        if job.options.bugs:
            return f"quality: bugs of {job.name} on {job.device}, {text.format_count(len(cases), 'case')}"
        many = text.format_count(len(cases), "training")
        return (
            f"quality: {job.name} on {job.device}, {many} of {text.format_count(job.options.steps, 'step')}"
        )

    def observe_all(self, session: Session) -> None:
        from ladder.core.stopping import stop_on_sigterm
        from ladder.machine import system
        from ladder.training import seeds

        job, own, begin = session.job, session.job.options, time.monotonic()
        for key, case in session.file.cases.items():
            if case.by is not None and key not in session.file.observed:
                session.keep(key, found := inspect_bug(session, case))
                session.report(f"{key}: {found.finding or found.reason or 'nothing'}")
        setup = seeds.Setup(job.workload, job.device, own.steps, points=min(own.points, own.steps))
        waiting = [
            seeds.Task(key, case.recipe, case.seed, case.variant)
            for key, case in session.file.cases.items() if case.by is None and key not in session.file.observed
        ]  # fmt: skip
        if not waiting:
            return
        floor = seeds.measure_floor(setup)
        session.file = structs.replace(session.file, setup={"frechet": floor.frechet, "swd": floor.swd})
        gpu = next(iter(system.device_keys(job.device, 1)), None)
        session.close()  # inspections hold the device
        with stop_on_sigterm(), locks.device_lock(gpu, shared=own.jobs > 1):
            with contextlib.closing(seeds.train_all(setup, waiting, own.jobs)) as trainings:
                for done, (task, each) in enumerate(trainings, 1):
                    key = task.key
                    if each.refused:
                        raise UserError(str(each.reason))
                    reason = each.reason and text.make_display(each.reason)
                    points = [
                        structs.replace(one, seconds=one.seconds * (own.jobs == 1)) for one in each.points
                    ]
                    session.keep(key, Observed(
                        status="failed" if reason else "ok", reason=reason, points=points, samples=each.samples
                    ))  # fmt: skip
                    found = f"{pick_distance(session.file, points[-1]):.4g}" if points else f"broke: {reason}"
                    session.report(f"{done}/{len(waiting)} {key}: {found}")
                    if len(session.file.observed) == 2 * own.seeds and (
                        margin := derive_margin(session.file)
                    ):
                        session.report(f"margin, from the baseline's seeds: {margin:.4g}")
                    if job.minutes is not None and time.monotonic() - begin > 60 * job.minutes:
                        break

    def find_status(self, file: File) -> int:
        if file.options.bugs:
            return int(derive_bugs(file)[0].is_found)
        return int(not self.has_answers(file) or any(rung.verdict == "worse" for rung in derive_rungs(file)))

    def derive(self, file: File) -> Quality:
        return Quality(
            ladder=file.ladder, measure=pick_measure(file), floor=derive_floor(file), margin=derive_margin(file),
            target=derive_target(file), rungs=derive_rungs(file), bugs=derive_bugs(file),
        )  # fmt: skip

    def name_file(self, file: File) -> list[str]:
        own = file.options
        bugs = (
            [BUGS, *options.split_names(own.by or ""), *options.split_names(own.rungs or "")]
            if own.bugs
            else []
        )
        return [*super().name_file(file), file.ladder or own.ladder, *bugs]

    def summarize(self, file: File) -> list[str]:
        if file.options.bugs:
            return summarize_bugs(file)
        own, margin, floor, target = (
            file.options,
            derive_margin(file),
            derive_floor(file),
            derive_target(file),
        )
        samples = max((each.samples for each in file.observed.values()), default=0)
        base = derive_rungs(file)[0].mean
        limit = "unknown yet" if margin is None else f"{margin:.4g}"
        share = f" ({margin / base:.0%} of the baseline's mean)" if margin and base else ""
        lines = [
            f"Does it train as well? {file.ladder} on {file.machine.gpu or file.machine.cpu}",
            f"Workload {frame.describe_workload(file)}, {text.format_count(own.steps, 'step')} from {own.seeds} seeds"
            f" each, {2 * own.seeds} of the baseline: {MEASURES[pick_measure(file)]} of {samples} samples to the data."
            f" The margin, from the baseline's seeds alone, is {limit}{share}."
            + ("" if floor is None else f" One half of the data is {floor:.4g} from the other."),
        ]
        if target is not None and own.jobs == 1:
            lines.append(
                f"Time to quality is that until the distance stays below {target:.4g}, the median of the seeds. Seconds"
                " are those of training alone, by the host's clock, after warm-up; narrow networks wait for the host."
            )
        return [*lines, frame.describe_software(file)]

    def list_tables(self, file: File) -> Iterable[Table]:
        if file.options.bugs:
            yield tabulate_bugs(derive_bugs(file))
            return
        columns = [
            Column("rung"), Column("distance"), Column("difference, 90%"), Column("answer", "verdict"),
            Column("kernel distance", priority=3), Column("precision", priority=3), Column("recall", priority=3),
            Column("SWD", priority=3), Column("ms/step", "ms", 1), Column("speedup", "ratio", 1),
            Column("s to quality", priority=2), Column("its speedup", "ratio", 2),
        ]  # fmt: skip
        rows = []
        for rung in derive_rungs(file):
            interval = None if rung.low is None else f"{rung.low:+.4g} to {rung.high:+.4g}"
            beside = [average_last(file, rung.name, name) for name in ("kid", "precision", "recall", "swd")]
            rows.append([
                rung.name, format_number(rung.mean), interval, rung.verdict, *map(format_number, beside), rung.step_ms,
                rung.speedup, format_number(rung.to_target), rung.quality_speedup,
            ])  # fmt: skip
        yield Table(columns, rows)

    def list_problems(self, file: File) -> Iterable[str]:
        for key, each in file.observed.items():
            if file.cases[key].by is None and (each.status == "ok") != bool(each.points):
                yield f"{key}: {each.status} contradicts its points"
            for one, other in itertools.pairwise(each.points):
                if other.step <= one.step or other.seconds < one.seconds:
                    yield f"{key}: its points are not in order"

    def list_cautions(self, file: File) -> list[str]:
        broke = [key for key, each in file.observed.items() if each.status != "ok" and not file.options.bugs]
        return [f"{key}: {file.observed[key].status}: {file.observed[key].reason}" for key in broke]

    def draw(self, file: File, kind: str) -> bytes | None:
        is_drawn = any(list_curves(file).values()) and not file.options.bugs
        return drawing.save(lambda: _draw_figure(file), kind) if is_drawn else None


STUDY = QualityStudy()


def capture_untimed(job: Job, recipes: Mapping[str, r.Fields]) -> dict[str, r.Fields]:
    """Return recipes of captured steps where nothing is timed: graphs launch the same kernels in less time."""
    from ladder.machine import system
    from ladder.plan import catalog
    from stylegan_lite.config import ConfigError, Recipe

    able, graphs = system.list_capabilities(job.device), catalog.load_rung("cuda_graphs")
    if job.options.jobs == 1 or catalog.find_missing(graphs.needs, able):
        return {**recipes}
    captured = {}
    for name, recipe in recipes.items():
        captured[name] = {**recipe, **graphs.change}
        try:
            Recipe.from_dict(captured[name])
        except ConfigError:
            captured[name] = recipe
    return captured


def format_number(value: float | None) -> str | None:
    """Return four digits of a number."""
    return None if value is None else f"{value:.4g}"


def pick_measure(file: File) -> str:
    """Return the measure that decides: the sliced Wasserstein distance where there are no features."""
    points = [each.points[-1] for each in file.observed.values() if each.points]
    return "swd" if any(point.frechet is None for point in points) else "frechet"


def pick_distance(file: File, point: Point) -> float:
    """Return the distance of a point that decides."""
    return float(getattr(point, pick_measure(file)))


def list_curves(file: File) -> dict[str, dict[str, Observed]]:
    """Return what was observed of each rung by key, the baseline first; also trainings that broke."""
    trained = {key: case for key, case in file.cases.items() if case.by is None}
    rungs: dict[str, dict[str, Observed]] = {case.rung: {} for case in trained.values()}
    for key, case in trained.items():
        if key in file.observed:
            rungs[case.rung][key] = file.observed[key]
    return rungs


def list_last(file: File, rung: str) -> list[float | None]:
    """Return the distance at the end of each training of a rung, None if it broke."""
    runs = list_curves(file)[rung].values()
    return [pick_distance(file, each.points[-1]) if each.points else None for each in runs]


def average_last(file: File, rung: str, measure: str) -> float | None:
    """Return the mean of any measure at the end of a rung's trainings, None if one has none."""
    points = [each.points[-1] for each in list_curves(file)[rung].values() if each.points]
    values = [value for point in points if (value := getattr(point, measure)) is not None]
    return statistics.fmean(values) if values and len(values) == len(points) else None


def derive_floor(file: File) -> float | None:
    """Return the distance of one half of the data from the other."""
    floor = (file.setup or {}).get(pick_measure(file))
    return floor if isinstance(floor, float) and math.isfinite(floor) else None


def derive_margin(file: File) -> float | None:
    """Return t sd sqrt(2 / n), which the means of two sets of n seeds of the baseline differ by at most with 99%.

    The deviation is that of all 2n trainings of the baseline; None until all are there.
    """
    base, seeds = next(iter(list_curves(file)), None), file.options.seeds
    if base is None:
        return None
    distances = [value for value in list_last(file, base) if value is not None]
    if len(distances) < 2 * seeds:
        return None
    t = estimates.t_quantile(0.5 + CONFIDENCE / 2, 2 * seeds - 1)
    return t * statistics.stdev(distances) * math.sqrt(2 / seeds)


def derive_target(file: File) -> float | None:
    """Return the distance to reach: the user's, or what the baseline reaches, its margin included."""
    margin = derive_margin(file)
    if file.options.target is not None or margin is None:
        return file.options.target
    base = list_last(file, next(iter(list_curves(file))))
    return statistics.fmean(value for value in base if value is not None) + margin


def judge_rung(
    base: Sequence[float], other: Sequence[float], margin: float, rungs: int = 1
) -> tuple[float, float, str]:
    """Return the 90% interval of a rung's mean distance less the baseline's, and the answer.

    "as good" if the interval lies within the margin on both sides. Else "worse" or "better" if a wider interval does
    not hold 0: with its level, any of so many `rungs` that trains alike is called worse with at most 5% (Bonferroni).
    """
    near, far = (estimates.welch_interval(other, base, 1 - (1 - TESTS) / k) for k in (1, rungs))
    assert near is not None and far is not None  # both have two seeds or more
    difference, _, _, half = near
    low, high = difference - half, difference + half
    if -margin <= low and high <= margin:
        return low, high, "as good"
    if abs(difference) > far[3]:
        return low, high, "worse" if difference > 0 else "better"
    return low, high, f"not decided with {len(other)} seeds"


def find_seconds(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return the seconds from which a curve of (seconds, distance) stays at or below the target, None if it does not.

    Between points the curve is a straight line; a first point below the target counts with its own seconds.
    """
    above = [number for number, (_, distance) in enumerate(points) if distance > target]
    if not points or (above and above[-1] == len(points) - 1):
        return None
    if not above:
        return points[0][0]
    (before, far), (after, near) = points[above[-1]], points[above[-1] + 1]
    return before + (after - before) * (far - target) / (far - near)


def derive_rungs(file: File) -> list[Rung]:
    """Return every rung, judged where all its trainings are there."""
    margin, target, is_timed = derive_margin(file), derive_target(file), file.options.jobs == 1
    trained = [case.rung for case in file.cases.values() if case.by is None]
    planned = {rung: trained.count(rung) for rung in list_curves(file)}
    rungs: list[Rung] = []
    for name, runs in list_curves(file).items():
        last = list_last(file, name)
        known = [value for value in last if value is not None]
        rung = Rung(name=name, distances=last, mean=statistics.fmean(known) if known else None)
        if len(known) < len(last):
            rung = structs.replace(rung, verdict="broke")
        elif rungs and margin is not None and len(last) == planned[name]:
            base = [value for value in rungs[0].distances if value is not None]
            low, high, verdict = judge_rung(base, known, margin, len(planned) - 1)
            rung = structs.replace(rung, low=low, high=high, verdict=verdict)
        curves = [each.points for each in runs.values() if each.points]
        if is_timed and curves:
            step_ms = statistics.median(1000 * points[-1].seconds / points[-1].step for points in curves)
            reached: list[float] = []
            for points in curves if target is not None else ():
                seconds = find_seconds(
                    [(point.seconds, pick_distance(file, point)) for point in points], target
                )
                reached.append(math.inf if seconds is None else seconds)
            middle = statistics.median(reached) if reached else math.inf
            to_target = middle if math.isfinite(middle) else None
            first = rungs[0] if rungs else None
            rung = structs.replace(
                rung, step_ms=step_ms, to_target=to_target, speedup=first and first.step_ms and first.step_ms / step_ms,
                quality_speedup=first and first.to_target and to_target and first.to_target / to_target,
            )  # fmt: skip
        rungs.append(rung)
    return rungs


# --- planted bugs -----------------------------------------------------------------------------------------------------

CLEAN = "clean"


def plan_bugs(job: Job) -> dict[str, Case]:
    """Return the inspections of the highest rung and of each bug in it, then trainings: twice as many without a bug."""
    from ladder.machine import system
    from ladder.plan import beside, catalog

    own = job.options
    every = (*INSPECTIONS, TRAINING)
    by = every if own.by is None else options.split_names(own.by)
    if not by or (wrong := [each for each in by if each not in every]):
        raise UserError(f"--by {wrong[0] if by else ''}: give some of {', '.join(every)}")
    recipe = [*capture_untimed(job, frame.plan_rungs(job, own.ladder, ())).values()][-1]
    able, entries = system.list_capabilities(job.device), beside.load_beside(BUGS).entries
    chosen = catalog.choose_names(
        [*entries], options.split_names(own.rungs) if own.rungs else None, "the bugs"
    )
    recipes = {CLEAN: recipe} | {
        name: {**recipe, **entry.change}
        for name, entry in entries.items() if name in chosen and not catalog.find_missing(entry.needs, able)
    }  # fmt: skip
    planted = {name: None if name == CLEAN else name for name in recipes}
    cases = {
        f"{name}, {each}": Case(rung=name, recipe=fields, seed=0, by=each, bug=planted[name])  # type: ignore[arg-type]
        for name, fields in recipes.items() for each in INSPECTIONS if each in by
    }  # fmt: skip
    for name, fields in recipes.items() if TRAINING in by else ():
        for seed in range(own.seeds * (2 if name == CLEAN else 1)):
            cases[f"{name}, seed {seed}"] = Case(rung=name, recipe=fields, seed=seed, bug=planted[name])
    return cases


def inspect_bug(session: Session, case: Case) -> Observed:
    """Return what parity or the receipts find in a step with a bug; a step that breaks is a finding, too."""
    from ladder import receipts
    from ladder.engine.pool import WorkerFailure

    is_parity = case.by == "parity"
    try:
        with session.prepare_worker(
            case.recipe, case.seed, keep_gradients=is_parity, variant=case.variant
        ) as worker:
            if is_parity:
                finding = worker.call("parity")["reason"]
            else:
                worker.call("profile", part="load")
                worker.call("trace")
                finding = receipts.reason(worker.call("receipts")["receipts"])
    except WorkerFailure as failure:
        reason = text.make_display(failure.reason)
        if failure.status not in ("failed", "invalid"):
            return Observed(status=failure.status, reason=reason)  # type: ignore[arg-type]
        finding = f"broke: {reason}"
    return Observed(finding=finding)


def derive_bugs(file: File) -> list[Bug]:
    """Return what finds each bug, the step without any first; none of a file without bugs."""
    if not file.options.bugs:
        return []
    verdicts = {rung.name: rung.verdict for rung in derive_rungs(file)}
    bugs: dict[str, Bug] = {}
    for key, case in file.cases.items():
        bug = bugs.setdefault(case.rung, Bug(name=case.rung, training=verdicts.get(case.rung)))
        if (each := file.observed.get(key)) is not None and each.status in ("ok", "failed"):
            more = {case.by: each.finding} if case.by else {}
            bug = structs.replace(bug, tried=[*dict.fromkeys((*bug.tried, case.by or TRAINING))], **more)
        bugs[case.rung] = bug
    return [*bugs.values()]


def join_bugs(one: Bug, other: Bug) -> Bug:
    """Return what two files know of a bug: a method's finding is that of the file that tried it."""
    more = {by: getattr(other, by) for by in other.tried}
    return structs.replace(one, tried=[*dict.fromkeys((*one.tried, *other.tried))], **more)


def describe_answer(file: File) -> str:
    """Return the answer of a file as a clause: each rung's, at which size, after how many images."""
    work = file.workload or {}
    answers = ", ".join(f"`{rung.name}` {rung.verdict}" for rung in derive_rungs(file)[1:])
    images = (
        f"{int(work['batch']) * file.options.steps:,} images at {work['resolution']}x{work['resolution']}"
    )
    return f"{answers} after {images}, {file.options.seeds} seeds"


def summarize_bugs(file: File) -> list[str]:
    """Return the title and the sentences above the table of bugs."""
    bugs = [bug for bug in derive_bugs(file) if bug.name != CLEAN]
    return [
        f"What finds a bug? {file.ladder} on {file.machine.gpu or file.machine.cpu}",
        f"Workload {frame.describe_workload(file)}: {sum(bug.is_found for bug in bugs)} of {len(bugs)} planted bugs are"
        f" found, {sum(bug.parity is not None for bug in bugs)} by parity.",
        frame.describe_software(file),
    ]


def tabulate_bugs(bugs: Sequence[Bug]) -> Table:
    """Return what finds each bug, and the first finding in words."""
    from ladder.plan import beside

    plan = beside.load_beside(BUGS)
    titles = {CLEAN: plan.first_title} | {name: entry.title for name, entry in plan.entries.items()}
    rows = []
    for bug in bugs:
        parity, receipts = (
            "yes" if getattr(bug, by) else "no" if by in bug.tried else None for by in INSPECTIONS
        )
        rows.append([titles[bug.name], parity, receipts, bug.training, bug.parity or bug.receipts])
    columns = [
        Column("bug"),
        Column("parity"),
        Column("receipts"),
        Column("training"),
        Column("finding", priority=3),
    ]
    return Table(columns, rows)


# --- the chart: every training's distance over the images it has seen, the baseline's in grey ------------------------


def _draw_figure(file: File) -> Any:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogFormatter

    figure = Figure(figsize=(9.5, 5.2))
    axes = figure.add_axes((0.09, 0.12, 0.88, 0.66))
    batch, colors = int((file.workload or {})["batch"]), (LIGHT.muted, LIGHT.article, LIGHT.busy, LIGHT.ink)
    verdicts = {rung.name: rung.verdict for rung in derive_rungs(file)}
    for number, (name, runs) in enumerate(list_curves(file).items()):
        color = colors[min(number, 3)]
        for each in runs.values():
            curve = [(point.step * batch, pick_distance(file, point)) for point in each.points]
            axes.plot(*zip(*curve, strict=True), color=color, linewidth=0.9, alpha=0.7) if curve else None
        answer = f": {verdicts[name]}" if verdicts[name] else ""
        axes.plot([], [], color=color, label=f"{name}{answer}")
    for value, label in ((derive_target(file), "target"), (derive_floor(file), "half of the data")):
        if value:
            axes.axhline(value, color=LIGHT.muted, linewidth=0.9, linestyle=":")
            axes.text(
                1, value, label, transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8
            )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())  # the default writes powers as formulas
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axes.set_xlabel("images", color=LIGHT.muted)
    axes.set_ylabel(MEASURES[pick_measure(file)], color=LIGHT.muted)
    drawing.clear_axes(axes)
    figure.legend(loc="upper left", bbox_to_anchor=(0.012, 0.92), ncols=4, frameon=False)
    under = f"{frame.describe_workload(file)}; a line for each seed, PyTorch {file.machine.torch}. Lower is better."
    frame.draw_heading(STUDY, file, figure, "does it train as well?", under)
    return figure
