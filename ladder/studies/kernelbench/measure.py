"""The measurement of `ladder kernels` and its files."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ladder.base import text
from ladder.base.errors import EnvironmentFailure, UserError
from ladder.base.paths import ROOT
from ladder.base.records import build, plain
from ladder.base.starting import near

if TYPE_CHECKING:
    from ladder.studies.kernelbench.cases.registry import Case
    from ladder.studies.kernelbench.resuming import Rows
    from ladder.studies.kernelbench.schema import Head, Kernels, Plan, Sitting
    from stylegan_lite.config import Workload

OUT = ROOT / "results" / "kernels"

MINUTES = 4.0

SMOKE = {"resolution": 8, "channel_base": 32, "batch": 2}

ORDERS = ("memory-bound", "largest")  # see `ladder.studies.kernelbench.cases.registry.in_order`

SAVE_EVERY_S = 15.0  # between saves; writing a file of all rows takes a third of a second


@dataclass(frozen=True)
class Asked:
    """The user's request, without its destination. `resume` or a default decides fields that are None or empty."""

    device: str
    ops: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # names of workloads
    quick: bool = False
    seed: int | None = None
    minutes: float = MINUTES
    first: str = ORDERS[0]
    resume: Path | None = None

    def like(self, before: Kernels) -> Asked:
        """Return a copy whose unset fields come from the file."""
        rules = before.protocol
        names = () if rules.smoke else tuple(rules.workloads)
        return replace(
            self,
            ops=self.ops or tuple(rules.ops),
            names=self.names or names,
            quick=self.quick or rules.quick,
            seed=rules.seed if self.seed is None else self.seed,
        )


@dataclass(frozen=True)
class Job:
    """A request that was checked: what is measured, what is due of it, and the rows that an earlier sitting kept."""

    asked: Asked
    head: Head
    plan: Plan
    cases: list[Case]
    due: list[Case]
    kept: Rows
    started: str  # of this sitting
    earlier: list[Sitting]


def lay_out(asked: Asked) -> Job:
    """Return what to measure. Raises UserError, one line, for a request that is impossible."""
    from ladder.studies.kernelbench import resuming as kernelresuming
    from ladder.studies.kernelbench.cases import registry as kernelcases

    before = kernelresuming.load(asked.resume) if asked.resume else None
    asked = asked.like(before) if before else asked
    workloads = _workloads(asked.device, asked.names, kernelcases.WORKLOADS)
    cases, lacking = _cases(asked, workloads)
    head, plan = _head(asked), _plan(asked, workloads, lacking)
    started, earlier = head.started, (before.sittings or []) if before else []
    if before:
        head = kernelresuming.continued(asked.resume, before, head, plan, cases)
    kept = kernelresuming.finished(before, cases) if before else {}
    due = kernelcases.in_order([case for case in cases if case.name not in kept], asked.first)
    return Job(asked, head, plan, cases, due, kept, started, earlier)


def measure(job: Job, quiet: bool, out: Path | None = None) -> Kernels:
    """Return the whole result, derived numbers included. Finished rows are written to `out` on the way.

    The caller holds the lock on the device.
    """
    from ladder.base.events import CaseEvent
    from ladder.base.progress import kernels_progress
    from ladder.base.stopping import stop_on_sigterm
    from ladder.studies.kernelbench import bench as kernelbench
    from ladder.studies.kernelbench import compiling as kernelcompiling
    from ladder.studies.kernelbench import report as kernelreport
    from ladder.studies.kernelbench import resuming as kernelresuming
    from ladder.studies.kernelbench import timing as kerneltiming
    from ladder.studies.kernelbench.schema import Measured, Protocol, Sitting

    asked, plan, cases, due, earlier = job.asked, job.plan, job.cases, job.due, job.earlier
    device, smoke = asked.device, asked.device == "cpu"
    begun = time.monotonic()
    with kernels_progress(quiet, kernelreport.event_line) as shown:
        timer = kerneltiming.timer_on(device)
        backend = "aot_eager" if smoke else "inductor"
        bench = kernelbench.Bench(timer.gpu, timer, seed=plan.seed, backend=backend)
        protocol = Protocol(
            **{field.name: getattr(plan, field.name) for field in fields(plan)},
            l2_bytes=timer.gpu.l2_bytes,
            evict=timer.rules.evict,
            graph_ms=1e3 * timer.rules.graph_s,
            compile=f"torch.compile({backend}), fixed shapes",
        )
        allowance = kernelbench.Allowance(asked.minutes)
        found: list[Measured] = []
        saved = time.monotonic()

        def result(complete: bool) -> Kernels:
            rows = kernelresuming.merged(job.kept, found, cases)
            seconds = round(time.monotonic() - begun, 1)
            now = Sitting(started=job.started, seconds=seconds, minutes=asked.minutes, cases=0)
            return kernelresuming.assembled(earlier, job.head, protocol, rows, now, complete)

        def on_event(event: CaseEvent) -> None:
            nonlocal saved
            found.extend(event.rows)
            shown(event)
            if out is not None and event.rows and time.monotonic() - saved >= SAVE_EVERY_S:
                _keep(result(False), out)
                saved = time.monotonic()

        def compiles(index: int, number: int) -> None:
            shown(CaseEvent(f"the next {number} cases", index, len(due), "compile"))

        with stop_on_sigterm(), kernelcompiling.Ahead(due, timer.gpu, backend, compiles) as ahead:
            try:
                quick = asked.quick or smoke
                _, complete = kernelbench.run(
                    bench, due, allowance, quick=quick, on_event=on_event, ahead=ahead, sitting=len(earlier)
                )
            except EnvironmentFailure as failure:
                kept_in = _keep(result(False), out) if found and out is not None else ""
                raise UserError(f"{failure}{kept_in}") from failure
    return result(complete)


