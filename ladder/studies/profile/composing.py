"""The tables of a profile, made of a traced cycle and of the labels that an eager run gave to it. Pure functions.

Every table has all the work: its rows sum to the same milliseconds. Both of two kernels that ran at once count, but in
the table of categories one: that of the busier stream.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ladder.base.protocol import CYCLE_STEPS, IN_ORDER
from ladder.base.records import ABSENT
from ladder.base.text import plain
from ladder.engine import profiling
from ladder.receipts import categories as names
from ladder.receipts import kernel_families, kernel_names
from ladder.results.raw import KernelFamily, KernelProfile
from ladder.studies.profile import layers as layered
from ladder.studies.profile import rates
from ladder.studies.profile.layers import Label
from ladder.studies.profile.rates import KNOWN, Rate
from ladder.studies.profile.record import (
    BETWEEN,
    KINDS,
    UNKNOWN_PHASE,
    Category,
    Expected,
    Gap,
    Heavy,
    Layer,
    Layers,
    Pass,
    Phase,
    Replaced,
)
from ladder.studies.profile.tracing import Ran, Segment, Traced

HEAVIEST = 8  # kernels that are shown, and whose counters are read
MOST_OTHER = 0.05  # share of `other` from which on the classifier needs another pattern

# The article's expectation of GPU time, and the categories that stand for it here.
ARTICLE = (
    ("convolutions", 0.35, 0.40, (names.CONVOLUTION, names.MATMUL)),
    ("normalization", 0.15, 0.20, (names.NORMALIZATION, "fused: normalization")),
    ("nonlinearities", 0.10, 0.15, (names.ELEMENTWISE, "fused: activation")),
    ("conversion and allocation", 0.10, 0.15, (names.LAYOUT, names.COPIES, names.BOOKKEEPING)),
)


@dataclass
class Sum:
    """Nanoseconds and launches that add up, and the bytes of those whose bytes are known."""

    ns: int = 0
    launches: int = 0
    backward_ns: int = 0
    beside_ns: int = 0
    known: list[tuple[int, int]] = field(default_factory=list)  # (ns, bytes)

    def add(self, ran: Ran, label: Label | None = None) -> None:
        """Count one kernel or operator."""
        self.ns, self.launches = self.ns + ran.ns, self.launches + 1
        self.beside_ns += ran.beside_ns
        if label is not None and label.backward:
            self.backward_ns += ran.ns
        if label is not None and label.moved is not None:
            self.known.append((ran.ns, label.moved))

    @property
    def ms(self) -> float:
        """Return the milliseconds of a step."""
        return self.ns / 1e6 / CYCLE_STEPS

    @property
    def own_ms(self) -> float:
        """Return those milliseconds of a step that count for no other: of all sums together the GPU time."""
        return (self.ns - self.beside_ns) / 1e6 / CYCLE_STEPS

    @property
    def of_step(self) -> float:
        """Return the launches of a step."""
        return self.launches / CYCLE_STEPS


Labelled = Sequence[tuple[Segment, Sequence[Label | None]]]


def everything(traced: Traced) -> Iterable[Ran]:
    """Yield all that ran in a traced cycle."""
    for segment in traced.segments:
        yield from segment.ran


def profile(traced: Traced) -> KernelProfile:
    """Return milliseconds and launches of a step by family and by kernel, as a ladder's result has them."""
    families: dict[str, Sum] = defaultdict(Sum)
    kernels: dict[str, Sum] = defaultdict(Sum)
    for ran in everything(traced):
        families[profiling.text(ran.family)].add(ran)
        kernels[profiling.text(kernel_names.stored(ran.name))].add(ran)
    rows = _rows(kernels)
    kept, rest = rows[: profiling.HEAVIEST], rows[profiling.HEAVIEST :]
    if rest:
        of_rest = sum(row.ms for row in rest), sum(row.launches for row in rest)
        kept.append(_row(f"{len(rest)} other kernels", *of_rest))
    own = {name: round(each.own_ms, 5) for name, each in families.items()}
    of_families = [replace(row, own_ms=own[row.name]) for row in _rows(families)]
    return KernelProfile(families=of_families, kernels=kept)


def _rows(sums: Mapping[str, Sum]) -> list[KernelFamily]:
    rows = [_row(name, each.ms, each.of_step) for name, each in sums.items()]
    return sorted(rows, key=lambda row: -row.ms)


