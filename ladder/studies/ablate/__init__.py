"""`ladder ablate`: what each rung is worth, whatever the order of the ladder, and which rungs need each other.

A ladder of at most seven changes is measured in every subset that `Recipe` and `rests_on` allow. A longer one is
measured at its ends, without each rung, and without each two of the five rungs that save most.

A process for each subset would take an hour. One process takes seconds a subset, and GPU time hardly depends on the
process. How much it does is measured by repeating some subsets in processes of their own. The one process is replaced
after a failure, and after `ladder.engine.looks.MOST` subsets.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.core.job import Job
from ladder.core.records import Fields, write_whole
from ladder.results import plausible
from ladder.results.store import FAILED_PARITY
from ladder.show.table import Table
from ladder.stats.shapley import NOTHING, Subset
from ladder.studies import frame
from ladder.studies.ablate import report
from ladder.studies.ablate.record import (
    AGAIN,
    GPU,
    LEAST_PAIRS,
    MOST_RUNGS,
    PARITY,
    WALL,
    Ablation,
    Beside,
    Case,
    Figures,
    File,
    Observed,
    Options,
    Proof,
    Protocol,
    list_rows,
    time_ms,
)
from ladder.studies.frame import Session, Study

if TYPE_CHECKING:
    from ladder.engine.looks import Onlooker

RUNS = ROOT / "results" / "ladder"
LARGEST = 5  # rungs of a longer ladder that are left out in pairs
TENTH, LEAST_AGAIN = 10, 3  # of the subsets, and how many at least, are measured again in fresh processes


# --- the plan ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The rungs that change something and run here, in the order of the ladder, with their changes."""

    workload: Fields
    device: str
    seed: int
    base: Fields  # the change of the lowest rung, which is in every subset
    changes: dict[str, Fields]
    skipped: dict[str, str]  # rungs that cannot run here, and why

    def lay(self, subset: Iterable[str]) -> Fields:
        """Return the changed fields of a subset's recipe, laid in the order of the ladder, as `climb` does."""
        laid = dict(self.base)
        for name, change in self.changes.items():
            laid |= change if name in subset else {}
        return laid

    def make_recipe(self, subset: Iterable[str]) -> Fields:
        """Return all fields of a subset's recipe. Raises ConfigError if it is impossible."""
        from stylegan_lite.config import Recipe

        return Recipe.from_dict(self.lay(subset), where="it").to_dict()

    def is_allowed(self, subset: Subset) -> bool:
        """Return whether the recipe of a subset is possible, and has all that each rung in it rests on."""
        from ladder.plan import catalog
        from stylegan_lite.config import ConfigError, Recipe, Workload

        for name in subset:
            needed = catalog.load_rung(name).rests_on
            if any(each in self.changes and each not in subset for each in needed):
                return False
        try:
            recipe = Recipe.from_dict(self.make_recipe(subset))
            recipe.refuse_on(self.device)
            recipe.refuse_for(Workload.from_dict(self.workload))
        except ConfigError:
            return False
        return True

    def list_subsets(self, savings: Mapping[str, float] | None = None) -> dict[Subset, tuple[str, ...]]:
        """Return the subsets to measure, each with the rungs that were to be left out of a longer ladder.

        The ends come first, then the others by chance, so that drift is noise.

        Args:
            savings: what each rung of a longer ladder saves when it alone is left out; None while that is unknown.
        """
        found: dict[Subset, tuple[str, ...]] = {frozenset(self.changes): (), NOTHING: ()}
        if len(self.changes) > MOST_RUNGS:
            return found | {
                subset: out for subset, out in self._leave_out(savings).items() if subset not in found
            }
        inner = [
            frozenset(names)
            for number in range(1, len(self.changes))
            for names in itertools.combinations(self.changes, number)
        ]
        rest = [subset for subset in inner if self.is_allowed(subset)]
        random.Random(self.seed).shuffle(rest)
        return found | dict.fromkeys(rest, ())

    def _leave_out(self, savings: Mapping[str, float] | None) -> dict[Subset, tuple[str, ...]]:
        """Return the subsets of a longer ladder without one rung each, then without two.

        A rung whose change the others contain is not there, because nothing changes without it.
        """
        from ladder.plan import modes

        names: list[tuple[str, ...]] = [(name,) for name in self.changes]
        random.Random(self.seed).shuffle(names)
        largest = sorted(savings or {}, key=lambda name: -(savings or {})[name])[:LARGEST]
        names += itertools.combinations(largest, 2)
        whole, found = self.make_recipe(self.changes), {}
        for out in names:
            left = self.changes
            for name in out:  # with those that extend or rest on it
                left = modes.without(name, left) if name in left else left
            if self.make_recipe(left) != whole:
                found.setdefault(frozenset(left), out)
        return found


