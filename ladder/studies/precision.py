"""`ladder precision`: time, memory, parity and largest batch in FP32, TF32, BF16, FP16 and FP8.

A row is a precision on a base: the baseline, or the top of a ladder with a graph for each phase, so that parity sees
each phase. Parity comes first, of all rows side by side, then generations that visit all rows in random order, FP16's
loss scales, and the largest batches. Every part is a case of the file with a fresh process; times are measured alone.
"""

from __future__ import annotations

import functools
import random
import statistics
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from ladder.core import options as shared
from ladder.core import records as r
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.options import Seed, declare_option
from ladder.machine import neighbours
from ladder.report import drawing
from ladder.results import store
from ladder.results.file import Phase, Status
from ladder.results.run import JudgedParity
from ladder.show.table import Column, Table
from ladder.show.themes import LIGHT
from ladder.stats import estimates
from ladder.studies import batch_search, frame
from ladder.studies.base import Session, Study, StudyFile

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
Base = Literal["baseline", "top"]
Bases = Literal["baseline", "top", "both"]
Gib = Annotated[float, r.number_between(0, 1e6)] | None
NAMES = {"fp32": "FP32", "tf32": "TF32", "bf16": "BF16", "fp16": "FP16", "fp8": "FP8 dense, BF16"}
FLOATS: dict[str, r.Fields] = {
    "fp32": {"precision": "fp32", "fp32_precision": "ieee"},
    "tf32": {"precision": "fp32", "fp32_precision": "tf32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp8": {"precision": "bf16", "dense": "fp8"},
}
CLAIMS = {  # the article's figures for FP16 and BF16 against FP32
    "throughput": ("twice the throughput", 2.0),
    "memory": ("memory halved", 0.5),
    "batch": ("batch doubled", 2.0),
}
MEMORY = {"baseline": "allocated_gib", "top": "device_gib"}  # graphs' pools are not PyTorch's allocator's
DEFAULTS = {  # of options that the user left out
    "cuda": {"generations": 3, "cycles": 2, "batch_seconds": 75.0, "steps": 4000},
    "cpu": {"generations": 1, "cycles": 1, "batch_seconds": 0.0, "steps": 32},
}
BYTES = {  # of a worker's reply
    **{"allocated_gib": "peak_allocated_bytes", "reserved_gib": "peak_reserved_bytes"},
    **{"device_gib": "device_used_bytes", "rss_gib": "peak_rss_bytes"},
}
TIMED = ("parity", "generation")  # parts that a row must have for the others
NOISE: r.Fields = {"data": None}  # of the workload: random images
CPU_INTERVAL = 8  # updates after which a loss scale grows in a smoke test
SETTLE = {"settle_s": 2.5, "settle_cycles": 16}  # the most that a row runs before its first timed cycle


class Options(frame.Options):
    """The options of `ladder precision`."""

    # fmt: off
    only: Annotated[str, declare_option(
        "Precisions, of fp32, tf32, bf16, fp16 and fp8. [default: all]", metavar="A,B,...")] | None = None
    on: Annotated[Bases, declare_option("Measure the baseline in each precision, or the top of the ladder.")] = "both"
    ladder: Annotated[str, declare_option("The ladder whose top is measured.", metavar="NAME|FILE")] = "full"
    generations: Annotated[int, Meta(ge=1, le=100), declare_option(
        "Fresh processes of each row. [default: 3; CPU: 1]", flags=["--generations", "--rounds"])] | None = None
    cycles: Annotated[int, Meta(ge=1, le=1000), declare_option(
        "Timed cycles of each process. [default: 2; CPU: 1]")] | None = None
    parity: Annotated[bool, declare_option("Compare each row with FP64 before it is timed.")] = True
    batch_seconds: Annotated[float, Meta(ge=0), declare_option(
        "Seconds of each search for the largest batch; 0: none. [default: 75; CPU: 0]")] | None = None
    batch_of: Annotated[Bases, declare_option("Rows whose largest batch is searched.")] = "baseline"
    most: Annotated[int, Meta(ge=1, le=2**15), declare_option("Largest batch that is tried.")] = 4096
    steps: Annotated[int, Meta(ge=0), declare_option(
        "Steps of the FP16 training that records loss scales; 0: none. [default: 4000; CPU: 32]")] | None = None
    seed: Annotated[Seed, declare_option("Seed for weights, latents, and the order of images and rows.")] = 0
    # fmt: on

    def choose(self, name: str, device: str) -> Any:
        """Return an option, or its default on this device."""
        value = getattr(self, name)
        return DEFAULTS[device][name] if value is None else value


class Case(frame.RungCase, kw_only=True):
    """A part of a row. `round` counts the generations from 0; `reason` is why the row cannot run."""

    precision: Precision
    on: Base
    part: Literal["parity", "generation", "loss scales", "largest batch"] = "parity"
    round: r.Count = 0
    reason: r.Line | None = None

    @property
    def title(self) -> str:
        """Return the name of the row."""
        return f"{NAMES[self.precision]} on the {self.on}"

    @property
    def key(self) -> str:
        """Return the name of the part."""
        return f"{self.title}: {self.part}{f' {self.round + 1}' if self.part == 'generation' else ''}"


class Sizes(r.Record, kw_only=True):
    """The most memory that was in use; `device_gib` by all processes on the GPU."""

    allocated_gib: Gib = None
    reserved_gib: Gib = None
    device_gib: Gib = None
    rss_gib: Gib = None


class Round(Sizes, kw_only=True):
    """A visit of a row. Times are in ms a step."""

    round: r.Count
    samples_ms: Annotated[list[r.Ms], r.size_between(1000, 1)]
    others_cpu: r.Share | None = None


class Parity(r.Record, kw_only=True):
    """Parity with FP64, with the part of its budget that was used, and the precision that the budget is of."""

    verdict: Literal["ok", "failed: parity"]
    reason: r.Text | None = None
    share: r.Amount | None = None
    gradient_errors: dict[Phase, r.Amount]
    budget: r.Text


class History(r.Record):
    """FP16's loss scales over a training. A change has its step, the scales of G and D, and their skipped updates."""

    steps: r.Count
    initial: r.Amount
    interval: r.Count
    images: bool
    changes: Annotated[list[Annotated[list[r.Amount], r.size_between(5, 5)]], r.size_between(4000, 1)]
    updates: dict[str, r.Count]
    skipped: dict[str, r.Count]


class Observed(frame.Observation, kw_only=True):
    """What one part showed."""

    parity: Parity | None = None
    round: Round | None = None
    history: History | None = None
    largest: batch_search.Search | None = None

    def list_times(self) -> Iterable[float]:
        return self.round.samples_ms if self.round else ()


class Largest(batch_search.Search):
    """The largest batch that fitted; more may fit where the search is not settled."""

    batch: int | None


class Row(Sizes, kw_only=True):
    """What is derived of a precision on a base. Times in ms a step; sizes are the most of its rounds."""

    precision: Precision
    on: Base
    status: Status
    reason: str | None
    recipe: r.Fields
    rounds: list[Round]
    parity: Parity | None
    largest: Largest | None
    step_ms: float | None
    interval_ms: tuple[float, float] | None

    @property
    def title(self) -> str:
        """Return the name of the row."""
        return f"{NAMES[self.precision]} on the {self.on}"

    @property
    def medians(self) -> dict[int, float]:
        """Return each round's median in ms a step."""
        return {each.round: statistics.median(each.samples_ms) for each in self.rounds}


class Claim(r.Record):
    """The article's figure beside ours, for a precision against another on the same base."""

    claim: str
    article: float
    precision: Precision
    against: Precision
    on: Base
    ours: float | None
    interval: tuple[float, float] | None


class Protocol(r.Record):
    """How the rows were measured, and why the figures must not be quoted."""

    rounds: int
    cycles: int
    seed: int
    ladder: str
    parity: bool
    batch_seconds: float
    steps: int
    notes: list[str]


class Precisions(r.Record):
    """What `ladder report --json` prints beside the header."""

    protocol: Protocol
    rows: list[Row]
    history: History | None
    claims: list[Claim]


File = StudyFile[Options, Case, Observed]


class PrecisionStudy(Study[Options, Case, Observed]):
    """Rows of precisions, a part at a time."""

    name, kind, folder = "precision", "precision", "precision"
    help = """Compare FP32, TF32, BF16 and FP16: time, memory and parity.

    The largest batch that fits is searched as well. FP16 trains with one loss scale for G and one for D, whose history
    is recorded and drawn. FP8 is tried in the fully connected layers. Each of the article's claims (twice the
    throughput, half the memory, twice the batch) gets a line.

    Exit status: 0 if every row that can run here has a number. 1 if one has none. 2 if the request is impossible. 130
    if it was interrupted or the time was over.
    """
    examples = """
ladder precision                            everything, of the article's workload
ladder precision --only fp32,fp16 --on baseline
ladder precision --no-parity --batch-seconds 0 --steps 0      the times alone
ladder precision --minutes 9                a part, then the rest of it:
ladder precision --resume results/precision/MACHINE-partial.json
ladder precision -w article-b32 --json > precision.json
"""
    budget_flag, case_seconds = "--minutes", {"cuda": 26.0}
    answers, final = ("ok", "n/a"), ("ok", "n/a", "failed: parity")
    extendable = ("only", "on", "generations", "parity", "batch_seconds", "batch_of", "most", "steps")

    def list_cases(self, job: Job, file: File | None) -> dict[str, Case]:
        options, observed = job.options, file.observed if file else {}
        choose = functools.partial(options.choose, device=job.device)
        rows = plan_rows(job)
        failed = {
            case.title
            for key, case in (file.cases if file else {}).items()
            if case.part in TIMED and key in observed and observed[key].status not in self.answers
        }
        able = [row for row in rows if not row.reason and row.title not in failed]
        cases = [row for row in rows if row.reason or options.parity]
        rng = random.Random(options.seed)
        for number in range(choose("generations")):
            due = [row for row in rng.sample(rows, len(rows)) if row in able]
            cases += [replace(row, part="generation", round=number) for row in due]
        if scaled := [row for row in able if row.precision == "fp16" and choose("steps")]:
            cases.append(replace(scaled[-1], part="loss scales"))
        searched = [row for row in able if options.batch_of in (row.on, "both") and row.precision != "fp8"]
        cases += [replace(row, part="largest batch") for row in searched if choose("batch_seconds")]
        return {each.key: each for each in cases}

    def announce(self, job: Job, cases: Mapping[str, Case]) -> str:
        """Return the first line of the command. Raises UserError for an option that no row reads."""
        options = job.options
        if "fp16" not in (shared.split_names(options.only) or NAMES) and options.steps:
            why = (
                "is for FP16's recorded training, and --only leaves FP16 out: leave out --steps, or add fp16"
            )
            shared.refuse_idle(why, "steps")
        if options.on == "baseline":
            shared.refuse_idle("is for --on top", "ladder")
        if not options.choose("batch_seconds", job.device):
            shared.refuse_idle(
                "is for the search of the largest batch: give --batch-seconds", "most", "batch_of"
            )
        elif "both" not in (options.on, options.batch_of) and options.on != options.batch_of:
            why = f"searches no row: --on is {options.on}, and --batch-of {options.batch_of}"
            shared.refuse_idle(why, "batch_seconds", "batch_of", "most")
        return super().announce(job, cases)

    def observe(self, session: Session, key: str, case: Case) -> Observed:
        if case.reason:
            return Observed(status="n/a", reason=texts.make_display(case.reason))
        if case.part == "parity":
            return check_rows(session, key)
        parts = {"generation": time_row, "loss scales": follow_scales, "largest batch": find_largest_batch}
        return parts[case.part](session, case)

    def describe(self, observation: Observed) -> str:
        if observation.round:
            return f"{texts.format_ms(statistics.median(observation.round.samples_ms))} ms"
        return format_parity(observation.parity) or "done"

    def derive(self, file: File) -> Precisions:
        rows, options = derive_rows(file), file.options
        choose = functools.partial(options.choose, device=file.machine.device)
        protocol = Protocol(
            choose("generations"), choose("cycles"), options.seed, file.ladder or options.ladder, options.parity,
            choose("batch_seconds"), choose("steps"), frame.list_cautions(self, file),
        )  # fmt: skip
        history = next((each.history for each in file.observed.values() if each.history), None)
        return Precisions(protocol, rows, history, list(derive_claims(rows)))

    def list_problems(self, file: File) -> Iterable[str]:
        for key, each in file.observed.items():
            parts = (each.parity, each.round, each.history, each.largest)
            if each.status == "ok" and sum(part is not None for part in parts) != 1:
                yield f"{key}: ok without what its part shows"

    def list_cautions(self, file: File) -> list[str]:
        rounds = [each.round for each in file.observed.values() if each.round]
        few = file.options.choose("generations", file.machine.device) < store.FEWEST_ROUNDS
        marks = neighbours.list_marks({neighbours.KEY: each.others_cpu} for each in rounds)
        return [*([store.few()] if few else []), *marks]

    def name_file(self, file: File) -> list[str]:
        work = str((file.workload or {})["name"])
        smoke = ["smoke"] if file.machine.device == "cpu" else []
        return [file.machine.name, *([] if work == "article" else [work]), *smoke]

    def summarize(self, file: File) -> list[str]:
        facts, work, rules = file.machine, file.workload or {}, self.derive(file).protocol
        return [
            f"Precisions on {facts.gpu or facts.cpu}",
            f"Workload {work['name']}, batch {work['batch']}; {texts.format_count(rules.rounds, 'generation')} of"
            f" {texts.format_count(rules.cycles, 'cycle')}, each in fresh processes. PyTorch {facts.torch}, commit"
            f" {(file.commit or 'unknown')[:12]}{' with changes' if file.dirty else ''}.",
            f"baseline: nothing changed but the precision. top: the ladder {rules.ladder} with its precision exchanged,"
            " phases in graphs of their own. FP32 is IEEE in every matmul and convolution; PyTorch's default, TF32 in"
            " convolutions alone, lies between FP32 and TF32.",
        ]

    def list_tables(self, file: File) -> Iterable[Table]:
        derived, rows = self.derive(file), list[list[Any]]()
        columns = [
            Column("precision"), Column("on"), Column("ms/step", "ms"), Column("95% interval", "ms_interval", 1),
            Column("allocated GiB", "decimal", 2), Column("device GiB", "decimal", 2), Column("parity", "text", 1),
            Column("largest batch", "text", 1),
        ]  # fmt: skip
        for row in derived.rows:
            batch = "" if row.largest is None else str(row.largest.batch or "none")
            batch += " or more" if row.largest and row.largest.batch and not row.largest.settled else ""
            figures = [row.step_ms or row.status, row.interval_ms, row.allocated_gib, row.device_gib]
            rows.append([NAMES[row.precision], row.on, *figures, format_parity(row.parity), batch])
        yield Table(columns, rows, notes=list(list_notes(derived)))

    def draw(self, file: File, kind: str) -> bytes:
        return drawing.save(lambda: _draw_figure(file, self.derive(file)), kind)


STUDY = PrecisionStudy()


# --- what is measured -------------------------------------------------------------------------------------------------


def plan_rows(job: Job) -> list[Case]:
    """Return each precision on each base, with its recipe or the reason why it cannot run.

    Raises:
        UserError: an unknown precision or ladder.
    """
    from ladder.machine import system
    from ladder.plan import catalog, needs
    from stylegan_lite.config import ConfigError, Recipe, suggestion

    options: Options = job.options
    precisions = list(NAMES) if options.only is None else shared.split_names(options.only) or [options.only]
    if unknown := [name for name in precisions if name not in NAMES]:
        raise UserError(f"no precision {unknown[0]!r}{suggestion(unknown[0], NAMES)}")
    able = needs.join_capabilities(system.list_capabilities(job.device), job.workload)
    climbed = catalog.plan_climb(catalog.load_ladder(options.ladder), able)
    top = next((rung.recipe for rung in reversed(climbed) if rung.recipe is not None), {})
    rows = []
    for on in ("baseline", "top") if options.on == "both" else (options.on,):
        for name in dict.fromkeys(precisions):
            recipe = (top | {"whole_step_graph": False} if on == "top" else {}) | FLOATS[name]
            reason = able["bf16"] if name in ("bf16", "fp8") else None
            if job.device == "cpu":
                recipe.pop("fp32_precision", None)
                reason = "TF32 is a mode of NVIDIA's Tensor Cores" if name == "tf32" else reason
            try:
                Recipe.from_dict(recipe).refuse_on(job.device)
            except ConfigError as error:
                reason = reason or str(error)
            rows.append(Case(recipe=recipe, precision=name, on=on, reason=reason))  # type: ignore[arg-type]
    return rows


def check_rows(session: Session, key: str) -> Observed:
    """Compare all rows that wait with FP64, side by side as a run inspects its rungs; return what `key` showed.

    They share one reference, and rows of one precision its budget: each is made once, while the other rows compute.
    A row whose failure may be its neighbours' fault, such as too little memory, is compared again alone.
    """
    from ladder.engine import rounds, run
    from ladder.engine.pool import WorkerFailure

    job, pool, gate = session.job, session.pool, threading.Lock()
    waiting = {name: case for name, case in session.file.cases.items() if name not in session.file.observed}
    rows = {name: case for name, case in waiting.items() if case.part == "parity" and not case.reason}
    results: dict[str, Observed] = {}

    def check(name: str, threads: int | None) -> None:
        try:
            results[name] = check_parity(session, rows[name], threads)
        except WorkerFailure as failure:
            if pool.ended or (threads and rounds.is_unsure(failure)):
                return
            results[name] = Observed(status=failure.status, reason=texts.make_display(failure.reason))  # type: ignore[arg-type]
        if name != key:
            with gate:
                session.keep(name, results[name])
                session.report(f"{name}: {format_parity(results[name].parity) or results[name].reason}")

    run.inspect_beside(job, [*rows], [*rows], check, lambda name: name not in results, pool.kill)
    return results[key]


def check_parity(session: Session, case: Case, threads: int | None = None) -> Observed:
    """Compare with FP64. A row that fails is not timed, except FP8: it is outside the budget by design."""
    from ladder.engine.pool import strip_protocol
    from ladder.report.view import parity_share

    seed = session.job.options.seed
    with session.prepare_worker(case.recipe, seed, NOISE, keep_gradients=True, threads=threads) as worker:
        found = msgspec.convert(texts.fit_texts(strip_protocol(worker.call("parity"))), JudgedParity)
    share, phases = parity_share(found), found.phases or {}
    parity = Parity(
        verdict=found.verdict,
        reason=found.reason,
        share=None if share is None else round(share, 4),
        gradient_errors={phase: float(f"{each['gradient'].error:.4g}") for phase, each in phases.items()},
        budget=found.budget.precision if found.budget else "unknown",
    )
    status = "ok" if case.precision == "fp8" else found.verdict
    return Observed(status=status, reason=None if status == "ok" else found.reason, parity=parity)


def time_row(session: Session, case: Case) -> Observed:
    """Return the samples and the memory of a fresh process."""
    settle = SETTLE if session.job.device == "cuda" else {"settle_s": 0, "settle_cycles": 0}
    cycles = session.job.options.choose("cycles", session.job.device)
    with session.prepare_worker(case.recipe, session.job.options.seed, NOISE) as worker:
        before = neighbours.take_sample()
        reply = worker.call("visit", cycles=cycles, main=False, **settle)
        others = neighbours.derive_share(before, neighbours.take_sample())
    known = {key: reply.get(name) for key, name in BYTES.items()}
    gib = {key: None if value is None else round(value / 2**30, 4) for key, value in known.items()}
    samples = [round(1000 * seconds, 5) for seconds in reply["samples_s"]]
    return Observed(round=Round(round=case.round, samples_ms=samples, others_cpu=others, **gib))


def follow_scales(session: Session, case: Case) -> Observed:
    """Return both loss scales over a training from the start."""
    from ladder.engine.pool import strip_protocol
    from stylegan_lite.config import Recipe

    job, data = session.job, session.job.workload["data"]
    faster = {"loss_scale_interval": CPU_INTERVAL} if job.device == "cpu" else {}
    case = replace(case, recipe=case.recipe | faster)
    with session.prepare_worker(case.recipe, job.options.seed) as worker:
        reply = strip_protocol(worker.call("scales", steps=job.options.choose("steps", job.device)))
    interval = Recipe.from_dict(case.recipe).loss_scale_interval
    return Observed(history=History(interval=interval, images=data is not None, **reply))


def find_largest_batch(session: Session, case: Case) -> Observed:
    """Return the largest batch, in whole minibatch-std groups, that a fresh process can prepare."""
    from ladder.engine.pool import WorkerFailure

    job, options = session.job, session.job.options

    def fits(batch: int) -> str | None:
        session.report(f"{case.title}: does a batch of {batch} fit?")
        try:
            with session.prepare_worker(case.recipe, options.seed, NOISE | {"batch": batch}):
                return None
        except WorkerFailure as failure:
            return texts.make_display(failure.reason)

    row = next(row for row in derive_rows(session.file) if row.title == case.title)
    used, room = max(row.reserved_gib or 0, row.device_gib or 0), job.machine.get("gpu_memory_gb")
    start = batch_search.first(int(job.workload["batch"]), used, room, options.most)  # type: ignore[arg-type]
    group = batch_search.group_of(job.workload, case.recipe)
    limit_s = options.choose("batch_seconds", job.device)
    return Observed(largest=batch_search.search(fits, start, group, limit_s, options.most))


# --- what follows from it ---------------------------------------------------------------------------------------------


def derive_rows(file: File) -> list[Row]:
    """Return the rows in the order of the bases and of `NAMES`, with the figures that follow from their rounds."""
    rows = []
    places = dict.fromkeys((case.on, case.precision) for case in file.cases.values())
    for on, precision in sorted(places, key=lambda each: (each[0], [*NAMES].index(each[1]))):
        own = {key: case for key, case in file.cases.items() if (case.on, case.precision) == (on, precision)}
        unseen = Observed(status="n/a")
        parts = [(case, file.observed.get(key, unseen)) for key, case in own.items()]
        failed = next((each for case, each in parts if case.part in TIMED and each.reason), None)
        rounds = sorted((each.round for _, each in parts if each.round), key=lambda each: each.round)
        most = {
            key: max((value for each in rounds if (value := getattr(each, key)) is not None), default=None)
            for key in Sizes.__struct_fields__
        }
        search = next((each.largest for _, each in parts if each.largest), None)
        times = [statistics.median(each.samples_ms) for each in rounds]
        rows.append(
            Row(
                precision=precision, on=on, status=failed.status if failed else "ok" if rounds else "n/a",
                reason=failed.reason if failed else None, recipe=parts[0][0].recipe, rounds=rounds,
                parity=next((each.parity for _, each in parts if each.parity), None),
                largest=Largest(search.settled, search.tried, search.find_batch()) if search else None,
                step_ms=estimates.median(times), interval_ms=estimates.log_interval(times), **most,
            )
        )  # fmt: skip
    return rows


def derive_claims(rows: list[Row]) -> Iterator[Claim]:
    """Yield BF16 and FP16 against FP32 and TF32 on the same base, by each figure of the article."""

    def divide(a: float | None, b: float | None) -> float | None:
        return a / b if a and b else None

    for row in rows:
        for other in rows if row.precision in ("bf16", "fp16") else ():
            if other.on != row.on or other.precision not in ("fp32", "tf32"):
                continue
            ratios = estimates.paired_ratios(other.medians, row.medians)
            batches = [
                each.largest.batch if each.largest and each.largest.settled else None for each in (row, other)
            ]
            figures = {
                "throughput": estimates.estimate_speedup(other.medians, row.medians),
                "memory": divide(getattr(row, MEMORY[row.on]), getattr(other, MEMORY[row.on])),
                "batch": divide(*batches),
            }
            for claim, value in figures.items():
                interval = estimates.log_interval(ratios) if claim == "throughput" else None
                yield Claim(claim, CLAIMS[claim][1], row.precision, other.precision, row.on, value, interval)


def list_notes(derived: Precisions) -> Iterator[str]:
    """Yield a line for each of the article's claims, for each row without a number or parity, and for the scales."""
    for name, (words, article) in CLAIMS.items():
        ours = [
            f"{NAMES[each.precision]} for {NAMES[each.against]} on the {each.on} {each.ours:.2f}x"
            + ("" if not each.interval else " ({:.2f}-{:.2f})".format(*each.interval))
            for each in derived.claims
            if each.claim == name and each.ours is not None
        ]
        yield f"{words} (article: {article:g}x): {'; '.join(ours) or 'not measured here'}"
    for row in derived.rows:
        if row.reason or (row.parity and row.parity.reason):
            yield f"{row.title}: {f'{row.status}: {row.reason}' if row.reason else f'parity: {row.parity.reason}'}"  # type: ignore[union-attr]
    if history := derived.history:
        where = f"{history.steps} steps on {'images' if history.images else 'noise'}"
        yield f"FP16's loss scales over {where} from {history.initial:g}: {'; '.join(describe_scales(history))}"


def describe_scales(history: History) -> list[str]:
    """Return what became of the loss scales of G and of D."""
    ends = zip(("G", "D"), history.changes[-1][1:3], strict=True)
    return [
        f"{name}: {history.skipped[name]} of {history.updates[name]} updates skipped, scale {scale:g} at the end"
        for name, scale in ends
    ]


def format_parity(parity: Parity | None) -> str:
    """Return the verdict, with the share of the budget that was used."""
    if parity is None or parity.share is None:
        return parity.verdict if parity else ""
    return f"{parity.verdict}, {parity.share:.2f} of budget"


def _draw_figure(file: File, derived: Precisions) -> Any:
    """Draw time, memory and largest batch of each row as bars, and FP16's loss scales below."""
    from matplotlib.figure import Figure

    figure, rules = Figure(figsize=(12.5, 7.2)), derived.protocol
    grid = figure.add_gridspec(2, 3, left=0.06, right=0.98, top=0.82, bottom=0.12, hspace=0.42, wspace=0.2)
    lower, panels = figure.add_subplot(grid[1, :]), [figure.add_subplot(grid[0, k]) for k in range(3)]
    shown = list(dict.fromkeys(row.precision for row in derived.rows))
    for side, (on, color) in enumerate({"baseline": LIGHT.idle, "top": LIGHT.busy}.items()):
        rows = {shown.index(row.precision) + 0.4 * side: row for row in derived.rows if row.on == on}
        heights: dict[str, list[Any]] = {
            "ms a step": [row.step_ms or 0 for row in rows.values()],
            "GiB, at most": [row.device_gib or row.rss_gib or 0 for row in rows.values()],
            "largest batch": [(row.largest and row.largest.batch) or 0 for row in rows.values()],
        }
        for axes, (title, values) in zip(panels, heights.items(), strict=True):
            axes.set_title(title, loc="left", fontweight="bold")
            axes.bar([*rows], values, 0.38, color=color, label=on)
            names = [NAMES[each].replace(", ", "\n") for each in shown]
            axes.set_xticks([k + 0.2 for k in range(len(shown))], names)
            axes.margins(y=0.14)  # the room of a figure above the highest bar
            for (x, row), value in zip(rows.items(), values, strict=True):
                interval = (axes is panels[0] and row.interval_ms) or (value, value)
                axes.plot([x, x], interval, color=LIGHT.ink)
                axes.annotate(
                    f"{value:.3g}" if value else "-", (x, max(value, interval[1])), xytext=(0, 3),
                    textcoords="offset points", ha="center", fontsize=7.5,
                )  # fmt: skip
    lower.set_title("FP16: loss scales while training", loc="left", fontweight="bold")
    if history := derived.history:
        steps = [change[0] for change in history.changes] + [history.steps + 1]
        for place, color, label in zip(
            (1, 2), (LIGHT.busy, LIGHT.article), describe_scales(history), strict=True
        ):
            scales = [change[place] for change in history.changes]
            lower.step(steps, [*scales, scales[-1]], where="post", color=color, label=label)
        lower.set_yscale("log", base=2)
        lower.yaxis.set_major_formatter(lambda value, place: f"{value:g}")
        lower.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0)
    for axes in figure.axes:
        drawing.clear_axes(axes)
    facts, work = file.machine, file.workload or {}
    note = f" ({rules.notes[0]})" if rules.notes else ""
    title = f"{facts.gpu or facts.cpu}: FP32, TF32, BF16 and FP16, {work['name']}{note}"
    line = f"batch {work['batch']}, {texts.format_count(rules.rounds, 'generation')}; PyTorch {facts.torch}. Lower is"
    drawing.draw_heading(figure, title, f"{line} better in time and memory. Error bars: 95% interval.")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="upper left", bbox_to_anchor=(0.012, 0.925), ncols=2, frameon=False)
    return figure
