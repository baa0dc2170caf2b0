"""`ladder kernels`: the fused ops against plain PyTorch, torch.compile and a copy of the same bytes."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.records import read_record
from ladder.core.text import NO_TIME
from ladder.results import words
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.kernelbench import record
from ladder.studies.kernelbench.record import CONTENDERS, Case, File, Observed, Options, Row

if TYPE_CHECKING:
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench import cases as registry

USUAL = ("article", "article-b32", "adain-256")  # workloads
TIMED = (*CONTENDERS, "copy")
SMOKE = {"resolution": 8, "channel_base": 32, "batch": 2, "z_dim": 16, "w_dim": 16}
# fmt: off
COLUMNS = [
    Column("op"), Column("shape"), Column("setting"), Column("direction"),
    Column("ours us", "microseconds"), Column("plain us", "microseconds", 1), Column("compile us", "microseconds", 2),
    Column("copy us", "microseconds", 3), Column("share of copy", "percent", 4), Column("interval", priority=5),
    Column("hot: ours us", "microseconds", 7), Column("plain us", "microseconds", 8),
    Column("compile us", "microseconds", 6), Column("verdict", "verdict"),
]
# fmt: on


class KernelStudy(Study[Options, Case, Observed]):
    """The cases in turn, in this process: a graph of microseconds bears no pipe."""

    name, kind, folder = "kernels", "kernels", "kernels"
    help = """Time the fused ops against plain PyTorch and torch.compile.

    Forward, backward and double backward are timed with cold and hot L2 cache. The yardstick is a copy of the same
    number of bytes. Option `--device cpu` runs tiny shapes in Triton's interpreter. It shows that the code works.
    Its times mean nothing, except what the CPU needs to issue a call, where no kernel is launched.

    Exit status: 0 if no op failed. 1 if one did. 2 if the request is impossible. 130 if interrupted.
    """
    examples = """
