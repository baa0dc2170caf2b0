"""The commands `ladder list` and `ladder show`: what exists and what was measured here. They measure nothing."""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

import click

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.paths import ROOT
from ladder.base.protocol import AMBIGUOUS, INSIDE, TOO_FEW
from ladder.base.starting import named
from ladder.base.yamlfile import remarks
from ladder.core import options
from ladder.plan import beside, catalog, modes, needs
from ladder.results import parts, ranking, sources, words
from ladder.results.publishable import publishable
from ladder.results.run import Gain, RungResult
from stylegan_lite.config import suggestion

RESULTS = ROOT / "results" / "ladder"
CHANGES = 3  # categories of GPU work that `ladder show` lists for a rung
OPEN = (*INSIDE, AMBIGUOUS, TOO_FEW, None)  # verdicts without a difference to explain
FIRST = ("article", "full")  # ladders listed first; the others follow by name

# Studies of `ladder run --mode`: the title, the entry that others stand beside, and the others (name, title, effect).
STUDIES: dict[str, tuple[str, str, list[tuple[str, str, str]]]] = {
    mode: (study.title, study.first, [(name, each.title, each.why) for name, each in study.entries.items()])
    for mode, study in ((mode, beside.load_beside(mode)) for mode in modes.STUDIES)
}


@click.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List ladders with their rungs, and workloads, a line each.

    A rung stands under the first ladder that contains it, with its needs and its gain in the results stored for
    this machine.
    """
    ladders = sorted(
        catalog.ladders(), key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)
    )
    rungs = dict.fromkeys(step.name for name in ladders for step in catalog.load_ladder(name).rungs)
    rungs |= dict.fromkeys(name for name in catalog.rungs() if name not in rungs)
    catalogue = {
        "rungs": {name: catalog.load_rung(name).summary for name in rungs},
        "ladders": {name: catalog.describe(catalog.LADDERS, name) for name in ladders},
        "workloads": {name: catalog.describe(catalog.WORKLOADS, name) for name in catalog.workloads()},
    }
    if as_json:
        click.echo(json.dumps(catalogue, indent=1))
        return
    for line in _render_list(catalogue):
        click.echo(named(line))


def _render_list(catalogue: dict[str, dict[str, str]]) -> list[str]:
    """Return the lines of `ladder list`: ladders with the rungs new in each, rungs of no ladder, and workloads."""
    here = [each for each in ranking.stored(RESULTS, ranking.machines_here()) if _is_staircase(each[1])]
    lines, left = [], dict(catalogue["rungs"])
    for ladder, text in catalogue["ladders"].items():
        steps = [step.name for step in catalog.load_ladder(ladder).rungs]
        new = [name for name in steps if name in left]
        lines += [f"{click.style(ladder, bold=True)}  ladder of {texts.counted(len(steps), 'rung')}: {text}"]
        rows = [
            _make_rung_row(name, left.pop(name), _select_climbs(ladder, steps, name, here)) for name in new
        ]
        if len(lines) == 1:
            rows.insert(0, ["rung", "needs", "gain here (?: ambiguous)" * bool(here), "what it does"])
        lines += [f"  {line}" for line in _align(rows)]
        if len(new) < len(steps):
            lines.append(f"  ({len(steps) - len(new)} more are above; their order: `ladder show {ladder}`)")
    if left:
        lines.append(click.style("rungs of no ladder", bold=True))
        lines += [f"  {line}" for line in _align([_make_rung_row(*each, []) for each in left.items()])]
    lines.append(click.style("workloads", bold=True))
    return [
        *lines,
        *(f"  {line}" for line in _align([list(each) for each in catalogue["workloads"].items()])),
    ]


def _make_rung_row(name: str, summary: str, known: list[ranking.Stored]) -> list[str]:
    newest = _choose_newest(name, known)
    gain = _render_gain(ranking.rung_of(newest[1], name)) if newest else ""
    if newest and gain and (other := _find_skipped_base(name, newest[1])):
        gain += f" over {other}"
    return [name, _join_needs(name), gain, summary]


def _choose_newest(name: str, known: list[ranking.Stored]) -> ranking.Stored | None:
    """Return the newest result, of those first that compare the rung with the one before it in the ladder."""
    return ranking.newest([each for each in known if not _find_skipped_base(name, each[1])] or known)


def _find_skipped_base(name: str, result: ranking.Result) -> str:
    """Return the rung that a result of selected rungs compares this one with, over others that it left out; else ""."""
    rung = ranking.rung_of(result, name)
    if not (rung and rung.gain) or result.ladder.name not in catalog.ladders():
        return ""
    steps, against = [each.name for each in catalog.load_ladder(result.ladder.name).rungs], rung.gain.against
    if against not in steps or name not in steps:
        return ""
    between = steps[steps.index(against) + 1 : steps.index(name)]
    return texts.plain(against) if {*between} - {each.name for each in result.rungs} else ""


def _select_climbs(
    ladder: str, steps: list[str], rung: str, here: list[ranking.Stored]
) -> list[ranking.Stored]:
    """Return the runs that climbed a ladder to a rung. A run of `full` climbs the article's ladder first."""
    below = steps[: steps.index(rung) + 1]
    return [
        each
        for each in here
        if ranking.rung_of(each[1], rung)
        and (each[1].ladder.name == ladder or [one.name for one in each[1].rungs][: len(below)] == below)
    ]


