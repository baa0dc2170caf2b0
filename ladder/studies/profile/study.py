"""`ladder profile`: what a rung's step consists of, by category, phase, layer and kernel, and where its memory goes.

One process times the step, traces a cycle, and runs each phase eagerly once (`measuring`). The largest batch and
Nsight Compute's counters are cases of their own, so a profile stays where they fail.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ladder.base import files, locks
from ladder.base.errors import UserError
from ladder.core.job import Job
from ladder.core.records import write_whole
from ladder.plan import content
from ladder.receipts import kernel_names
from ladder.results import plausible
from ladder.results.parts import OVERLAP
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.profile import tools, tracing
from ladder.studies.profile.record import (
    COUNTERS,
    CPU,
    GPU,
    LARGEST,
    MOST_OTHER,
    REPORTS,
    ROUNDED,
    STEP,
    TBS,
    TRACES,
    Case,
    Category,
    File,
    Heavy,
    Largest,
    Layers,
    Memory,
    Observed,
    Options,
    Pass,
    Profile,
    Protocol,
    Step,
    compare_with_article,
    derive_categories,
    derive_counters,
    derive_largest,
    derive_layers,
    derive_memory,
    derive_phase,
    share_of_other,
    step_of,
)

LONG_MS, NEAR = 0.1, 0.6  # a kernel is far from a copy if it takes longer in a step and reaches less
MIB = 2**20
LAYERS = 24  # rows of a table; the others are one row
MOMENTS = ("at the beginning", "most gradients", "most activations", "at the end")
LEAST_SHOWN = 0.005  # ms: less is 0.00 in a table
SMALL = 0.1  # TB/s: less is shown in GB/s


class ProfileStudy(Study[Options, Case, Observed]):
    """The step of one rung; on request the largest batch, and Nsight Compute's counters."""

    name, kind, folder = "profile", "profile", "profile"
    help = """Show what a step of RUNG consists of: work and memory.

    The work is shown by category, phase and layer. One process runs the rung with all below it, and traces one cycle
    of 16 steps. On a CPU the own time of PyTorch's operators stands for kernels. The figures are those of one process,
    so compare rungs with `ladder run`, and explain their difference with `ladder explain`.

    Exit status: 0 if done. 1 if a part has no number. 2 if the request is impossible, or a tool is missing. 130 if
    interrupted.
    """
    examples = """
ladder profile fused_act                         categories, phases, layers, memory
ladder profile baseline -w article-b32           on another workload
ladder profile fused_act --trace step.json.gz    and a trace for ui.perfetto.dev
ladder profile fused_act --largest-batch         and the largest batch that fits
ladder profile fused_act --ncu                   and counters of the heaviest kernels (Nsight Compute)
ladder profile fused_act --nsys step.nsys-rep    and a report of Nsight Systems
"""
    extendable = ("largest_batch", "ncu", "trace", "nsys")
    unstored = ("ladder", "trace", "nsys")

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        _refuse_impossible(job)
        cases = dict(file.cases) if file is not None and file.cases else {STEP: plan_step(job)}
        others = ((LARGEST, job.options.largest_batch), (COUNTERS, job.options.ncu))
        return cases | {key: Case() for key, is_wanted in others if is_wanted}

    def announce(self, job: Job, cases: Any) -> str:
        return f"{job.options.rung}: profile on {job.name}, {job.device}"

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        from ladder.studies.profile import attribution, measuring

        job = session.job
        session.share(measuring.hold_device)
        if key == STEP:
            step = measuring.profile_step(session, case)
            known = [*attribution.list_runs(job, case.ladder), *self._list_profiles(job, case.below, step)]
            replaced = attribution.find_replaced(known)
            return Observed(step=msgspec.structs.replace(step, replaced=replaced))
        step = session.file.observed[STEP].step
        recipe = session.file.cases[STEP].recipe or {}
        look = measuring.search_batch if key == LARGEST else measuring.count_kernels
        return look(session, step, recipe)

    def _list_profiles(self, job: Job, below: str | None, step: Step) -> Iterator[tuple[str, Any]]:
        """Yield (file, (rung, ms by category) of two rungs): the stored profile of the rung below, and this one."""
        for path in sorted(job.out.glob(f"{job.machine['name']}-*-{below}.json")) if below else ():
            try:
                file = frame.read_file(self, path)
            except UserError:
                continue
            same = content.of_workload(file.workload or {}) == content.of_workload(job.workload)
            if same and file.options.rung == below and (before := step_of(file)):
                rungs = (below, before), (job.options.rung, step)
                yield (
                    path.name,
                    [(name, {row.name: row.ms for row in derive_categories(each)}) for name, each in rungs],
                )

    def finish(self, job: Job, file: File) -> None:
        from ladder.machine import system

        if job.options.nsys is not None and file.is_complete:
            with locks.device_lock(system.device_key(job.device)):
                tools.record_report(job, file.cases[STEP].recipe or {})

    def derive(self, file: File) -> Profile:
        case = file.cases.get(STEP, Case())
        step = step_of(file)
        on_gpu = file.machine.device == "cuda"
        cycles = (step.cycles or len(step.walls_ms)) if step else 0
        protocol = Protocol(GPU if on_gpu else CPU, cycles, frame.list_cautions(self, file))
        profile = Profile(ladder=case.ladder, rung=file.options.rung, recipe=case.recipe, protocol=protocol)
        if step is None:
            return profile
        rows = derive_categories(step)
        return msgspec.structs.replace(
            profile,
            step_ms=round(statistics.median(step.walls_ms), 5),
            gpu_ms=step.gpu_ms,
            profile=step.profile,
            categories=rows,
            phases=[derive_phase(row) for row in step.phases],
            layers=derive_layers(step),
            expected=compare_with_article(rows),
            memory=derive_memory(step.memory, on_gpu),
            heaviest=step.heaviest,
            passes=step.passes,
            gaps=step.gaps,
            counters=derive_counters(file.observed[COUNTERS].counters) if COUNTERS in file.observed else None,
            largest=derive_largest(file.observed[LARGEST].largest) if LARGEST in file.observed else None,
        )

    def list_problems(self, file: File) -> Iterable[str]:
        if (step := step_of(file)) is None:
            return
        least = plausible.floor_ms(write_whole(file.machine), file.workload or {})
        if least and any(each < least[0] for each in step.walls_ms):
            yield "walls_ms: faster than this GPU can compute"
        families = step.profile.families
        total = sum(row.ms for row in families)
        if all(row.own_ms is not None for row in families) and not _is_near(
            sum(row.own_ms or 0.0 for row in families), step.gpu_ms
        ):
            yield "families: their own times are together not gpu_ms"
        for what, rows in (("phases", step.phases), ("layers", step.layers)):
            if rows and not _is_near(sum(row.ms for row in rows), total):
                yield f"{what}: their sum is not that of the families"
        heavy = step.heaviest
        if any(row.phase_ms > row.ms + ROUNDED for row in heavy) or (
            sum(row.ms for row in heavy) > total + ROUNDED
        ):
            yield "heaviest: longer than what it is a part of"
        if step.gpu_ms > total + 10 * ROUNDED:
            yield "gpu_ms: longer than the sum of the families"

    def list_cautions(self, file: File) -> list[str]:
        if (step := step_of(file)) is None:
            return []
        other = share_of_other(derive_categories(step))
        lines = [f"{each.reason}" for each in file.observed.values() if each.reason]
        if other > MOST_OTHER:
            lines.append(f"other is {100 * other:.1f} percent: names without a pattern")
        if step.uneven:
            names = ", ".join(step.uneven)
            lines.append(f"runs of {names} differ in their kernels: phases and layers may be cut wrongly")
        return lines

    def summarize(self, file: File) -> list[str]:
        return write_sentences(file, self.derive(file))

    def list_tables(self, file: File) -> Iterable[Table]:
        return tabulate_profile(self.derive(file))

    def name_file(self, file: File) -> list[str]:
        ladder = file.cases[STEP].ladder if STEP in file.cases else None
        names = [ladder] if ladder and ladder not in ("article", "full") else []
        return [*super().name_file(file), *names, file.options.rung or ""]


