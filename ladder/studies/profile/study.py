"""`ladder profile`: what a rung's step consists of, by category, phase, layer and kernel, and where its memory goes.

One process times the step, traces a cycle, and runs each phase eagerly once (`measuring`). The largest batch and
Nsight Compute's counters are cases of their own, so a profile stays where they fail.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ladder.core import files, locks
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.engine import models
from ladder.show.table import Column, Table
from ladder.studies import frame
from ladder.studies.frame import Session, Study
from ladder.studies.profile import record

TRACES, REPORTS = (".json.gz", ".json"), (".nsys-rep",)  # endings of the names of files
LONG_MS, NEAR = 0.1, 0.6  # a kernel is far from a copy if it takes longer in a step and reaches less
LAYERS = 24  # rows of a table
MIB = 2**20


class ProfileStudy(Study[record.Options, record.Case, record.Observed]):
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
ladder profile bf16 --model my_pair.py           your own networks, see docs/your-pair.md
ladder profile fused_act --trace step.json.gz    and a trace for ui.perfetto.dev
ladder profile fused_act --largest-batch         and the largest batch that fits
ladder profile fused_act --ncu                   and counters of the heaviest kernels (Nsight Compute)
ladder profile fused_act --nsys step.nsys-rep    and a report of Nsight Systems
"""
    takes_pairs = True
    extendable = ("largest_batch", "ncu", "trace", "nsys")
    unstored = ("ladder", "trace", "nsys")

    def list_cases(self, job: Job, file: record.File | None) -> dict[str, record.Case]:
        from ladder.studies.profile import tools

        options = job.options
        for flag, path, endings in (("--trace", options.trace, TRACES), ("--nsys", options.nsys, REPORTS)):
            if path is not None:
                if not path.name.endswith(endings):
                    raise UserError(f"{flag} {path}: the name of its file ends in {' or '.join(endings)}")
                files.refuse_unwritable(path.parent)
        if job.device == "cpu" and (options.ncu or options.nsys):
            raise UserError("--ncu and --nsys look into a GPU, and none is used here")
        for name in [name for name in ("ncu", "nsys") if getattr(options, name)]:
            tools.find_tool(name)
        if options.largest_batch:
            models.refuse_fixed(job, "batch")
        cases = dict(file.cases) if file is not None and file.cases else {record.STEP: plan_step(job)}
        others = ((record.LARGEST, options.largest_batch), (record.COUNTERS, options.ncu))
        return cases | {key: record.Case() for key, is_wanted in others if is_wanted}

    def announce(self, job: Job, cases: Any) -> str:
        return f"{job.options.rung}: profile on {job.name}, {job.device}"

    def observe(self, session: Session, key: str, case: record.Case) -> record.Observed:
        from ladder.studies.profile import measuring

        session.share(measuring.hold_device)
        if key == record.STEP:
            return record.Observed(step=measuring.profile_step(session, case))
        step = session.file.observed[record.STEP].step
        recipe = session.file.cases[record.STEP].recipe or {}
        look = measuring.search_batch if key == record.LARGEST else measuring.count_kernels
        return look(session, step, recipe)

    def finish(self, job: Job, file: record.File) -> None:
        from ladder.machine import system
        from ladder.studies.profile import tools

        if job.options.nsys is not None and file.is_complete:
            with locks.device_lock(system.device_key(job.device)):
                tools.record_report(job, file.cases[record.STEP].recipe or {})

    def derive(self, file: record.File) -> record.Profile:
        return record.derive_profile(file, frame.list_cautions(self, file))

    def list_cautions(self, file: record.File) -> list[str]:
        if (step := record.read_step(file)) is None:
            return []
        lines = [each.reason for each in file.observed.values() if each.reason]
        if (other := record.share_of_other(record.derive_categories(step))) > record.MOST_OTHER:
            lines.append(f"other is {100 * other:.1f} percent: names without a pattern")
        if step.uneven:
            lines.append(f"runs of {', '.join(step.uneven)} differ in their kernels: they may be cut wrongly")
        return lines

    def summarize(self, file: record.File) -> list[str]:
        profile, machine, work = self.derive(file), file.machine, file.workload or {}
        sentence = f"{profile.rung}: the step was not profiled"
        if profile.categories:
            first, times = profile.categories[0], f"{profile.step_ms:.2f} ms, its {profile.protocol.of}"
            share = f"{first.name} is {100 * first.share:.0f} percent of it"
            sentence = f"{profile.rung}: a step takes {times} {profile.gpu_ms:.2f} ms; {share}"
        how = f"Workload {work.get('name')}, ladder {profile.ladder}, one process, one traced cycle."
        title = f"What {profile.rung} does in a step: {machine.gpu or machine.cpu}"
        return [title, sentence, f"{how} {frame.describe_software(file)}"]

    def list_tables(self, file: record.File) -> Iterator[Table]:
        return tabulate_profile(self.derive(file))

    def name_file(self, file: record.File) -> list[str]:
        ladder = file.cases[record.STEP].ladder if record.STEP in file.cases else None
        names = [ladder] if ladder and ladder not in ("article", "full") else []
        return [*super().name_file(file), *names, file.options.rung or ""]