def _is_staircase(result: ranking.Result) -> bool:
    return ranking.mode(result) == ranking.CUMULATIVE


@click.command(epilog="""\b
Examples:
  ladder show bf16       one rung
  ladder show article    the article's ladder, and the workload of that name""")  # fmt: skip
@click.argument("name", metavar="NAME")
def show(name: str) -> None:
    """Explain a rung, a ladder, a workload or a study.

    For a rung: its change, why it should help, when it does not, how to see that it is on, and what was measured.
    These are your own result, and those of other GPUs in this checkout.
    For a ladder (a name or a YAML file): its rungs in order, with the change and the needs of each.
    For `mistakes` and `levers`, which `ladder run --mode` measures: their entries. For an entry: what it does.
    For a workload: its fields.
    """
    a_file = Path(name).suffix in (".yaml", ".yml") or len(Path(name).parts) > 1
    shown = []
    if name in catalog.rungs():
        shown.append(_render_rung(name))
    if name in catalog.ladders() or a_file:
        shown.append(_render_ladder(name))
    if name in (entries := _render_entries()):
        shown.append(entries[name])
    if name in STUDIES:
        shown.append(_render_study(name))
    if name in catalog.workloads():
        shown.append(_render_workload(name))
    if not shown:
        if name in modes.MODES:
            raise UserError(f"{name} is a way to lay out a run: `ladder run --mode {name}`")
        names = dict.fromkeys(
            [*catalog.rungs(), *catalog.ladders(), *STUDIES, *catalog.workloads(), *entries]
        )
        raise UserError(f"no rung, ladder, workload or study {name!r}{suggestion(name, names)}")
    click.echo(named("\n\n".join("\n".join(lines) for lines in shown)))


def _render_rung(name: str) -> list[str]:
    rung = catalog.load_rung(name)
    return [
        click.style(rung.title, bold=True),
        f"\n{rung.text}\n\nReceipt. {inspect.getdoc(rung.receipt)}\n",
        f"Recipe: {_render_change(name) or 'the defaults'}",
        f"Needs:  {', '.join(map(_describe_need, rung.needs)) or 'nothing beyond PyTorch'}",
        *_render_own(name),
        *_render_elsewhere(name),
    ]


def _render_entries() -> dict[str, list[str]]:
    """Return the lines on each mistake and each lever, by name."""
    return {
        name: [
            click.style(title, bold=True),
            f"\n{why[:1].upper()}{why[1:]}.\n",
            f"No rung, but one of the {study}. Measured by `ladder run --mode {study} --rungs {name}`.",
            "docs/attribute.md has what was measured.",
        ]
        for study, (*_, entries) in STUDIES.items()
        for name, title, why in entries
    }


def _render_study(name: str) -> list[str]:
    """Return the lines on a study: each of its entries, and how it is measured."""
    title, first, entries = STUDIES[name]
    rows = [["entry", "what it is", "what it does"], *([*each] for each in entries)]
    return [
        click.style(f"{title}: {name}, {len(entries)} entries", bold=True),
        f"Measured by `ladder run --mode {name}`, beside `{first}`.",
        "",
        *_align(rows),
        "",
        "docs/attribute.md has what was measured.",
    ]


def _render_workload(name: str) -> list[str]:
    """Return the lines on a workload of ours: its fields."""
    fields = catalog.load_workload(name)[1]
    rows = [[key, json.dumps(value)] for key, value in fields.items()]
    head = click.style(f"{catalog.describe(catalog.WORKLOADS, name)}: workload {name}", bold=True)
    return [head, "", *_align(rows)]


