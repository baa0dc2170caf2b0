"""compute-sanitizer over every fused kernel: `python -m ladder.selfcheck.sanitize`, or `make sanitize`.

Run the launches of `ladder.studies.kernelbench.cases.small_calls` under memcheck and racecheck, with PyTorch's
caching allocator off: it hands out slices of larger blocks, in which reading past the end of a tensor would go
unnoticed. First everything is compiled, outside of the tools; then parts of the calls run side by side, each under
each tool. Writes results/sanitizer/MACHINE.txt and .json, or MACHINE-partial where a part did not finish. Status 0:
clean. 1: findings. 2: it, or a part of it, could not run, and one line why. 130: Ctrl-C, SIGTERM or SIGHUP; what was
finished is written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict, cast

from ladder.base import stopping
from ladder.base.errors import UserError
from ladder.base.files import refuse_unwritable
from ladder.base.paths import ROOT
from ladder.machine import system
from ladder.results import record
from ladder.results import store as results
from ladder.selfcheck.sanitize import launches as sanitizelaunches
from ladder.selfcheck.sanitize import parts as sanitizeparts
from ladder.selfcheck.sanitize.launches import Prepared
from ladder.selfcheck.sanitize.parts import ERRORS, TOOLS, UNFINISHED
from ladder.studies.kernelbench.cases import small_calls

REFUSED = "sanitize: "  # how a line of ours on stderr begins
PREPARED = "prepared: "
PREPARING_S = 300  # before the parts begin without
Tools = dict[str, sanitizeparts.Together]  # by tool


class About(TypedDict):
    """How a run went."""

    prepared: Prepared
    seconds: float
    interrupted: bool


class Sanitized(record.Header):
    """The result of a run. Its file leaves out the texts of the parts."""

    what: str
    prepared: Prepared
    interrupted: bool
    tools: Tools


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m ladder.selfcheck.sanitize", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--launch", metavar="CALL,CALL", help="only launch these calls: what the tools watch")
    parser.add_argument("--prepare", action="store_true", help="only compile what the calls need")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "sanitizer")
    options = parser.parse_args(arguments)
    try:
        if options.launch is not None or options.prepare:
            return on_gpu(options.launch)
        program = sanitizer()
        refuse_unwritable(options.out)
        with system.untimed("cuda"), stop_signals() as stopped, tempfile.TemporaryDirectory() as folder:
            return run(program, options.out, Path(folder), stopped)
    except UserError as error:
        print(f"{REFUSED}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while it waited for another run
        print(f"{REFUSED}interrupted before a part was finished", file=sys.stderr)
        return 130


def on_gpu(names: str | None) -> int:
    """Run what the parent process asked for: the named calls, or the preparation."""
    from kernels import alternatives, available

    if (why := available()) is not None:
        raise UserError(why)
    if names is None:
        with alternatives.off():
            print(PREPARED + json.dumps(sanitizelaunches.prepare("cuda")), flush=True)
        return 0
    wanted = [name for name in names.split(",") if name]
    if unknown := set(wanted) - set(small_calls.NAMES):
        raise UserError(f"no call has this name: {', '.join(sorted(unknown))}")
    with alternatives.off():
        launched = sanitizelaunches.launch("cuda", wanted)
    print(sanitizelaunches.LAUNCHED + " ".join(launched), flush=True)
    return 0


def sanitizer() -> str:
    """Return the path of compute-sanitizer. Raises UserError where there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    folders = [Path(home) / part for home in homes if home for part in ("bin", "compute-sanitizer")]
    for folder in (None, *folders):
        if found := shutil.which("compute-sanitizer", path=None if folder is None else str(folder)):
            return found
    raise UserError("compute-sanitizer is not installed (it comes with the CUDA toolkit)")


@contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C, SIGTERM or SIGHUP has come. An ignored signal stays ignored.

    Each may come several times, also while files are written: `timeout` signals make and us, and make passes its own.
    """
    came: list[int] = []  # no Event: its lock would wait for itself where a signal comes within a signal
    numbers = (signal.SIGINT, *stopping.OTHERS)
    with stopping.handled(numbers, lambda number, _: came.append(number)) as handled:
        yield lambda: bool(came)
        if came:
            handled.update(dict.fromkeys(handled, signal.SIG_IGN))  # or the next would change the exit status


# ---- the run -----------------------------------------------------------------------------------------------------


def run(program: str, out: Path, folder: Path, stopped: Callable[[], bool]) -> int:
    """Prepare, run all parts under all tools, print and write their verdicts. Return the exit status."""
    begun = time.monotonic()

    def told(text: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {text}", flush=True)

    told("compiling every kernel, outside of the tools")
    facts, prepared = preparation(folder, stopped)
    told(said_of(prepared))
    left_out = prepared.get("left_out", {})
    for name, why in left_out.items():
        told(f"{name} is left out: {why}")
    slots = sanitizeparts.at_once(facts["cores"], facts["ram_gb"], facts["gpu_memory_gb"])
    names = [name for name in small_calls.NAMES if name not in left_out]
    count = min(slots // len(TOOLS), sanitizeparts.MOST_PARTS)
    parts = sanitizeparts.deal(names, prepared.get("seconds", {}), count)
    told(f"{len(parts)} parts under {' and '.join(TOOLS)}, {min(slots, len(parts) * len(TOOLS))} at a time")
    known = sanitizeparts.options_of(program)
    found = sanitizeparts.run(
        parts,
        lambda tool, number, names: sanitizeparts.command(program, known, tool, number, names),
        slots,
        folder,
        told,
        stopped,
    )
    tools = {tool: sanitizeparts.together(tool, parts, found[tool]) for tool in TOOLS}
    for tool, result in tools.items():
        print(f"{tool}: {result['status']}: {result['summary']}", flush=True)
    about: About = {
        "prepared": prepared,
        "seconds": round(time.monotonic() - begun, 1),
        "interrupted": stopped(),
    }
    return conclude(tools, facts, about, out)


def preparation(folder: Path, stopped: Callable[[], bool]) -> tuple[Mapping[str, Any], Prepared]:
    """Return the machine's facts, and the report of the program that compiles meanwhile."""
    said = folder / "prepare.txt"
    process = sanitizeparts.spawn([sys.executable, "-m", "ladder.selfcheck.sanitize", "--prepare"], said, {})
    begun, problem = time.monotonic(), None
    try:
        facts = system.facts("cuda")
        while process.poll() is None and problem is None:
            time.sleep(0.05)
            if stopped():
                problem = "interrupted"
            elif time.monotonic() - begun > PREPARING_S:
                problem = f"not done after {PREPARING_S} s"
    finally:
        sanitizeparts.kill(process)
    text = said.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if refused := [line for line in lines if line.startswith(REFUSED)]:
        raise UserError(refused[-1][len(REFUSED) :])
    answers = [line[len(PREPARED) :] for line in lines if line.startswith(PREPARED)]
    if answers:
        return facts, json.loads(answers[-1])
    return facts, {"problem": problem or sanitizeparts.reason(text, lines)}


def said_of(prepared: Prepared) -> str:
    """Return one line on the preparation."""
    if "compiled" not in prepared:
        return f"not all is compiled, the parts go on: {prepared['problem']}"
    about = prepared["compiled"]
    line = f"{about['compiled']} of {about['missing']} kernels compiled in {about['seconds']:.0f} s"
    line += f" ({about['problem']})" if about["problem"] else ""
    return line + (f"; {prepared['cuda']}" if prepared["cuda"] else "")


def conclude(tools: Tools, facts: Mapping[str, Any], about: About, out: Path) -> int:
    """Write the results, and return the exit status."""
    lost = {tool: result["unfinished"] for tool, result in tools.items() if result["unfinished"]}
    parts = [part for result in tools.values() for part in result["parts"]]
    if all(part["status"] == UNFINISHED for part in parts):
        if not about["interrupted"]:
            raise UserError(f"no tool could run here: {parts[0]['summary']}")
        print(f"{REFUSED}interrupted before a part was finished", file=sys.stderr)
        return 130
    made = {"what": "sanitizer", **about, "tools": tools, "complete": not lost}
    paths = write(cast(Sanitized, record.header(None, facts) | made), out)
    print(*paths, sep="\n", flush=True)
    if about["interrupted"] and lost:
        print(f"{REFUSED}interrupted; what was finished is written", file=sys.stderr)
        return 130
    if any(result["status"] == ERRORS for result in tools.values()):
        return 1
    if lost:
        named = "; ".join(f"{tool}: {tools[tool]['summary'].split('; ', 1)[1]}" for tool in lost)
        raise UserError(f"not all could run here: {named}")
    return 0


def write(found: Sanitized, out: Path) -> list[Path]:
    """Write the verdicts as JSON, and the output of every part as text. Return the text and the JSON."""
    said: list[str] = []
    for tool, result in found["tools"].items():
        for part in result["parts"]:
            said += [f"== {tool}, {sanitizeparts.part_name(part)}: {part['status']}", *part.pop("text")]
    pages, stem = {"txt": "\n".join(said) + "\n"}, found["machine"]["name"]
    return results.save(found, out, pages, stem=stem, exact=True)[::-1]


if __name__ == "__main__":
    sys.exit(main())
