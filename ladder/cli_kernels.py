"""`ladder kernels`: the command's options, and the files that it writes."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from ladder import files, options
from ladder.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "kernels"
CHARTS = ROOT / "results" / "charts"
MINUTES = 4.0
SMOKE = {"resolution": 8, "channel_base": 32, "batch": 2}


@click.command(
    epilog="""\b
Examples:
  ladder kernels                               every op at the shapes of article, article-b32 and adain-256
  ladder kernels --quick                       two resolutions, three repeats; not to be quoted
  ladder kernels --op bias_act --op modulate   these ops only
  ladder kernels -w stylegan2-1024 --minutes 10
  ladder kernels --json > kernels.json
  ladder kernels --claims                      what the article says of kernels, each claim measured here"""
)
@click.option("--op", "ops", metavar="OP", multiple=True, help="Only this op; may be given more than once.")
@click.option(
    "-w", "--workload", "names", metavar="NAME|FILE", multiple=True,
    help="Whose shapes; may be given more than once. [default: article, article-b32, adain-256]",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Few shapes and repeats. Marked as not to be quoted.")
@click.option(
    "--claims",
    is_flag=True,
    help="The article's claims instead: CUDA C++, coalescing, occupancy, fusion, launches.",
)
@click.option(
    "--minutes",
    type=options.FloatRange(0, min_open=True),
    help="About how long it may take; repeats are fitted to it, the least important shapes go first."
    " [default: 4; with --claims: 5]",
)
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=0, show_default=True)
@options.device_option
@click.option(
    "--out",
    metavar="DIR",
    type=options.FOLDER,
    help="[default: results/kernels, with --claims results/claims]",
)
@options.json_option
def kernels(
    ops: tuple[str, ...],
    names: tuple[str, ...],
    quick: bool,
    claims: bool,
    minutes: float | None,
    seed: int,
    device: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Time every op of kernels/ against plain PyTorch and torch.compile.

    Forward, backward and double backward, with cold and hot L2; the yardstick is a copy of the same number of bytes.
    `--device cpu` runs tiny shapes in Triton's interpreter: it shows that all of it works, its times mean nothing.
    """
    from ladder import machine

    chosen = machine.choose_device(device)
    if chosen == "cpu" and device != "cpu":
        raise UserError("kernels are timed on a CUDA GPU, and there is none; --device cpu is a smoke test")
    if chosen == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, which is below
    elif reason := machine.capabilities(chosen)["triton"]:
        raise UserError(f"the ops need Triton: {reason}")
    if claims:
        if ops or names:
            raise UserError("--claims has shapes of its own: leave out --op and --workload")
        from ladder.claims import command

        command.command(chosen, minutes or command.MINUTES, seed, quick, out, as_json)
        return
    folders = out or OUT, CHARTS if out is None else out
    files.refuse_unwritable(*folders)
    result = measure(chosen, ops, names, quick, minutes or MINUTES, seed, as_json)
    paths = write(result, *folders, [*ops, *names])
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        from ladder import kernelreport

        kernelreport.print_table(result)
        for path in paths:
            click.echo(path)
    if not result["complete"]:
        sys.exit(130)
    if any(_failed(row) for row in result["rows"]):
        sys.exit(1)


def _failed(row: dict[str, Any]) -> bool:
    """Whether ours has no number although there was time for one."""
    from ladder.kernelbench import NO_TIME

    return row["reasons"].get("ours", NO_TIME) != NO_TIME