def _render_ladder(name: str) -> list[str]:
    ladder = catalog.load_ladder(name)
    head = [
        click.style(
            f"{ladder.title}: ladder {ladder.name}, {texts.counted(len(ladder.rungs), 'rung')}", bold=True
        )
    ]
    rows = [["", "rung", "needs", f"ms, {ladder.reference}" if ladder.reference else "", "changes"]]
    for number, step in enumerate(ladder.rungs, start=1):
        ms = "" if step.article_ms is None else f"{step.article_ms:g}"
        rows.append(
            [str(number), step.name, _join_needs(step.name), ms, _render_change(step.name) or "nothing"]
        )
    if ladder.rival:
        top = catalog.load_ladder(ladder.rival).rungs[-1].name
        rows.append(["", top, "", "", f"the top of {ladder.rival}, in the same generations"])
    path = catalog.LADDERS / f"{name}.yaml" if name in catalog.ladders() else Path(name).expanduser()
    notes = remarks(path)
    return [*head, "", *_align(rows), *([""] if notes else []), *notes]


def _render_own(name: str) -> list[str]:
    """Return the lines on the newest quotable result of this machine with a number for the rung.

    They hold the prediction, time, gain, verdict, file and date, and the largest changes of categories. Returns an
    empty list if there is no such result.
    """
    here = [
        each
        for each in ranking.stored(RESULTS, ranking.machines_here())
        if _is_staircase(each[1]) and ranking.rung_of(each[1], name)
    ]
    if (newest := _choose_newest(name, here)) is None:
        return []
    path, result = newest
    rung = ranking.rung_of(result, name)
    facts = [f"{texts.ms(rung.step_ms)} ms/step"]
    over = f"vs {_find_skipped_base(name, result) or 'previous'}"
    facts += [gain for gain in (_render_gain(rung, over), _render_gain_at_top(name, result)) if gain]
    few = ranking.fewest_rounds(result)
    limited = result.protocol.gpu_memory_limit_gb
    if result.protocol.quick or limited or few < ranking.results.FEWEST_ROUNDS:
        facts.append("not to be quoted")
    rounds = texts.counted(few, sources.unit(result))
    where = f"{texts.plain(result.workload['name'])}, {rounds}, {result.started[:10]}"
    return [
        f"Predicted: {_render_prediction(name, result)}",
        f"Here:   {'; '.join(facts)}",
        f"        ({where}: {os.path.relpath(path)})",
        *_render_parts(name, here),
    ]


def _render_prediction(name: str, result: ranking.Result) -> str:
    """Return the article's gain over the rung that the result compares with; without one, the rung's expectation."""
    rung = ranking.rung_of(result, name)
    before = ranking.rung_of(result, rung.gain.against) if rung and rung.gain else None
    if not (rung and before and rung.article_ms and before.article_ms):
        return f"no number in the article; {catalog.load_rung(name).summary}"
    times = f"{before.article_ms:g} -> {rung.article_ms:g} ms/step"
    pair = f"{texts.plain(before.name)} -> {name}"
    return f"{texts.factor(before.article_ms / rung.article_ms)} by the article ({times}, {pair})"


def _render_elsewhere(name: str) -> list[str]:
    """Return a table of the rung's gains on other GPUs, by both clocks: in the ladder, and left out at the top.

    A row is the best result of its GPU that may be quoted. Returns an empty list if there is none.
    """
    others = sorted({path.name for path in RESULTS.glob("*") if path.is_dir()} - {*ranking.machines_here()})
    rows = []
    for machine in others:
        quotable = [each for each in ranking.stored(RESULTS, [machine]) if _can_be_quoted(each[1], name)]
        left_out = [each for each in quotable if ranking.mode(each[1]) == ranking.LEAVE_ONE_OUT]
        climbed = _choose_newest(name, [each for each in quotable if _is_staircase(each[1])])
        highest = max(left_out, key=lambda each: ranking.rank(each[1]), default=None)
        rows += [_make_elsewhere_row(name, *each) for each in (climbed, highest) if each]
    lines = _align([["gpu", "workload", "GPU's work", "step", "compared", "advice", "file"], *rows])
    return ["", "Measured elsewhere", *(f"  {line}" for line in lines)] if rows else []


def _can_be_quoted(result: ranking.Result, name: str) -> bool:
    """Return whether a publishable run compares the rung by both clocks."""
    rung = ranking.rung_of(result, name)
    return bool(rung and rung.gain and rung.gpu_gain) and not publishable(result)


