"""`ladder kernels`: the fused ops against plain PyTorch, torch.compile and a copy of the same bytes.

Words and statistics of verdicts are those of a ladder (`ladder.stats.answers`). Each row is a quantity of its own: its
contenders take the place of rungs, and its repeats that of generations. All repeats share one process, so an error
covers repeats alone. Holm's correction is over all comparisons of a run. Verdicts are about the cold L2.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import msgspec
import numpy as np
from msgspec import Meta

from ladder.base import text
from ladder.base.errors import UserError
from ladder.base.text import NO_TIME
from ladder.core.job import Job
from ladder.core.options import Seed, option
from ladder.core.records import (
    Amount,
    Bytes,
    Count,
    Identifier,
    Line,
    LogRatio,
    Microseconds,
    Name,
    Notes,
    Record,
    Seconds,
    Started,
    Text,
    matching,
    read_record,
    size,
)
from ladder.results import words
from ladder.show.table import Column, Table
from ladder.stats import answers, estimates
from ladder.stats.answers import Answer, Quantity
from ladder.studies import frame
from ladder.studies.frame import Session, Study, StudyFile

if TYPE_CHECKING:
    from ladder.studies.kernelbench import bench as benches
    from ladder.studies.kernelbench.cases import registry
    from ladder.studies.kernelbench.compiling import Ahead

OURS, TWIN, COPY = "ours", "twin", "copy"
ALTERNATIVES = ("plain", "compile")
CONTENDERS = {"ours": "ours", "plain": "plain PyTorch", "compile": "torch.compile"}
ONLY_OURS, NOT_MEASURED = "nothing to compare with", "not measured"
USUAL = ("article", "article-b32", "adain-256")  # workloads
SMOKE = {"resolution": 8, "channel_base": 32, "batch": 2}
SIZE = re.compile(r"(|not quite cold: only )([0-9.]+(?:e[+-]?[0-9]+)?)( s a call: .*| MiB between .*)")
TAKEN = "plain PyTorch taken"
LARGE = 128  # pixels a side; in maps of this size and above, a low share of a copy means waste
# Functions whose share of a copy is no aim: arithmetic counts in the first four, and the others are there to compare.
NO_AIM = (
    "conv2d", "conv_transpose2d", "cuda.divergent", "cuda.predicated",
    "cuda.strided_act", "cuda.coalesced_act", "cuda.shared_sum", "cuda.shuffle_sum",
    "cuda.scalar_copy", "cuda.vector_copy",
)  # fmt: skip
Direction = Literal["forward", "backward", "double backward"]
Contender = Literal["ours", "twin", "plain", "compile", "copy"]
Interval = Annotated[list[float], size(2, 2)]


# --- what a file holds ------------------------------------------------------------------------------------------------


class Options(frame.Options):
    """The options of `ladder kernels`. `minutes` are of the last sitting."""

    op: Annotated[
        list[str], size(64), option("Only this op; may be repeated. [default: all]", metavar="OP")
    ] = []
    workload: (
        Annotated[
            list[str],
            option(
                "Use the shapes of this workload; may be repeated. [default: article, article-b32, adain-256]",
                flags=["-w"],
                metavar="NAME|FILE",
            ),
        ]
        | None
    ) = None
    quick: Annotated[bool, option("Fewer shapes and repeats. The result is marked as not to be quoted.")] = (
        False
    )
    minutes: Annotated[
        float,
        Meta(gt=0, le=1e6),
        option(
            "Approximate duration. Repeats are fitted to it; if it is short, the least important shapes are left out."
        ),
    ] = 4.0
    first: Annotated[
        Literal["memory-bound", "largest"],
        option(
            "Cases to measure first: bias_act, modulate and upfirdn2d at 128x128 and 256x256, batch 8 and 32; or the"
            " cases with the most work."
        ),
    ] = "memory-bound"
    seed: Annotated[Seed, option("Seed for the inputs.")] = 0


class Case(frame.Case):
    """An op at one size in one setting, and the workloads that call it so. Setting 0 is the ladder's top."""

    op: Text
    function: Identifier
    shape: Annotated[list[Count], size(8, 1)]
    batch: Count
    dtype: Literal["bf16", "fp32"]
    layout: Literal["channels_last", "NCHW"]
    setting: Count
    workloads: Annotated[list[Name], size(32)]
    directions: Annotated[list[Direction], size(3, 1)]


