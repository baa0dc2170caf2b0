"""`ladder kernels`: the fused ops against plain PyTorch, torch.compile and a copy of the same bytes."""

from __future__ import annotations

import contextlib
import datetime
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.records import read_record
from ladder.core.text import NO_TIME
from ladder.show.table import Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.kernelbench import record
from ladder.studies.kernelbench.record import Case, File, Kernels, Observed, Options
from ladder.studies.kernelbench.report import draw_figure, make_table

if TYPE_CHECKING:
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench import cases as registry
    from ladder.studies.kernelbench.compiling import Ahead

USUAL = ("article", "article-b32", "adain-256")  # workloads
SMOKE = {"resolution": 8, "channel_base": 32, "batch": 2}


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
        cases = {each.name: describe_case(each) for each in make_request(job, file).cases}
        for key in file.cases if file else ():
            if key not in cases:
                raise UserError(f"{key!r} would not be measured here; start a new run")
        return cases

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        return f"kernels: {text.format_count(len(cases), 'case')}, at most about {job.options.minutes:g} min"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.studies.kernelbench import bench as benches

        bench = session.share(open_bench)
        index, minutes = list(bench.cases).index(key), session.job.options.minutes
        rows: list[benches.Row] = []
        status: Any = "ok"
        reasons: list[str] = []
        try:
            if bench.allowance.over:
                status, reasons = "skipped", [NO_TIME]
            else:
                bench.ahead(index)
                quick = session.job.options.quick or session.job.device == "cpu"
                least = benches.FEWEST_REPEATS if quick or case.setting else benches.LEAST_REPEATS
                most = benches.FEWEST_REPEATS if quick else benches.MOST_REPEATS
                left_s = bench.allowance.share(len(bench.cases) - index)
                rows = bench.bench.measure_case(bench.cases[key], least, most, left_s)
        except Exception as error:  # the device is lost, so later cases fail too
            status, reasons = "failed", [text.make_display(benches.describe_failure(error))]
        sitting = record.Sitting(bench.started, minutes, round(time.monotonic() - bench.begin, 1))
        if failed := [row.reasons["ours"] for row in rows if "ours" in row.reasons]:
            status = "oom" if failed == [benches.OUT_OF_MEMORY] * len(rows) else "failed"
            reasons = sorted(set(failed))
        observed = read_record(Observed, text.fit_texts({"rows": [row.describe() for row in rows]}))
        reason = text.make_display("; ".join(reasons)) or None
        return msgspec.structs.replace(observed, status=status, reason=reason, sitting=sitting)

    def describe(self, observation: Observed) -> str:
        return "; ".join(
            f"{row.direction} "
            + (
                ", ".join(f"{n} {s.median:.1f}" for n, s in record.summarize_all(row.samples_us.cold).items())
                or "n/a"
            )
            for row in observation.rows
        )

    def derive(self, file: File) -> Kernels:
        options, setup = file.options, file.setup or {}
        protocol = record.Protocol(
            quick=options.quick, smoke=file.machine.device == "cpu", seed=options.seed,
            workloads=str(setup.get("workloads", "")).split(","), ops=options.op,
            notes=frame.list_cautions(self, file), minutes=options.minutes, first=options.first,
            **{name: setup.get(name) for name in ("l2_bytes", "evict", "graph_ms", "compile")},
        )  # fmt: skip
        return Kernels(protocol, record.list_sittings(file), record.derive_rows(file))

    def list_problems(self, file: File) -> Iterable[str]:
        for key, observed in file.observed.items():
            directions = [row.direction for row in observed.rows]
            if observed.status == "ok" and directions != file.cases[key].directions:
                yield f"{key}: ok without every direction"

    def list_cautions(self, file: File) -> list[str]:
        lacking = (file.setup or {}).get("lacking")
        lines = ["quick: not to be quoted"] if file.options.quick else []
        return [*lines, *(f"without CUDA C++: {each}" for each in str(lacking or "").split("; ") if each)]

    def name_file(self, file: File) -> list[str]:
        names = str((file.setup or {}).get("workloads", "")).split(",")
        is_smoke = file.machine.device == "cpu"
        unusual = [] if is_smoke or tuple(names) == USUAL else names
        return [
            file.machine.name, *file.options.op, *unusual, *["quick"] * file.options.quick, *["smoke"] * is_smoke
        ]  # fmt: skip

    def summarize(self, file: File) -> list[str]:
        machine, state = file.machine, ", with changes" if file.dirty else ""
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


