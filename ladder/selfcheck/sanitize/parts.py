"""The calls of `ladder.studies.kernelbench.cases.small_calls`, dealt out to parts that run side by side.

Each part runs under each tool in a process of its own. A tool is clean only if every part came to its end, launched
kernels, and says 0 errors. A part that crashed, took too long, said nothing or was never run is named.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from ladder.base.errors import one_line
from ladder.base.paths import ROOT
from ladder.selfcheck.sanitize.launches import BEGAN, LAUNCHED

TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) .*")
CLEAN, ERRORS, UNFINISHED = "clean", "errors", "did not finish"
MINUTES = 10  # for one part, before it is given up
TELL_S = 15  # between lines that say what is running
MOST_PARTS = 12  # more would begin longer than they run
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1"}
HOST_GB, GPU_GB = 5, 2  # of memory for one process with a CUDA context and a tool, at most
FIRST_PORT, PORTS = 49152, 16  # between the tool and what it watches; side by side, each has its own

Told = Callable[[str], None]


class Said(TypedDict, total=False):
    """The text of one part under one tool, which the result's file leaves out."""

    text: list[str]


class Verdict(Said):
    """The verdict on one part under one tool, from its text."""

    status: str
    errors: int | None
    summary: str
    kernels: list[str]


class Found(Verdict):
    """The outcome of one part under one tool."""

    part: int
    calls: list[str]
    seconds: float


class Together(TypedDict):
    """The outcome of all parts under one tool."""

    status: str
    errors: int
    summary: str
    unfinished: list[int]  # parts
    kernels: list[str]
    parts: list[Found]