def _keep(part: Kernels, out: Path) -> str:
    """Write the finished rows beside other runs' files.

    Returns words that say where, or an empty text where the disk refuses.
    """
    from ladder.results import store

    try:
        (path,) = store.save(plain(part), out, stem=stem(part))
    except UserError:
        return ""
    return f"; what was finished is kept in {near(path)}"


def _cases(asked: Asked, workloads: dict[str, Workload]) -> tuple[list[Case], dict[str, str]]:
    """Return the cases to measure, and the reasons why others cannot be measured here."""
    from ladder.machine import system
    from ladder.studies.kernelbench.cases import registry as kernelcases

    known = {*kernelcases.OPS, *(entry.function for entry in kernelcases.OPS.values())}
    if unknown := [op for op in asked.ops if op not in known]:
        from stylegan_lite.config import suggestion

        raise UserError(f"no op is called {unknown[0]!r}{suggestion(unknown[0], sorted(known), 'known')}")
    quick = asked.quick or asked.device == "cpu"
    cases = kernelcases.cases(workloads, ops=asked.ops or None, quick=quick)
    if not cases:
        raise UserError("no workload that was asked for uses these ops")
    here = system.capabilities(asked.device)
    lacking = {need: here[need] for case in cases for need in case.entry.needs if here[need] is not None}
    cases = [case for case in cases if not lacking.keys() & set(case.entry.needs)]
    if not cases:
        raise UserError(f"these ops cannot run here: {'; '.join(sorted(set(lacking.values())))}")
    return cases, lacking


def _head(asked: Asked) -> Head:
    """Return the head of a new result: the machine, and the code that is measured."""
    from ladder.machine import system
    from ladder.results import record
    from ladder.studies.kernelbench.schema import Head

    facts = system.facts(asked.device)
    return build(Head, record.header("kernels", facts))


def _plan(asked: Asked, workloads: Iterable[str], lacking: dict[str, str]) -> Plan:
    from ladder.machine import environment
    from ladder.studies.kernelbench import timing as kerneltiming
    from ladder.studies.kernelbench.schema import Plan

    smoke = asked.device == "cpu"
    notes = ["quick: not to be quoted"] * asked.quick + [kerneltiming.SMOKE_NOTE] * smoke
    notes += [f"without CUDA C++: {reason}" for reason in sorted(set(lacking.values()))]
    notes += environment.describe_variables(environment.read_variables())
    return Plan(
        quick=asked.quick,
        smoke=smoke,
        seed=asked.seed or 0,
        workloads=list(workloads),
        ops=list(asked.ops),
        notes=notes,
        minutes=asked.minutes,
        first=asked.first,
    )


def _workloads(device: str, names: tuple[str, ...], usual: tuple[str, ...]) -> dict[str, Workload]:
    from ladder.plan import catalog
    from stylegan_lite.config import Workload

    loaded = [catalog.load_workload(name) for name in names or usual]
    if device == "cpu":
        if names:
            raise UserError("--device cpu is a smoke test of tiny shapes of its own: leave out --workload")
        norms = ("demod", "instance")
        return {f"smoke-{norm}": Workload.from_dict(SMOKE | {"norm": norm}) for norm in norms}
    return {name: Workload.from_dict(values) for name, values in loaded}


def stem(result: Kernels) -> str:
    """Return the stem of the result's file names. A quick look or a part of the ops never replaces the whole."""
    from ladder.studies.kernelbench.cases import registry as kernelcases

    rules = result.protocol
    usual = rules.smoke or rules.workloads == list(kernelcases.WORKLOADS)
    words = [result.machine.name, *rules.ops, *([] if usual else rules.workloads)]
    words += ["quick"] * rules.quick + ["smoke"] * rules.smoke
    return "-".join(text.slug(word) for word in words)


def write(result: Kernels, out: Path) -> list[Path]:
    """Write JSON, Markdown and chart, each whole or not at all. A whole result removes its partial files."""
    from ladder.results import store
    from ladder.studies.kernelbench import chart as kernelchart
    from ladder.studies.kernelbench import report as kernelreport

    pages = {"md": kernelreport.markdown(result)}

    def render(kind: str) -> bytes:
        return kernelchart.render(result, kind)

    return store.save(plain(result), out, pages, render, stem=stem(result), picture="-kernels")