STUDY = ProfileStudy()


def plan_step(job: Job) -> record.Case:
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
    return record.Case(ladder=ladder.name, recipe=Recipe.from_dict(recipe).to_dict())


def tabulate_profile(profile: record.Profile) -> Iterator[Table]:
    """Return all tables of a profile."""
    if not profile.categories or profile.layers is None or profile.memory is None:
        return
    total_ms = sum(row.ms for row in profile.categories)
    yield _tabulate_categories(profile, total_ms)
    if profile.expected:
        yield Table(
            [Column("group"), Column("article"), Column("here", "share")],
            [[row.name, f"{100 * row.low:.0f}-{100 * row.high:.0f}%", row.share] for row in profile.expected],
            "Beside the article's expectation",
            ["the article speaks of its own baseline on an A100; modulation counts as a nonlinearity here"],
        )
    yield Table(
        [Column("phase"), Column("ms a step", "ms"), Column("ms a run", "ms", 1), Column("runs a step", "amount", 2),
         Column("launches a step", "amount", 3)],
        [[row.name, row.ms, row.run_ms, f"{row.runs:g}" if row.runs else None, row.launches]
         for row in profile.phases],
        "By phase",
    )  # fmt: skip
    if profile.gaps:
        yield Table(
            [Column("between"), Column("ms a step", "ms"), Column("gaps a step", "amount"),
             Column("median us", "amount", 1)],
            [[f"{row.before}, then {row.after}", row.ms, row.number, row.median_us] for row in profile.gaps],
            "Where nothing runs",
            ["inside runs of phases, in the traced cycle: its gaps are longer than those of a timed one"],
        )  # fmt: skip
    yield _tabulate_layers(profile.layers)
    runs, starts = ("kernel", "launches") if profile.protocol.of == record.GPU else ("operator", "calls")
    if profile.heaviest:
        yield Table(
            [Column(runs), Column("ms a step", "ms"), Column("share", "share", 2), Column(starts, "amount", 3),
             Column("us each", "amount", 4), Column("most of it in", priority=1)],
            [[row.kernel, row.ms, row.ms / (total_ms or 1), row.launches,
              1000 * row.ms / row.launches if row.launches else None,
              f"{row.phase} ({100 * row.phase_ms / (row.ms or 1):.0f}%)"] for row in profile.heaviest],
            f"Heaviest {runs}s",
        )  # fmt: skip
    if profile.passes:
        yield tabulate_passes(profile.passes)
    if profile.counters:
        yield Table(
            [Column("kernel"), Column("us", "amount", 1), Column("SM %", "count", 2), Column("DRAM %", "count", 3),
             Column("L1 hit %", "count", 4), Column("of 32 B", "amount", 5), Column("what bounds it")],
            [[row.kernel, row.us, row.sm, row.dram, row.l1_hits, row.sector_bytes, row.sentence]
             for row in profile.counters],
            "Counters of the heaviest kernels",
            ["of the longest launch, with emptied caches; SM %, DRAM %: of the peak; of 32 B: bytes used of a sector"],
        )  # fmt: skip
    yield from _tabulate_memory(profile.memory)
    if largest := profile.largest:
        speed = "" if largest.images_per_s is None else f", {largest.images_per_s:,.1f} images/s there"
        more = "" if largest.settled else "; the search was not finished, more may fit"
        yield Table(
            [Column("batch"), Column("outcome")],
            [[str(each.batch), each.reason or "fits"] for each in largest.tried],
            "The largest batch",
            [f"largest that fits: {largest.batch or 'none'}{speed}{more}"],
        )