# --- the request ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """The cases in the order of measuring, the workloads, and why other cases cannot run."""

    cases: Sequence[registry.Case]
    workloads: list[str]
    lacking: list[str]


def make_request(job: Job, file: File | None = None) -> Request:
    """Return what to measure. A file that is resumed gives the workloads.

    Raises:
        UserError: no such op or workload, or none of the ops can run here.
    """
    if job.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it at import, further down
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.kernelbench import cases as registry
    from stylegan_lite.config import Workload, suggestion

    options, here = job.options, system.list_capabilities(job.device)
    if job.device != "cpu" and (reason := here["triton"]):
        raise UserError(f"the ops need Triton: {reason}")
    if job.device == "cpu":
        for name in options.workload or ():
            catalog.load_workload(name)
            raise UserError("--device cpu is a smoke test of tiny shapes of its own: leave out --workload")
        workloads = {f"smoke-{n}": Workload.from_dict(SMOKE | {"norm": n}) for n in ("demod", "instance")}
    else:
        known = dict.fromkeys(name for case in file.cases.values() for name in case.workloads) if file else ()
        loaded = [catalog.load_workload(name) for name in options.workload or known or USUAL]
        workloads = {name: Workload.from_dict(values) for name, values in loaded}
    ops = {*registry.OPS, *(entry.function for entry in registry.OPS.values())}
    if unknown := [op for op in options.op if op not in ops]:
        raise UserError(f"no op is called {unknown[0]!r}{suggestion(unknown[0], sorted(ops), 'known')}")
    is_quick = options.quick or job.device == "cpu"
    cases = registry.list_cases(workloads, ops=options.op or None, quick=is_quick)
    if not cases:
        raise UserError("no workload that was asked for uses these ops")
    lacking = {need: here[need] for case in cases for need in case.entry.needs if here[need] is not None}
    reasons = sorted(set(map(str, lacking.values())))
    cases = [case for case in cases if not lacking.keys() & set(case.entry.needs)]
    if not cases:
        raise UserError(f"these ops cannot run here: {'; '.join(reasons)}")
    return Request(registry.order_cases(cases, options.first), list(workloads), reasons)


def describe_case(each: registry.Case) -> Case:
    """Return what a file has of a case."""
    names = ("op", "shape", "batch", "dtype", "layout", "setting", "workloads", "directions")
    return msgspec.convert(
        {name: getattr(each, name) for name in names} | {"function": each.entry.function}, Case
    )


# --- observing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bench:
    """What all cases of a sitting share."""

    cases: dict[str, registry.Case]
    bench: benches.Bench
    ahead: Ahead
    allowance: benches.Allowance
    started: str
    begin: float


@contextlib.contextmanager
def open_bench(session: Session) -> Iterator[Bench]:
    """Yield the bench, and note the protocol's numbers. This process has the device until the command ends."""
    from ladder.core.locks import device_lock
    from ladder.core.stopping import stop_on_sigterm
    from ladder.machine import system
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench import timing
    from ladder.studies.kernelbench.compiling import Ahead

    job = session.job
    # also while the files are written: the context stays
    click.get_current_context().with_resource(device_lock(system.device_key(job.device)))
    request = make_request(job, session.file)
    cases = {each.name: each for each in request.cases}
    due = {key: cases[key] for key in session.file.cases if key not in session.file.observed}
    timer = timing.timer_on(job.device)
    backend = "aot_eager" if job.device == "cpu" else "inductor"
    setup = {
        "l2_bytes": timer.gpu.l2_bytes,
        "evict": timer.rules.evict,
        "graph_ms": 1e3 * timer.rules.graph_s,
        "compile": f"torch.compile({backend}), fixed shapes",
        "workloads": ",".join(request.workloads),
        "lacking": text.make_display("; ".join(request.lacking)) if request.lacking else None,
    }
    session.file = msgspec.structs.replace(session.file, setup=setup)
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    bench = benches.Bench(timer.gpu, timer, seed=job.options.seed, backend=backend)
    allowance = benches.Allowance(job.options.minutes)

    def report(number: int) -> None:
        session.report(f"compiling the next {text.format_count(number, 'case')}")

    with stop_on_sigterm(), Ahead(list(due.values()), timer.gpu, backend, report) as ahead:
        yield Bench(due, bench, ahead, allowance, started, time.monotonic())