ladder kernels                               every op at the shapes of article, article-b32 and adain-256
ladder kernels --host --nvidia ../stylegan3  the CPU's part alone, beside NVIDIA's ops
ladder kernels --quick                       two resolutions, three repeats; not to be quoted
ladder kernels --op bias_act --op modulate   these ops only
ladder kernels -w stylegan2-1024 --minutes 10
ladder kernels --resume results/kernels/MACHINE-partial.json --minutes 5     the cases that it lacks
ladder kernels --json > kernels.json
"""
    uses_workload = uses_images = False
    needs_gpu = "kernels are timed on a CUDA GPU"
    answers, extendable = ("ok", "skipped"), ("minutes", "first", "workload", "nvidia")
    unstored = ("workload", "nvidia")
    in_order, save_every_s = True, 15.0

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        if file is not None and job.resume is None and file.cases:
            return file.cases
        cases = {each.name: describe_case(each) for each in make_request(job, file)[0]}
        for key in file.cases if file else ():
            if key not in cases:
                raise UserError(f"{key!r} would not be measured here; start a new run")
        return cases

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        return f"kernels: {text.format_count(len(cases), 'case')}, at most about {job.options.minutes:g} min"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.studies.kernelbench import bench as benches

        sitting, options = session.share(open_sitting), session.job.options
        index, now = list(sitting.cases).index(key), time.monotonic()
        rows: list[benches.Row] = []
        status: Any = "ok"
        reasons: list[str] = []
        if now >= sitting.end:
            status, reasons = "skipped", [NO_TIME]
        else:
            quick = options.quick or session.job.device == "cpu"
            least = benches.FEWEST_REPEATS if quick or case.setting else benches.LEAST_REPEATS
            most = benches.FEWEST_REPEATS if quick else benches.MOST_REPEATS
            try:
                sitting.ahead(index)
                now = time.monotonic()  # equal shares of the time that is left
                end = now + max(0.0, sitting.end - now) / (len(sitting.cases) - index)
                rows = sitting.bench.measure_case(sitting.cases[key], least, most, end)
            except Exception as error:  # the device is lost, so later cases fail too
                status, reasons = "failed", [text.make_display(benches.describe_failure(error))]
        if failed := [row.reasons["ours"] for row in rows if "ours" in row.reasons]:
            status = "oom" if failed == [benches.OUT_OF_MEMORY] * len(rows) else "failed"
            reasons = sorted(set(failed))
        observed = read_record(Observed, text.fit_texts({"rows": [row.describe() for row in rows]}))
        seconds = round(time.monotonic() - sitting.begin, 1)
        return msgspec.structs.replace(
            observed, status=status, reason=text.make_display("; ".join(reasons)) if reasons else None,
            sitting=record.Sitting(sitting.started, options.minutes, seconds),
        )  # fmt: skip

    def describe(self, observation: Observed) -> str:
        ours = [(row.direction, row.samples_us.cold.get("ours")) for row in observation.rows]
        return "; ".join(f"{way} {statistics.median(us):.1f} us" for way, us in ours if us)

    def derive(self, file: File) -> Any:
        options, setup = file.options, file.setup or {}
        rows, protocol = record.derive_rows(file), {
            "quick": options.quick, "smoke": file.machine.device == "cpu", "seed": options.seed,
            "workloads": list_workloads(file), "ops": options.op, "notes": frame.list_cautions(self, file),
            "minutes": options.minutes, "first": options.first,
            **{name: setup.get(name) for name in ("l2_bytes", "evict", "graph_ms", "compile")},
        }  # fmt: skip
        return {"protocol": protocol, "sittings": record.list_sittings(file), "rows": rows}

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
        is_smoke, workloads = file.machine.device == "cpu", list_workloads(file)
        unusual = [] if is_smoke or tuple(workloads) == USUAL else workloads
        marks = ["quick"] * file.options.quick + ["host"] * file.options.host + ["smoke"] * is_smoke
        return [file.machine.name, *file.options.op, *unusual, *marks]

    def summarize(self, file: File) -> list[str]:
        title = f"Kernels on {file.machine.gpu or file.machine.cpu}, Triton {file.machine.triton}"
        return [title, f"{frame.describe_software(file)} {file.started}."]

    def list_tables(self, file: File) -> Iterable[Table]:
        rows = record.derive_rows(file)
        if not file.options.host:
            yield make_table(file, rows)
        if any(row.us["host"] for row in rows):
            yield make_host_table(rows)

    def draw(self, file: File, kind: str) -> bytes:
        from ladder.report import drawing

        return drawing.save(lambda: draw_figure(file, record.derive_rows(file)), kind)


STUDY = KernelStudy()


def list_workloads(file: File) -> list[str]:
    """Return the names of the workloads of a run."""
    return str((file.setup or {}).get("workloads", "")).split(",")


def make_request(job: Job, file: File | None = None) -> tuple[list[registry.Case], list[str], list[str]]:
    """Return (cases in the order of measuring, workloads, why other cases cannot run here).

    A file that is resumed gives the workloads.

    Raises:
        UserError: no such op or workload, or none of the ops can run here.
    """
    if job.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it at import, further down
    from ladder.machine import system
    from ladder.plan import catalog
    from ladder.studies.kernelbench import cases as registry
    from stylegan_lite.config import Workload, suggestion

    find_clone(job)
    options, here = job.options, system.list_capabilities(job.device)
    if job.device == "cpu":
        for name in options.workload or ():
            catalog.load_workload(name)
            raise UserError("--device cpu is a smoke test of tiny shapes of its own: leave out --workload")
        workloads = {f"smoke-{n}": Workload.from_dict(SMOKE | {"norm": n}) for n in ("demod", "instance")}
    else:
        if here["triton"]:
            raise UserError(f"the ops need Triton: {here['triton']}")
        known = dict.fromkeys(name for case in file.cases.values() for name in case.workloads) if file else ()
        loaded = [catalog.load_workload(name) for name in options.workload or known or USUAL]
        workloads = {name: Workload.from_dict(values) for name, values in loaded}
    ops = {*registry.OPS, *(entry.function for entry in registry.OPS.values())}
    if unknown := [op for op in options.op if op not in ops]:
        raise UserError(f"no op is called {unknown[0]!r}{suggestion(unknown[0], sorted(ops), 'known')}")
    is_quick = options.quick or job.device == "cpu"
    cases = registry.list_cases(workloads, ops=options.op, quick=is_quick)
    if options.host:
        cases = [case for case in cases if case.setting == 0]
    lacking = {need: here[need] for case in cases for need in case.entry.needs if here[need] is not None}
    reasons = sorted(set(map(str, lacking.values())))
    cases = [case for case in cases if not lacking.keys() & set(case.entry.needs)]
    if not cases:
        raise UserError(f"these ops cannot run here: {'; '.join(reasons) or 'no workload uses them'}")
    return registry.order_cases(cases, options.first), list(workloads), reasons


def describe_case(each: registry.Case) -> Case:
    """Return what a file has of a case."""
    names = [name for name in Case.__struct_fields__ if name != "function"]
    values = {name: getattr(each, name) for name in names} | {"function": each.entry.function}
    return msgspec.convert(values, Case)


@dataclass(frozen=True)
class Sitting:
    """What all cases of a sitting share: those that are due, and when it began and ends by `time.monotonic`."""

    cases: dict[str, registry.Case]
    bench: benches.Bench
    ahead: benches.Ahead
    started: str
    begin: float
    end: float


@contextlib.contextmanager
def open_sitting(session: Session) -> Iterator[Sitting]:
    """Yield the bench, and note the protocol's numbers. This process has the device until the command ends."""
    from ladder.core.locks import device_lock
    from ladder.core.stopping import stop_on_sigterm
    from ladder.machine import system
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench import timing
    from ladder.studies.upstream import source

    job = session.job
    # also while the files are written: the context stays
    click.get_current_context().with_resource(device_lock(system.device_key(job.device)))
    cases, workloads, lacking = make_request(job, session.file)
    known = {each.name: each for each in cases}
    due = {key: known[key] for key in session.file.cases if key not in session.file.observed}
    timer, folder = timing.timer_on(job.device), find_clone(job)
    backend = "aot_eager" if job.device == "cpu" else "inductor"
    setup = {
        "l2_bytes": timer.gpu.l2_bytes, "evict": timer.rules.evict, "graph_ms": 1e3 * timer.rules.graph_s,
        "compile": f"torch.compile({backend}), fixed shapes", "workloads": ",".join(workloads),
        "lacking": text.make_display("; ".join(lacking)) if lacking else None,
        "nvidia": source.digest_of(folder) if folder else None,
    }  # fmt: skip
    session.file = msgspec.structs.replace(session.file, setup=setup)
    clone, is_host = None, job.options.host
    if folder is not None:
        clone = source.load(folder)
        source.build_ops(clone)
    bench = benches.Bench(
        timer.gpu, timer, seed=job.options.seed, backend=backend, clone=clone, host_only=is_host
    )
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    begin = time.monotonic()
    with (
        stop_on_sigterm(),
        benches.Ahead(list(due.values()), timer.gpu, None if is_host else backend, session.report) as ahead,
    ):
        yield Sitting(due, bench, ahead, started, begin, begin + 60 * job.options.minutes)


