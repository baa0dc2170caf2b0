"""`ladder noise`: the smallest change that this machine can show, by two copies of one rung.

The copies run as in `ladder run`: three generations first, whose duration tells how many more fit into the minutes.
Parity and receipts are left out: two copies of one program are compared, whatever it computes. The copies differ by
nothing, so their difference is noise. What limits each clock follows from what was seen meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs

from ladder.core import records as r
from ladder.core import text as texts
from ladder.core.job import Job, RunPlan
from ladder.core.locks import device_lock
from ladder.core.options import declare_option
from ladder.core.records import write_whole
from ladder.core.text import format_difference, format_percent
from ladder.machine import neighbours
from ladder.results import derive, judging, loading, record, sources
from ladder.results.file import Header, KernelProfile, Round, Status
from ladder.results.run import Choice, Ladder, Noise, Result, Run, Rung, RunGpu, Twin
from ladder.show.table import Column, Table
from ladder.stats import answers, estimates, rounds_budget
from ladder.studies import frame
from ladder.studies.base import Session, Study, StudyFile

FIRST = rounds_budget.LEAST_ROUNDS
MOST = 100  # generations, which the engine allows
CYCLES = 3  # timed in each process
WALL, GPU = "wall", "gpu"
NAMES = {WALL: "step time", GPU: "GPU time"}
CLOCKS, NEIGHBOURS, HOST, NOTHING = "clocks", "neighbours", "host", "nothing that was seen"
UNSTEADY = 0.005  # of the SM clock between visits, from which on it is named as the limit
TWICE = 2.0  # wall time that scatters so many times as GPU time is limited by the host
RUNG = declare_option("The rung, with all below it.", argument=True, metavar="[RUNG]")
LOCK = declare_option("Lock the GPU's SM clock meanwhile, if this user may.")
MINUTES = declare_option("Time to measure; three generations at least.")


class Options(frame.Options):
    """The options of `ladder noise`."""

    rung: Annotated[r.Name | None, RUNG] = None
    ladder: frame.Ladder = "article"
    minutes: Annotated[float, Meta(gt=0, le=1440), MINUTES] = 2.0
    lock_clocks: Annotated[bool, LOCK] = False
    seed: frame.Seed = 0


class Case(frame.RungCase):
    """A rung of a ladder with its recipe, as a run names both."""

    ladder: r.Name
    ladder_title: r.Text
    title: r.Text
    article_ms: r.Ms | None = None


class Clocks(r.Record):
    """Whether a locked clock was asked for, the clock that was locked in MHz, and why none was."""

    asked: bool
    locked_mhz: r.Clock | None = None
    reason: r.Line | None = None


class Copy(r.Record):
    """One of the two copies, with a round for each generation."""

    status: Status
    reason: r.Text | None = None
    settings: r.Fields | None = None
    rounds: Annotated[list[Round], r.size_between(1000)] = []


class Observed(frame.Observation, kw_only=True):
    """Both copies, and with which tiles their kernels ran. `seconds` is how long the run took."""

    clocks: Clocks
    rung: Copy
    twin: Copy | None = None
    planned: r.Count = FIRST  # generations
    cycles: r.Count = CYCLES
    seconds: r.Seconds = 0.0
    gpu: RunGpu | None = None
    profile: KernelProfile | None = None
    choices: Annotated[list[Choice], r.size_between(1000)] | None = None

    @property
    def rounds(self) -> list[Round]:
        """Return the rounds of both copies."""
        return [*self.rung.rounds, *(self.twin.rounds if self.twin else ())]

    def list_times(self) -> Iterable[float]:
        return (ms for each in self.rounds for ms in each.samples_ms)


class Sight(r.Record):
    """The changes that one clock can show. All are differences of logarithms: 0.01 is 1%."""

    resolution: float | None  # a change from here on is seen, as a rule
    floor: float | None  # two copies of one program differ by less
    between: float | None  # scatter of processes, one sd
    inside: float | None  # scatter of the cycles of a process, one sd
    generations: int


class Limit(r.Record):
    """The limit of one clock, and the numbers that say so."""

    clock: str
    by: str
    sentence: str


class Derived(r.Record, kw_only=True):
    """What `ladder report --json` prints beside the header."""

    rung: str
    protocol: r.Fields
    clocks: Clocks | None
    run: Result
    wall: Sight
    gpu_time: Sight | None
    limits: list[Limit]


File = StudyFile[Options, Case, Observed]


class NoiseStudy(Study[Options, Case, Observed]):
    """Two copies of one rung in one case."""

    name, kind, folder = "noise", "noise", "noise"
    help = """Measure the smallest change that this machine can show.

    Two copies of RUNG (default: the highest that runs here) run as in `ladder run`. They differ by nothing, so their
    difference is noise. The table says from which difference on a change is seen, in the step's time and in GPU time.
    The lines under it say whether clocks, neighbours or the host set that limit.

    Exit status: 0 if done. 1 if there is no number. 2 if the request is impossible. 130 if interrupted.
    """
    examples = """