ByContender = Annotated[dict[Contender, Annotated[list[Microseconds], size(1000)]], size(8)]


class Samples(Record):
    """Microseconds of one call by contender, a value for each repeat, with a cold and with a hot L2."""

    cold: ByContender = {}
    hot: ByContender = {}


class Launch(Record):
    """A Triton kernel that a call launches, with the numbers that were compiled in."""

    kernel: Identifier
    grid: Annotated[list[Count], size(3)]
    choices: Line | None = None


class Dispatch(Record):
    """A call's key in `kernels.alternatives`. An empty variant is written as "-"."""

    op: Identifier
    variant: Annotated[str, matching(r"-|[a-z0-9 ]{0,60}", "words that distinguish a call")]
    architecture: Count
    dtype: Literal["bfloat16", "float16", "float32", "float64"]
    layout: Literal["nhwc", "nchw", "rows", "other"]
    size: Annotated[int, Meta(ge=0, le=64)]


class Measured(Record, kw_only=True):
    """One direction of a case. `reasons` are why a contender has no number."""

    direction: Direction
    bytes: Bytes | None = None
    method: Literal["graph", "events"] | None = None
    captured: Annotated[
        dict[Annotated[str, matching(r"(cold|hot) [a-z]+", "a contender")], Count], size(16)
    ] = {}
    notes: Notes = []
    samples_us: Samples = msgspec.field(default_factory=Samples)
    reasons: Annotated[dict[Contender, Text], size(8)] = {}
    launches: Annotated[list[Launch], size(200)] = []
    dispatch: Dispatch | None = None
    taken: Literal["plain"] | None = None


class Sitting(Record):
    """The sitting that a case was measured in: when it began, its limit, and how long it had lasted then."""

    started: Started
    minutes: Amount
    seconds: Seconds


class Observed(frame.Observation, kw_only=True):
    """What was measured of a case, all of it in one sitting. "skipped": the time was used up."""

    rows: Annotated[list[Measured], size(3)] = []
    sitting: Sitting | None = None


File = StudyFile[Options, Case, Observed]


# --- what follows from it ---------------------------------------------------------------------------------------------


class Summary(Record):
    """A median, and its 95% interval where repeats give one."""

    median: float
    interval: Interval | None


class Times(Record):
    """Medians of `Samples`, without the twin."""

    cold: dict[str, Summary]
    hot: dict[str, Summary]


class Against(Record):
    """Ours against one alternative: how many times as fast it is, and whether the difference is no noise.

    `below` is the far end of the interval of "less than", a log ratio.
    """

    verdict: str
    times_faster: float
    interval: Interval | None
    confidence: float | None
    below: LogRatio | None


class Row(Measured, kw_only=True):
    """A measured case in one direction, with the numbers that follow from the samples of the whole run."""

    case: str
    op: str
    function: str
    shape: list[int]
    batch: int
    dtype: str
    layout: str
    setting: int
    workloads: list[str]
    sitting: int
    us: Times
    share: dict[str, Summary]
    floor: float | None
    against: dict[str, Against]
    verdict: str


class Sat(Record):
    """One sitting of a run: when it began, how long it took, and how many cases it measured."""

    started: str
    seconds: float
    minutes: float
    cases: int


class Protocol(Record, kw_only=True):
    """The request that a run answers, and how it measured."""

    quick: bool
    smoke: bool
    seed: int
    workloads: list[str]
    ops: list[str]
    notes: list[str]
    minutes: float
    first: str
    l2_bytes: Any
    evict: Any
    graph_ms: Any
    compile: Any


