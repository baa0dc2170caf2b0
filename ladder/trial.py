"""`python -m ladder.trial`: a quick look at the effect of rungs, to choose the next change by; never a verdict.

One process builds the whole ladder, then the ladder without each named rung (`--each`: without each of its rungs).
For each it prints the milliseconds a step, without the lazy phases, and those of each phase. With `--kernels` it
lists the kernels of a phase. That takes seconds a variant instead of the minutes of `ladder run`. It has no rounds,
no twins, no parity and no receipts, and a variant finds cuDNN's caches as the one before left them. A result worth
keeping is measured again by `ladder run`. docs/log.md quotes these files as trials, and no other document does.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any, TypedDict, cast

import click

from ladder.base import locks, text
from ladder.base.errors import UserError, describe
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.base.protocol import PHASES
from ladder.cli import options
from ladder.engine.in_process import prepared
from ladder.machine import environment, system
from ladder.plan import catalog, modes, needs
from ladder.receipts import kernel_families, kernel_names
from ladder.results import record, store

OUT = ROOT / "results" / "trials"
REPLAYS = 10  # runs of a phase, timed as one window
CYCLES = 3  # timed cycles; the median counts


class Profiled(TypedDict, total=False):
    """The kernels of one run of a phase."""

    kernels: int
    busy_us: float
    families: list[kernel_families.Share]
    sequence: list[tuple[str, float]]  # each kernel in order, and its microseconds; with --kernels


class Row(TypedDict, total=False):
    """The figures of one variant, also the seconds of its preparation as `TrainingStep.prepare` names them."""

    error: str  # why the figures end here
    recipe: Fields
    step_ms: float
    main_ms: float
    reserved_gib: float
    phases_ms: dict[str, float]
    phases: dict[str, Profiled]
    seconds: float  # of the whole trial


class Found(record.Header):
    """The result of a trial, as its file has it."""

    kind: str
    workload: Fields
    ladder: str
    variants: dict[str, Row]


@click.command(help=__doc__.split("\n\n")[0].split(": ", 1)[1])
@click.option(
    "--workload", default=None, help="Workload: preset or YAML file. [default: article; on a CPU tiny]"
)
@click.option("--ladder", "ladder_name", default="full", show_default=True, help="Ladder: name or YAML file.")
@click.option(
    "--without", multiple=True, metavar="RUNG", help="Also try the ladder without this rung; may be repeated."
)
@click.option("--each", is_flag=True, help="Also try the ladder without each of its rungs.")
@click.option("--only", is_flag=True, help="Try only the variants, not the whole ladder.")
@click.option("--kernels", is_flag=True, help="Also record every kernel of each phase.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default=None)
@click.option("--out", type=options.FILE, default=None, help="JSON file of the result.")
def command(
    workload: str | None,
    ladder_name: str,
    without: tuple[str, ...],
    each: bool,
    only: bool,
    kernels: bool,
    device: str | None,
    out: Path | None,
) -> None:
    try:
        device = system.choose_device(device)
        environment.refuse(device)
        name, fields = catalog.load_workload(workload or ("article" if device == "cuda" else "tiny"))
        ladder = catalog.load_ladder(ladder_name)
        variants = plan(ladder, needs.possible(system.capabilities(device), fields), without, each, only)
        begin, found = time.monotonic(), frame(name, fields, ladder.name, device)
        path = out or OUT / f"{found['machine']['name']}-{name}-{text.stamp(found['started'])}.json"
        click.echo(heading())
        with locks.device_lock(system.device_key(device)):
            for variant, recipe in variants.items():
                found["variants"][variant] = row = trial(fields, recipe, device, kernels)
                found["seconds"] = round(time.monotonic() - begin, 1)
                found["complete"] = len(found["variants"]) == len(variants)
                # after each variant: the file stays if the next one dies
                store.write(path, found, exact=True)
                click.echo(line(variant, row))
        click.echo(f"one process, no protocol: to choose by, not to quote. {path}")
    except UserError as error:
        click.echo(f"ladder.trial: {error}", err=True)
        sys.exit(2)


def plan(
    ladder: catalog.Ladder,
    capabilities: dict[str, str | None],
    without: tuple[str, ...],
    each: bool,
    only: bool,
) -> dict[str, Fields]:
    """Return name -> recipe: "all", then "without RUNG" for those that can be left out.

    Raises:
        UserError: the ladder lacks a named rung, or nothing is left to try; one line.
    """
    named = None if each else list(without)
    found = {}
    if not only:
        top = [rung for rung in catalog.climb(ladder, capabilities) if rung.recipe is not None]
        found[modes.ALL] = top[-1].recipe or {}
    if each or without:
        for rung in modes.plan(modes.LEAVE_ONE_OUT, ladder, capabilities, named)[1:]:
            if rung.recipe is None:
                click.echo(f"without {rung.name}: {rung.skipped}", err=True)
            else:
                found[f"without {rung.name}"] = rung.recipe
    if not found:
        raise UserError("nothing to try: --only needs --without RUNG or --each")
    return found


def frame(workload: str, fields: Fields, ladder: str, device: str) -> Found:
    named = {"name": workload, **fields, "data": None}
    made = record.header("trial", system.facts(device), named)
    return cast(Found, made | {"ladder": ladder, "variants": {}})


def trial(fields: Fields, recipe: Fields, device: str, kernels: bool) -> Row:
    """Return milliseconds and kernels of one recipe on random images, or "error" if it fails."""
    import torch

    from stylegan_lite.config import Recipe

    begin = time.perf_counter()
    row: Row = {}
    try:
        whole = Recipe.from_dict(recipe)
        row = {"recipe": whole.to_dict(), **steps(fields, whole.to_dict(), device)}
        apart = dataclasses.replace(whole, whole_step_graph=False)
        row.update(phases(fields, apart.to_dict(), device, kernels))
    except Exception as error:  # a variant that cannot run is a row, and the others go on
        row["error"] = text.display(describe(error))
    if device == "cuda":
        torch.cuda.empty_cache()
    row["seconds"] = round(time.perf_counter() - begin, 1)
    return row


def steps(fields: Fields, recipe: Fields, device: str) -> Row:
    """Return a sixteenth of the wall clock of whole cycles, seconds of preparing, and the peak of reserved memory."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with prepared(fields, recipe, device) as (step, seconds):
        step.cycle()
        found = {f"{name}_ms": _cycle_ms(step, lazy) for name, lazy in (("step", True), ("main", False))}
        if device == "cuda":
            found["reserved_gib"] = torch.cuda.max_memory_reserved() / 2**30
    return cast(Row, seconds | {name: round(value, 4) for name, value in found.items()})


