"""`ladder kernels`: the fused ops against plain PyTorch, torch.compile and a copy of the same bytes."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.text import NO_TIME
from ladder.core.job import Job
from ladder.core.records import (
    read_record,
)
from ladder.show.table import Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.kernelbench.record import (
    SMOKE,
    USUAL,
    Case,
    File,
    Kernels,
    Observed,
    Options,
    Protocol,
    Sitting,
    derive_rows,
    list_sittings,
)
from ladder.studies.kernelbench.report import describe_times, draw_figure, make_table

if TYPE_CHECKING:
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench.cases import registry
    from ladder.studies.kernelbench.compiling import Ahead

# --- the study --------------------------------------------------------------------------------------------------------


class KernelStudy(Study[Options, Case, Observed]):
    """The cases in turn, in this process: a graph of microseconds bears no pipe."""

    name, kind, folder = "kernels", "kernels", "kernels"
    help = """Time the fused ops against plain PyTorch and torch.compile.

    Forward, backward and double backward are timed with cold and hot L2 cache. The yardstick is a copy of the same
    number of bytes. Option `--device cpu` runs tiny shapes in Triton's interpreter. It shows that the code works;
    its times mean nothing.

    Exit status: 0 if no op failed. 1 if one did. 2 if the request is impossible. 130 if interrupted.
    """
    examples = """