def _make_elsewhere_row(name: str, path: Path, result: ranking.Result) -> list[str]:
    rung = ranking.rung_of(result, name)
    assert rung and rung.gain and rung.gpu_gain  # as `_can_be_quoted` checks
    by_gpu, by_step = (
        words.answer(words.Seen(verdict or "", gain.ratio, gain.below))
        for gain, verdict in ((rung.gpu_gain, rung.gpu_verdict), (rung.gain, rung.verdict))
    )
    over, advice = f"over {texts.plain(rung.gain.against)}", ""
    if ranking.mode(result) == ranking.LEAVE_ONE_OUT:
        over, advice = f"over {result.ladder.name} {rung.title}", ranking.advice(result, rung)
    where = [result.machine.gpu or result.machine.name, str(result.workload["name"])]
    return [*map(texts.plain, (*where, by_gpu, by_step, over, advice)), os.path.relpath(path)]


def _render_parts(name: str, here: list[ranking.Stored]) -> list[str]:
    """Return the lines on the largest changes of GPU work that the rung made, from the best result with profiles.

    Returns an empty list if there is no such result, or if the change of GPU time is inside the noise.
    """
    newest = _choose_newest(name, [each for each in here if all(_read_parts(each[1], name))])
    if newest is None:
        return []
    path, result = newest
    rung, (before, after) = ranking.rung_of(result, name), _read_parts(result, name)
    if not (before and after and rung and rung.gpu_gain) or rung.gpu_verdict in OPEN:
        return []
    rows = [row for row in parts.changes(before, after) if row.ms][:CHANGES]
    changes = [f"{texts.plain(row.category)} {row.before.ms:.2f} -> {row.after.ms:.2f} ms" for row in rows]
    against = texts.plain(rung.gpu_gain.against)
    return [
        f"Parts:  {'; '.join(changes)}",
        f"        (GPU work of a step, {against} -> {name}: {os.path.relpath(path)})",
    ]


def _read_parts(result: ranking.Result, name: str) -> tuple[parts.Parts | None, parts.Parts | None]:
    """Return the parts of the rung that this rung was judged against, and those of the rung itself."""
    rung = ranking.rung_of(result, name)
    against = ranking.rung_of(result, rung.gpu_gain.against) if rung and rung.gpu_gain else None
    return parts.parts_of(against) if against else None, parts.parts_of(rung) if rung else None


def _render_gain_at_top(name: str, result: ranking.Result) -> str:
    """Return the gain at the top, from the newest leave-one-out result that matches, else an empty text.

    Machine, workload, ladder and commit must be the same.
    """
    others = [
        each
        for each in ranking.stored(RESULTS, [result.machine.name])
        if ranking.mode(each[1]) == ranking.LEAVE_ONE_OUT
        and all(getattr(each[1], part) == getattr(result, part) for part in ("workload", "commit", "dirty"))
        and each[1].ladder.name == result.ladder.name
        and ranking.rung_of(each[1], name)
    ]
    newest = ranking.newest(others)
    return _render_gain(ranking.rung_of(newest[1], name), "at the top") if newest else ""


def _render_gain(rung: RungResult | None, over: str = "") -> str:
    """Return a gain as text: `1.18x vs previous (1.160-1.210x), faster`, or a short form without ``over``.

    A gain inside the noise has no number. With GPU time both clocks are shown: `GPU 1.13x, step less than 8.9%`.
    """
    if rung is None or not rung.gain:
        return ""
    step = _render_clock(rung.gain, rung.verdict or "", over)
    if not rung.gpu_gain:
        return step
    return (
        f"GPU {_render_clock(rung.gpu_gain, rung.gpu_verdict or '', over)}{'; ' if over else ', '}step {step}"
    )


def _render_clock(gain: Gain, verdict: str, over: str) -> str:
    word = words.word(words.Seen(verdict, gain.ratio, gain.below))
    inside, factor = verdict in INSIDE, texts.factor(gain.ratio)
    if not over:
        return word if inside else f"{factor}?" if verdict in (AMBIGUOUS, TOO_FEW) else factor
    interval = texts.bounds(texts.pair(gain.interval))
    return (
        (word if inside else factor)
        + f" {over}"
        + (f" ({interval})" if interval else "")
        + ("" if not verdict or inside else f", {verdict}")
    )


def _describe_need(need: str) -> str:
    """Return a need, and the field of the workload that meets it."""
    return f"{need} (workload with {needs.FIELDS[need]})" if need in needs.FIELDS else need


def _join_needs(name: str) -> str:
    return ", ".join(catalog.load_rung(name).needs)


def _render_change(name: str) -> str:
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in catalog.load_rung(name).change.items())


def _align(rows: list[list[str]]) -> list[str]:
    """Return rows as lines with aligned columns. A column that is empty in every row is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    return texts.aligned([*zip(*columns, strict=True)])
