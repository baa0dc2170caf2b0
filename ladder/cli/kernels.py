"""`ladder kernels`: the command's options, and the files that it writes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from ladder.base import files, git, locks, text
from ladder.base.errors import EnvironmentFailure, UserError
from ladder.base.paths import ROOT
from ladder.base.starting import near
from ladder.cli import options

OUT = ROOT / "results" / "kernels"
MINUTES = 4.0
SMOKE = {"resolution": 8, "channel_base": 32, "batch": 2}
ORDERS = ("memory-bound", "largest")  # as `ladder.studies.kernelbench.cases.registry.in_order` knows them
SAVE_EVERY_S = 15.0  # of what is finished: a file of all rows takes a third of a second


@click.command(
    epilog="""\b
Examples:
  ladder kernels                               every op at the shapes of article, article-b32 and adain-256
  ladder kernels --quick                       two resolutions, three repeats; not to be quoted
  ladder kernels --op bias_act --op modulate   these ops only
  ladder kernels -w stylegan2-1024 --minutes 10
  ladder kernels --resume results/kernels/MACHINE-partial.json --minutes 5     the cases that it lacks
  ladder kernels --json > kernels.json
  ladder kernels --choose results/kernels/MACHINE.json     rows for kernels/alternatives.py, to standard output
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
@click.option(
    "--first", type=click.Choice(ORDERS), default=ORDERS[0], show_default=True,
    help="What is measured first: bias_act, modulate and upfirdn2d at 128x128 and 256x256, batch 8 and 32; or what"
    " has the most work.",
)  # fmt: skip
@click.option(
    "--resume", metavar="FILE", type=options.FILE,
    help="Go on with the run of this file: measure the cases that it lacks. Ops, shapes and seed are the file's.",
)  # fmt: skip
@click.option(
    "--choose", metavar="FILE", type=options.FILE,
    help="Measure nothing: print the table for kernels/alternatives.py, of where plain PyTorch is faster by this file.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), help="[default: 0]")
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
    first: str,
    resume: Path | None,
    choose: Path | None,
    seed: int | None,
    device: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Time every op of kernels/ against plain PyTorch and torch.compile.

    Forward, backward and double backward, with cold and hot L2; the yardstick is a copy of the same number of bytes.
    `--device cpu` runs tiny shapes in Triton's interpreter: it shows that all of it works, its times mean nothing.
    """
    if choose:
        if ops or names or quick or claims or resume:
            raise UserError("--choose measures nothing: leave out the options that say what to measure")
        _choose(choose)
        return
    from ladder.machine import environment, system

    chosen = system.choose_device(device)
    environment.refuse(chosen)
    if chosen == "cpu" and device != "cpu":
        raise UserError("kernels are timed on a CUDA GPU, and there is none; --device cpu is a smoke test")
    if chosen == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton is imported, which is below
    elif reason := system.capabilities(chosen)["triton"]:
        raise UserError(f"the ops need Triton: {reason}")
    if claims:
        if ops or names or resume:
            raise UserError("--claims has shapes of its own: leave out --op, --workload and --resume")
        from ladder.cli import claims as command

        command.command(chosen, minutes or command.MINUTES, seed or 0, quick, out, as_json)
        return
    folder = out or OUT
    files.refuse_unwritable(folder)
    asked = Asked(chosen, ops, names, quick, seed, minutes or MINUTES, first, resume)
    from ladder.report import output as ending
    from ladder.studies.kernelbench import verdicts as kernelverdicts

    with locks.folder_lock(folder, text.slug(system.facts(chosen)["name"])):
        result = measure(asked, as_json, folder)
        paths = write(result, folder)
    if as_json:
        click.echo(json.dumps(result, indent=1, allow_nan=False))
    else:
        from ladder.studies.kernelbench import report as kernelreport

        kernelreport.print_table(result)
    if left := len(kernelverdicts.unreached(result["rows"])):
        click.echo(f"{left} cases had no time; measure them with --resume {near(paths[0])}", err=True)
    failed = any(_failed(row) for row in result["rows"])
    again = bool(left) or failed or not result["complete"]
    ending.say_files(paths, as_json, again, drop=("ops", "names", "quick", "seed"))
    if not result["complete"]:
        sys.exit(130)
    if failed:
        sys.exit(1)


def _choose(path: Path) -> None:
    """The table on stdout; what may be faster and stays with ours on stderr."""
    from ladder.results.combine import resuming
    from ladder.studies.kernelbench import choosing as kernelchoosing

    found = resuming.load_kind(path, "kernels")
    kernelchoosing.check(found, path)
    judged = kernelchoosing.judge(found["rows"])
    rows = kernelchoosing.chosen(judged)
    click.echo(kernelchoosing.table(rows, path.stem))
    for line in kernelchoosing.stays(judged, rows):
        click.echo(line, err=True)


@dataclass(frozen=True)
class Asked:
    """What the user asks for: everything but where it goes. Of what is None or empty, `resume` or a default decides."""

    device: str
    ops: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # of workloads
    quick: bool = False
    seed: int | None = None
    minutes: float = MINUTES
    first: str = ORDERS[0]
    resume: Path | None = None

    def like(self, before: dict[str, Any]) -> Asked:
        """The same, where nothing is said as the file says it."""
        rules = before["protocol"]
        names = () if rules["smoke"] else tuple(rules["workloads"])
        return replace(
            self,
            ops=self.ops or tuple(rules["ops"]),
            names=self.names or names,
            quick=self.quick or rules["quick"],
            seed=rules["seed"] if self.seed is None else self.seed,
        )


def _failed(row: dict[str, Any]) -> bool:
    """Whether ours has no number although there was time for one."""
    from ladder.base.text import NO_TIME

    return row["reasons"].get("ours", NO_TIME) != NO_TIME


def measure(asked: Asked, quiet: bool, out: Path | None = None) -> dict[str, Any]:
    """The whole result, derived numbers included. What is finished is written to `out` now and then on the way."""
    from ladder.base.locks import device_lock
    from ladder.base.progress import First, kernels_progress
    from ladder.base.stopping import stop_on_sigterm
    from ladder.machine import environment, system
    from ladder.results import store as results
    from ladder.studies.kernelbench import bench as kernelbench
    from ladder.studies.kernelbench import compiling as kernelcompiling
    from ladder.studies.kernelbench import report as kernelreport
    from ladder.studies.kernelbench import resuming as kernelresuming
    from ladder.studies.kernelbench import timing as kerneltiming
    from ladder.studies.kernelbench.cases import registry as kernelcases

    before = kernelresuming.load(asked.resume) if asked.resume else None
    asked = asked.like(before) if before else asked
    device, smoke = asked.device, asked.device == "cpu"
    workloads = _workloads(device, asked.names, kernelcases.WORKLOADS)
    cases, lacking = _cases(asked, workloads)
    head = _head(asked, workloads, lacking)
    if before:
        kernelresuming.check(asked.resume, before, head, cases)
    kept = kernelresuming.finished(before, cases) if before else {}
    due = kernelcases.in_order([case for case in cases if case.name not in kept], asked.first)
    environment.tell(quiet)
    begun, sitting = time.monotonic(), len(before["sittings"]) if before else 0
    head["protocol"] |= {"minutes": asked.minutes, "first": asked.first}
    First(f"kernels: {len(due)} cases, at most about {asked.minutes:g} minutes", quiet)()
    with (
        device_lock(system.device_key(device)),
        kernels_progress(quiet, kernelreport.event_line) as shown,
    ):
        timer = kerneltiming.timer_on(device)
        backend = "aot_eager" if smoke else "inductor"
        bench = kernelbench.Bench(timer.gpu, timer, seed=head["protocol"]["seed"], backend=backend)
        head["protocol"] |= {
            "l2_bytes": timer.gpu.l2_bytes,
            "evict": timer.rules.evict,
            "graph_ms": 1e3 * timer.rules.graph_s,
            "compile": f"torch.compile({backend}), fixed shapes",
        }
        allowance = kernelbench.Allowance(asked.minutes)
        found: list[dict[str, Any]] = []
        saved = time.monotonic()

        def result(complete: bool) -> dict[str, Any]:
            rows = kernelresuming.merged(kept, found, cases)
            return kernelresuming.assembled(before, head, rows, time.monotonic() - begun, complete)

        def on_event(event: dict[str, Any]) -> None:
            nonlocal saved
            found.extend([row | {"sitting": sitting} for row in event.get("rows", ())])
            shown(event)
            if out is not None and "rows" in event and time.monotonic() - saved >= SAVE_EVERY_S:
                part = result(False)
                with contextlib.suppress(OSError):  # the whole result may still have its place
                    results.write(results.place(out / f"{stem(part)}-partial.json", part), part)
                saved = time.monotonic()

        def compiles(index: int, number: int) -> None:
            shown({"case": f"the next {number} cases", "doing": "compile", "done": index, "total": len(due)})

        with stop_on_sigterm(), kernelcompiling.Ahead(due, timer.gpu, backend, compiles) as ahead:
            try:
                _, complete = kernelbench.run(
                    bench, due, allowance, quick=asked.quick or smoke, on_event=on_event, ahead=ahead
                )
            except EnvironmentFailure as failure:
                part = result(False)
                if found and out is not None:
                    with contextlib.suppress(OSError):  # perhaps it is this disk that is full
                        results.write(out / f"{stem(part)}.json", part)
                raise UserError(f"{failure}; what was finished is kept in {stem(part)}.json") from failure
    return result(complete)


def _cases(asked: Asked, workloads: dict[str, Any]) -> tuple[list[Any], dict[str, str]]:
    """What is to be measured, and why what cannot be measured here is left out."""
    from ladder.machine import system
    from ladder.studies.kernelbench.cases import registry as kernelcases

    known = {*kernelcases.OPS, *(entry.function for entry in kernelcases.OPS.values())}
    if unknown := [op for op in asked.ops if op not in known]:
        from stylegan_lite.config import suggestion

        raise UserError(f"no op is called {unknown[0]!r}{suggestion(unknown[0], sorted(known), 'known')}")
    quick = asked.quick or asked.device == "cpu"
    cases = kernelcases.cases(workloads, ops=asked.ops or None, quick=quick)
    if not cases:
        raise UserError("no workload that was asked for uses these ops")
    here = system.capabilities(asked.device)
    lacking = {need: here[need] for case in cases for need in case.entry.needs if here[need] is not None}
    cases = [case for case in cases if not lacking.keys() & set(case.entry.needs)]
    if not cases:
        raise UserError(f"these ops cannot run here: {'; '.join(sorted(set(lacking.values())))}")
    return cases, lacking


def _head(asked: Asked, workloads: dict[str, Any], lacking: dict[str, str]) -> dict[str, Any]:
    """What a result that begins now says of itself, of the code that it measures and of how."""
    from ladder.machine import environment, system
    from ladder.results import code_digest, record
    from ladder.studies.kernelbench import bench as kernelbench
    from ladder.studies.kernelbench import resuming as kernelresuming
    from ladder.studies.kernelbench import timing as kerneltiming

    smoke = asked.device == "cpu"
    commit, dirty = git.commit_of(ROOT)
    notes = ["quick: not to be quoted"] * asked.quick + [kerneltiming.SMOKE_NOTE] * smoke
    notes += [f"without CUDA C++: {reason}" for reason in sorted(set(lacking.values()))]
    notes += environment.said(environment.recorded())
    return {
        "schema": 1,
        "kind": "kernels",
        "machine": system.facts(asked.device),
        "commit": commit,
        "dirty": dirty,
        code_digest.KEY: code_digest.digests(also=kernelresuming.ENGINE),
        **record.conditions(),
        "started": kernelbench.now(),
        "protocol": {
            "quick": asked.quick,
            "smoke": smoke,
            "seed": asked.seed or 0,
            "workloads": list(workloads),
            "ops": list(asked.ops),
            "notes": notes,
        },
    }


def _workloads(device: str, names: tuple[str, ...], usual: tuple[str, ...]) -> dict[str, Any]:
    from ladder.plan import catalog
    from stylegan_lite.config import Workload

    loaded = [catalog.load_workload(name) for name in names or usual]
    if device == "cpu":
        if names:
            raise UserError("--device cpu is a smoke test of tiny shapes of its own: leave out --workload")
        norms = ("demod", "instance")
        return {f"smoke-{norm}": Workload.from_dict(SMOKE | {"norm": norm}) for norm in norms}
    return {name: Workload.from_dict(values) for name, values in loaded}


def stem(result: dict[str, Any]) -> str:
    """What its files are called: a quick look or a part of the ops never replaces the whole."""
    from ladder.studies.kernelbench.cases import registry as kernelcases

    rules = result["protocol"]
    usual = rules["smoke"] or rules["workloads"] == list(kernelcases.WORKLOADS)
    words = [result["machine"]["name"], *rules["ops"], *([] if usual else rules["workloads"])]
    words += ["quick"] * rules["quick"] + ["smoke"] * rules["smoke"]
    return "-".join(text.slug(word) for word in words)


def write(result: dict[str, Any], out: Path) -> list[Path]:
    """JSON, Markdown and chart, each whole or not at all; the partial files that led to a whole one go."""
    from ladder.report import output as ending
    from ladder.studies.kernelbench import chart as kernelchart
    from ladder.studies.kernelbench import report as kernelreport

    name, pages = stem(result), {"md": kernelreport.markdown(result)}
    return ending.write_named(
        result, out, name, pages, lambda kind: kernelchart.render(result, kind), "-kernels"
    )
