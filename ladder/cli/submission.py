"""One machine's contribution: `ladder run`, then `asv run`, and a check of both results.

The paired protocol comes first, because verdicts need it. After it, asv adds a point for every rung to its
history, a few rungs per call. A call of asv writes only at its end; small groups keep the loss by Ctrl-C near a
minute. Existing results are not measured again, so the same command continues where it stopped.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.cli import climb
from ladder.core import git, starting
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.text import format_count, last_line
from ladder.images import for_workload
from ladder.machine import environment, system
from ladder.plan import catalog, needs
from ladder.publish.history import machines, series
from ladder.publish.validation import asv_files, validate
from ladder.results import code_digest, loading, store

CODE = ("kernels", "stylegan_lite", "ladder", "benches", "asv.conf.json", "requirements.lock")
MINUTES = 18.0  # for measuring; with start-up and drawing 20 on a current GPU
PAIRED = 0.4  # share of MINUTES; 7.2 minutes are three rounds of the article's ladder and its inspections on an H200
LADDER = "article"
GROUP = {"cuda": 6, "cpu": 1}  # rungs in one call of asv; their workers import side by side


@dataclass
class Submission:
    """One machine's results of one commit: the facts, the folder and the time left."""

    root: Path
    commit: str
    device: str
    facts: dict[str, Any]
    minutes: float
    say: Callable[[str], None]
    quick: bool = False  # whether `ladder run` is a quick one
    begin: float = field(default_factory=time.monotonic)

    @property
    def workload(self) -> str:
        return for_workload.DEFAULT_WORKLOAD[self.device]

    @property
    def machine(self) -> str:
        """Return the name of this machine's folder under results/asv."""
        return machines.identify(self.facts, self.root / "results" / "asv")["machine"]


def prepare(minutes: float | None, say: Callable[[str], None], root: Path = ROOT) -> Submission:
    """Return the submission of this machine and commit.

    Without a GPU and with `minutes` None, `ladder run` is a quick one.

    Raises:
        UserError: there is no commit, it has uncommitted changes, or the GPU is unusable. Nothing was measured.
    """
    commit = refuse_changes(root)
    device = system.choose_device()
    environment.refuse_variables(device)
    quick = device == "cpu" and minutes is None
    return Submission(root, commit, device, system.describe_machine(device), minutes or MINUTES, say, quick)


def refuse_changes(root: Path = ROOT) -> str:
    """Return the commit of the checkout. Raises UserError where it has none, or has uncommitted changes."""
    commit = git.read_commit(root)
    if changed := git.list_changes(root, CODE):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"uncommitted changes in {loading.show_path(changed[0])}{more}: commit or stash them, so that others can"
            " look up what was measured"
        )
    return commit


def measure_ladder(submission: Submission) -> Path | None:
    """Measure or continue the article's ladder, and return its file, or None if the run was interrupted."""
    folder = submission.root / "results" / "ladder" / submission.facts["name"]
    path, is_complete = find_run(submission, folder)
    if is_complete:
        submission.say(f"ladder run: {path.name if path else ''} is there and complete")
        return path
    protocol = loading.load_run(path).protocol if path else None
    quick = submission.quick and (protocol is None or protocol.quick)
    is_fixed = quick or (protocol is not None and protocol.fixed)
    budget = None if is_fixed else max(1.0, PAIRED * submission.minutes)
    request = climb.Request(
        workload=None if path else submission.workload,
        ladder=LADDER,
        budget=budget,
        quick=quick,
        resume=path,
        device=submission.device,
        out=folder.parent,
    )
    how = f"going on with {path.name}" if path else "a quick one" if quick else f"about {budget:.0f} min"
    submission.say(f"ladder run: {submission.workload} on {submission.device}, {how}")
    paths: list[Path] = []
    result = climb.run(request, on_file=paths.append)
    return paths[0] if result.complete else None


def find_run(submission: Submission, folder: Path) -> tuple[Path | None, bool]:
    """Return the newest result of this commit's ladder on this machine, and whether it is complete.

    A quick result counts only for a quick submission.
    """
    runs = []
    for path in folder.glob(f"{submission.workload}-{LADDER}-2*.json"):
        try:
            run = loading.load_run(path)
        except UserError:
            continue
        protocol, facts = run.protocol, submission.facts
        ours = run.commit == submission.commit and not run.dirty and code_digest.is_known(run)
        same = all(getattr(run.machine, key) == facts[key] for key in store.SERIES)
        kind = run.ladder.name == LADDER and not run.merged and not protocol.gpu_memory_limit_gb
        if ours and same and kind and (submission.quick or not protocol.quick):
            runs.append((run.complete, run.started, path))
    return (max(runs)[2], max(runs)[0]) if runs else (None, False)


# --- asv run ----------------------------------------------------------------------------------------------------------


def lacks_asv() -> str | None:
    """Return one line that says how to get asv, or None if this Python has it. The history is left out without it."""
    if all(importlib.util.find_spec(name) for name in ("asv", "asv_runner")):
        return None
    python = starting.shorten_path(sys.executable)
    install = starting.install_command(python)
    return f"asv is not installed for {python}: `{install}`, then `ladder submit` adds its point"