def _row(name: str, ms: float, launches: float) -> KernelFamily:
    return KernelFamily(name=name, ms=round(ms, 5), launches=round(launches, 4), own_ms=ABSENT)


def category_sums(labelled: Labelled) -> dict[str, Sum]:
    """Return the work of each category, with the bytes that labels know."""
    sums: dict[str, Sum] = defaultdict(Sum)
    for segment, labels in labelled:
        for ran, label in zip(segment.ran, labels, strict=True):
            sums[names.category(ran.family)].add(ran, label)
    return sums


def categories(
    sums: Mapping[str, Sum], rates: Mapping[str, Rate], replaced: Mapping[str, Replaced]
) -> list[Category]:
    """Return the rows of categories, the heaviest first."""
    total = sum(each.own_ms for each in sums.values()) or 1
    rows = [
        Category(
            name=name,
            ms=round(each.ms, 5),
            own_ms=round(each.own_ms, 5),
            share=round(each.own_ms / total, 5),
            launches=round(each.of_step, 4),
            rate=float(f"{rates[name].value:.4g}") if name in rates else None,
            unit=rates[name].unit if name in rates else None,
            replaced=replaced.get(name),
        )
        for name, each in sums.items()
    ]
    return sorted(rows, key=lambda row: -row.shown_ms)


def phases(labelled: Labelled) -> list[Phase]:
    """Return the rows of phases, in the order of a step.

    A segment of one phase tells it. In a whole-step graph the label of each kernel tells it.
    """
    sums: dict[str, Sum] = defaultdict(Sum)
    runs: dict[str, int] = defaultdict(int)
    for segment, labels in labelled:
        for name in segment.phases:
            runs[name] += 1
        for ran, label in zip(segment.ran, labels, strict=True):
            sums[_phase(segment, label)].add(ran)
    order = [*IN_ORDER, BETWEEN, UNKNOWN_PHASE]
    return [
        Phase(
            name=name,
            ms=round(sums[name].ms, 5),
            run_ms=round(sums[name].ns / 1e6 / runs[name], 5) if runs.get(name) else None,
            runs=runs[name] / CYCLE_STEPS if runs.get(name) else None,
            launches=round(sums[name].of_step, 4),
        )
        for name in order
        if name in sums
    ]


def gaps(traced: Traced) -> list[Gap]:
    """Return when nothing ran inside runs of phases, by what stood at both ends. Between them the trace waits.

    The two ends are of any stream.
    """
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for segment in traced.segments:
        if not segment.phases:
            continue
        last = segment.ran[0]
        for ran in segment.ran:
            if ran.begin > last.begin + last.ns:
                found[_kind(last), _kind(ran)].append(ran.begin - last.begin - last.ns)
            last = max(last, ran, key=lambda each: each.begin + each.ns)
    rows = [
        Gap(
            before=before,
            after=after,
            ms=round(sum(each) / 1e6 / CYCLE_STEPS, 5),
            number=round(len(each) / CYCLE_STEPS, 4),
            median_us=round(statistics.median(each) / 1e3, 3),
        )
        for (before, after), each in found.items()
    ]
    return sorted(rows, key=lambda row: -row.ms)


def _kind(ran: Ran) -> str:
    kernel, memset, copy = KINDS
    if ran.family != kernel_families.TRANSFER:
        return kernel
    return memset if ran.name.lower().startswith(memset) else copy


def _phase(segment: Segment, label: Label | None) -> str:
    """Return the phase of what ran in a segment."""
    if not segment.phases:
        return BETWEEN
    if len(segment.phases) == 1:
        return segment.phases[0]
    return label.phase if label else UNKNOWN_PHASE


def heaviest(labelled: Labelled, most: int = HEAVIEST) -> list[Heavy]:
    """Return the kernels that take most time, without copies, each with the phase that has most of its time."""
    found: dict[str, dict[str, Sum]] = defaultdict(lambda: defaultdict(Sum))
    spellings: dict[str, set[str]] = defaultdict(set)
    for segment, labels in labelled:
        for ran, label in zip(segment.ran, labels, strict=True):
            if ran.family != kernel_families.TRANSFER:
                name = kernel_names.label(ran.name)
                found[name][_phase(segment, label)].add(ran)
                spellings[name].add(ran.name)
    longest = sorted(found, key=lambda name: -sum(each.ns for each in found[name].values()))
    return [_heavy(name, found[name], spellings[name]) for name in longest[:most]]