ladder noise                              the article's highest rung here, two minutes
ladder noise baseline -w article-b32      an eager rung: the host sets its pace
ladder noise --lock-clocks                with a locked clock, where that is permitted
"""

    def plan_cases(self, job: Job) -> dict[str, Case]:
        from stylegan_lite.config import Recipe

        options: Options = job.options
        recipes = frame.plan_rungs(job, options.ladder, [options.rung] if options.rung else [])
        rung = options.rung or [*recipes][-1]
        ladder, planned = plan_rung(job, rung)
        case = Case(
            recipe=Recipe.from_dict(recipes[rung]).to_dict(), ladder=ladder.name, ladder_title=ladder.title,
            title=planned[-1].title, article_ms=planned[-1].article_ms,
        )  # fmt: skip
        return {rung: case}

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        return f"{next(iter(cases), '')} twice on {job.name}, {job.device}: about {job.options.minutes:g} min"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.core.progress import ladder_progress
        from ladder.core.stopping import stop_on_sigterm
        from ladder.machine import nvml, system

        job, is_locked = session.job, session.job.options.lock_clocks
        uuid = system.probe_gpu().get("uuid") if job.device == "cuda" else None
        with contextlib.ExitStack() as stack:
            on_event = stack.enter_context(ladder_progress(f"{key} twice on {job.device}", job.quiet))
            if is_locked:  # another run that measures now keeps its clock
                with device_lock(system.device_key(job.device), lambda: on_event({"event": "waiting"})):
                    pass
            stack.enter_context(stop_on_sigterm())
            lock = stack.enter_context(nvml.lock_clock(uuid, is_locked))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            run = run_twice(job, key, folder, on_event)
        return read_run(run, Clocks(is_locked, lock.mhz, lock.reason and texts.make_display(lock.reason)))

    def derive(self, file: File) -> Derived:
        run, key = judging.derive_result(restore_run(file)), next(iter(file.cases))
        each = file.observed.get(key)
        walls = _list_cycles(run, lambda each: each.samples_ms)
        wall, gpu = _derive_sight(run.noise or {}, derive.wall_values(run), walls), None
        if each and any(one.profiled for one in each.rounds):
            profiled = _list_cycles(
                run, lambda one: [cycle.gpu_ms for cycle in one.profiled or () if not one.gpu_void]
            )
            gpu = _derive_sight(run.gpu_noise or {}, derive.gpu_values(run), profiled)
        notes = frame.list_cautions(self, file)
        protocol = {"minutes": file.options.minutes, "seed": file.options.seed, "notes": notes}
        return Derived(
            rung=key, protocol=protocol, clocks=each.clocks if each else None, run=run, wall=wall, gpu_time=gpu,
            limits=list_limits(run, each.rounds if each else [], wall, gpu),
        )  # fmt: skip

    def list_problems(self, file: File) -> Iterable[str]:
        if len(file.cases) != 1:
            yield "cases: not one rung alone"
            return
        for key, each in file.observed.items():
            for one in each.rounds:
                if any(len(one.samples_ms) != len(other) for other in (one.passes, one.event_ms) if other):
                    yield f"{key}: passes or events are not those of its samples"
            if problem := loading.find_problem(restore_run(file)):
                yield f"{key}: {problem}"

    def list_cautions(self, file: File) -> list[str]:
        rounds = [one for each in file.observed.values() for one in each.rounds]
        gpu = next((each.gpu for each in file.observed.values() if each.gpu), None)
        lines = neighbours.list_marks(map(write_whole, rounds))
        lines += [note for note in (gpu.notes or () if gpu else ()) if note not in lines]
        copies = [copy for each in file.observed.values() for copy in (each.rung, each.twin) if copy]
        paired = set.intersection(*({one.round for one in copy.rounds} for copy in copies)) if copies else ()
        few = len(copies) < 2 or len(paired) < FIRST
        return [*lines, *(["fewer than three generations: nothing is known yet"] if few else [])]

    def summarize(self, file: File) -> list[str]:
        derived = self.derive(file)
        sights = {"the step's time": derived.wall, "GPU time": derived.gpu_time}
        known = [
            f"{format_difference(each.resolution)} in {name}"
            for name, each in sights.items()
            if each and each.resolution
        ]
        failed = next(
            (each.reason for each in derived.run.rungs if each.reason), "fewer than three generations"
        )
        seen = f"a change is seen here from {' and from '.join(known)}"
        return [
            f"The noise of {file.machine.gpu or file.machine.cpu}",
            f"{derived.rung}: {seen if known else f'nothing is known yet: {failed}'}",
            f"Workload {(file.workload or {}).get('name')}, two copies of one rung in each generation,"
            f" {frame.describe_software(file)}",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        derived = self.derive(file)
        notes = [f"{NAMES[each.clock]}, limited by {each.sentence}" for each in derived.limits]
        if derived.clocks and derived.clocks.asked:
            mhz, why = derived.clocks.locked_mhz, derived.clocks.reason
            notes.append(
                f"the SM clock was locked at {mhz:.0f} MHz" if mhz else f"the clock was not locked: {why}"
            )
        columns = [
            Column("clock"), Column("a change is seen from", "difference"), Column("noise floor", "difference", 1),
            Column("processes scatter", "percent", 2), Column("cycles scatter", "percent", 3),
            Column("generations", "count", 4),
        ]  # fmt: skip
        pairs = zip(NAMES.values(), (derived.wall, derived.gpu_time), strict=True)
        yield Table(columns, [[name, *structs.astuple(sight)] for name, sight in pairs if sight], notes=notes)

    def name_file(self, file: File) -> list[str]:
        return [*super().name_file(file), next(iter(file.cases), "")]


STUDY = NoiseStudy()


# --- the run ----------------------------------------------------------------------------------------------------------


def fit_generations(minutes: float, spent_s: float) -> int:
    """Return the generations that fit into the minutes, if the first three took so many seconds."""
    more = int((60 * minutes - spent_s) // (spent_s / FIRST)) if spent_s > 0 else 0
    return min(MOST, FIRST + max(0, more))


def plan_rung(job: Job, rung: str) -> tuple[Any, list[Any]]:
    """Return the ladder of the job, and the plan of this rung alone."""
    from ladder.machine import system
    from ladder.plan import catalog, modes, needs

    ladder = catalog.load_ladder(job.options.ladder)
    able = needs.join_capabilities(system.list_capabilities(job.device), job.workload)
    return ladder, modes.plan_run(modes.CUMULATIVE, ladder, able, [rung])


def run_twice(job: Job, rung: str, folder: Path, on_event: Callable[[Any], None]) -> Run:
    """Return the run of a rung and its twin: three generations, and as many more as fit."""
    from ladder.engine import run as engine
    from ladder.results import identity

    ladder, planned = plan_rung(job, rung)
    path: list[Path] = []

    def follow(event: dict[str, Any]) -> None:
        path[:] = [Path(event["path"])] if "path" in event else path
        on_event(event)

    plan = RunPlan(
        ladder=ladder, planned=planned, rounds=FIRST, cycles=CYCLES, seed=job.options.seed,
        images=identity.of_images(str(job.workload["data"])), inspect=False,
    )  # fmt: skip
    first = dataclasses.replace(job, options=plan, out=folder, resume=None, minutes=None)
    begin = time.monotonic()
    run = engine.run_ladder(first, follow)
    rounds = fit_generations(job.options.minutes, time.monotonic() - begin)
    if judging.derive_result(run).complete and rounds > FIRST and run.rungs[0].status == "ok":
        more = dataclasses.replace(plan, rounds=rounds)
        run = engine.run_ladder(dataclasses.replace(first, options=more, resume=path[0]), follow)
    return run


def read_run(run: Run, clocks: Clocks) -> Observed:
    """Return what was observed in a run of one rung and its twin."""
    rung = run.rungs[0]
    copies = [Copy(each.status, each.reason, each.settings, each.rounds) for each in (rung, *run.twins)]  # type: ignore[attr-defined]
    return Observed(
        status=rung.status, reason=rung.reason, stopped=None if judging.derive_result(run).complete else True,
        clocks=clocks, rung=copies[0], twin=copies[1] if len(copies) > 1 else None, planned=run.protocol.rounds,
        cycles=run.protocol.cycles, seconds=run.seconds, gpu=run.gpu, profile=rung.profile, choices=run.choices,
    )  # fmt: skip


def restore_run(file: File) -> Run:
    """Return the run of both copies before anything is derived."""
    key, case = next(iter(file.cases.items()))
    header = {name: getattr(file, name) for name in Header.__struct_fields__} | {"kind": "ladder"}
    plan = record.plan_rounds(FIRST, CYCLES, file.options.seed)
    rung = Rung(name=key, title=case.title, recipe=case.recipe, article_ms=case.article_ms)
    run = Run(**header, ladder=Ladder(case.ladder, case.ladder_title, [key]), protocol=plan, rungs=[rung])
    if (each := file.observed.get(key)) is None:
        return run
    twin = Twin(name=key + judging.TWIN, of=key, recipe=case.recipe)
    return structs.replace(
        run, seconds=each.seconds, protocol=structs.replace(plan, rounds=each.planned, cycles=each.cycles),
        rungs=[structs.replace(rung, profile=each.profile, **structs.asdict(each.rung))],
        twins=[structs.replace(twin, **structs.asdict(each.twin))] if each.twin else [],
        gpu=each.gpu, choices=each.choices,
    )  # fmt: skip


# --- what two copies say ----------------------------------------------------------------------------------------------


Cycles = list[dict[int, list[float]]]  # logarithms of the cycles of each copy, by generation


def _list_cycles(run: Result, of: Callable[[Any], list[float]]) -> Cycles:
    copies = sources.records(run)
    return [{each.round: [*map(math.log, of(each))] for each in derive.counted(copy)} for copy in copies]


def _derive_sight(noise: Mapping[str, Noise], values: derive.Values, cycles: Cycles) -> Sight:
    """Return what a clock can show.

    Few generations may agree by chance. So the scatter of the cycles inside them is a bound, too.
    """
    known = next(iter(noise.values()), None)
    floor, resolution = (known.floor, known.resolution or None) if known else (None, None)
    bound = _bound_inside(cycles)
    if floor is not None and resolution is not None and bound is not None:
        resolution = max(resolution, max(answers.LEAST_DIFFERENCE, bound) + bound)
        floor = max(floor, bound)
    apart: list[float] = []
    if len(values) == 2:
        one, other = values.values()
        apart = [math.log(one[each] / other[each]) for each in sorted(one.keys() & other.keys())]
    inside = [statistics.variance(each) for copy in cycles for each in copy.values() if len(each) > 1]
    return Sight(
        resolution=resolution,
        floor=floor,
        between=_round(statistics.stdev(apart) / math.sqrt(2)) if len(apart) > 1 else None,
        inside=_round(math.sqrt(statistics.mean(inside))) if inside else None,
        generations=len(apart),
    )


def _bound_inside(cycles: Cycles) -> float | None:
    """Return the 95% bound on the difference of both copies that the scatter of their cycles alone leaves.

    Cycles of a generation are paired in order, so the effect of a pass cancels. Returns None without two pairs.
    """
    if len(cycles) != 2:
        return None
    errors: list[tuple[float, int]] = []  # variance of a generation's mean difference, and degrees of freedom
    for at in sorted(cycles[0].keys() & cycles[1].keys()):
        apart = [one - other for one, other in zip(cycles[0][at], cycles[1][at], strict=False)]
        if len(apart) > 1:
            errors.append((statistics.variance(apart) / len(apart), len(apart) - 1))
    if not errors:
        return None
    freedom = sum(each for _, each in errors)
    pooled = sum(variance * each for variance, each in errors) / freedom
    return estimates.t_quantile(0.975, freedom) * math.sqrt(pooled / len(errors))


def _round(value: float) -> float:
    return float(f"{value:.6g}")


def list_limits(run: Result, rounds: list[Round], wall: Sight, gpu: Sight | None) -> list[Limit]:
    """Return what limits each clock that has a scatter: the step's time first, then GPU time."""
    limits = []
    if gpu is not None and gpu.between is not None:
        known = [each.gpu for each in rounds if each.gpu and each.gpu.state == "known"]
        shared = [each for each in known if each.tenancy == "shared"]
        clocks = [each.sm_mhz for each in known if each.sm_mhz]
        by, facts = NOTHING, "NVML tells no clock here"
        if shared:
            by, facts = NEIGHBOURS, f"the GPU was shared in {len(shared)} of {len(known)} processes"
        elif clocks:
            why = sorted({reason for each in known for reason in each.reasons or () if reason != "idle"})
            by = CLOCKS if max(clocks) / min(clocks) - 1 >= UNSTEADY else NOTHING
            facts = f"the SM clock was {min(clocks):.0f} to {max(clocks):.0f} MHz"
            facts += f" ({', '.join(why)})" if why else ""
        scatter = format_percent(gpu.between)
        limits.append(Limit(GPU, by, f"{by}: GPU time of processes scatters by {scatter}; {facts}"))
    if wall.between is None:
        return limits
    by, line = HOST, f"step times of processes scatter by {format_percent(wall.between)}"
    others = neighbours.average_rounds(map(write_whole, rounds))
    waits = next((each.host_bound for each in run.rungs if each.host_bound is not None), None)
    if others is not None and others > neighbours.MOST:
        by, line = NEIGHBOURS, f"{line}; others took {format_percent(others)} of the CPU"
    elif gpu is not None and gpu.between is not None and wall.between <= TWICE * gpu.between:
        by, line = limits[0].by, f"{line}: the GPU's own scatter is most of it"
    elif waits is not None:
        line += f"; the GPU waits in {format_percent(waits)} of the step"
    return [Limit(WALL, by, f"{by}: {line}"), *limits]