class Kernels(Record):
    """What `ladder report --json` prints beside the header."""

    protocol: Protocol
    sittings: list[Sat]
    rows: list[Row]


def list_measured(file: File) -> Iterator[tuple[str, Observed, Measured]]:
    """Yield each direction of the cases that were observed; that of a case without a number says why."""
    for key, case in file.cases.items():
        if (seen := file.observed.get(key)) is None:
            continue
        if seen.rows:
            yield from ((key, seen, row) for row in seen.rows)
            continue
        reasons: Any = dict.fromkeys(CONTENDERS, seen.reason or NOT_MEASURED)
        yield from ((key, seen, Measured(direction=each, reasons=reasons)) for each in case.directions)


def derive_rows(file: File) -> list[Row]:
    """Return the rows with every number that follows from their samples."""
    measured = list(list_measured(file))
    quantities = [make_quantity(row.samples_us.cold) for _, _, row in measured]
    pairs = [[(name, OURS) for name in ALTERNATIVES if of.paired(name, OURS)] for of in quantities]
    count = sum(map(len, pairs))
    questions = [of.questions(each, count) for of, each in zip(quantities, pairs, strict=True)]
    answered = iter(answers.answer([question for each in questions for question in each]))
    began = [each.started for each in list_sittings(file)]
    rows = []
    for (key, seen, row), of, asked in zip(measured, quantities, pairs, strict=True):
        case, cold, hot = file.cases[key], row.samples_us.cold, row.samples_us.hot
        against = {name: _derive_against(of, name, next(answered)) for name, _ in asked}
        noise = of.floors(count).get(_KIND)
        names = [name for name in (OURS, *ALTERNATIVES) if name in cold and COPY in cold]
        us = Times(_summarize_all(cold), _summarize_all(hot))
        own = {name: getattr(row, name) for name in Measured.__struct_fields__}
        of_case = {name: getattr(case, name) for name in Case.__struct_fields__ if name != "directions"}
        rows.append(
            Row(
                **own, **of_case, case=key, us=us, against=against, verdict=judge_row(us.cold, against),
                share={name: _summarize(_divide(cold["copy"], cold[name])) for name in names},  # type: ignore[index]
                floor=noise.floor if noise else None,
                sitting=began.index(seen.sitting.started) if seen.sitting else 0,
            )
        )  # fmt: skip
    return rows


_KIND = "contender"  # all contenders of a row are of one kind


def make_quantity(cold: Mapping[Any, Sequence[float]]) -> Quantity:
    """Return the times of a row by contender and repeat. The copy is no contender."""
    known = {name: cold[name] for name in (OURS, TWIN, *ALTERNATIVES) if name in cold}
    logs = {name: dict(enumerate(map(math.log, values))) for name, values in known.items()}
    return answers.quantity(logs, dict.fromkeys(logs, _KIND), [(OURS, TWIN)], is_gpu=True)


def _derive_against(of: Quantity, name: str, answer: Answer) -> Against:
    return Against(
        verdict=answer.verdict,
        times_faster=float(np.exp(np.mean(list(of.paired(name, OURS).values())))),
        interval=answer.interval and [float(np.exp(bound)) for bound in answer.interval],
        confidence=answer.confidence,
        below=answer.below,
    )


def judge_row(us: Mapping[str, Summary], against: Mapping[str, Against]) -> str:
    """Return `ours faster`, `plain faster`, `compile faster`, or else the protocol's word.

    Ours must be faster than every alternative. An alternative must be faster than ours, and the quickest is named.
    """
    if not against:
        return ONLY_OURS if OURS in us else NOT_MEASURED
    quickest = list_by_time(us, against)
    for name in quickest:
        if against[name].verdict == answers.SLOWER:
            return f"{name} faster"
    if all(each.verdict == answers.FASTER for each in against.values()):
        return "ours faster"
    return answers.LESS if against[quickest[0]].verdict == answers.LESS else answers.AMBIGUOUS


