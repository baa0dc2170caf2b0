"""The commands `ladder list` and `ladder show`: what exists and what was measured here. They measure nothing."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from ladder.core import options
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.protocol import FASTER, SLOWER
from ladder.core.starting import name_program
from ladder.core.yamlfile import read_comments
from ladder.plan import beside, catalog, modes, needs
from ladder.results import parts, ranking, words
from ladder.results.publishable import publishable
from ladder.results.run import RungResult
from ladder.results.words import Seen
from stylegan_lite.config import suggestion

RESULTS = ROOT / "results" / "ladder"
CHANGES = 3  # categories of GPU work that `ladder show` lists for a rung
FIRST = {"article": 0, "full": 1}  # ladders listed first; the others follow by name
MEASURED = "docs/attribute.md has what was measured."


@click.command("list")
@options.json_option
def list_(as_json: bool) -> None:
    """List ladders with their rungs, and workloads, a line each.

    A rung stands under the first ladder that contains it, with its needs and its gain in the results stored for
    this machine.
    """
    ladders = sorted(catalog.list_ladders(), key=lambda name: (FIRST.get(name, len(FIRST)), name))
    steps = {name: [step.name for step in catalog.load_ladder(name).rungs] for name in ladders}
    left = list(dict.fromkeys([*(rung for each in steps.values() for rung in each), *catalog.list_rungs()]))
    about = {
        "rungs": {name: catalog.load_rung(name).summary for name in left},
        "ladders": {name: catalog.describe_file(catalog.LADDERS, name) for name in ladders},
        "workloads": {
            name: catalog.describe_file(catalog.WORKLOADS, name) for name in catalog.list_workloads()
        },
    }
    if as_json:
        click.echo(json.dumps(about, indent=1))
        return
    here = ranking.stored(RESULTS, ranking.machines_here())
    rows = {name: [name, ", ".join(catalog.load_rung(name).needs), "", about["rungs"][name]] for name in left}
    for name, row in rows.items():
        if best := choose_best(name, here, modes.CUMULATIVE):
            gpu, step = answer_gains(ranking.rung_of(best[1], name))
            row[2] = f"GPU {gpu}, step {step}" if gpu else step
    lines: list[str] = []
    for ladder, names in steps.items():
        new = [name for name in names if name in left]
        left = [name for name in left if name not in new]
        heading = [["rung", "needs", "gain here", "what it does"]] if not lines else []
        about_ladder = f"ladder of {texts.format_count(len(names), 'rung')}: {about['ladders'][ladder]}"
        lines.append(f"{click.style(ladder, bold=True)}  {about_ladder}")
        lines += _align([*heading, *(rows[name] for name in new)], "  ")
        if len(new) < len(names):
            lines.append(f"  ({len(names) - len(new)} more are above; their order: `ladder show {ladder}`)")
    if left:
        lines += [click.style("rungs of no ladder", bold=True), *_align([rows[name] for name in left], "  ")]
    lines += [click.style("workloads", bold=True), *_align([*map(list, about["workloads"].items())], "  ")]
    click.echo(name_program("\n".join(lines)))


@click.command(
    epilog="""\b
