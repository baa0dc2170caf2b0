"""A comparison of two commits as tables: for a terminal, and as a Markdown comment of a pull request.

Anybody may have written the texts of a result, so all text is escaped here, whatever was validated before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from ladder.base import files
from ladder.base import text as texts
from ladder.core.records import write_record, write_whole
from ladder.machine import neighbours
from ladder.publish.regressions import judging
from ladder.publish.regressions.judging import BASE, BROKEN, GPU, HEAD, WALL
from ladder.publish.regressions.schema import KIND, Answered, Judged, Program
from ladder.results import parts, store
from ladder.results.publishable import DIRTY, NO_COMMIT, PARTIAL
from ladder.show.table import Column, Table, render_csv, render_text
from ladder.show.table import render_markdown as render_table
from ladder.stats import answers

MARK = "<!-- ladder bench-compare -->"  # by which the comment of an earlier run is found and replaced
COLUMNS = (
    Column("rung"),
    Column("of"),
    Column("BASE ms", "ms"),
    Column("HEAD ms", "ms"),
    Column("change of time", "change"),
    Column("95% interval", "changes"),
    Column("verdict"),
    Column("noise floor", "difference", 1),
    Column("seen from", "difference", 2),
    Column("generations", "count", 1),
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
    return break_mentions(texts.escaped(texts.plain(text)))


def break_mentions(markdown: str) -> str:
    """Return escaped Markdown in which no name of a user or number of an issue becomes a link."""
    return markdown.replace("@", "@\u200b").replace("\\#", "\\#\u200b")


def derive_change(answer: Answered) -> tuple[float | None, list[float] | None]:
    """Return how much more time HEAD takes, as a share (a positive one is slower), and the interval of that."""
    if answer.ratio is None or not answer.interval:
        return None, None
    return 1 / answer.ratio - 1, [1 / bound - 1 for bound in reversed(answer.interval)]


def describe_verdict(answer: Answered) -> str:
    """Return the verdict, "less than X%" with its X, or why there is none."""
    if answer.verdict == BROKEN:
        return f"broken: {answer.reason}"
    if answer.verdict == answers.LESS and answer.below is not None:
        return texts.less_than(answer.below)
    return answer.verdict or f"no verdict: {answer.reason}"


def make_table(result: Judged, signs: bool = False) -> Table:
    """Return a row for each rung and quantity; with `signs` a coloured one stands before the verdict."""
    rows = []
    for rung in result.rungs:
        slower = judging.list_slower(rung)
        for of, answer in ((WALL, rung), (GPU, rung.gpu)):
            if answer is None:
                continue
            verdict = f"{_SIGNS.get(answer.verdict or '', '⚫')} " * signs + describe_verdict(answer)
            verdict += f" ({rung.known})" if rung.known and of in slower else ""
            head = [rung.name, of, answer.base_ms, answer.head_ms, *derive_change(answer)]
            rows.append([*head, verdict, answer.floor, answer.resolution, answer.rounds])
    return Table(COLUMNS, rows)


def conclude(result: Judged) -> str:
    """Return the exit status in a line, with the quantity that shows it."""
    status = judging.find_status(result)
    if status == judging.SLOWER:
        alarms = judging.list_alarms(result)
        slower = [f"{rung.name} ({' and '.join(judging.list_slower(rung)) or BROKEN})" for rung in alarms]
        return f"HEAD is slower or broken: {', '.join(slower)}"
    if status == judging.NOTHING:
        return "nothing was measured: no rung has a verdict"
    return "nothing is slower"


def summarize(result: Judged) -> str:
    """Return the commits and the machine in a line."""
    machine, (base, head) = result.machine, (result.base, result.head)
    return texts.plain(
        f"BASE {base.name} ({base.commit[:10]}), HEAD {head.name} ({head.commit[:10]});"
        f" {machine.gpu or machine.cpu}, PyTorch {machine.torch}, {result.workload['name']}"
    )


def list_remarks(result: Judged) -> list[str]:
    """Return why figures must not be quoted, what a difference of GPU work consists of, then the conclusion."""
    remarks = list(result.notes)
    remarks += [PARTIAL] * (not result.complete) + [NO_COMMIT] * (result.harness.commit is None)
    remarks += [DIRTY] * bool(result.harness.dirty)
    remarks += result.gpu.notes if result.gpu else []
    remarks += neighbours.list_marks(write_record(each) for side in result.programs for each in side.rounds)
    for rung in result.rungs:
        if not rung.skipped:
            sides = judging.find_sides(result, rung.name)
            remarks += [f"{rung.name}: {line}" for line in explain_gpu_work(rung.gpu, sides)]
    return [texts.plain(line) for line in (*remarks, conclude(result))]


def explain_gpu_work(answer: Answered | None, sides: Mapping[str, Program]) -> list[str]:
    """Return what the difference of GPU work of a rung consists of, and which kernels are new."""
    was, now = (parts.parts_of(sides[side]) for side in (BASE, HEAD))
    if not (answer and answer.verdict in (answers.FASTER, answers.SLOWER) and was and now):
        return []
    apart = f"{now.gpu_ms - was.gpu_ms:+.2f} ms GPU work in the profiled cycles"
    return [f"{apart}: {parts.made_of(was, now)}", *parts.came_and_went(was, now)]


def render_terminal(result: Judged, width: int = 160) -> str:
    """Return the comparison for a terminal, the most important line last."""
    return "\n".join([summarize(result), render_text(make_table(result), width), *list_remarks(result)])


def render_markdown(result: Judged) -> str:
    """Return the comparison for a pull request; the first line marks the comment."""
    *remarks, conclusion = map(texts.escaped, list_remarks(result))
    lines = [f"### {conclusion}", "", texts.escaped(summarize(result)), ""]
    lines += [render_table(make_table(result, signs=True)), "", *(f"- {line}" for line in remarks)]
    how = "Both commits, and BASE a second time, in fresh processes side by side in every generation"
    lines += ["", f"{how}; intervals are over generations, never over the samples of one process."]
    return MARK + "\n" + break_mentions("\n".join(lines)) + "\n"


def show_result(result: Judged, as_json: bool, markdown: Path | None, csv: Path | None = None) -> None:
    """Write the tables to the files, and print the comparison."""
    if markdown is not None:
        files.write(markdown, render_markdown(result))
    if csv is not None:
        files.write(csv, render_csv([make_table(result)]))
    shown = json.dumps(write_whole(result), indent=1, allow_nan=False) if as_json else render_terminal(result)
    click.echo(shown)


def is_comparison(path: Path) -> bool:
    """Return whether a file says that it compares two commits."""
    data = store.read(path) if path.is_file() else None
    return isinstance(data, dict) and data.get("kind") == KIND