def list_by_time(us: Mapping[str, Summary], against: Mapping[str, Against]) -> list[str]:
    """Return the alternatives of a row, the quickest first."""
    return sorted((name for name in against if name in us), key=lambda name: us[name].median)


def _summarize(values: Sequence[float]) -> Summary:
    """Return median and 95% interval over repeats."""
    interval = estimates.log_interval(values)
    return Summary(estimates.median(values), interval and list(interval))  # type: ignore[arg-type]


def _summarize_all(samples: Mapping[Any, Sequence[float]]) -> dict[str, Summary]:
    return {name: _summarize(values) for name, values in samples.items() if name != TWIN}


def _divide(reference: Sequence[float], other: Sequence[float]) -> list[float]:
    logs = estimates.log_ratios(dict(enumerate(reference)), dict(enumerate(other)))
    return [float(np.exp(value)) for value in logs]


def list_sittings(file: File) -> list[Sat]:
    """Return the sittings in order, each with the cases that it measured."""
    made: dict[str, Sat] = {}
    for seen in file.observed.values():
        if (now := seen.sitting) is not None:
            before = made.get(now.started, Sat(now.started, 0.0, now.minutes, 0))
            cases = before.cases + (seen.status != "skipped")
            made[now.started] = Sat(now.started, max(before.seconds, now.seconds), now.minutes, cases)
    return [made[started] for started in sorted(made)]


def list_reached(kernels: Kernels) -> list[Row]:
    """Return the rows that were measured. An unfinished run shows these, and how many it lacks."""
    return [row for row in kernels.rows if row.reasons.get("ours") != NO_TIME]


def describe_lack(kernels: Kernels) -> str:
    """Return how many cases an unfinished run never reached, as text; empty for a finished run."""
    missing = {row.case for row in kernels.rows} - {row.case for row in list_reached(kernels)}
    cases = len({row.case for row in kernels.rows})
    return f"{len(missing)} of {cases} cases not measured: {NO_TIME}" if missing else ""


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
        kernels = self.derive(file)
        rows = sorted(
            list_reached(kernels), key=functools.partial(_place_of, [row.op for row in kernels.rows])
        )
        yield Table(COLUMNS, [_cells_of(row) for row in rows], "", list_remarks(kernels))

    def draw(self, file: File, kind: str) -> bytes:
        from ladder.report import drawing

        return drawing.save(lambda: draw_figure(file, self.derive(file)), kind)


STUDY = KernelStudy()

COLUMNS = [
    Column("op"),
    Column("shape"),
    Column("setting"),
    Column("direction"),
    Column("ours us", "microseconds"),
    Column("plain us", "microseconds", priority=1),
    Column("compile us", "microseconds", priority=2),
    Column("copy us", "microseconds", priority=3),
    Column("share of copy", "percent", priority=4),
    Column("interval", priority=5),
    Column("hot: ours us", "microseconds", priority=7),
    Column("plain us", "microseconds", priority=8),
    Column("compile us", "microseconds", priority=6),
    Column("verdict", "verdict"),
]


def _place_of(ops: list[str], row: Row) -> int:
    return ops.index(row.op)


def describe_case(row: Row) -> tuple[str, str, str]:
    """Return (op, shape, setting) of a row."""
    shape = "x".join(map(str, row.shape))
    if row.shape[0] != row.batch:
        shape += f" batch {row.batch}"
    return row.op, shape, f"{row.dtype} {row.layout}"


def _cells_of(row: Row) -> list[Any]:
    """Return one row's values. A missing number is a short reason."""

    def time_of(numbers: Mapping[str, Summary], name: str) -> Any:
        return numbers[name].median if name in numbers else "n/a" if name in row.reasons else None

    share = row.share.get("ours")
    interval = share.interval if share else None
    return [
        *describe_case(row),
        row.direction,
        *(time_of(row.us.cold, name) for name in (*CONTENDERS, COPY)),
        share.median if share else None,
        f"{interval[0]:.0%}-{interval[1]:.0%}" if interval else None,
        *(time_of(row.us.hot, name) for name in CONTENDERS),
        describe_verdict(row),
    ]


