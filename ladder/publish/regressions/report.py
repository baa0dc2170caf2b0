"""A comparison of two commits in words: lines for a terminal, a Markdown comment for a pull request.

Anybody may have written the texts of a result, so all text is escaped here, whatever was validated before.
"""

from __future__ import annotations

import html
import re

from ladder.base import text as texts
from ladder.core.records import write_record
from ladder.machine import neighbours
from ladder.publish.regressions import judging
from ladder.publish.regressions.judging import BASE, BROKEN, GPU, HEAD, WALL
from ladder.publish.regressions.schema import Answered, Judged, JudgedRung
from ladder.report import tiles
from ladder.results import parts
from ladder.results.publishable import DIRTY, NO_COMMIT, PARTIAL
from ladder.stats import answers

MARK = "<!-- ladder bench-compare -->"  # by which the comment of an earlier run is found and replaced
HEADS = (
    "rung",
    "of",
    "BASE ms",
    "HEAD ms",
    "change of time",
    "95% interval",
    "verdict",
    "noise floor",
    "generations",
)
_SIGNS = {
    answers.SLOWER: "🔴",
    BROKEN: "🔴",
    answers.FASTER: "🟢",
    answers.LESS: "⚪",
    answers.AMBIGUOUS: "🟡",
}


def escape(text: object) -> str:
    """Return text that may stand anywhere in a Markdown page: no markup, no link, no mention, no line of its own."""
    plain = html.escape(texts.plain(text), quote=False)
    plain = re.sub(r"([\\`*_{}\[\]()#+!|~$:-])", r"\\\1", plain)
    return plain.replace("@", "@\u200b").replace("\\#", "\\#\u200b").replace("www.", "www\u200b.")


def format_title(result: Judged) -> str:
    return f"BASE {_commit(result, BASE)}, HEAD {_commit(result, HEAD)}"


def _commit(result: Judged, side: str) -> str:
    measured = result.base if side == BASE else result.head
    commit, name = measured.commit[:10], texts.plain(measured.name)
    return commit if name in ("", measured.commit) else f"{name} ({commit})"


def format_place(result: Judged) -> str:
    machine = result.machine
    parts = [machine.gpu or machine.cpu, f"PyTorch {machine.torch}", result.workload["name"]]
    return ", ".join(map(texts.plain, parts))


def format_change(rung: Answered) -> str:
    """Return how much more time HEAD takes: +1.2% is slower."""
    return "" if rung.ratio is None else f"{texts.rounded(100 * (1 / rung.ratio - 1), 2):+.2f}%"


def format_interval(rung: Answered) -> str:
    """Return the interval of `change`, at the level that Holm's correction left."""
    if not rung.interval:
        return ""
    low, high = (texts.rounded(100 * (1 / bound - 1), 2) for bound in reversed(rung.interval))
    return f"{low:+.2f}% to {high:+.2f}%"


def describe_verdict(answer: Answered) -> str:
    """Return the verdict in words, with X where it is "less than X%", or why there is none."""
    if answer.verdict == BROKEN:
        return f"broken: {answer.reason}"
    if answer.verdict == answers.LESS and answer.below is not None:
        return texts.less_than(answer.below)
    return answer.verdict or f"no verdict: {answer.reason}"


def describe_verdicts(rung: JudgedRung) -> str:
    """Return the verdicts of both quantities in a few words."""
    if rung.gpu is None:
        return describe_verdict(rung)
    return f"{describe_verdict(rung)} ({WALL}), {describe_verdict(rung.gpu)} ({GPU})"


def list_rows(rung: JudgedRung) -> list[tuple[str | None, list[str]]]:
    """Return the rung's rows of a table: a verdict and the cells, of wall time and, if known, of GPU time."""
    by_clock: list[tuple[str, Answered]] = [(WALL, rung), *([(GPU, rung.gpu)] if rung.gpu else [])]
    slower = judging.list_slower(rung)
    rows = []
    for of, answer in by_clock:
        accepted = f" ({rung.known})" if rung.known and of in slower else ""
        floor = "" if answer.floor is None else texts.difference(answer.floor)
        times = [texts.ms(answer.base_ms), texts.ms(answer.head_ms)]
        shown = [
            format_change(answer),
            format_interval(answer),
            describe_verdict(answer) + accepted,
            floor,
            str(answer.rounds),
        ]
        rows.append((answer.verdict, [rung.name, of, *times, *shown]))
    return rows