def make_plan(job: Job) -> Plan:
    """Return the plan for a job's ladder. Raises UserError if fewer than two of its rungs can run here."""
    from ladder.machine import system
    from ladder.plan import catalog, needs

    ladder = catalog.load_ladder(job.options.ladder)
    able = needs.possible(system.capabilities(job.device), job.workload)
    climbed = catalog.climb(replace(ladder, rival=None), able)
    base, *rest = [rung for rung in climbed if rung.recipe is not None]
    changes = {rung.name: catalog.load_rung(rung.name).change for rung in rest}
    if len(changes) < 2:
        raise UserError(f"ladder {ladder.name}: fewer than two of its rungs run here: nothing to take apart")
    skipped = {rung.name: texts.display(rung.skipped) for rung in climbed if rung.skipped is not None}
    first = catalog.load_rung(base.name).change
    return Plan(job.workload | {"data": None}, job.device, job.options.seed, first, changes, skipped)


def pick_again(measured: Iterable[Subset], seed: int) -> list[Subset]:
    """Return the subsets to repeat in fresh processes: a tenth of those that were measured, three at least."""
    names = sorted(measured, key=lambda subset: (len(subset), sorted(subset)))
    number = max(LEAST_AGAIN, -(-len(names) // TENTH))
    return random.Random(seed + 1).sample(names, min(number, len(names)))


def name_subset(case: Case, whole: Sequence[str]) -> str:
    """Return the key of a subset's case."""
    if case.out:
        return f"without {' and '.join(case.out)}"
    if len(case.rungs) == len(whole):
        return "everything"
    return "+".join(case.rungs) or "nothing"


# --- the study --------------------------------------------------------------------------------------------------------


class Ablate(Study[Options, Case, Observed]):
    """Subsets of a ladder's rungs, one after the other in one process."""

    name, kind, folder = "ablate", "ablation", "ablation"
    help = """Say what each rung is worth in any order, and in pairs.

    Every subset of the rungs that is possible runs in one process: each kind of step of two cycles. Their GPU times
    give each rung's mean gain over all orders and the interaction of each pair. Some subsets are repeated in fresh
    processes for the intervals. Solo and leave-one-out runs of this machine stand beside them. A ladder of more than
    seven changes is measured without each rung, and without each two of the five that save most. On a CPU it is wall
    time.

    Exit status: 0 if every subset has a time. 1 if one has none, or if the ladder failed parity. 2 if the request is
    impossible. 130 if it was interrupted or the time was over.
    """
    examples = """
ladder ablate                             the article's rungs in every possible subset; at most 20 minutes on a GPU
ladder ablate -w article-b32 --budget 40
ladder ablate --ladder full               all rungs but one, and all but two of the five that save most
ladder ablate --resume results/ablation/MACHINE-article-article-partial.json
"""
    gpu_minutes, case_seconds = 20.0, {"cuda": 7.0, "cpu": 5.0}
    answers = ("ok",)
    uses_images = False

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        """Return the parity and all subsets; of a longer ladder pairs follow from what was seen, then the repeats."""
        cases, observed = (dict(file.cases), file.observed) if file else ({}, {})
        if (parity := observed.get(PARITY)) is not None and parity.status != "ok":
            return {PARITY: cases[PARITY]}

        def add(savings: Mapping[str, float] | None) -> None:
            plan = make_plan(job)
            rungs = list(plan.changes)
            cases[PARITY] = Case(kind="parity", rungs=rungs)
            for subset, out in plan.list_subsets(savings).items():
                case = Case(kind="once", rungs=[name for name in rungs if name in subset], out=list(out))
                cases[name_subset(case, rungs)] = case

        if cases.keys() <= {PARITY}:
            add(None)
        if file is None or not cases.keys() <= observed.keys():
            return cases
        figures = Figures(file)
        if not figures.is_whole and not any(len(case.out) == 2 for case in cases.values()):
            gains = {rung: figures.derive_worth(rung).left_out for rung in figures.rungs}
            add({rung: gain for rung, gain in gains.items() if gain is not None})
        if cases.keys() <= observed.keys() and not any(case.kind == "again" for case in cases.values()):
            keys = {frozenset(case.rungs): key for key, case in cases.items() if case.kind == "once"}
            for subset in pick_again(figures.times, job.options.seed):
                case = cases[keys[subset]]
                cases[keys[subset] + AGAIN] = Case(kind="again", rungs=case.rungs, out=case.out)
        return cases

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.engine.looks import Onlooker, Task

        plan = session.share(_open_plan)
        if case.kind == "parity":
            return _prove(session, plan)
        task = Task(plan.workload, plan.make_recipe(case.rungs), plan.device, plan.seed)
        onlooker = session.share(_open_onlooker)
        if case.kind == "once":
            looked = [each for name, each in session.file.observed.items() if name != PARITY]
            if len(looked) == 2 and not any(each.look for each in looked):
                reason = looked[0].reason  # no gain would follow from the other subsets
                raise UserError(f"neither the whole ladder nor its base has a time: {reason}")
            return Observed(look=onlooker.look(task, session.visits))
        onlooker.close()  # its memory, too
        with contextlib.closing(Onlooker(session.pool)) as fresh:
            return Observed(look=fresh.look(task, session.visits))

    def describe(self, observation: Observed) -> str:
        look = observation.look
        return "" if look is None else f"{texts.ms(time_ms(look, GPU if look.gpu_ms else WALL))} ms"

    def derive(self, file: File) -> Ablation:
        figures, parity = Figures(file), file.observed.get(PARITY)
        worth = [figures.derive_worth(rung) for rung in figures.rungs]
        proof = None
        if parity is not None and parity.reported_then is not None:
            proof = Proof(verdict=parity.reported_then, reason=parity.reason, earlier=parity.earlier)
        return Ablation(
            protocol=Protocol(
                ladder=file.ladder or file.options.ladder,
                rungs=figures.rungs,
                skipped=parity.skipped if parity else {},
                whole=figures.is_whole,
                clock=figures.clock,
                seed=file.options.seed,
                notes=frame.list_cautions(self, file),
            ),
            parity=proof,
            subsets=figures.rows,
            total=figures.derive_total(worth),
            worth=worth,
            pairs=figures.derive_pairs(),
            noise=figures.noise,
            beside=parity.beside if parity else [],
        )

    def list_problems(self, file: File) -> Iterable[str]:
        if PARITY not in file.cases:
            yield f"cases: {PARITY!r} is missing"
            return
        rungs, rows, clock = file.cases[PARITY].rungs, list_rows(file), Figures(file).clock
        sets = [frozenset(row.rungs) for row in rows]
        if (
            len({*sets}) < len(sets)
            or any(not each <= {*rungs} for each in sets)
            or len({*rungs}) < len(rungs)
        ):
            yield "cases: a subset is there twice, or has rungs that the ladder lacks"
        least = plausible.floor_ms(write_whole(file.machine), file.workload or {})
        for key, each in file.observed.items():
            times = (each.look.gpu_ms or each.look.wall_ms or []) if each.look else []
            if least and any(ms < least[0] for ms in times):
                yield f"{key}: faster than this machine can compute"
            if each.look and time_ms(each.look, clock) is None:
                yield f"{key}: no {clock} time"
            if key != PARITY and (each.status == "ok") != (each.look is not None):
                yield f"{key}: a time, but not the status ok, or the other way round"

    def list_cautions(self, file: File) -> list[str]:
        from ladder.engine import looks

        rows = [row for row in list_rows(file) if row.status == "ok"]
        both = [(row.once.kernels, row.again.kernels) for row in rows if row.once and row.again]
        lines = looks.marks(each.look for each in file.observed.values() if each.look)
        if others := sum(once != again for once, again in both):
            lines.append(
                f"{others} of {len(both)} subsets launched other numbers of kernels in a fresh process"
            )
        if len(both) < LEAST_PAIRS:
            lines.append("too few subsets repeated in fresh processes: no intervals")
        return lines

    def name_file(self, file: File) -> list[str]:
        return [*super().name_file(file), file.ladder or file.options.ladder]

    def summarize(self, file: File) -> list[str]:
        facts, work, ablation = file.machine, file.workload or {}, self.derive(file)
        return [
            f"What each rung is worth {report.describe_place(ablation)}: {facts.gpu or facts.cpu}",
            f"Workload {work['name']}: {work['resolution']}x{work['resolution']}, batch {work['batch']}, random"
            f" images; ladder {ablation.protocol.ladder}, {len(ablation.subsets)} subsets of {len(ablation.worth)}"
            f" rungs, {report.describe_clock(ablation)} of two cycles each in one process. PyTorch {facts.torch},"
            f" commit {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        ablation = self.derive(file)
        yield replace(report.make_table(ablation), notes=report.list_findings(ablation))
        for more in (report.make_pairs_table(ablation), report.make_beside_table(ablation)):
            if more.rows:
                yield more

    def draw(self, file: File, kind: str) -> bytes:
        return report.draw_chart(self.derive(file), file, kind)


STUDY = Ablate()


def _prove(session: Session, plan: Plan) -> Observed:
    """Compare the whole ladder with the FP64 reference, unless an inspection of the same code has done so."""
    from ladder.engine import inspection
    from ladder.engine.pool import WorkerFailure

    job = session.job
    observe = functools.partial(Observed, skipped=plan.skipped, beside=read_beside(job, plan))
    for images in (True, False):  # of `ladder run`, and none
        known = inspection.Cache(job.workload | {"data": images or None}, job.machine)
        if known.get(plan.lay(plan.changes)) is not None:
            return observe(reported_then="ok", earlier=True)
    session.report(PARITY)
    worker = session.pool.take()
    try:
        worker.call(
            "build", workload=plan.workload, recipe=plan.make_recipe(plan.changes), device=plan.device,
            seed=plan.seed, keep_gradients=True,
        )  # fmt: skip
        worker.call("prepare")
        seen = worker.call("parity")
        verdict, reason = seen["verdict"], seen["reason"]
    except WorkerFailure as failure:
        verdict, reason = cast(Any, FAILED_PARITY), failure.reason
    finally:
        worker.close()
    reason = None if reason is None else texts.display(reason)
    return observe(status=verdict, reported_then=verdict, reason=reason, earlier=False)


def _open_plan(session: Session) -> contextlib.nullcontext[Plan]:
    return contextlib.nullcontext(make_plan(session.job))


@contextlib.contextmanager
def _open_onlooker(session: Session) -> Iterator[Onlooker]:
    """Yield the one process of all subsets, begun once nothing else disturbs it."""
    from ladder.engine.looks import Onlooker

    session.visits.look_around()
    session.pool.wait()  # its importing would disturb a CPU
    with contextlib.closing(Onlooker(session.pool)) as onlooker:
        yield onlooker


def read_beside(job: Job, plan: Plan) -> list[Beside]:
    """Return what the best stored solo and leave-one-out runs of this machine say of the rungs."""
    from ladder.plan import catalog, content, modes
    from ladder.results import ranking
    from ladder.results.combine import series

    ladder, workload = catalog.load_ladder(job.options.ladder).name, content.of_workload(job.workload)
    found = []
    stored = series.readable(RUNS / texts.slug(str(job.machine["name"])))
    for mode in (modes.SOLO, modes.LEAVE_ONE_OUT):
        same = [
            each
            for each in stored
            if (ranking.mode(each), each.ladder.name) == (mode, ladder)
            and content.of_workload(each.workload) == workload
        ]
        best = max(same, key=ranking.rank, default=None)
        for rung in best.rungs if best else ():
            if best and rung.name in plan.changes and (rung.gain or rung.gpu_gain):
                gain, gpu = rung.gain or None, rung.gpu_gain or None
                found.append(
                    Beside(
                        mode=cast(Any, mode), started=best.started, rung=rung.name,
                        wall=gain.ratio if gain else None, wall_interval=gain.interval if gain else None,
                        gpu=gpu.ratio if gpu else None, gpu_interval=gpu.interval if gpu else None,
                    )
                )  # fmt: skip
    return found