def describe_verdict(row: Row) -> str:
    """Return the row's verdict, and whether the op's callers get plain PyTorch instead.

    The number of `less than X%` is that of the quickest alternative.
    """
    quickest = next(iter(list_by_time(row.us.cold, row.against)), None)
    below = row.against[quickest].below if quickest else None
    return words.word(words.Seen(row.verdict, below=below)) + (f"; {TAKEN}" if row.taken else "")


def describe_times(row: Measured) -> str:
    """Return a line for one measured direction. Verdicts are missing, as they need the whole run."""
    cold = row.samples_us.cold
    times = _summarize_all(cold)
    numbers = ", ".join(f"{name} {each.median:.1f}" for name, each in times.items())
    share = ""
    if "ours" in cold and "copy" in cold:
        share = f"; {_summarize(_divide(cold['copy'], cold['ours'])).median:.0%} of a copy"
    return f"{row.direction} {numbers or 'n/a'}{' us' if numbers else ''}{share}"


def list_remarks(kernels: Kernels) -> list[str]:
    """Return the remarks below a table."""
    measured = [row for row in kernels.rows if row.against]
    repeats = sorted({len(row.samples_us.cold["ours"]) for row in measured})
    span = f"{repeats[0]} to {repeats[-1]}" if len(repeats) > 1 else str(repeats[0] if repeats else 0)
    lines = [
        f"microseconds of one call, median of {span} fresh repeats; cold L2 (of"
        f" {(kernels.protocol.l2_bytes or 0) / 2**20:.0f} MiB) unless it says hot; backward: autograd.grad alone over a"
        " kept graph",
        "share: time of a copy of the same number of bytes, cold, measured alike in the same repeat, by ours",
        "verdict: ours against plain PyTorch and torch.compile, cold L2, Holm over all comparisons of the run",
    ]
    rows = list_reached(kernels)
    counts = Counter(row.verdict for row in rows)
    if missing := describe_lack(kernels):
        lines.append(missing)
    if counts:
        lines.append("; ".join(f"{words.kind(word)}: {count}" for word, count in counts.most_common()))
    if worst := find_least_share(kernels.rows):
        where = " ".join((*describe_case(worst), worst.direction))
        share = f"{worst.share['ours'].median:.0%}"
        lines.append(
            f"least share from {LARGE}x{LARGE} on, first setting, but for convolutions: {share}, {where}"
        )
    if count := sum(bool(row.taken) for row in kernels.rows):
        lines.append(f"{TAKEN}: by kernels/alternatives.py callers of the op get it, not ours ({count} rows)")
    if len(kernels.sittings) > 1:
        shares = ", ".join(str(each.cases) for each in kernels.sittings)
        lines.append(f"measured in {len(kernels.sittings)} sittings, of {shares} cases; no case spans two")
    notes = [note for row in kernels.rows for note in row.notes]
    joined = _join_sizes(notes)
    lines += [f"{note} ({n} rows)" for note, n in Counter(joined.get(note, note) for note in notes).items()]
    return lines + list_reasons(rows)


def find_least_share(rows: Sequence[Row]) -> Row | None:
    """Return the memory-bound row furthest from a copy, among large activations in the setting of the ladder's top."""
    large = [
        row
        for row in rows
        if row.setting == 0 and row.function not in NO_AIM and "ours" in row.share
        if len(row.shape) == 4 and row.shape[2] >= LARGE
    ]
    return min(large, key=lambda row: row.share["ours"].median, default=None)


def list_reasons(rows: Sequence[Row]) -> list[str]:
    """Return every reason for a missing number once, with its count, contender and direction."""
    joined = _join_sizes(reason for row in rows for reason in row.reasons.values())
    places: dict[str, list[tuple[str, str]]] = {}
    for row in rows:
        for name, reason in row.reasons.items():
            place = CONTENDERS.get(name, name), row.direction
            places.setdefault(joined.get(reason, reason), []).append(place)
    return [
        f"n/a ({len(where)}x): {reason} ({', '.join(dict.fromkeys(name for name, _ in where))};"
        f" {', '.join(dict.fromkeys(direction for _, direction in where))})"
        for reason, where in places.items()
    ]