def measure_history(submission: Submission) -> list[str]:
    """Add a point for every rung to asv's history while time is left, and return the rungs without one."""
    rungs, say = list_rungs(submission), submission.say
    stored = list_measured(submission)
    missing = [rung for rung in rungs if rung not in stored]
    say(
        f"asv run: {format_count(len(rungs), 'rung')} of {submission.workload}, {len(rungs) - len(missing)} stored"
    )
    if submission.machine != submission.facts["name"]:
        say(
            f"asv run: results/asv/{submission.facts['name']} is another machine; this one is {submission.machine}"
        )
    longest_s, size = 0.0, GROUP[submission.device]
    for first in range(0, len(missing), size):
        group = missing[first : first + size]
        begin = time.monotonic()
        left_s = submission.begin + 60 * submission.minutes - begin
        if first and left_s < longest_s * len(group):
            say(
                f"asv run: the time is over; {format_count(len(missing) - first, 'rung')} left for the next call"
            )
            break
        say(f"asv run: {', '.join(group)} ({len(rungs) - len(missing) + first + len(group)} of {len(rungs)})")
        names = "|".join(map(re.escape, group))
        status = run_asv(submission, rf"^rungs\.Rung\.\w+\('{submission.workload}', '({names})'\)$")
        if status == 2:  # a benchmark failed
            say(
                f"asv run: failed: {', '.join(rung for rung in group if rung not in list_measured(submission))}"
            )
        elif status:
            raise UserError(
                f"`asv run` ended with status {status} at {', '.join(group)}; its output stands above"
            )
        longest_s = max(longest_s, (time.monotonic() - begin) / len(group))
    stored = list_measured(submission)
    return [rung for rung in rungs if rung not in stored]


def run_asv(submission: Submission, regex: str) -> int:
    """Run asv and return its status. Print its output where it fails; its tables name all rungs each time."""
    command = [sys.executable, "-m", "asv", "run", f"{submission.commit}^!", "--bench", regex]
    command += ["--machine", submission.machine]
    with subprocess.Popen(
        command, cwd=submission.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = [*(process.stdout or ())]
            status = process.wait()
        except KeyboardInterrupt:  # asv got the signal too, and ends its own processes first
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.terminate()
            raise
    if status:
        print("".join(line for line in lines if not line.rstrip().endswith("n/a")), end="", flush=True)
    return status


def list_rungs(submission: Submission) -> list[str]:
    """Return the rungs that asv measures and this machine can run, in the order of the ladder."""
    workload = catalog.load_workload(submission.workload)[1]
    able = needs.join_capabilities(system.list_capabilities(submission.device), workload)
    planned = catalog.plan_climb(catalog.load_ladder("full"), able)
    order = {rung.name: place for place, rung in enumerate(planned)}
    skipped = {rung.name for rung in planned if rung.recipe is None}
    # A process lists the series, because nothing in `ladder` imports `benches`.
    run = subprocess.run(
        [sys.executable, "-m", "benches.series"], cwd=submission.root, capture_output=True, text=True
    )
    if run.returncode:
        raise UserError(f"asv's list of series cannot be read: {last_line(run.stderr)}")
    rows = [line.split() for line in run.stdout.splitlines()]
    rungs = [rung for name, rung, _, *retired in rows if name == submission.workload and not retired]
    return sorted(
        (rung for rung in rungs if rung not in skipped), key=lambda rung: order.get(rung, len(order))
    )


def list_measured(submission: Submission) -> set[str]:
    """Return the rungs with a time in asv's results of this commit and machine."""
    rungs = set()
    for path in find_asv_results(submission):
        row = asv_files.parse(path.read_bytes(), "results")["results"].get(series.STEP)
        if row is not None and row[0] is not None:
            for index, (workload, rung) in asv_files.combinations(row):
                if workload == submission.workload and asv_files.number(row[0][index]) is not None:
                    rungs.add(rung)
    return rungs


def find_asv_results(submission: Submission) -> list[Path]:
    """Return asv's files of the unchanged commit on this hardware with these libraries."""
    facts, paths = submission.facts, []
    torch = (facts["torch"] or "").split("+")[0]
    hardware = {"gpu": facts["gpu"] or "none", "cpu": facts["cpu"], "torch": torch}
    folder = submission.root / "results" / "asv" / submission.machine
    for path in sorted(folder.glob(f"{submission.commit[:8]}-*.json")):
        if validate.problem_of(path) is None:
            data = asv_files.parse(path.read_bytes(), "results")
            same = hardware.items() <= data["params"].items() and data["commit_hash"] == submission.commit
            if same and not asv_files.list_marks(data, "results"):
                paths.append(path)
    return paths


def list_files(submission: Submission, ladder: Path) -> list[Path]:
    """Return the files of the pull request: the result, and asv's of this commit with machine records and notes."""
    paths = [ladder]
    for path in find_asv_results(submission):
        note = path.parent / asv_files.NOTES / path.name
        paths += [path.parent / "machine.json", path, *([note] if note.is_file() else [])]
    return list(dict.fromkeys(paths))


def list_commands(submission: Submission, paths: list[Path]) -> list[str]:
    """Return the shell commands that send the files, for the root of the repository."""
    name = submission.facts["name"]
    names = " ".join(path.relative_to(submission.root).as_posix() for path in paths)
    branch = f"results-{name}-{submission.commit[:8]}"
    return [
        f"git switch -c {branch}",
        f"git add {names}",
        f'git commit -m "Results of {name}"',
        f"git push -u origin {branch}",
    ]