STUDY = ProfileStudy()


def _is_near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-3, abs_tol=ROUNDED)


def _refuse_impossible(job: Job) -> None:
    """Raise UserError if a file cannot have its name or cannot be written, or a tool is missing."""
    options: Options = job.options
    for flag, path, endings in (("--trace", options.trace, TRACES), ("--nsys", options.nsys, REPORTS)):
        if path is not None and not path.name.endswith(endings):
            raise UserError(f"{flag} {path}: the name of its file ends in {' or '.join(endings)}")
        if path is not None:
            files.refuse_unwritable(path.parent)
    if options.ncu:
        tools.find_ncu()
    if options.nsys:
        tools.find_nsys()
    if job.device == "cpu" and (options.ncu or options.nsys):
        raise UserError("--ncu and --nsys look into a GPU, and none is used here")


def plan_step(job: Job) -> Case:
    """Return the case of the job's rung. Without a ladder it is the article's, or `full` if that lacks the rung.

    Raises:
        UserError: no such rung, or the rung cannot run here.
    """
    from ladder.plan import catalog
    from stylegan_lite.config import Recipe

    rung = job.options.rung
    if rung is None:
        raise UserError("name the rung to profile, as in: ladder profile fused_act")
    ladder = catalog.load_ladder(job.options.ladder or "article")
    if job.options.ladder is None and rung not in {each.name for each in ladder.rungs}:
        ladder = catalog.load_ladder("full")
    recipe = frame.plan_rungs(job, job.options.ladder or ladder.name, [rung])[rung]
    able = [*frame.plan_rungs(job, job.options.ladder or ladder.name, [])]
    below = able[at - 1] if (at := able.index(rung)) else None
    return Case(ladder=ladder.name, recipe=Recipe.from_dict(recipe).to_dict(), below=below)