def _join_sizes(lines: Iterable[str]) -> dict[str, str]:
    """Return the words for each line with a measured size: one for all lines that differ in the size alone."""
    sizes: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if match := SIZE.fullmatch(line):
            sizes.setdefault((match[1], match[3]), []).append(match[2])
    joined = {}
    for (before, after), known in sizes.items():
        low, high = min(known, key=float), max(known, key=float)
        span = low if float(low) == float(high) else f"{low} to {high}"
        joined |= {f"{before}{each}{after}": f"{before}{span}{after}" for each in known}
    return joined


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


# --- the chart: how near each op comes to a copy of the same bytes, beside its alternatives ---------------------------

DRAWN = ("forward", "backward")
WIDTH, ROW, BETWEEN, TOP, BOTTOM = 12.5, 0.21, 0.14, 1.15, 0.45  # inches
NAME, SHAPE, PANELS, PANEL = 0.2, 2.3, (4.3, 8.6), 3.3  # places and width, inches


def list_marks() -> dict[str, tuple[str, str]]:
    """Return mark and colour of the alternatives. Ours is a bar."""
    from ladder.report.panels import ARTICLE, IDLE

    return {"plain": ("o", IDLE), "compile": ("D", ARTICLE)}


def list_shown(kernels: Kernels) -> dict[str, dict[str, list[Row]]]:
    """Return op -> direction -> rows with a yardstick, in the setting of the ladder's top. The tables show the rest."""
    found: dict[str, dict[str, list[Row]]] = {}
    for row in list_reached(kernels):
        if row.setting == 0 and row.direction in DRAWN:
            found.setdefault(row.op, {d: [] for d in DRAWN})[row.direction].append(row)
    for directions in found.values():
        for rows in directions.values():
            rows.sort(key=lambda row: -row.batch)  # a stable sort keeps the largest first within a batch
    return found


def draw_figure(file: File, kernels: Kernels) -> Any:
    """Each op has a row for each shape, the largest batch first; forward is left, backward right."""
    from ladder.report import drawing
    from ladder.report.panels import GRID, MUTED

    ops = list_shown(kernels)
    lines = {op: _lines(directions) for op, directions in ops.items()}
    height = TOP + BOTTOM + ROW * sum(map(len, lines.values())) + BETWEEN * len(lines)
    made, axes = drawing.sheet(WIDTH, height)
    marks = [row.share for directions in ops.values() for rows in directions.values() for row in rows]
    ends = [
        end for share in marks for each in share.values() for end in (each.median, *(each.interval or ()))
    ]
    scale = PANEL / max([1.05, *ends])
    y = TOP
    if ops:
        _draw_rule(axes, scale, height)
    for op, of_op in lines.items():
        axes.plot([NAME, WIDTH - 0.2], [y, y], color=GRID, linewidth=0.8)
        y += BETWEEN / 2
        axes.text(NAME, y + ROW / 2, op, fontsize=9.5, fontweight="bold", va="center")
        for shape, of_shape in of_op.items():
            axes.text(SHAPE, y + ROW / 2, shape, fontsize=8.5, color=MUTED, va="center")
            for left, direction in zip(PANELS, DRAWN, strict=True):
                if row := of_shape.get(direction):
                    _draw_bar(axes, left, y + ROW / 2, scale, row)
            y += ROW
        y += BETWEEN / 2
    _draw_header(made, file, kernels, bool(ops))
    return made


def _lines(directions: dict[str, list[Row]]) -> dict[str, dict[str, Row]]:
    """Return shape -> direction -> row, in the order of the rows. The shape is as the case's name has it."""
    found: dict[str, dict[str, Row]] = {}
    for direction, rows in directions.items():
        for row in rows:
            shape = row.case.removeprefix(row.op).removesuffix(f"{row.dtype} {row.layout}").strip()
            found.setdefault(shape, {})[direction] = row
    return found