def phases(fields: Fields, recipe: Fields, device: str, kernels: bool) -> Row:
    """Return figures of each phase alone: milliseconds, families of its kernels, and with ``kernels`` each kernel."""
    with prepared(fields, recipe, device) as (step, _):
        took = {phase: _window_ms(step, phase) for phase in PHASES}
        found: Row = {"phases_ms": {phase: round(ms, 4) for phase, ms in took.items()}}
        if device == "cuda":
            found["phases"] = {phase: traced(step, phase, kernels) for phase in PHASES}
    return found


def traced(step: Any, phase: str, kernels: bool) -> Profiled:
    """Profile one run of a phase. Return microseconds by family, and with ``kernels`` each kernel in order."""
    from ladder.receipts import traces

    step.run_phase(phase)
    events = traces.recorded(lambda: step.run_phase(phase))
    rows = kernel_families.shares(events, 1)
    ran = sorted(
        (e for e in events if e[1] and not e[0].startswith(kernel_families.WAITING)), key=lambda e: e[3]
    )
    found: Profiled = {
        "kernels": len(ran),
        "busy_us": round(traces.union([e[3:] for e in ran]) / 1000, 1),
        "families": [{**row, "us": round(row["us"], 1)} for row in rows],
    }
    if kernels:
        found["sequence"] = [(kernel_names.stored(e[0]), round((e[4] - e[3]) / 1000, 2)) for e in ran]
    return found


def _cycle_ms(step: Any, lazy: bool) -> float:
    from ladder.receipts import as_timed

    took = []
    for _ in range(CYCLES):
        as_timed.synchronize(step)
        begin = time.perf_counter()
        step.cycle(lazy)
        as_timed.synchronize(step)
        took.append(time.perf_counter() - begin)
    return 1000 * sorted(took)[len(took) // 2] / 16


def _window_ms(step: Any, phase: str) -> float:
    from ladder.receipts import as_timed

    step.run_phase(phase)
    as_timed.synchronize(step)
    begin = time.perf_counter()
    for _ in range(REPLAYS):
        step.run_phase(phase)
    as_timed.synchronize(step)
    return 1000 * (time.perf_counter() - begin) / REPLAYS


def heading() -> str:
    return (
        f"{'':32}{'step ms':>9}{'main':>8}"
        + "".join(f"{phase:>8}" for phase in PHASES)
        + f"{'GiB':>7}{'s':>6}"
    )


def line(name: str, row: Row) -> str:
    if "error" in row:
        return f"{name[:32]:32}  {row['error'][:120]}"
    times = [row["step_ms"], row["main_ms"], *(row["phases_ms"][phase] for phase in PHASES)]
    numbers = f"{times[0]:9.2f}" + "".join(f"{ms:8.2f}" for ms in times[1:])
    return f"{name[:32]:32}{numbers}{row.get('reserved_gib', 0):7.2f}{row['seconds']:6.0f}"


if __name__ == "__main__":
    command()