# --- tables -----------------------------------------------------------------------------------------------------------


def write_sentences(file: File, profile: Profile) -> list[str]:
    """Return the title of the page, what the step consists of, and how it was profiled."""
    machine, work = file.machine, file.workload or {}
    sentence = f"{profile.rung}: the step was not profiled"
    if profile.categories:
        first = max(profile.categories, key=lambda row: row.shown_ms)
        of = "GPU work" if profile.protocol.of == GPU else "operators' own time on the CPU"
        whole = "it" if profile.is_once else "all kernels together"
        sentence = (
            f"{profile.rung}: a step takes {profile.step_ms:.2f} ms, with {profile.gpu_ms:.2f} ms of {of};"
            f" {first.name} is {100 * first.share:.0f} percent of {whole}"
        )
    return [
        f"What {profile.rung} does in a step: {machine.gpu or machine.cpu}",
        sentence,
        f"Workload {work.get('name')}, ladder {profile.ladder}, PyTorch {machine.torch}, commit"
        f" {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}. One process, one traced cycle.",
    ]


def tabulate_profile(profile: Profile) -> Iterator[Table]:
    """Return all tables of a profile."""
    if not profile.categories or profile.layers is None or profile.memory is None:
        return
    yield _tabulate_categories(profile)
    yield _tabulate_expected(profile)
    runs = [f"{row.runs:g}" if row.runs else None for row in profile.phases]
    yield Table(
        [Column("phase"), *_columns("ms", "ms a step", "ms a run"),
         Column("runs a step", "amount", 2),
         Column("launches a step", "amount", 3)],
        [[row.name, row.ms, row.run_ms, run, row.launches]
         for row, run in zip(profile.phases, runs, strict=True)],
        "By phase",
    )  # fmt: skip
    if profile.gaps:
        yield Table(
            [Column("between"), *_columns("ms", "ms a step"), *_columns("amount", "gaps a step", "median us")],
            [[f"{row.before}, then {row.after}", row.ms, row.number, row.median_us] for row in profile.gaps],
            "Where nothing runs",
            ["inside runs of phases, in the traced cycle: its gaps are longer than those of a timed one"],
        )  # fmt: skip
    yield _tabulate_layers(profile.layers)
    if profile.heaviest:
        yield _tabulate_heaviest(profile.heaviest, profile)
    if profile.passes:
        yield tabulate_passes(profile.passes)
    if profile.counters:
        yield _tabulate_counters(profile)
    yield from _tabulate_memory(profile.memory)
    if profile.largest:
        yield _tabulate_largest(profile.largest)


def name_whole(profile: Profile) -> str:
    """Return the name of the row that all categories add up to."""
    return "GPU time" if profile.protocol.of == GPU else "all operators"


def _tabulate_categories(profile: Profile) -> Table:
    of_gpu, overlap = profile.protocol.of == GPU, profile.overlap_ms
    rows: list[list[Any]] = [
        [row.name, row.shown_ms, row.share, row.launches, _format_rate(row), _format_replaced(row)]
        for row in profile.categories
    ]
    other = share_of_other(profile.categories)
    limit = f"{100 * MOST_OTHER:.0f} percent"
    verdict = f"under {limit}" if other <= MOST_OTHER else f"above {limit}: the classifier lacks names"
    notes = [f"other is {100 * other:.1f} percent, {verdict}"]
    if abs(overlap) >= LEAST_SHOWN and not profile.is_once:
        rows.append([OVERLAP, -overlap, *[None] * 4])
    elif abs(overlap) >= LEAST_SHOWN:
        notes.append(
            f"beside another kernel ran {overlap:.2f} ms more: an instant counts for the kernel of the busier stream"
            " alone; rates are of all milliseconds, and so are the tables below"
        )
    launches = sum(row.launches for row in profile.categories)
    rows.append([name_whole(profile), profile.gpu_ms, None, launches, None, None])
    if of_gpu:
        waiting = max(0.0, (profile.step_ms or 0.0) - (profile.gpu_ms or 0.0))
        rows.append(["waiting", waiting, *[None] * 4])
    rows.append(["step", profile.step_ms, *[None] * 4])
    if sources := sorted({row.replaced.source for row in profile.categories if row.replaced}):
        notes.append(f"took the place of: what other categories lost at that rung, by {', '.join(sources)}")
    columns = [
        Column("category"), Column("ms a step", "ms"), Column("share", "share"),
        Column("launches" if of_gpu else "calls", "amount"), Column("rate", priority=1),
        *([Column("took the place of", priority=2)] if sources else []),
    ]  # fmt: skip
    return Table(columns, [row[: len(columns)] for row in rows], "By category", notes)