def find_clone(job: Job) -> Path | None:
    """Return the clone of NVIDIA's repository. Raises UserError where its ops cannot be built."""
    from ladder.studies.upstream import source

    if job.options.nvidia is None:
        return None
    if job.device == "cpu":
        raise UserError("--nvidia needs a CUDA GPU: NVIDIA's ops are built there")
    folder = Path(job.options.nvidia).expanduser().resolve()
    source.networks_of(folder)
    source.refuse_unbuildable(job.device)
    return folder


# --- table and chart --------------------------------------------------------------------------------------------------


def make_table(file: File, rows: Sequence[Row]) -> Table:
    """Return a row for each direction that was measured, op after op, with the counts and why a number is missing."""
    ops, reached = [row.op for row in rows], [row for row in rows if row.is_reached]
    cells = []
    for row in sorted(reached, key=lambda row: ops.index(row.op)):
        cold, hot = (
            [us[name].median if name in us else "n/a" if name in row.reasons else None for name in TIMED]
            for us in (row.us["cold"], row.us["hot"])
        )
        share = row.share.get("ours")
        between = "{:.0%}-{:.0%}".format(*share.interval) if share and share.interval else None
        below = row.against[row.quickest[0]].below if row.against else None
        verdict = words.word(words.Seen(row.verdict, below=below)) + "; plain PyTorch taken" * bool(row.taken)
        shape = "x".join(map(str, row.shape)) + (f" batch {row.batch}" if row.shape[0] != row.batch else "")
        case = [row.op, shape, f"{row.dtype} {row.layout}", row.direction]
        cells.append([*case, *cold, share.median if share else None, between, *hot[:-1], verdict])
    missing: Counter[str] = Counter()
    for row in reached:
        missing.update(note.partition(":")[0] for note in row.notes)
        for name, reason in row.reasons.items():
            why = re.sub(r"\S+ s a call", "a slow call", reason)
            missing[f"n/a: {CONTENDERS.get(name, name)}, {row.direction}: {why}"] += 1
    counts = Counter(words.kind(row.verdict) for row in reached)
    notes = [
        "microseconds of one call, median of fresh repeats; cold L2"
        f" ({((file.setup or {}).get('l2_bytes') or 0) / 2**20:.0f} MiB) unless it says hot; backward: autograd.grad"
        " alone",
        "share: cold time of a copy of the same number of bytes, by ours; verdict: cold, ours against both others, Holm"
        " over all comparisons",
        record.describe_lack(rows),
        "; ".join(f"{word}: {count}" for word, count in counts.most_common()),
        *(f"{line} ({count} rows)" for line, count in missing.items()),
    ]
    return Table(COLUMNS, cells, "", [*filter(None, notes)])