def at_once(cores: int, ram_gb: float, gpu_gb: float | None) -> int:
    """Return how many processes this machine runs side by side."""
    by_memory = (ram_gb // HOST_GB, (gpu_gb or GPU_GB) // GPU_GB)
    return max(1, int(min(cores, *by_memory)))


def deal(names: Sequence[str], seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Split the names into parts that take about as long, the longest first; an unknown call takes the mean."""
    known = [seconds[name] for name in names if name in seconds]
    mean = sum(known) / len(known) if known else 1.0
    parts: list[list[str]] = [[] for _ in range(max(1, min(count, len(names))))]
    loads = [0.0] * len(parts)
    for name in sorted(names, key=lambda name: -seconds.get(name, mean)):
        least = loads.index(min(loads))
        parts[least].append(name)
        loads[least] += seconds.get(name, mean)
    return [part for _, part in sorted(zip(loads, parts, strict=True), key=lambda each: -each[0])]


def options_of(program: str) -> set[str]:
    """Return the options that this compute-sanitizer has."""
    said = subprocess.run([program, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return set(re.findall(r"--[a-z][a-z-]+", said.stdout + said.stderr))


def command(program: str, known: set[str], tool: str, number: int, names: Sequence[str]) -> list[str]:
    """Return the command of one process.

    Args:
        number: of all processes, for ports of its own. Sixteen imports of PyTorch at once outlast the 10 s that the
            tool waits for a process by itself.
    """
    wanted = [program, "--tool", tool, "--target-processes", "application-only", "--print-limit", "50"]
    ports = {"--port": FIRST_PORT + PORTS * number, "--max-connections": PORTS, "--launch-timeout": 300}
    for option, value in ports.items():
        wanted += [option, str(value)] if option in known else []
    return [*wanted, sys.executable, "-m", "ladder.selfcheck.sanitize", "--launch", ",".join(names)]


@dataclass
class Running:
    """One part under one tool."""

    tool: str
    number: int
    names: list[str]
    process: subprocess.Popen
    said: Path
    began: float

    @classmethod
    def start(cls, wanted: list[str], tool: str, number: int, names: list[str], folder: Path) -> Running:
        said = folder / f"{tool}-{number}.txt"
        return cls(tool, number, names, spawn(wanted, said, UNCACHED), said, time.monotonic())

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def text(self) -> str:
        return self.said.read_text(errors="replace")

    def found(self, note: str = "") -> Found:
        """note: why it was ended."""
        kill(self.process)
        text = self.text() + (f"\n{note}\n" if note else "")
        seconds = round(self.seconds, 1)
        verdict = judge(text, 1 if note else self.process.returncode)
        return {"part": self.number, "calls": self.names, "seconds": seconds, **verdict}


def spawn(command: list[str], said: Path, more: Mapping[str, str]) -> subprocess.Popen:
    """Start a process whose output goes to a file; `more` joins the environment."""
    with open(said, "wb") as stream:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | more,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; and a tool ends together with what it watches
        )


def kill(process: subprocess.Popen) -> None:
    """Kill the process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:  # all gone
        pass
    process.wait()


def run(
    parts: Sequence[list[str]],
    wanted: Callable[[str, int, list[str]], list[str]],
    side_by_side: int,
    folder: Path,
    told: Told,
    stopped: Callable[[], bool],
) -> dict[str, list[Found]]:
    """Run each part under each tool until `stopped`, and return the outcomes.

    Args:
        wanted: the command for a tool, the number of a process and a part's calls.
        folder: for the output of the processes.
    """
    waiting = [(tool, number) for number in range(1, len(parts) + 1) for tool in TOOLS]
    total, spoke = len(waiting), time.monotonic()
    running: list[Running] = []
    found: dict[str, list[Found]] = {tool: [] for tool in TOOLS}

    def end(each: Running, note: str = "") -> None:
        running.remove(each)
        result = each.found(note)
        found[each.tool].append(result)
        told(f"{each.tool} {part_name(result)}: {result['status']} after {result['seconds']:.0f} s")

    try:
        while (waiting or running) and not stopped():
            while waiting and len(running) < side_by_side:
                tool, number = waiting.pop(0)
                names = parts[number - 1]
                process = wanted(tool, total - len(waiting) - 1, names)
                running.append(Running.start(process, tool, number, names, folder))
            for each in list(running):
                if each.process.poll() is not None:
                    end(each)
                elif each.seconds > 60 * MINUTES:
                    end(each, f"not done after {MINUTES} minutes")
            if running and time.monotonic() - spoke > TELL_S:
                spoke = time.monotonic()
                told(
                    f"{total - len(waiting) - len(running)} of {total} done; running: {whereabouts(running)}"
                )
            time.sleep(0.05)
    finally:
        for each in list(running):
            end(each, "interrupted")
    return found


def whereabouts(running: Sequence[Running]) -> str:
    """Return the three processes that have run longest, and their calls."""
    first = sorted(running, key=lambda each: each.began)[:3]
    said = [f"{each.tool} part {each.number} ({at(each.text()) or 'beginning'})" for each in first]
    more = len(running) - len(first)
    return "; ".join(said) + (f"; {more} more" if more else "")


# ---- verdicts ----------------------------------------------------------------------------------------------------


def judge(text: str, status: int) -> Verdict:
    """Judge a sanitizer's text. A clean part came to its end, launched kernels, and says 0 errors."""
    found = SUMMARY.search(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    launched = [line for line in lines if line.startswith(LAUNCHED)]
    names = launched[-1][len(LAUNCHED) :].split() if launched else []
    errors = int(found.group(1)) if found else None
    if errors:
        verdict, summary = ERRORS, found.group(0)
    elif found and names and status == 0:
        verdict, summary = CLEAN, found.group(0)
    else:
        verdict, summary = UNFINISHED, reason(text, lines)
    return {
        "status": verdict,
        "errors": errors,
        "summary": one_line(summary),
        "kernels": names,
        "text": [one_line(line) for line in lines if not line.startswith(BEGAN)],
    }


def reason(text: str, lines: Sequence[str]) -> str:
    """Return the line that most likely says why there is no verdict, and the call that ran."""
    said = [line.strip("= ") for line in lines if not line.startswith((BEGAN, LAUNCHED))]
    said = [line for line in said if line and not SUMMARY.search(line)]
    blamed = [line for line in said if "rror" in line] or said or ["said nothing"]
    where = at(text)
    return one_line(blamed[-1])[:120] + (f" (at {where})" if where else "")


def at(text: str) -> str | None:
    """Return the call that the program began last."""
    began = [line for line in text.splitlines() if line.startswith(BEGAN)]
    return began[-1][len(BEGAN) :] if began else None


def part_name(found: Found) -> str:
    return f"part {found['part']} ({', '.join(found['calls'])})"


def together(tool: str, parts: Sequence[list[str]], found: Sequence[Found]) -> Together:
    """Sum all parts up under one tool; a part without a record has not finished."""
    known = {each["part"]: each for each in found}

    def missing(number: int, names: list[str]) -> Found:
        return {
            "status": UNFINISHED,
            "errors": None,
            "summary": "was not run",
            "kernels": [],
            "seconds": 0.0,
            "part": number,
            "calls": names,
            "text": [],
        }

    each = [known.get(number) or missing(number, names) for number, names in enumerate(parts, 1)]
    lost = [one for one in each if one["status"] == UNFINISHED]
    errors = sum(one["errors"] or 0 for one in each)
    what = {"racecheck": "hazards"}.get(tool, "errors")
    summary = f"{errors} {what} in {len(each) - len(lost)} of {len(each)} parts"
    for one in lost:
        summary += f"; {part_name(one)} {UNFINISHED}: {one['summary']}"
    return {
        "status": ERRORS if errors else UNFINISHED if lost or not each else CLEAN,
        "errors": errors,
        "summary": summary,
        "unfinished": [one["part"] for one in lost],
        "kernels": sorted({name for one in each for name in one["kernels"]}),
        "parts": each,
    }