def _format_rate(row: Category) -> str | None:
    """Return the rate, or nothing for work of which a table shows 0.00 ms."""
    if row.rate is None or row.ms < LEAST_SHOWN:
        return None
    if row.unit == TBS and row.rate < SMALL:
        return f"{1000 * row.rate:.3g} GB/s"
    return f"{row.rate:.3g} {row.unit}"


def _format_replaced(row: Category) -> str | None:
    if row.replaced is None:
        return None
    return f"{row.replaced.lost_ms:.2f} ms by {row.replaced.fused_ms:.2f} at {row.replaced.at}"


def _tabulate_expected(profile: Profile) -> Table:
    rows = [[row.name, f"{100 * row.low:.0f}-{100 * row.high:.0f}%", row.share] for row in profile.expected]
    notes = [
        "the article speaks of its own baseline on an A100",
        "convolutions here are the categories convolution and matmul",
        "names of PyTorch's own kernels do not distinguish modulation from activation: both count as nonlinearities",
    ]
    columns = [Column("group"), Column("article"), Column("here", "share")]
    return Table(columns, rows, "Beside the article's expectation", notes)


def _tabulate_layers(layers: Layers) -> Table:
    columns = [
        Column("layer"), Column("ms a step", "ms"), Column("of it backward", "ms"),
        Column("launches a step", "amount", 1),
    ]  # fmt: skip
    if layers.reason is not None:
        return Table(columns, [], "By layer", [f"no layers: {layers.reason}"])
    rows: list[list[Any]] = [
        [row.name, row.ms, row.backward_ms, row.launches] for row in layers.rows[:LAYERS]
    ]
    if rest := layers.rows[LAYERS:]:
        sums = (sum(getattr(row, name) for row in rest) for name in ("ms", "backward_ms", "launches"))
        rows.append([f"{len(rest)} other layers", *sums])
    unknown = f"unknown layers: {100 * (layers.unknown or 0):.1f} percent of the work"
    return Table(columns, rows, "By layer", [unknown])


def _tabulate_heaviest(heaviest: Sequence[Heavy], profile: Profile) -> Table:
    of_gpu = profile.protocol.of == GPU
    rows = [
        [
            name,
            row.ms,
            row.ms / (profile.total_ms or 1),
            row.launches,
            1000 * row.ms / row.launches if row.launches else None,
            f"{row.phase} ({100 * row.phase_ms / (row.ms or 1):.0f}%)",
        ]
        for name, row in zip(number_names([row.kernel for row in heaviest]), heaviest, strict=True)
    ]
    columns = [
        Column("kernel" if of_gpu else "operator"), Column("ms a step", "ms"), Column("share", "share", 2),
        Column("launches" if of_gpu else "calls", "amount", 3), Column("us each", "amount", 4),
        Column("most of it in", priority=1),
    ]  # fmt: skip
    notes = ["names are shortened; kernels of one name may differ in their templates' numbers"] * of_gpu
    return Table(columns, rows, f"Heaviest {'kernels' if of_gpu else 'operators'}", notes)