def _tabulate_categories(profile: record.Profile, total_ms: float) -> Table:
    on_gpu = profile.protocol.of == record.GPU
    rows: list[list[Any]] = []
    for row in profile.categories:
        rate = row.rate and f"{texts.format_amount(row.rate)} {row.unit}"
        rows.append([row.name, row.shown_ms, row.share, row.launches, rate])
    launches, step_ms, gpu_ms = sum(row[3] for row in rows), profile.step_ms or 0.0, profile.gpu_ms or 0.0
    rows.append(["GPU time" if on_gpu else "all operators", gpu_ms, None, launches, None])
    rows += [["waiting", max(0.0, step_ms - gpu_ms), None, None, None]] * on_gpu
    rows.append(["step", step_ms, None, None, None])
    other, beside_ms = record.share_of_other(profile.categories), total_ms - gpu_ms
    notes = [
        f"other is {other:.1%}; above {record.MOST_OTHER:.0%} the classifier lacks names",
        f"for {abs(beside_ms):.2f} ms a kernel ran beside another: rates and the tables below count both",
    ]
    columns = [
        Column("category"), Column("ms a step", "ms"), Column("share", "share"),
        Column("launches" if on_gpu else "calls", "amount"), Column("rate", priority=1),
    ]  # fmt: skip
    return Table(columns, rows, "By category", notes).drop_empty()


def _tabulate_layers(layers: record.Layers) -> Table:
    columns = [Column("layer"), Column("ms a step", "ms"), Column("of it backward", "ms")]
    columns.append(Column("launches a step", "amount", 1))
    rows = [[row.name, row.ms, row.backward_ms, row.launches] for row in layers.rows[:LAYERS]]
    rest = layers.rows[LAYERS:]
    note = (
        f"{len(rest)} other layers: {sum(row.ms for row in rest):.2f} ms; unknown: {layers.unknown or 0:.1%}"
    )
    return Table(
        columns, rows, "By layer", [note if layers.reason is None else f"no layers: {layers.reason}"]
    )


def tabulate_passes(passes: Sequence[record.Pass]) -> Table:
    """Return the kernels of ours beside copies of as many bytes."""
    rows: list[list[Any]] = []
    far = []
    for row in passes:
        mb = None if row.bytes is None else row.bytes / 1e6
        rate = row.bytes / row.known_ms / 1e9 if row.bytes and row.known_ms else None
        share = share_of_copy([row])
        rows.append([row.kernel, row.ms, row.launches, mb, rate, share])
        if row.ms > LONG_MS and share is not None and share < NEAR:
            far.append(row.kernel)
    sums = sum(row.ms for row in passes), sum(row.launches for row in passes)
    rows.append(["together", *sums, None, None, share_of_copy(passes)])
    notes = [
        "share: the time of copying as many bytes with a cold L2, by the kernel's; bytes: each tensor once",
        f"over {1000 * LONG_MS:.0f} us a step and below {100 * NEAR:.0f}%: {', '.join(far) or 'none'}",
    ]
    columns = [
        Column("kernel"), Column("ms a step", "ms"), Column("launches", "amount", 3), Column("MB a step", "amount", 2),
        Column("TB/s", "amount", 1), Column("share of a copy", "share"),
    ]  # fmt: skip
    return Table(columns, rows, "Our kernels beside a copy", notes)


def share_of_copy(rows: Iterable[record.Pass]) -> float | None:
    """Return the time of copies of as many bytes by the kernels' time, or None if no bytes are known."""
    known = [(row.copy_ms, row.known_ms) for row in rows if row.copy_ms is not None and row.known_ms]
    return sum(copy for copy, _ in known) / sum(own for _, own in known) if known else None


def _tabulate_memory(memory: record.Memory) -> Iterator[Table]:
    sizes = {
        "peak, allocated": memory.peak_allocated,
        "peak, reserved": memory.peak_reserved,
        "in use on the device": memory.device_used,
        "parameters, average and copies": memory.parameters,
        "optimizer state": memory.optimizer,
        "inputs and images": memory.buffers,
        "graph pools": memory.graph_pools,
    }
    rows: list[list[Any]] = [[name, size / MIB] for name, size in sizes.items() if size is not None]
    note = "graph pools hold gradients and activations of captured graphs from their capture on"
    yield Table([Column(""), Column("MiB", "amount")], rows, "Memory", [note])
    rows = []
    for phase, moments in memory.timeline.items():
        for most in sorted(moments, key=lambda each: -each.gradients - each.activations)[:1]:
            parts = most.gradients, most.activations, memory.lasting + most.gradients + most.activations
            rows.append([phase, most.at_ms, *(each / MIB for each in parts)])
    columns = [Column("phase"), Column("at ms", "amount"), Column("gradients MiB", "amount")]
    columns += [Column("activations MiB", "amount"), Column("all MiB", "amount")]
    if rows:
        yield Table(columns, rows, "The most memory of an eager run of each phase")