def passes(labelled: Labelled, copied: Sequence[tuple[int, int]]) -> list[Pass]:
    """Return the kernels of ours, the heaviest first, each beside copies of as many bytes.

    Args:
        copied: (bytes, nanoseconds) of copies, of `rates.copies`.
    """
    sums: dict[str, Sum] = defaultdict(Sum)
    for segment, labels in labelled:
        for ran, label in zip(segment.ran, labels, strict=True):
            if ran.family.startswith(kernel_families.OURS):
                sums[ran.family.removeprefix(kernel_families.OURS)].add(ran, label)
    rows = [_pass(name, each, copied) for name, each in sums.items()] if copied else []
    return sorted(rows, key=lambda row: -row.ms)


def _pass(name: str, work: Sum, copied: Sequence[tuple[int, int]]) -> Pass:
    told = sum(ns for ns, _ in work.known) >= KNOWN * work.ns
    took = sum(rates.copied_ns(copied, size) for _, size in work.known)
    return Pass(
        kernel=profiling.text(name),
        ms=round(work.ms, 5),
        launches=round(work.of_step, 4),
        bytes=round(sum(size for _, size in work.known) / CYCLE_STEPS) if told else None,
        known_ms=round(sum(ns for ns, _ in work.known) / 1e6 / CYCLE_STEPS, 5) if told else None,
        copy_ms=round(took / 1e6 / CYCLE_STEPS, 5) if told else None,
    )


def _heavy(name: str, by_phase: Mapping[str, Sum], spellings: Iterable[str]) -> Heavy:
    functions = {kernel_names.function(each) for each in spellings}
    words = {kernel_names.word(each) for each in spellings}
    word = words.pop() if len(words) == 1 else ""
    first = max(by_phase, key=lambda phase: by_phase[phase].ns)
    return Heavy(
        kernel=plain(name),
        function=profiling.text(_beginning(functions)),
        word=profiling.text(word) if word else None,
        ms=round(sum(each.ms for each in by_phase.values()), 5),
        launches=round(sum(each.of_step for each in by_phase.values()), 4),
        phase=first,
        phase_ms=round(by_phase[first].ms, 5),
    )


def _beginning(texts: Iterable[str]) -> str:
    """Return the beginning that texts share."""
    alike = itertools.takewhile(lambda each: len(set(each)) == 1, zip(*texts, strict=False))
    return "".join(each[0] for each in alike)


def layers(labelled: Labelled) -> Layers:
    """Return the rows of layers, the heaviest first, and the share of all work whose layer is unknown."""
    sums: dict[str, Sum] = defaultdict(Sum)
    for segment, labels in labelled:
        for ran, label in zip(segment.ran, labels, strict=True):
            outside = layered.UNKNOWN if segment.phases else layered.OUTSIDE
            sums[label.layer if label else outside].add(ran, label)
    total = sum(each.ns for each in sums.values()) or 1
    rows = [
        Layer(
            name=name,
            ms=round(each.ms, 5),
            backward_ms=round(each.backward_ns / 1e6 / CYCLE_STEPS, 5),
            launches=round(each.of_step, 4),
        )
        for name, each in sums.items()
    ]
    unknown = sums[layered.UNKNOWN].ns / total if layered.UNKNOWN in sums else 0.0
    return Layers(rows=sorted(rows, key=lambda row: -row.ms), unknown=round(unknown, 5), reason=None)


def expected(rows: Iterable[Category]) -> list[Expected]:
    """Return the article's expectation beside the shares of these categories."""
    rows = list(rows)
    return [
        Expected(
            name=name,
            low=low,
            high=high,
            share=round(min(1.0, sum(row.share for row in rows if row.name.startswith(beginnings))), 5),
        )
        for name, low, high, beginnings in ARTICLE
    ]


def known_bytes(sums: Mapping[str, Sum]) -> dict[str, tuple[int, int]]:
    """Return (nanoseconds, bytes) of the work with known bytes, by category."""
    return {
        name: (sum(ns for ns, _ in each.known), sum(moved for _, moved in each.known))
        for name, each in sums.items()
        if each.known
    }
