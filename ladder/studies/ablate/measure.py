"""The measurement of `ladder ablate`: parity of the whole ladder, every subset in one process, a tenth once more.

A process for each subset would take an hour. One process takes seconds a subset, and GPU time hardly depends on the
process. How much it does is measured by repeating some subsets in processes of their own. The one process is replaced
after a failure, and after `ladder.engine.looks.MOST` subsets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from ladder.base import text as texts
from ladder.base.errors import EnvironmentFailure, UserError
from ladder.base.records import build, plain
from ladder.engine import inspection, sitting
from ladder.engine.looks import Look, Onlooker, Task
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.sitting import Pace
from ladder.engine.visit import Visits
from ladder.results import loading, record
from ladder.results.combine import resuming
from ladder.results.store import FAILED_PARITY
from ladder.results.types import Plain, head
from ladder.stats.shapley import Subset
from ladder.studies.ablate import plan as planning
from ladder.studies.ablate.plan import Plan
from ladder.studies.ablate.record import GPU, WALL, Beside, Proof, Result, Row, derive, time_ms

SECONDS = {"cuda": 7.0, "cpu": 5.0}  # of a subset: article on an H200, tiny on two cores
TRIED_AGAIN = ("failed", "invalid")


def new_result(plan: Plan, facts: Plain, beside: list[Beside] | None = None) -> Result:
    """Return the result of a measurement that has not begun."""
    workload = {"name": plan.name, **plan.workload, "data": None}
    rules = {
        "ladder": plan.ladder, "rungs": list(plan.rungs), "skipped": plan.skipped, "whole": plan.whole,
        "clock": GPU if plan.device == "cuda" else WALL, "seed": plan.seed, "notes": [],
    }  # fmt: skip
    empty = {"parity": None, "subsets": [], "total": None, "worth": [], "pairs": [], "noise": None}
    made = record.header("ablation", facts, workload)
    return replace(build(Result, made | {"protocol": rules, **empty, "beside": []}), beside=beside or [])


def continued(path: Path, fresh: Result) -> Result:
    """Return the file's result, ready to continue. Raises UserError if it is not the measurement that begins now."""
    from ladder.studies.ablate import schema

    before = build(Result, loading.load_kind(path, schema.KIND))
    asked = [replace(each.protocol, notes=[], skipped={}) for each in (before, fresh)]
    other = [] if asked[0] == asked[1] else ["another ladder, other rungs or another seed than this file's"]
    header = resuming.continued(path, head(before), head(fresh), other)
    return replace(fresh, **header, parity=before.parity, subsets=before.subsets)