Examples:
  ladder show bf16       one rung
  ladder show article    the article's ladder, and the workload of that name
  ladder show --model my_pair.py    your own networks: which rungs apply, and why others do not"""
)
@click.argument("name", metavar="NAME", required=False)
@options.model_options[0]
@options.model_options[1]
@options.device_option
def show(name: str | None, model: str | None, settings: tuple[str, ...], device: str | None) -> None:
    """Explain a rung, a ladder, a workload or a study.

    For a rung: its change, why it should help, when it does not, how to see that it is on, and what was measured.
    These are your own result, and those of other GPUs in this checkout.
    For a ladder (a name or a YAML file): its rungs in order, with the change and the needs of each.
    With --model, for a ladder [default: pair]: which of its rungs apply to that pair, and why others do not.
    For `mistakes` and `levers`, which `ladder run --mode` measures: their entries. For an entry: what it does.
    For a workload (a name or a YAML file): its fields.
    """
    if model is not None:
        click.echo(name_program("\n".join(_render_model(name or "pair", model, [*settings], device))))
        return
    if name is None:
        raise UserError("name a rung, ladder, workload or study, or give --model")
    if settings or device:
        raise UserError("--set and --device go with --model: leave them out")
    studies = {mode: beside.load_beside(mode) for mode in modes.STUDIES}
    entries = {
        entry: (mode, each) for mode, study in studies.items() for entry, each in study.entries.items()
    }
    shown: list[list[str]] = []
    if name in catalog.list_rungs():
        shown.append(_render_rung(name))
    is_file = Path(name).suffix in (".yaml", ".yml") or len(Path(name).parts) > 1
    is_workload = name in catalog.list_workloads() or (is_file and not _has_rungs(Path(name)))
    if name in catalog.list_ladders() or (is_file and not is_workload):
        shown.append(_render_ladder(name))
    if name in entries:
        mode, entry = entries[name]
        measured = f"No rung, but one of the {mode}. Measured by `ladder run --mode {mode} --rungs {name}`."
        why = f"\n{entry.why[:1].upper()}{entry.why[1:]}.\n"
        shown.append([click.style(entry.title, bold=True), why, measured, MEASURED])
    if name in studies:
        study = studies[name]
        head = click.style(f"{study.title}: {name}, {len(study.entries)} entries", bold=True)
        rows = [[key, each.title, each.why] for key, each in study.entries.items()]
        table = _align([["entry", "what it is", "what it does"], *rows])
        shown.append(
            [head, f"Measured by `ladder run --mode {name}`, beside `{study.first}`.", "", *table, MEASURED]
        )
    if is_workload:
        title, fields = catalog.load_workload(name)
        place = name if is_file else catalog.describe_file(catalog.WORKLOADS, name)
        head = click.style(f"{place}: workload {title}", bold=True)
        shown.append([head, "", *_align([[key, json.dumps(value)] for key, value in fields.items()])])
    if not shown:
        if name in modes.MODES:
            raise UserError(f"{name} is a way to lay out a run: `ladder run --mode {name}`")
        known = [
            *catalog.list_rungs(),
            *catalog.list_ladders(),
            *studies,
            *catalog.list_workloads(),
            *entries,
        ]
        raise UserError(
            f"no rung, ladder, workload or study {name!r}{suggestion(name, dict.fromkeys(known))}"
        )
    click.echo(name_program("\n\n".join("\n".join(lines) for lines in shown)))


def _has_rungs(path: Path) -> bool:
    """Return whether a YAML file is one of a ladder, or cannot be read: the ladder's loader says why."""
    try:
        return "rungs:" in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return True


def _render_model(ladder: str, model: str, settings: list[str], device: str | None) -> list[str]:
    """Return what a user's pair is, and for each rung of a ladder that it applies or why it does not."""
    from ladder.engine import models
    from ladder.engine.pool import Pool
    from ladder.machine import system

    request, steps = models.read_model(model, settings), catalog.load_ladder(ladder)
    device = system.choose_device(device)
    with Pool() as pool:
        name, workload, facts = models.describe_model(request, pool, device, 0)
    able = needs.list_able(device, workload, facts)
    rows = [["rung", "", "changes"]]
    for each in catalog.plan_climb(steps, able):
        reason = "applies" if each.recipe is not None else f"n/a: {each.skipped}"
        rows.append([each.name, reason, _join(catalog.load_rung(each.name).change) or "nothing"])
    size = f", {workload['resolution']}x{workload['resolution']}" if workload["resolution"] else ""
    weights = ", ".join(f"{key} {number:,} weights" for key, number in facts["weights"].items())
    head = click.style(f"{name}: pair {workload['pair']}, batch {workload['batch']}{size}", bold=True)
    return [head, f"networks: {weights}", f"a step: {', '.join(facts['phases'])}", "", *_align(rows)]


def _render_ladder(name: str) -> list[str]:
    ladder = catalog.load_ladder(name)
    rows = [["", "rung", "needs", f"ms, {ladder.reference}" if ladder.reference else "", "changes"]]
    for number, step in enumerate(ladder.rungs, start=1):
        rung, ms = catalog.load_rung(step.name), "" if step.article_ms is None else f"{step.article_ms:g}"
        rows.append([str(number), step.name, ", ".join(rung.needs), ms, _join(rung.change) or "nothing"])
    if ladder.rival:
        top = catalog.load_ladder(ladder.rival).rungs[-1].name
        rows.append(["", top, "", "", f"the top of {ladder.rival}, in the same generations"])
    path = catalog.LADDERS / f"{name}.yaml" if name in catalog.list_ladders() else Path(name).expanduser()
    title = f"{ladder.title}: ladder {ladder.name}, {texts.format_count(len(ladder.rungs), 'rung')}"
    return [click.style(title, bold=True), "", *_align(rows), "", *read_comments(path)]


