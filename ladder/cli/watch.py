"""`ladder watch`: run a user's training, observe some of its steps, and report what they lose."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click

from ladder.core import files, options
from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.core.records import read_record, write_record
from ladder.core.starting import format_command, shorten_path
from ladder.core.text import clean_line, format_count, format_ms, format_percent, make_slug
from ladder.watch.findings import Finding, Observation, list_findings

INSIDE = Path(__file__).parents[1] / "watch" / "inside"
VARIABLE = "LADDER_WATCH"
POLL_S = 0.3
STOP_S = 15.0  # a program that was to stop has so long, and is then ended
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
MOST_LINES = 3  # of a finding in the terminal


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  ladder watch -- python train.py --batch 8         the training goes on after the report
  ladder watch --stop --module train -- --batch 8   `python -m train --batch 8`, which ends after it
  ladder watch --report watch.json --html page.html""",
)
@click.argument("command", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--module", metavar="NAME", help="Run `python -m NAME`; COMMAND has its arguments.")
@click.option("--skip", type=options.IntRange(2, 10**6), default=40, show_default=True,
              help="Warm-up: steps before the first that is profiled.")  # fmt: skip
@click.option("--steps", type=options.IntRange(1, 1000),
              help="Steps to profile. [default: 4, or a period of lazy regularization]")  # fmt: skip
@click.option("--stop", is_flag=True, help="End the training after the profiled steps.")
@click.option("--out", metavar="FILE", type=options.FILE, default="watch.json", show_default=True,
              help="The observation goes here.")  # fmt: skip
@click.option("--report", "path", metavar="FILE", type=options.FILE, help="Report on an observation.")
@click.option("--html", metavar="FILE", type=options.FILE,
              help="With --report: also write it as a page, or as a picture if FILE ends in .svg.")  # fmt: skip
@options.json_option
def watch(
    command: tuple[str, ...], module: str | None, skip: int, steps: int | None, stop: bool, out: Path,
    path: Path | None, html: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Watch a training of your own, and report what its steps lose.

    COMMAND runs as it would without the watch, in any Python with PyTorch 2.4 or later. A step ends when an optimizer
    steps. After --skip steps, some are profiled, and the report appears on stderr: findings by the time at stake, each
    with its lines. What the training computes does not change.

    Exit status: that of COMMAND; 2 if nothing could be watched.
    """
    if path is not None:
        if command or module:
            raise UserError("--report reads an observation and runs no command: leave one of them out")
        seen = read_observation(path)
        if html is not None:
            files.write_file(html, draw_report(seen, is_picture=html.suffix == ".svg"))
        return click.echo(json.dumps(write_report(seen), indent=1) if as_json else render_report(seen))
    if html is not None or as_json:
        raise UserError("--html and --json go with --report FILE")
    if module:
        command = ("python", "-m", module, *command)
    if not command:
        raise UserError("name the training's command: `ladder watch -- python train.py`")
    settings = {"skip": skip, "steps": steps, "stop": stop}
    sys.exit(run_watched(list(command), settings, out))


# --- the training -----------------------------------------------------------------------------------------------------


def run_watched(command: list[str], settings: Plain, out: Path) -> int:
    """Run a command under the watch, print its report, and return the exit status. Raises UserError."""
    files.refuse_unwritable(out.parent)
    with tempfile.TemporaryDirectory(prefix="ladder-watch-") as folder:
        path = Path(folder) / "observation.json"
        paths = [str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
        variables = {
            VARIABLE: json.dumps({"path": str(path), **settings}),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        quiet = {"KINETO_LOG_LEVEL": os.environ.get("KINETO_LOG_LEVEL", "9")}  # the profiler's own lines
        try:
            child = subprocess.Popen(command, env={**os.environ, **variables, **quiet})
        except OSError as error:
            hint = "; is it `python ...`?" if command[0].endswith(".py") else ""
            raise UserError(f"{command[0]}: cannot be started: {error.strerror}{hint}") from None
        signal.signal(signal.SIGINT, lambda *_: None)  # a terminal's Ctrl-C reaches the program by itself
        for number in FORWARDED:
            signal.signal(number, lambda number, _: child.send_signal(number))
        while child.poll() is None and not path.exists():
            time.sleep(POLL_S)
        if not path.exists():
            click.echo(f"ladder: {describe_miss(Path(f'{path}.claim'), command)}", err=True)
            return wait_for_end(child) or 2
        try:
            shutil.copyfile(path, out)
            click.echo(render_report(read_observation(out)), err=True)
            page = format_command("watch", "--report", shorten_path(out), "--html", "page.html")
            click.echo(f"the observation: {shorten_path(out)}; as a page: `{page}`", err=True)
        finally:  # the program goes on whatever becomes of its report
            if settings["stop"]:
                end_program(child)
            status = wait_for_end(child)
        return 0 if settings["stop"] else status


def wait_for_end(child: subprocess.Popen[bytes]) -> int:
    """Return the exit status of a program as a shell does: 128 and the signal that ended it."""
    status = child.wait()
    return 128 - status if status < 0 else status


def end_program(child: subprocess.Popen[bytes]) -> None:
    """Wait for a program that stops by itself; end one that does not, such as other ranks that wait for rank 0."""
    for end in (child.terminate, child.kill):
        try:
            child.wait(STOP_S)
            return
        except subprocess.TimeoutExpired:
            end()


def describe_miss(claim: Path, command: list[str]) -> str:
    """Return why there is no observation, in one line."""
    if not claim.exists():
        return f"no step was seen: no optimizer of PyTorch stepped in `{clean_line(' '.join(command))}`"
    try:
        noted = json.loads(claim.read_bytes())
    except ValueError:
        return "the training ended before its steps could be watched"
    if "fault" in noted:
        return f"the training was not watched to the end: {clean_line(noted['fault'])}"
    fewer = (
        f"; with --skip {max(2, noted['steps'] // 2)} --steps 1 it is enough" if noted["steps"] > 4 else ""
    )
    return f"the training ended after {format_count(noted['steps'], 'step')}, before the watch did{fewer}"


# --- the report -------------------------------------------------------------------------------------------------------


def read_observation(path: Path) -> Observation:
    """Return an observation. Raises UserError: no file of `ladder watch`."""
    from ladder.results import store

    return read_record(Observation, store.read(path), str(path))


def describe_training(seen: Observation) -> list[str]:
    """Return sentences on the step: its time, where it ran, what ends it."""
    busy = "" if seen.busy_ms is None else f", in which the GPU works {format_ms(seen.busy_ms)} ms"
    profiled = f"{format_count(seen.window, 'step')} profiled after {len(seen.walls_ms)}"
    lines = [f"a step takes {format_ms(seen.step_ms)} ms{busy}; {profiled}"]
    lines.append(f"{seen.gpu or 'CPU'}, PyTorch {seen.torch}, Python {seen.python}")
    calls: Counter[str] = Counter()  # of optimizers that one line calls, as in a loop over phases
    for each in seen.optimizers:
        calls[f"{each.name} at {each.line}"] += each.calls
    updates = (f"{name} {n / seen.window:.2g}x" for name, n in calls.items() if n)
    return [*lines, f"updates in a step: {', '.join(updates)}"]


def list_details(seen: Observation, finding: Finding) -> list[tuple[str, str]]:
    """Return what there is to say of a finding: where, what to do, what it is worth, what to watch out for."""
    named = [f"{line}  {seen.lines.get(line, '')}".strip() for line in finding.where[:MOST_LINES]]
    more = len(finding.where) - len(named)
    named += [f"and {format_count(more, 'more line')}"] if more > 0 else []
    bound = format_ms(finding.most * (finding.ms or 0))
    worth = "not measured" if finding.ms is None else f"at most {bound} ms a step, an upper bound"
    if measured := find_measured(seen.gpu, finding.rung):
        worth = f"{worth}; measured by this project: {measured}"
    details = [*(("where", line) for line in named), ("do", finding.do), ("worth", worth)]
    return [*details, *([("careful", finding.careful)] if finding.careful else [])]


def find_measured(gpu: str | None, rung: str) -> str:
    """Return what a rung, or the removal of a mistake, gained on this model of GPU; "" if nobody measured it."""
    from ladder.cli import listing
    from ladder.plan import modes
    from ladder.results import ranking

    stored = ranking.stored(listing.RESULTS, [make_slug(gpu)]) if gpu and rung else []
    for mode in (modes.CUMULATIVE, modes.MISTAKES):
        if best := listing.choose_best(rung, stored, mode):
            result, timed = best[1], ranking.rung_of(best[1], rung)
            gains = zip(("GPU's work", "step"), listing.answer_gains(timed), strict=True)
            about = "the mistake" if mode == modes.MISTAKES else f"{rung} in {result.ladder.name}"
            answers = ", ".join(f"{name} {answer}" for name, answer in gains if answer)
            return f"{about}, {result.workload['name']}: {answers}"
    return ""


def write_report(seen: Observation) -> Plain:
    """Return the findings and the figures of the step as plain data."""
    findings = [
        write_record(each) | {"measured": find_measured(seen.gpu, each.rung)} for each in list_findings(seen)
    ]
    return {"step_ms": seen.step_ms, "busy_ms": seen.busy_ms, "gpu": seen.gpu, "findings": findings}


def name_stake(finding: Finding) -> str:
    if finding.ms is None:
        return "time unknown"
    return f"{format_ms(finding.ms)} ms of a step, {format_percent(finding.share)}"


def render_report(seen: Observation) -> str:
    """Return the report for a terminal."""
    lines, findings = describe_training(seen), list_findings(seen)
    for number, finding in enumerate(findings, start=1):
        lines += ["", f"{number}. {finding.what}: {name_stake(finding)}"]
        lines += [f"   {name:<8} {clean_line(text)}" for name, text in list_details(seen, finding)]
    return "\n".join([*lines, *([] if findings else ["", "no finding: nothing that this watch looks for"])])


def draw_report(seen: Observation, *, is_picture: bool) -> str:
    """Return the report as a terminal shows it: a picture in SVG, or a page in HTML."""
    from rich.console import Console
    from rich.text import Text

    text = Text(render_report(seen))
    text.highlight_regex(r"(?m)^\d+\. .*$", "bold")
    text.highlight_regex(r"(?m)^   (where|do|worth|careful)\b", "cyan")
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(text, soft_wrap=not is_picture)
    return (
        console.export_svg(title="ladder watch", unique_id="watch") if is_picture else console.export_html()
    )