def measure(
    device: str,
    ops: tuple[str, ...],
    names: tuple[str, ...],
    quick: bool,
    minutes: float,
    seed: int,
    quiet: bool,
) -> dict[str, Any]:
    """The whole result, derived numbers included."""
    from ladder import (
        kernelbench,
        kernelcases,
        kernelcompiling,
        kernelreport,
        kerneltiming,
        kernelverdicts,
        machine,
        record,
    )
    from ladder.pool import device_lock
    from ladder.progress import kernels_progress
    from ladder.stopping import stop_on_sigterm

    started, begun = kernelbench.now(), time.monotonic()
    workloads = _workloads(device, names, kernelcases.WORKLOADS)
    known = {*kernelcases.OPS, *(entry.function for entry in kernelcases.OPS.values())}
    if unknown := [op for op in ops if op not in known]:
        raise UserError(f"no op is called {unknown[0]!r}; known: {', '.join(sorted(known))}")
    cases = kernelcases.cases(workloads, ops=ops or None, quick=quick or device == "cpu")
    if not cases:
        raise UserError("no workload that was asked for uses these ops")
    here = machine.capabilities(device)
    lacking = {need: here[need] for case in cases for need in case.entry.needs if here[need] is not None}
    cases = [case for case in cases if not lacking.keys() & set(case.entry.needs)]
    if not cases:
        raise UserError(f"these ops cannot run here: {'; '.join(sorted(set(lacking.values())))}")
    with (
        device_lock(machine.device_key(device)),
        kernels_progress(quiet, kernelreport.event_line) as on_event,
    ):
        smoke = device == "cpu"
        timer = kerneltiming.timer_on(device)
        backend = "aot_eager" if smoke else "inductor"
        bench = kernelbench.Bench(timer.gpu, timer, seed=seed, backend=backend)
        allowance = kernelbench.Allowance(minutes)
        on_event({"case": "all cases", "doing": "compile", "done": 0, "total": len(cases)})
        kernelcompiling.compile_ours(cases, timer.gpu)
        with stop_on_sigterm():
            rows, complete = kernelbench.run(bench, cases, allowance, quick=quick or smoke, on_event=on_event)
    kernelverdicts.derive(rows)
    commit, dirty = record.commit_of(ROOT)
    notes = ["quick: not to be quoted"] * quick + [kerneltiming.SMOKE_NOTE] * smoke
    notes += ["dirty work tree: not to be published"] * bool(dirty)
    notes += [] if complete else ["interrupted"]
    notes += [f"without CUDA C++: {reason}" for reason in sorted(set(lacking.values()))]
    return {
        "schema": 1,
        "kind": "kernels",
        "machine": machine.facts(device),
        "commit": commit,
        "dirty": dirty,
        "complete": complete,
        "started": started,
        "seconds": round(time.monotonic() - begun, 1),
        "protocol": {
            "minutes": minutes,
            "quick": quick,
            "smoke": smoke,
            "seed": seed,
            "workloads": list(workloads),
            "ops": list(ops),
            "l2_bytes": timer.gpu.l2_bytes,
            "evict": timer.rules.evict,
            "graph_ms": 1e3 * timer.rules.graph_s,
            "compile": f"torch.compile({backend}), fixed shapes",
            "notes": notes,
        },
        "rows": rows,
    }


def _workloads(device: str, names: tuple[str, ...], usual: tuple[str, ...]) -> dict[str, Any]:
    from ladder import catalog
    from stylegan_lite.config import Workload

    loaded = [catalog.load_workload(name) for name in names or usual]
    if device == "cpu":
        if names:
            raise UserError("--device cpu is a smoke test of tiny shapes of its own: leave out --workload")
        norms = ("demod", "instance")
        return {f"smoke-{norm}": Workload.from_dict(SMOKE | {"norm": norm}) for norm in norms}
    return {name: Workload.from_dict(values) for name, values in loaded}


def write(result: dict[str, Any], out: Path, charts: Path, part: list[str]) -> list[Path]:
    """JSON, Markdown and chart, each whole or not at all; a quick look or `part` never replaces the whole."""
    from ladder import kernelchart, kernelreport, report, results

    rules = result["protocol"]
    words = [result["machine"]["name"], *(Path(word).stem for word in part)]
    words += ["quick"] * rules["quick"] + ["smoke"] * rules["smoke"] + ["partial"] * (not result["complete"])
    stem = "-".join(results.slug(word) for word in words)
    pictures = charts / f"{stem}-kernels"
    return report.write_all(result, out / stem, kernelreport.markdown, pictures, kernelchart.render)