def expected(plan: Plan, result: Result) -> tuple[int, float]:
    """Return how many measurements are missing, and the seconds that they will take; repeats count twice."""
    planned = len(planning.subsets(plan))
    if not plan.whole:
        planned += planning.LARGEST * (planning.LARGEST - 1) // 2
    left = max(0, planned - sum(row.status not in TRIED_AGAIN for row in result.subsets))
    repeats = max(planning.LEAST_AGAIN, -(-planned // planning.TENTH))
    repeats -= min(repeats, sum(row.again is not None for row in result.subsets))
    return left + repeats, (left + 2 * repeats) * SECONDS[plan.device]


class Session:
    """One sitting. ``tell`` gets a line after each measurement, ``save`` the result."""

    def __init__(
        self, plan: Plan, result: Result, tell: Callable[[str], None], save: Callable[[Result], None]
    ) -> None:
        self.plan, self.tell, self.save = plan, tell, save
        self.rows = {frozenset(row.rungs): row for row in result.subsets}
        self.parity, self.before = result.parity, result
        self.pace = Pace(expected(plan, result)[0], plan.minutes)

    def state(self, complete: bool) -> Result:
        seconds = round(self.before.seconds + self.pace.seconds, 1)
        rows = [*self.rows.values()]
        return derive(
            replace(self.before, seconds=seconds, complete=complete, parity=self.parity, subsets=rows)
        )

    def run(self) -> Result:
        """Measure what is missing and return the result. After an interrupt or the end of the time it is partial."""
        complete = False
        with ExitStack() as stack:
            try:
                pool, visits = stack.enter_context(sitting.opened(self.plan.device))
                self.prove(pool)
                if self.parity is not None and self.parity.verdict == "ok":
                    visits.look_around()
                    pool.wait()  # its importing would disturb a CPU
                    self.once(stack.enter_context(closing(Onlooker(pool))), visits)
                    self.again(pool, visits)
                    complete = True
            except KeyboardInterrupt:
                pass
            found = self.state(complete)
            self.save(found)
        return found

    def prove(self, pool: Pool) -> None:
        """Compare the whole ladder with the FP64 reference, unless an inspection of the same code has done so."""
        if self.parity is not None and self.parity.verdict == "ok":
            return
        plan, recipe = self.plan, self.plan.recipe(self.plan.everything)
        facts = plain(self.before.machine)
        for images in (True, False):  # of `ladder run`, and none
            known = inspection.Cache(plan.workload | {"data": images or None}, facts)
            if known.get(plan.laid(plan.everything)) is not None:
                self.parity = Proof(verdict="ok", reason=None, earlier=True)
                return
        self.tell("parity of the whole ladder")
        worker = pool.take()
        try:
            worker.call(
                "build", workload=plan.workload | {"data": None}, recipe=recipe, device=plan.device, seed=plan.seed,
                keep_gradients=True,
            )  # fmt: skip
            worker.call("prepare")
            seen = worker.call("parity")
            self.parity = Proof(verdict=seen["verdict"], reason=_line(seen["reason"]), earlier=False)
        except WorkerFailure as failure:
            self.parity = Proof(verdict=FAILED_PARITY, reason=_line(failure.reason), earlier=False)
        finally:
            worker.close()

    def once(self, onlooker: Onlooker, visits: Visits) -> None:
        """Measure every subset that has no row yet, in one process, then once more those that failed earlier.

        A subset at which the system fails comes last, or no later sitting would get beyond it.
        """
        failed = [subset for subset, row in self.rows.items() if row.status in TRIED_AGAIN]
        for _ in range(1 if self.plan.whole else 2):  # of a longer ladder pairs follow from the first part
            savings = None if self.plan.whole else self._savings()
            outs = {} if self.plan.whole else planning.outs(self.plan, savings)
            for subset in planning.subsets(self.plan, savings):
                if subset not in self.rows:
                    self._one(subset, outs.get(subset, ()), onlooker, visits)
                    self._refuse_hopeless()
        for subset in failed:
            self._one(subset, tuple(self.rows[subset].out), onlooker, visits)
        onlooker.close()  # its memory, too

    def _one(self, subset: Subset, out: tuple[str, ...], onlooker: Onlooker, visits: Visits) -> None:
        """Measure a subset in the one process. Its failure is its row, also where no other subset can follow."""
        row = Row(rungs=self._named(subset), out=[*out], status="ok", reason=None, once=None, again=None)
        try:
            self.rows[subset] = replace(row, once=onlooker.look(self._task(subset), visits))
        except WorkerFailure as failure:
            self.rows[subset] = replace(row, status=failure.status, reason=_line(failure.reason))
        except EnvironmentFailure as failure:
            self.rows[subset] = replace(row, status="failed", reason=_line(str(failure)))
            self.save(self.state(False))
            raise
        self._said(subset, self.rows[subset].once)

    def _refuse_hopeless(self) -> None:
        """Raise `UserError` if neither end of the ladder has a time: no gain would follow from the other subsets."""
        ends = [*self.rows.values()]
        if len(ends) == 2 and not any(row.once for row in ends):
            raise UserError(f"neither the whole ladder nor its base has a time: {ends[0].reason}")

    def again(self, pool: Pool, visits: Visits) -> None:
        """Measure a tenth of the subsets again, each in a fresh process."""
        wanted = planning.again(self.plan, [key for key, row in self.rows.items() if row.once])
        for subset in wanted:
            if self.rows[subset].again is not None:
                continue
            look = None
            with closing(Onlooker(pool)) as onlooker:
                try:
                    look = onlooker.look(self._task(subset), visits)
                    self.rows[subset] = replace(self.rows[subset], again=look)
                except WorkerFailure as failure:
                    self.tell(f"in a fresh process: {failure.status}: {_line(failure.reason)}")
            self._said(subset, look, " again, in a fresh process")

    def _savings(self) -> dict[str, float] | None:
        """Return what each rung of a longer ladder saves at its top; None until all have been left out."""
        if any(subset not in self.rows for subset in planning.subsets(self.plan)):
            return None
        return {
            each.rung: each.left_out for each in self.state(False).worth if each.left_out is not None
        } or None

    def _task(self, subset: Subset) -> Task:
        plan = self.plan
        return Task(plan.workload, plan.recipe(subset), plan.device, plan.seed)

    def _named(self, subset: Subset) -> list[str]:
        return [name for name in self.plan.rungs if name in subset]

    def _said(self, subset: Subset, look: Look | None, how: str = "") -> None:
        """Save and tell a measurement. Raises `TimeUp` once the user's minutes are over."""
        self.save(self.state(False))
        row, pace = self.rows[subset], self.pace.step()
        ms = time_ms(look, self.before.protocol.clock) if look else None
        said = f"{row.status}: {row.reason}" if ms is None else f"{texts.ms(ms)} ms"
        self.tell(f"{'+'.join(self._named(subset)) or 'nothing'}{how}: {said} ({pace})")
        self.pace.check()


def _line(reason: str | None) -> str | None:
    return None if reason is None else texts.display(reason)