ladder kernels                               every op at the shapes of article, article-b32 and adain-256
ladder kernels --quick                       two resolutions, three repeats; not to be quoted
ladder kernels --op bias_act --op modulate   these ops only
ladder kernels -w stylegan2-1024 --minutes 10
ladder kernels --resume results/kernels/MACHINE-partial.json --minutes 5     the cases that it lacks
ladder kernels --json > kernels.json
"""
    uses_workload = uses_images = False
    needs_gpu = "kernels are timed on a CUDA GPU"
    answers, extendable, unstored = ("ok", "skipped"), ("minutes", "first", "workload"), ("workload",)
    in_order, save_every_s = True, 15.0

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        if file is not None and job.resume is None and file.cases:
            return file.cases
        known = [name for case in file.cases.values() for name in case.workloads] if file else []
        request = make_request(job, list(dict.fromkeys(known)))
        cases = {each.name: make_case(each) for each in request.cases}
        for key in file.cases if file else ():
            if key not in cases:
                raise UserError(f"{key!r} would not be measured here; start a new run")
        return cases

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        return f"kernels: {text.counted(len(cases), 'case')}, at most about {job.options.minutes:g} min"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.studies.kernelbench import bench as benches

        sitting = session.share(open_sitting)
        index, options = sitting.names.index(key), session.job.options
        if sitting.allowance.over:
            return Observed(status="skipped", reason=NO_TIME, sitting=sitting.describe())
        quick = options.quick or session.job.device == "cpu"
        least = benches.FEWEST_REPEATS if quick or case.setting else benches.LEAST_REPEATS
        most = benches.FEWEST_REPEATS if quick else benches.MOST_REPEATS
        sitting.ahead(index)
        rows: list[benches.Row] = []
        try:
            left_s = sitting.allowance.share(len(sitting.names) - index)
            for said in sitting.bench.case(sitting.cases[index], least, most, left_s):
                rows = [] if isinstance(said, str) else said
        except Exception as error:  # the device is lost, so later cases fail too
            reason = text.display(benches.describe_failure(error))
            return Observed(status="failed", reason=reason, sitting=sitting.describe())
        raw = {"rows": [describe_row(row) for row in rows]}
        observed = msgspec.structs.replace(read_record(Observed, text.fit(raw)), sitting=sitting.describe())
        reasons = {row.reasons.get("ours") for row in observed.rows} - {None}
        if not reasons:
            return observed
        whole = reasons == {benches.OUT_OF_MEMORY} and all("ours" in row.reasons for row in observed.rows)
        status: Any = "oom" if whole else "failed"
        return msgspec.structs.replace(observed, status=status, reason="; ".join(sorted(map(str, reasons))))

    def describe(self, observation: Observed) -> str:
        return "; ".join(map(describe_times, observation.rows))

    def derive(self, file: File) -> Kernels:
        options, setup = file.options, file.setup or {}
        protocol = Protocol(
            quick=options.quick,
            smoke=file.machine.device == "cpu",
            seed=options.seed,
            workloads=str(setup.get("workloads", "")).split(","),
            ops=options.op,
            notes=frame.list_cautions(self, file),
            minutes=options.minutes,
            first=options.first,
            l2_bytes=setup.get("l2_bytes"),
            evict=setup.get("evict"),
            graph_ms=setup.get("graph_ms"),
            compile=setup.get("compile"),
        )
        return Kernels(protocol, list_sittings(file), derive_rows(file))

    def list_problems(self, file: File) -> Iterable[str]:
        for key, seen in file.observed.items():
            directions = [row.direction for row in seen.rows]
            if seen.status == "ok" and directions != file.cases[key].directions:
                yield f"{key}: ok without every direction"

    def list_cautions(self, file: File) -> list[str]:
        lacking = (file.setup or {}).get("lacking")
        lines = ["quick: not to be quoted"] if file.options.quick else []
        return [*lines, *(f"without CUDA C++: {each}" for each in str(lacking or "").split("; ") if each)]

    def name_file(self, file: File) -> list[str]:
        names = str((file.setup or {}).get("workloads", "")).split(",")
        smoke = file.machine.device == "cpu"
        unusual = [] if smoke or tuple(names) == USUAL else names
        ends = [*(["quick"] if file.options.quick else []), *(["smoke"] if smoke else [])]
        return [file.machine.name, *file.options.op, *unusual, *ends]

    def summarize(self, file: File) -> list[str]:
        machine = file.machine
        state = ", with changes" if file.dirty else ""
        return [
            f"Kernels on {machine.gpu or machine.cpu}, PyTorch {machine.torch}, Triton {machine.triton}",
            f"Commit {(file.commit or 'unknown')[:12]}{state}, {file.started}.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        yield make_table(self.derive(file))

    def draw(self, file: File, kind: str) -> bytes:
        from ladder.report import drawing

        return drawing.save(lambda: draw_figure(file, self.derive(file)), kind)


STUDY = KernelStudy()


# --- observing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """What a request asks for: the cases in the order of measuring, the workloads, and why other cases cannot run."""

    cases: list[registry.Case]
    workloads: list[str]
    lacking: list[str]


def make_request(job: Job, known: Sequence[str] = ()) -> Wanted:
    """Return what to measure; `known` are the workloads of a file that is resumed.

    Raises:
        UserError: no such op or workload, or none of the ops can run here.
    """
    if job.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it at import, further down
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.kernelbench.cases import registry
    from stylegan_lite.config import Workload, suggestion

    options, here = job.options, system.capabilities(job.device)
    if job.device != "cpu" and (reason := here["triton"]):
        raise UserError(f"the ops need Triton: {reason}")
    names = options.workload or (() if job.device == "cpu" else known) or USUAL
    loaded = [catalog.load_workload(name) for name in names]
    workloads = {name: Workload.from_dict(values) for name, values in loaded}
    if job.device == "cpu":
        if options.workload:
            raise UserError("--device cpu is a smoke test of tiny shapes of its own: leave out --workload")
        norms = ("demod", "instance")
        workloads = {f"smoke-{norm}": Workload.from_dict(SMOKE | {"norm": norm}) for norm in norms}
    ops = {*registry.OPS, *(entry.function for entry in registry.OPS.values())}
    if unknown := [op for op in options.op if op not in ops]:
        raise UserError(f"no op is called {unknown[0]!r}{suggestion(unknown[0], sorted(ops), 'known')}")
    cases = registry.cases(workloads, ops=options.op or None, quick=options.quick or job.device == "cpu")
    if not cases:
        raise UserError("no workload that was asked for uses these ops")
    lacking = {need: here[need] for case in cases for need in case.entry.needs if here[need] is not None}
    cases = [case for case in cases if not lacking.keys() & set(case.entry.needs)]
    if not cases:
        raise UserError(f"these ops cannot run here: {'; '.join(sorted(set(lacking.values())))}")
    ordered = registry.in_order(cases, options.first)
    return Wanted(ordered, list(workloads), sorted(set(lacking.values())))


def make_case(each: registry.Case) -> Case:
    return Case(
        op=each.op, function=each.entry.function, shape=list(each.shape), batch=each.batch,
        dtype=each.dtype, layout=each.layout, setting=each.setting, workloads=list(each.workloads),  # type: ignore[arg-type]
        directions=list(each.directions),  # type: ignore[arg-type]
    )  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """What all cases of a sitting share: its cases in order, the bench, the compilers and the time."""

    names: list[str]
    cases: list[registry.Case]
    bench: benches.Bench
    ahead: Ahead
    allowance: benches.Allowance
    started: str
    begin: float = field(default_factory=time.monotonic)

    def describe(self) -> Sitting:
        return Sitting(self.started, self.allowance.minutes, round(time.monotonic() - self.begin, 1))


@contextlib.contextmanager
def open_sitting(session: Session) -> Iterator[Bench]:
    """Yield the bench, and note the protocol's numbers. This process has the device until the command ends."""
    from ladder.base.locks import device_lock
    from ladder.base.stopping import stop_on_sigterm
    from ladder.machine import system
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench import timing
    from ladder.studies.kernelbench.compiling import Ahead

    job = session.job
    # also while the files are written: the context stays
    click.get_current_context().with_resource(device_lock(system.device_key(job.device)))
    known = [name for case in session.file.cases.values() for name in case.workloads]
    request = make_request(job, list(dict.fromkeys(known)))
    cases = {each.name: each for each in request.cases}
    names = [key for key in session.file.cases if key not in session.file.observed]
    due = [cases[key] for key in names]
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    timer = timing.timer_on(job.device)
    backend = "aot_eager" if job.device == "cpu" else "inductor"
    bench = benches.Bench(timer.gpu, timer, seed=job.options.seed, backend=backend)
    setup = {
        "l2_bytes": timer.gpu.l2_bytes,
        "evict": timer.rules.evict,
        "graph_ms": 1e3 * timer.rules.graph_s,
        "compile": f"torch.compile({backend}), fixed shapes",
        "workloads": ",".join(request.workloads),
        "lacking": text.display("; ".join(request.lacking)) if request.lacking else None,
    }
    session.file = msgspec.structs.replace(session.file, setup=setup)

    def tell(index: int, number: int) -> None:
        session.report(f"compiling the next {text.counted(number, 'case')}")

    with stop_on_sigterm(), Ahead(due, timer.gpu, backend, tell) as ahead:
        yield Bench(names, due, bench, ahead, benches.Allowance(job.options.minutes), started)


def describe_row(row: benches.Row) -> dict[str, Any]:
    """Return what a file has of a direction, as plain data."""
    from ladder.studies.kernelbench.bench import place_call

    dispatch, taken = place_call(row.dispatch)
    return {
        "direction": row.direction,
        "bytes": row.bytes,
        "method": row.method,
        "captured": {f"{temperature} {name}": n for (name, temperature), n in row.captured.items()},
        "notes": row.notes,
        "samples_us": row.samples_us(),
        "reasons": row.reasons,
        "launches": row.launches,
        "dispatch": dispatch,
        "taken": taken,
    }
