"""The explanation of a difference: what the GPU work of two rungs consists of, from result files alone.

`find_sides` reads what a user names, `explain` compares the two, and `tabulate` has milliseconds and launches by
category of kernels. A difference inside the noise, or one that is not decided, is not explained.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.errors import UserError
from ladder.core.protocol import FASTER, INSIDE, SLOWER
from ladder.core.text import clean_line, escape_markdown
from ladder.plan import catalog, modes
from ladder.report import view
from ladder.results import derive, judging, loading, parts, ranking
from ladder.results.combine import comparing, series
from ladder.results.parts import OVERLAP, Parts, Work
from ladder.results.run import Result, RungResult
from ladder.results.words import UNDECIDED, Seen, word
from ladder.show.table import PIPE_WIDTH, Column, Table, render_markdown, render_text
from stylegan_lite.config import suggestion

GIB = 2**30
LEAST_MS = 0.005  # less is 0.00 in a table


@dataclass(frozen=True)
class Side:
    """A rung of a result with the parts of its step."""

    path: Path
    result: Result
    rung: RungResult
    parts: Parts

    @property
    def device_bytes(self) -> int | None:
        """The most that was in use on the device."""
        return max((each.device_used_bytes or 0 for each in derive.counted(self.rung)), default=0) or None


@dataclass(frozen=True)
class Explained:
    """Two rungs, and the answers on the GPU's work and on the step. An answer's ratio above 1 is a gain."""

    before: Side
    after: Side
    gpu: Seen
    step: Seen

    @property
    def differs(self) -> bool:
        """Whether the GPU's work differs beyond the noise floor."""
        return self.gpu.verdict in (FASTER, SLOWER)

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two sides: those of the rungs if they differ."""
        first, second = clean_line(self.before.rung.name), clean_line(self.after.rung.name)
        return (first, second) if first != second else (f"{first} before", f"{second} after")

    @property
    def has_overlap(self) -> bool:
        """Whether kernels of either side ran beside one another for so long that a table shows it."""
        return self.differs and max(each.parts.overlap_ms for each in (self.before, self.after)) >= LEAST_MS


# --- what a user names ------------------------------------------------------------------------------------------------


def split_name(name: str) -> tuple[Path | None, str | None]:
    """Return (file, rung) of an argument: a rung, a file, or FILE:RUNG. A file has the suffix .json or a folder."""
    file, _, rung = name.rpartition(":")
    if file.endswith(".json") and rung:
        return Path(file).expanduser(), rung
    is_file = name.endswith(".json") or len(Path(name).parts) > 1
    return (Path(name).expanduser(), None) if is_file else (None, name)


def find_sides(
    first: str, second: str, file: Path | None, workload: str | None, folder: Path
) -> tuple[Side, Side]:
    """Return both sides with their parts.

    Args:
        first, second: two rungs, or two files.
        file: the result that holds two rungs; the best of `folder` without it.
        workload: of the results of the folder.
        folder: where results are stored.

    Raises:
        UserError: an unknown rung, a file that is no result, a rung without a profile, two sides that are the same.
    """
    (one, name), (other, second_name) = pair = split_name(first), split_name(second)
    if (one is None) != (other is None):
        raise UserError("name two rungs, or two files: a rung of a file is FILE:RUNG")
    if pair[0] == pair[1]:
        raise UserError(f"{first} is named twice: there is nothing to explain")
    if one and other:
        if file or workload:
            raise UserError("two files are named: leave out FILE and --workload")
        before, after = (
            _read_side(path, loading.load_run(path), rung)
            for path, rung in ((one, name), (other, second_name))
        )
        return before, after
    if file and workload:
        raise UserError("FILE has its workload: leave out --workload")
    names = (name or "", second_name or "")
    path, result = (file, loading.load_run(file)) if file else _choose_best(names, workload, folder)
    return _read_side(path, result, name), _read_side(path, result, second_name)


def _read_side(path: Path, result: Result, name: str | None) -> Side:
    """Return the rung of that name, or the top without a name, with its parts. UserError if it has none."""
    timed = [rung for rung in result.rungs if rung.status == "ok"]
    if name is None and not timed:
        raise UserError(f"{path}: none of its rungs has a number")
    rung = timed[-1] if name is None else next((rung for rung in result.rungs if rung.name == name), None)
    if rung is None:
        raise UserError(
            f"{path}: no rung {name!r}{suggestion(name or '', [each.name for each in result.rungs])}"
        )
    if rung.status != "ok":
        raise UserError(f"{path}: rung {name} has no number ({rung.reason or rung.status})")
    if (profile := parts.parts_of(rung)) is None:
        why = "its run stored none that fits" if result.machine.device == "cuda" else "a CPU's run has none"
        if void := next((each.gpu_void for each in rung.rounds if each.profiled and each.gpu_void), None):
            why = f"it is of a process whose GPU time is void ({clean_line(void)})"
        raise UserError(f"{path}: rung {rung.name} has no profile: {why}; `ladder run` on a GPU stores it")
    return Side(path, result, rung, profile)


def _choose_best(names: Sequence[str], workload: str | None, folder: Path) -> ranking.Stored:
    """Return the result that `ladder recommend` chooses, among those with profiles of both rungs."""
    known: dict[str, None] = {}

    def has_profiles(result: Result) -> bool:
        known.update(dict.fromkeys(rung.name for rung in result.rungs))
        rungs = [ranking.rung_of(result, name) for name in names]
        return all(rung is not None and parts.parts_of(rung) is not None for rung in rungs)

    given = catalog.load_workload(workload) if workload else None
    try:
        chosen = series.find_nearest(folder, given, has_profiles)
    except UserError:
        of, place = f" of workload {workload}" if workload else "", os.path.relpath(folder)
        hint = next((suggestion(name, known) for name in names if known and name not in known), "")
        raise UserError(f"{place}: no result{of} has a profile of both {' and '.join(names)}{hint}") from None
    path, result = chosen.staircase or chosen.left_out  # type: ignore[misc]
    return Path(os.path.relpath(path)), result


# --- the comparison ---------------------------------------------------------------------------------------------------


def explain(before: Side, after: Side) -> Explained:
    """Return two rungs with the answers on their difference."""
    if before.result is after.result:
        return Explained(before, after, *(_find_answer(before, after, gpu=gpu) for gpu in (True, False)))
    pair = (before.result, before.rung.name, after.result, after.rung.name)
    return Explained(before, after, *(comparing.seen(*pair, gpu=gpu) for gpu in (True, False)))


def _find_answer(before: Side, after: Side, *, gpu: bool) -> Seen:
    """Return the answer on two rungs of one result: the verdict of its table, or one of their own."""
    first, second = before.rung, after.rung
    if before.result.protocol.mode != modes.LEAVE_ONE_OUT:
        for rung, other in ((second, first), (first, second)):
            gain, verdict = (rung.gpu_gain, rung.gpu_verdict) if gpu else (rung.gain, rung.verdict)
            if gain and verdict and gain.against == other.name:
                if rung is second:
                    return Seen(verdict, gain.ratio, gain.below)
                turned = {FASTER: SLOWER, SLOWER: FASTER}.get(verdict, verdict)
                return Seen(turned, 1 / gain.ratio, gain.below)
    clock = judging.measured(before.result)[gpu]
    if not clock.paired(first.name, second.name):
        return Seen()
    (answer,) = clock.answers([(first.name, second.name)])
    return Seen(answer.verdict, None if answer.effect is None else math.exp(answer.effect), answer.below)


def describe(step: Explained) -> str:
    """Return what the difference is made of, in a sentence; or that there is none, or that it is not decided."""
    first, second = step.names
    before, after = step.before.parts, step.after.parts
    if not step.differs:
        answer = "no difference" if step.gpu.verdict in INSIDE else UNDECIDED
        why = word(step.gpu) or "the noise of GPU time is unknown"
        return f"{answer}: the GPU's work of {first} and {second} is not told apart ({why})"
    apart = after.gpu_ms - before.gpu_ms
    return (
        f"{second}: {abs(apart):.2f} ms {'less' if apart < 0 else 'more'} GPU work than {first}:"
        f" {parts.made_of(before, after)}"
    )


def list_notes(step: Explained) -> list[str]:
    """Return the lines under the table: both clocks, memory, kernels, and the cycle that the parts belong to."""
    sides = (step.before, step.after)
    first, second = (each.rung for each in sides)
    clocks = view.describe_gain(step.gpu, step.step, (second.host_bound or 0) >= view.WAITS)
    lines = [f"{step.names[1]}: {clocks}"] if clocks else []
    memory = (
        ("allocated", first.peak_allocated_bytes, second.peak_allocated_bytes),
        ("on the device", step.before.device_bytes, step.after.device_bytes),
    )
    sizes = [f"{name} {was / GIB:.2f} -> {now / GIB:.2f} GiB" for name, was, now in memory if was and now]
    lines += [f"memory: {', '.join(sizes)}"] if sizes else []
    if step.differs:
        kernels = parts.came_and_went(*(each.parts for each in sides))
        least = max(each.parts.unlisted_ms for each in sides)
        lines += kernels
        if kernels and least:
            lines.append(f"of the heaviest kernels by name: one below {least:.2f} ms may have run in both")
    at = [f"{each.parts.gpu_ms:.2f} ms in generation {each.parts.generation + 1}" for each in sides]
    lines.append(
        f"parts are of the first profiled cycle of one process: {' and '.join(at)}; nothing is scaled"
    )
    if step.has_overlap:
        ran = " and ".join(f"{each.parts.overlap_ms:.2f}" for each in sides)
        is_once = parts.once(*(each.parts for each in sides))
        counted = "the kernel of the busier stream alone" if is_once else "both kernels"
        lines.append(f"beside another kernel ran {ran} ms more: by category an instant counts for {counted}")
    return lines


def tabulate(step: Explained) -> Table:
    """Return a row for each category if there is a difference, then GPU time, waiting and step."""
    a, b, one, other = step.before.parts, step.after.parts, step.before.rung, step.after.rung
    changes = parts.changes(a, b) if step.differs else []
    works = [(clean_line(row.category), row.before, row.after) for row in changes]
    if step.has_overlap and not parts.once(a, b):
        works.append((OVERLAP, Work(-a.overlap_ms), Work(-b.overlap_ms)))
    works.append(("GPU time of that cycle", Work(a.gpu_ms, a.launches), Work(b.gpu_ms, b.launches)))
    ends = (
        ("GPU time, all generations", one.gpu_ms, other.gpu_ms),
        ("waiting", one.waiting_ms, other.waiting_ms),
        ("step", one.step_ms, other.step_ms),
    )
    works += [(name, Work(was), Work(now)) for name, was, now in ends if was is not None and now is not None]
    rows = []
    for name, first, second in works:
        launches = [first.launches, second.launches] if first.launches or second.launches else [None, None]
        rows.append([name, first.ms, second.ms, second.ms - first.ms, *launches])
    columns = [Column("ms a step"), *(Column(name, "decimal") for name in step.names)]
    columns += [Column("change", "more_ms"), Column("launches before", "launches", 2)]
    return Table([*columns, Column("launches after", "launches", 1)], rows, notes=list_notes(step))


def _list_origins(step: Explained) -> list[str]:
    """Return the lines on where the numbers come from: one for one file, two for two, with what sets them apart."""
    before, after = step.before.result, step.after.result
    first, second = (
        clean_line(f"{each.result.workload['name']}, {comparing.heading(each.result)}, {each.path}")
        for each in (step.before, step.after)
    )
    if before is after:
        return [first]
    apart = comparing.differences(before, after) + comparing.software(before, after)
    return [f"before: {first}", f"after:  {second}", *(f"differs: {clean_line(line)}" for line in apart)]


def render_terminal(step: Explained, width: int = PIPE_WIDTH) -> str:
    """Return the explanation for a terminal."""
    return "\n".join([describe(step), "", *_list_origins(step), "", render_text(tabulate(step), width)])


def render_page(step: Explained) -> str:
    """Return the explanation as a section of Markdown."""
    lines = [f"### {escape_markdown(' and '.join(step.names))}", "", escape_markdown(describe(step)), ""]
    lines += [f"- {escape_markdown(line)}" for line in _list_origins(step)]
    return "\n".join([*lines, "", render_markdown(tabulate(step))]) + "\n"


def write_data(step: Explained) -> dict[str, Any]:
    """Return the explanation as plain data: exact numbers, ms and launches of a step, bytes."""
    a, b = step.before.parts, step.after.parts
    changed = parts.changes(a, b) if step.differs else []
    came, went = (parts.appeared(*pair) if step.differs else {} for pair in ((a, b), (b, a)))
    return {
        "sentence": describe(step),
        "differs": step.differs,
        "gpu_verdict": step.gpu.verdict or None,
        "step_verdict": step.step.verdict or None,
        "before": _write_side(step.before),
        "after": _write_side(step.after),
        "categories": [
            {
                "category": row.category, "before_ms": row.before.ms, "after_ms": row.after.ms, "change_ms": row.ms,
                "launches_before": row.before.launches, "launches_after": row.after.launches,
            }
            for row in changed
        ],
        "appeared": [{"name": name, "ms": ms} for name, ms in came.items()],
        "went": [{"name": name, "ms": ms} for name, ms in went.items()],
    }  # fmt: skip


def _write_side(side: Side) -> dict[str, Any]:
    rung = side.rung
    return {
        "file": str(side.path), "rung": rung.name, "gpu_ms": side.parts.gpu_ms, "overlap_ms": side.parts.overlap_ms,
        "launches": side.parts.launches, "generation": side.parts.generation, "median_gpu_ms": rung.gpu_ms,
        "waiting_ms": rung.waiting_ms if rung.gpu_ms else None, "step_ms": rung.step_ms,
        "allocated_bytes": rung.peak_allocated_bytes, "device_bytes": side.device_bytes,
    }  # fmt: skip