def conclude(result: Judged) -> str:
    """Return the exit status in a line, with the quantity that shows it."""
    bad, status = judging.list_alarms(result), judging.find_status(result)
    if status == judging.SLOWER:
        names = ", ".join(
            f"{rung.name} ({' and '.join(judging.list_slower(rung)) or BROKEN})" for rung in bad
        )
        return f"HEAD is slower or broken: {names}"
    if status == judging.NOTHING:
        return "nothing was measured: no rung has a verdict"
    unsure = [
        f"{rung.name} ({of})"
        for rung in result.rungs
        for of, answer in ((WALL, rung), (GPU, rung.gpu))
        if answer and answer.verdict == answers.AMBIGUOUS
    ]
    return "nothing is slower" + (f"; too close to tell: {', '.join(unsure)}" if unsure else "")


def list_remarks(result: Judged) -> list[str]:
    """Return the lines that a reader must know beside the table."""
    remarks = list(result.notes)
    if not result.complete:
        remarks.append(PARTIAL)
    if result.harness.commit is None:
        remarks.append(NO_COMMIT)
    elif result.harness.dirty:
        remarks.append(DIRTY)
    remarks += result.gpu.notes if result.gpu else []
    remarks += neighbours.list_marks(
        write_record(each) for program in result.programs for each in program.rounds
    )
    quantities: list[tuple[JudgedRung, str, Answered | None]] = [
        each for rung in result.rungs for each in ((rung, WALL, rung), (rung, GPU, rung.gpu))
    ]
    sizes = [
        f"{rung.name} {texts.difference(answer.resolution)} of {of}"
        for rung, of, answer in quantities
        if answer and answer.resolution is not None
    ]
    if sizes:
        remarks.append(f"a slowdown would have been seen from about: {', '.join(sizes)}")
    return [*remarks, *explain_gpu_work(result), *list_choices(result)]


def explain_gpu_work(result: Judged) -> list[str]:
    """Return what the difference of GPU work consists of, a line for each rung that has one, and new kernels."""
    lines = []
    for rung in result.rungs:
        sides = judging.find_sides(result, rung.name)
        pair = [parts.parts_of(sides[side]) for side in (BASE, HEAD) if side in sides]
        if not rung.gpu or rung.gpu.verdict not in (answers.FASTER, answers.SLOWER) or len(pair) < 2:
            continue
        was, now = pair
        if not (was and now):
            continue
        apart = now.gpu_ms - was.gpu_ms
        work = f"{rung.name}: {abs(apart):.2f} ms {'less' if apart < 0 else 'more'} GPU work in the profiled cycles"
        lines.append(f"{work}: {parts.made_of(was, now)}")
        lines += [f"{rung.name}: {line}" for line in parts.came_and_went(was, now)]
    return lines


def list_choices(result: Judged) -> list[str]:
    """Return how HEAD's tuning choices differ from BASE's, a line a rung: why a time may have moved."""
    lines = []
    for rung in result.rungs:
        sides = judging.find_sides(result, rung.name)
        used = {side: sides[side].choices for side in (BASE, HEAD) if side in sides}
        if used.get(BASE) is None or used.get(HEAD) is None:
            continue
        before, after = (tiles.lines(write_record(used[side])) for side in (BASE, HEAD))
        if changes := tiles.changes(before, after):
            more = f"; and {len(changes) - 2} more" if len(changes) > 2 else ""
            lines.append(f"{rung.name}: other tuning choices: {'; '.join(changes[:2])}{more}")
    return lines


def render_text(result: Judged) -> str:
    """Return the comparison for a terminal, the most important lines last."""
    shown = [list(map(texts.plain, row)) for rung in result.rungs for _, row in list_rows(rung)]
    table = texts.aligned([HEADS, *shown])
    head = f"{format_title(result)}; {format_place(result)}"
    return "\n".join([head, *table, *map(texts.plain, list_remarks(result)), texts.plain(conclude(result))])


def render_markdown(result: Judged) -> str:
    """Return the comparison for a pull request; the first line marks the comment."""
    lines = [
        MARK,
        f"### {escape(conclude(result))}",
        "",
        f"{escape(format_title(result))}; {escape(format_place(result))}",
        "",
    ]
    table, place = [list(HEADS)], HEADS.index("verdict")
    for verdict, cells in (row for rung in result.rungs for row in list_rows(rung)):
        table.append([escape(cell) for cell in cells])
        table[-1][place] = f"{_SIGNS.get(verdict or '', '⚫')} {table[-1][place]}"
    lines += texts.piped(table, words=range(len(HEADS)), show=str)
    lines += ["", *(f"- {escape(line)}" for line in list_remarks(result))]
    how = "Both commits, and BASE a second time, in fresh processes side by side in every generation"
    return (
        "\n".join(
            [*lines, "", f"{how}; intervals are over generations, never over the samples of one process."]
        )
        + "\n"
    )