def _render_rung(name: str) -> list[str]:
    """Return a rung's page. At its end are the best runs that timed it: of this machine, then those of others that may
    be quoted; of each machine a staircase and a leave-one-out run.
    """
    rung = catalog.load_rung(name)
    fields = {need: f" (workload with {needs.FIELDS[need]})" for need in rung.needs if need in needs.FIELDS}
    lines = [
        click.style(rung.title, bold=True),
        f"\n{rung.text}\n\nReceipt. {inspect.getdoc(rung.receipt)}\n",
        f"Recipe: {_join(rung.change) or 'the defaults'}",
        f"Needs:  {', '.join(n + fields.get(n, '') for n in rung.needs) or 'nothing beyond PyTorch'}",
    ]
    here, changes = ranking.machines_here(), list[str]()
    others = sorted({path.name for path in RESULTS.glob("*") if path.is_dir()} - {*here})
    rows = [["gpu", "workload", "ms/step", "GPU's work", "step", "launches", "compared", "advice", "file"]]
    for machine in [*here, *others]:
        stored = ranking.stored(RESULTS, [machine])
        if machine in others:
            stored = [each for each in stored if not publishable(each[1])]
        for mode in (modes.CUMULATIVE, modes.LEAVE_ONE_OUT):
            if (best := choose_best(name, stored, mode)) is None:
                continue
            path, result = best
            timed = ranking.rung_of(result, name)
            over, advice, launches = f"over {timed.gain.against}" if timed.gain else "", "", ""
            against = ranking.rung_of(result, timed.gpu_gain.against) if timed.gpu_gain else None
            before, after = (parts.parts_of(each) if each else None for each in (against, timed))
            if mode == modes.LEAVE_ONE_OUT:
                over, advice = f"over {result.ladder.name} {timed.title}", ranking.advice(result, timed)[0]
            elif after:
                launches = f"{f'{before.launches:,.0f} to ' if before else ''}{after.launches:,.0f}"
            marks = ", not to be quoted" if publishable(result) else ""
            gpu, workload = result.machine.gpu or machine, result.workload["name"]
            cells = (
                gpu,
                workload,
                texts.format_ms(timed.step_ms),
                *answer_gains(timed),
                launches,
                over,
                advice,
            )
            rows.append([*map(texts.clean_line, cells), f"{os.path.relpath(path)}{marks}"])
            if machine in here and mode == modes.CUMULATIVE and timed.gpu_verdict in (FASTER, SLOWER):
                if before and after:
                    changes = [f"  of GPU work here: {parts.made_of(before, after, CHANGES)}"]
    return [*lines, "", "Measured:", *_align(rows, "  "), *changes] if len(rows) > 1 else lines


def choose_best(name: str, stored: Sequence[ranking.Stored], mode: str) -> ranking.Stored | None:
    """Return the run of a mode that has the most rungs: it compares a rung with the one below."""
    runs = [each for each in stored if ranking.mode(each[1]) == mode and ranking.rung_of(each[1], name)]
    return max(runs, key=lambda each: ranking.rank(each[1]), default=None)


def answer_gains(rung: RungResult) -> list[str]:
    """Return what a rung gains in the GPU's work and in the step; "" where it was not compared."""
    clocks = (rung.gpu_gain, rung.gpu_verdict), (rung.gain, rung.verdict)
    return [words.answer(Seen(verdict or "", g.ratio, g.below)) if g else "" for g, verdict in clocks]


def _join(change: Mapping[str, object]) -> str:
    return ", ".join(f"{key}: {json.dumps(value)}" for key, value in change.items())


def _align(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Return rows as lines with aligned columns. A column that is empty in every row is left out."""
    columns = [column for column in zip(*rows, strict=True) if any(column)]
    return [f"{indent}{line}" for line in texts.align_rows([*zip(*columns, strict=True)])]