def _draw_rule(axes: Any, scale: float, height: float) -> None:
    """Draw the directions' names, the scale, and the line of a copy."""
    from ladder.report.panels import GRID, MUTED

    for left, direction in zip(PANELS, DRAWN, strict=True):
        axes.text(left, TOP - 0.3, direction, fontsize=11, fontweight="bold", va="center")
        for share in (0, 0.5, 1):
            x = left + share * scale
            axes.text(x, TOP - 0.1, f"{100 * share:.0f}%", fontsize=8, color=MUTED, ha="center", va="center")
            line: dict[str, Any] = {"color": GRID, "linewidth": 0.8}
            if share == 1:
                line = {"color": MUTED, "linewidth": 1, "linestyle": "--"}
            axes.plot([x, x], [TOP, height - BOTTOM], zorder=1, **line)


def _draw_bar(axes: Any, left: float, y: float, scale: float, row: Row) -> None:
    """Draw the bar of our kernel with its interval, its number, and the marks of the others."""
    from ladder.report.panels import BUSY, GAP, INK, MUTED

    if not row.share:
        axes.barh(y, PANEL, 0.8 * ROW, left=left, color=GAP, zorder=2)
        axes.text(left + 0.06, y, "not measured", fontsize=7.5, color=MUTED, va="center", zorder=5)
    for name, (mark, color) in list_marks().items():
        if each := row.share.get(name):
            look = {"color": color, "markersize": 5, "markeredgecolor": "white", "markeredgewidth": 0.7}
            axes.plot(left + scale * each.median, y, mark, zorder=5, **look)
    if not (ours := row.share.get("ours")):
        return
    axes.barh(y, scale * ours.median, 0.55 * ROW, left=left, color=BUSY, zorder=2)
    low, high = ours.interval or (ours.median, ours.median)
    axes.plot([left + scale * low, left + scale * high], [y, y], color=INK, linewidth=1, zorder=4)
    axes.text(
        left - 0.08, y, f"{100 * ours.median:.0f}", fontsize=8.5, fontweight="bold", ha="right", va="center"
    )


def _draw_header(made: Any, file: File, kernels: Kernels, any_rows: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    from ladder.report.drawing import fitted
    from ladder.report.panels import BUSY, MUTED

    width, height = made.get_size_inches()
    machine, said = file.machine, kernels.protocol.notes
    notes = f" ({said[0]})" if said else ""
    headline = f"{machine.gpu or machine.cpu}: share of a copy of the same bytes, cold L2{notes}"
    if not any_rows:
        headline = f"{machine.gpu or machine.cpu}: nothing was measured"
    fitted(made, 0.2 / width, 1 - 0.14 / height, headline, 15, fontweight="bold", va="top")
    handles: list[Any] = [Patch(color=BUSY, label="this project's kernel, and its number")]
    handles += [
        Line2D([], [], marker=mark, color=color, linestyle="", label=CONTENDERS[name])
        for name, (mark, color) in list_marks().items()
    ]
    handles.append(Line2D([], [], color=MUTED, linestyle="--", label="copy of the same bytes"))
    made.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.12 / width, 1 - 0.42 / height), ncols=4,
        frameon=False, fontsize=9, handlelength=1.8, columnspacing=1.8, borderpad=0.2,
    )  # fmt: skip
    settings = {" ".join((row.dtype, row.layout)) for row in list_reached(kernels) if row.setting == 0}
    footer = (
        f"PyTorch {machine.torch}, Triton {machine.triton}; {', '.join(sorted(settings))}. Higher is better."
        " Line in a bar's end: 95% interval over repeats. Backward: autograd.grad alone."
    )
    if missing := describe_lack(kernels):
        footer += f" {missing.partition(':')[0]}."
    fitted(made, 0.2 / width, 0.12 / height, footer, 8, color=MUTED)