# By contender: the title of its column, and how early the column leaves a narrow table
HOST_TITLES = {
    "ours": ("ours us", 0),
    "plain": ("plain us", 0),
    "compile": ("compile us", 2),
    "nvidia": ("NVIDIA's us", 1),
}


def make_host_table(rows: Sequence[Row]) -> Table:
    """Return the CPU's time of a call of each op and direction, a median over shapes in the ladder's top setting."""
    kinds: dict[tuple[str, str], list[dict[str, record.Summary]]] = {}
    for row in rows:
        if row.setting == 0 and "ours" in row.us["host"]:
            kinds.setdefault((row.op, row.direction), []).append(row.us["host"])
    timed = {name for found in kinds.values() for each in found for name in each}
    titles = {name: each for name, each in HOST_TITLES.items() if name in timed}
    cells: list[list[Any]] = []
    for (op, direction), found in kinds.items():
        us = {name: [each[name].median for each in found if name in each] for name in titles}
        medians = {name: statistics.median(each) if each else None for name, each in us.items()}
        ours, plain = medians["ours"], medians.get("plain")
        cells.append([op, direction, *medians.values(), ours / plain if ours and plain else None])
    columns = [Column("op"), Column("direction")]
    columns += [Column(title, "microseconds", priority) for title, priority in titles.values()]
    columns.append(Column("of plain", "percent"))
    note = "microseconds of the CPU to issue one call, a median over shapes; the GPU's work is not waited for"
    return Table(columns, cells, "The host's time", [note])


def draw_figure(file: File, rows: Sequence[Row]) -> Any:
    """Draw the share of a copy of each shape in the setting of the ladder's top: forward left, backward right."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from ladder.report import drawing

    drawn = [
        row for row in rows if row.is_reached and row.setting == 0 and row.direction != "double backward"
    ]
    ops = [row.op for row in drawn]
    drawn.sort(key=lambda row: (ops.index(row.op), -row.batch))
    lines = [*dict.fromkeys(row.case.removesuffix(f" {row.dtype} {row.layout}") for row in drawn)]
    high = 2.0 + 0.21 * max(1, len(lines))
    figure = Figure(figsize=(12.5, high))
    most = max([1.05, *(each.median for row in drawn for each in row.share.values())])
    for left, direction in ((0.25, "forward"), (0.635, "backward")):
        axes = figure.add_axes(
            (left, 0.6 / high, 0.355, 1 - 2.0 / high), xlim=(0, most), ylim=(max(1, len(lines)) - 0.5, -0.5)
        )
        drawing.clear_axes(axes, "x")
        axes.set_title(direction, fontsize=11, fontweight="bold", color=LIGHT.ink)
        axes.set_yticks(range(len(lines)), lines if direction == "forward" else [""] * len(lines))
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0%", "25%", "50%", "75%", "100%"])
        axes.axvline(1, color=LIGHT.muted, linestyle="--", linewidth=0.9)
        for row in drawn:
            if row.direction != direction:
                continue
            y = lines.index(row.case.removesuffix(f" {row.dtype} {row.layout}"))
            if ours := row.share.get("ours"):
                bar = axes.barh(y, ours.median, 0.7, color=LIGHT.busy)
                axes.bar_label(
                    bar, [f"{100 * ours.median:.0f}"], label_type="center", color=LIGHT.ground, fontsize=8
                )
            for name, mark, color in (("plain", "o", LIGHT.idle), ("compile", "D", LIGHT.article)):
                if each := row.share.get(name):
                    axes.plot(each.median, y, mark, color=color, markersize=5)
    marks = [
        Line2D([], [], color=LIGHT.busy, linewidth=6, label="this project's kernel"),
        Line2D([], [], color=LIGHT.idle, marker="o", linestyle="", label=CONTENDERS["plain"]),
        Line2D([], [], color=LIGHT.article, marker="D", linestyle="", label=CONTENDERS["compile"]),
    ]
    figure.legend(
        handles=marks, loc="upper left", bbox_to_anchor=(0.01, 1 - 0.6 / high), ncols=3, frameon=False
    )
    machine, cautions = file.machine, "; ".join(frame.list_cautions(STUDY, file)[:1])
    title = f"{machine.gpu or machine.cpu}: share of a copy of the same bytes, cold L2 {cautions and f'({cautions})'}"
    under = (
        f"PyTorch {machine.torch}, Triton {machine.triton}. Higher is better. {record.describe_lack(rows)}"
    )
    drawing.draw_heading(figure, title.strip(), under)
    return figure