def tabulate_passes(passes: Sequence[Pass]) -> Table:
    """Return the kernels of ours beside copies of as many bytes."""
    rows: list[list[Any]] = [
        [
            row.kernel,
            row.ms,
            row.launches,
            None if row.bytes is None else row.bytes / 1e6,
            row.bytes / row.known_ms / 1e9 if row.bytes and row.known_ms else None,
            share_of_copy([row]),
        ]
        for row in passes
    ]
    sums = sum(row.ms for row in passes), sum(row.launches for row in passes)
    rows.append(["together", *sums, None, None, share_of_copy(passes)])
    far = [row.kernel for row in passes if row.ms > LONG_MS and (share_of_copy([row]) or 1) < NEAR]
    notes = [
        "share: the time that copies of as many bytes take with a cold L2, median of"
        f" {tracing.COPIES}, by the kernel's",
        "bytes: each tensor that a launch is given, once; a kernel may find some of them in the L2",
        "no bytes: kernels that read addresses from a table; the categories of the profile have the optimizer's rate",
        f"over {1000 * LONG_MS:.0f} us a step and below {100 * NEAR:.0f}%: {', '.join(far) or 'none'}",
    ]
    columns = [
        Column("kernel"), Column("ms a step", "ms"), Column("launches", "amount", 3), Column("MB a step", "amount", 2),
        Column("TB/s", "amount", 1), Column("share of a copy", "share"),
    ]  # fmt: skip
    return Table(columns, rows, "Our kernels beside a copy", notes)


def share_of_copy(rows: Iterable[Pass]) -> float | None:
    """Return the time of copies of as many bytes by the kernels' time, or None if no bytes are known."""
    known = [(row.copy_ms, row.known_ms) for row in rows if row.copy_ms is not None and row.known_ms]
    return sum(copy for copy, _ in known) / sum(own for _, own in known) if known else None


def _tabulate_counters(profile: Profile) -> Table:
    counters = profile.counters or []
    names = number_names([kernel_names.label(row.kernel) for row in counters])
    pairs = list(zip(names, counters, strict=True))
    rows = [
        [name, row.us, row.sm, row.dram, row.l1_hits, row.sector_bytes, row.sentence]
        for name, row in pairs
        if row.us is not None
    ]
    notes = [
        f"the longest of the first {tools.LAUNCHES} launches of each grid, with emptied caches",
        "SM %, DRAM %: of the peak; of 32 B: bytes that loads use of a sector",
        *(f"no counters of {name}: {row.sentence}" for name, row in pairs if row.us is None),
    ]
    columns = [
        Column("kernel"), Column("us", "amount", 1), Column("SM %", "count", 2), Column("DRAM %", "count", 3),
        Column("L1 hit %", "count", 4), Column("of 32 B", "amount", 5), Column("what bounds it"),
    ]  # fmt: skip
    return Table(columns, rows, "Counters of the heaviest kernels", notes)


def number_names(names: Sequence[str]) -> list[str]:
    """Return names for one table. A name that came before gets a number."""
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        counts[name] += 1
        numbered.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return numbered


def _tabulate_memory(memory: Memory) -> Iterator[Table]:
    sizes = {
        "peak, allocated": memory.peak_allocated,
        "peak, reserved": memory.peak_reserved,
        "in use on the device": memory.device_used,
        "parameters, average and copies": memory.parameters,
        "optimizer state": memory.optimizer,
        "inputs and images": memory.buffers,
        "graph pools": memory.graph_pools,
    }
    rows = [[name, size / MIB] for name, size in sizes.items() if size is not None]
    yield Table([Column(""), Column("MiB", "amount")], rows, "Memory", memory.notes)
    lasting = memory.parameters + memory.optimizer + memory.buffers
    moments = []
    for phase, rows_ in memory.timeline.items():
        if not rows_:
            continue
        most = (max(rows_, key=lambda m: m.gradients), max(rows_, key=lambda m: m.activations))
        for name, moment in zip(MOMENTS, (rows_[0], *most, rows_[-1]), strict=True):
            total = lasting + moment.gradients + moment.activations
            in_mib = (each / MIB for each in (moment.gradients, moment.activations, total))
            moments.append([phase, name, moment.at_ms, *in_mib])
    if moments:
        columns = [
            Column("phase"), Column("moment"), Column("at ms", "amount", 2), Column("gradients MiB", "amount", 1),
            Column("activations MiB", "amount"), Column("all MiB", "amount", 3),
        ]  # fmt: skip
        yield Table(columns, moments, "Memory over time, in an eager run of each phase")


def _tabulate_largest(largest: Largest) -> Table:
    rows = [[str(each.batch), each.reason or "fits"] for each in largest.tried]
    speed = "" if largest.images_per_s is None else f", {largest.images_per_s:,.1f} images/s there"
    batch = "none" if largest.batch is None else str(largest.batch)
    more = "" if largest.settled else "; the search was not finished, more may fit"
    notes = [f"largest that fits: {batch}{speed}{more}"]
    return Table([Column("batch"), Column("outcome")], rows, "The largest batch", notes)


def _columns(kind: str, *titles: str) -> list[Column]:
    """Return columns of one kind; those behind the first leave where there is little room, the last first."""
    return [Column(title, kind, place) for place, title in enumerate(titles)]
