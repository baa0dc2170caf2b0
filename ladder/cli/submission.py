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

from ladder.base import git, starting
from ladder.base.errors import UserError, one_line
from ladder.base.paths import ROOT
from ladder.base.text import counted, last_line
from ladder.cli import climb as climbing
from ladder.images import for_workload
from ladder.machine import environment
from ladder.machine import system as machine
from ladder.plan import catalog, needs
from ladder.publish.history import machines as asvmachines
from ladder.publish.history import series as asvseries
from ladder.publish.validation import asv_files, validate
from ladder.results import code_digest, loading
from ladder.results import store as results
from ladder.results.run import Result

CODE = ("kernels", "stylegan_lite", "ladder", "benches", "asv.conf.json", "requirements.lock")
MINUTES = 18.0  # for measuring; with start-up and drawing 20 on a current GPU
PAIRED = 0.4  # share of MINUTES; 7.2 minutes are three rounds of the article's ladder and its inspections on an H200
LADDER = "article"
ASV = ("asv", "asv_runner")  # its packages
GROUP = {"cuda": 6, "cpu": 1}  # rungs in one call of asv; their workers import side by side
Say = Callable[[str], None]


@dataclass
class Submission:
    """One machine's results of one commit: the facts, the folder and the time left."""

    root: Path
    commit: str
    device: str
    facts: dict[str, Any]
    minutes: float
    say: Say
    quick: bool = False  # whether `ladder run` is a quick one
    begin: float = field(default_factory=time.monotonic)

    @property
    def workload(self) -> str:
        return for_workload.DEFAULT_WORKLOAD[self.device]

    @property
    def machine(self) -> str:
        """Return the name of this machine's folder under results/asv."""
        return asvmachines.identify(self.facts, self.root / "results" / "asv")["machine"]

    def left_s(self) -> float:
        return 60 * self.minutes - (time.monotonic() - self.begin)


def prepare(minutes: float | None, say: Say, root: Path = ROOT) -> Submission:
    """Return the submission of this machine and commit.

    Without a GPU and with `minutes` None, `ladder run` is a quick one.

    Raises:
        UserError: there is no commit, it has uncommitted changes, or the GPU is unusable. Nothing was measured.
    """
    commit = refuse_changes(root)
    device = machine.choose_device()
    environment.refuse(device)
    quick = device == "cpu" and minutes is None
    return Submission(root, commit, device, machine.facts(device), minutes or MINUTES, say, quick)


def refuse_changes(root: Path = ROOT) -> str:
    """Return the commit of the checkout. Raises UserError where it has none, or has uncommitted changes."""
    commit = git.commit(root)
    if changed := git.changes(root, CODE):
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        raise UserError(
            f"uncommitted changes in {loading.show_path(changed[0])}{more}: commit or stash them, so that others can"
            " look up what was measured"
        )
    return commit


# --- ladder run ---------------------------------------------------------------------------------------------------


def paired(submission: Submission, climb: Callable[..., Result] = climbing.run) -> Path | None:
    """Measure or continue the article's ladder, and return its file, or None if the run was interrupted."""
    folder = submission.root / "results" / "ladder" / submission.facts["name"]
    path, done = _started(submission, folder)
    if done:
        submission.say(f"ladder run: {path.name} is there and complete")
        return path
    before = loading.load_run(path).protocol if path else None
    quick = submission.quick and (before is None or before.quick)
    request = climbing.Request(
        workload=None if path else submission.workload,
        ladder=LADDER,
        rungs=None,
        budget=None if quick or (before and before.fixed) else max(1.0, PAIRED * submission.minutes),
        rounds=None,
        cycles=None,
        seed=None,
        quick=quick,
        mode=None,
        resume=path,
        data=None,
        device=submission.device,
        out=folder.parent,
    )
    took = (
        "going on with " + path.name
        if path
        else "a quick one"
        if quick
        else f"about {request.budget:.0f} min"
    )
    submission.say(f"ladder run: {submission.workload} on {submission.device}, {took}")
    paths: list[Path] = []
    result = climb(request, on_file=paths.append)
    return paths[0] if result.complete else None


def _started(submission: Submission, folder: Path) -> tuple[Path | None, bool]:
    """Return the newest result of this commit's ladder on this machine, and whether it is complete.

    A quick result counts only for a quick submission.
    """
    found = []
    for path in folder.glob(f"{submission.workload}-{LADDER}-2*.json"):
        try:
            result = loading.load_run(path)
        except UserError:
            continue
        same = [getattr(result.machine, key) == submission.facts[key] for key in results.SERIES]
        ours = result.commit == submission.commit and not result.dirty and code_digest.is_known(result)
        kind = result.ladder.name == LADDER and not result.merged
        kind = kind and not result.protocol.gpu_memory_limit_gb
        if ours and all(same) and kind and (submission.quick or not result.protocol.quick):
            found.append((result.complete, result.started, path))
    return (max(found)[2], max(found)[0]) if found else (None, False)


# --- asv run ------------------------------------------------------------------------------------------------------


def lacks_asv() -> str | None:
    """Return one line that says how to get asv, or None if this Python has it. The history is left out without it."""
    if all(importlib.util.find_spec(name) for name in ASV):
        return None
    python = starting.near(sys.executable)
    return f"asv is not installed for {python}: `{starting.install(python)}`, then `ladder submit` adds its point"


def history(submission: Submission, run: Callable[..., int] | None = None) -> list[str]:
    """Add a point for every rung to asv's history while time is left, and return the rungs without one."""
    run = run or _asv
    wanted = _rungs(submission)
    have = _measured(submission)
    missing = [rung for rung in wanted if rung not in have]
    submission.say(
        f"asv run: {counted(len(wanted), 'rung')} of {submission.workload}, {len(wanted) - len(missing)} already stored"
    )
    if submission.machine != submission.facts["name"]:
        submission.say(
            f"asv run: results/asv/{submission.facts['name']} is another machine; this one is {submission.machine}"
        )
    longest, tried, failures, size = 0.0, 0, 0, GROUP[submission.device]
    for group in (missing[i : i + size] for i in range(0, len(missing), size)):
        if tried and submission.left_s() < longest * len(group):
            left = len(missing) - tried
            submission.say(f"asv run: the time is over; {counted(left, 'rung')} left for the next call")
            break
        reached = len(wanted) - len(missing) + tried + len(group)
        submission.say(f"asv run: {', '.join(group)} ({reached} of {len(wanted)})")
        begin = time.monotonic()
        names = "|".join(map(re.escape, group))
        status = run(submission, rf"^rungs\.Rung\.\w+\('{submission.workload}', '({names})'\)$")
        if status not in (0, 2):  # 2: a benchmark failed
            where = ", ".join(group)
            raise UserError(f"`asv run` ended with status {status} at {where}; what it said stands above")
        failures += bool(status)
        tried += len(group)
        longest = max(longest, (time.monotonic() - begin) / len(group))
    have = _measured(submission)
    failed = [rung for rung in missing[:tried] if rung not in have] if failures else []
    if failed:
        submission.say(f"asv run: failed: {', '.join(failed)}")
    return [rung for rung in wanted if rung not in have]


def _asv(submission: Submission, regex: str) -> int:
    """Run asv and return its status. Print its words where it fails; its tables name all rungs each time."""
    command = [sys.executable, "-m", "asv", "run", f"{submission.commit}^!", "--bench", regex]
    command += ["--machine", submission.machine]
    with subprocess.Popen(
        command, cwd=submission.root, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            said = [*(process.stdout or ())]
            status = process.wait()
        except KeyboardInterrupt:  # asv got the signal too, and ends its own processes first
            try:
                process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.terminate()
            raise
    if status:
        print("".join(line for line in said if not line.rstrip().endswith("n/a")), end="", flush=True)
    return status


def _rungs(submission: Submission) -> list[str]:
    """Return the rungs that asv measures and this machine can run, in the order of the ladder."""
    there = needs.possible(
        machine.capabilities(submission.device), catalog.load_workload(submission.workload)[1]
    )
    planned = catalog.climb(catalog.load_ladder("full"), there)
    skipped = {rung.name for rung in planned if rung.recipe is None}
    order = [rung.name for rung in planned]
    ours = [name for name in _series(submission) if name not in skipped]
    return sorted(ours, key=lambda name: order.index(name) if name in order else len(order))


def _series(submission: Submission) -> list[str]:
    """Return the rungs of the workload whose series is not retired.

    A process asks `benches`, because nothing in `ladder` imports it.
    """
    command = [sys.executable, "-m", "benches.series"]
    run = subprocess.run(command, cwd=submission.root, capture_output=True, text=True)
    if run.returncode:
        raise UserError(f"asv's list of series cannot be read: {last_line(run.stderr)}")
    lines = [line.split() for line in run.stdout.splitlines()]
    return [rung for workload, rung, _, *retired in lines if workload == submission.workload and not retired]


def _measured(submission: Submission) -> set[str]:
    """Return the rungs with a time in asv's results of this commit and machine."""
    found = set()
    for path in asv_results(submission):
        data = asv_files.parse(path.read_bytes(), "results")
        row = data["results"].get(asvseries.STEP)
        if row is None or row[0] is None:
            continue
        for index, pair in asv_files.combinations(row):
            if pair[0] == submission.workload and asv_files.number(row[0][index]) is not None:
                found.add(pair[1])
    return found


def asv_results(submission: Submission) -> list[Path]:
    """Return asv's files of the unchanged commit on this hardware with these libraries."""
    facts, found = submission.facts, []
    hardware = {
        "gpu": facts["gpu"] or "none",
        "cpu": facts["cpu"],
        "torch": (facts["torch"] or "").split("+")[0],
    }
    folder = submission.root / "results" / "asv" / submission.machine
    for path in folder.glob(f"{submission.commit[:8]}-*.json"):
        if validate.problem_of(path) is not None:
            continue
        data = asv_files.parse(path.read_bytes(), "results")
        same = all(data["params"].get(key) == value for key, value in hardware.items())
        if same and data["commit_hash"] == submission.commit and not asv_files.list_marks(data, "results"):
            found.append(path)
    return sorted(found)


# --- what is sent -------------------------------------------------------------------------------------------------


def files(submission: Submission, ladder: Path | None) -> list[Path]:
    """Return the files of the pull request: the result, asv's files of this commit, their notes and machine
    records.
    """
    found = [ladder] if ladder else []
    for path in asv_results(submission):
        note = path.parent / asv_files.NOTES / path.name
        found += [path.parent / "machine.json", path, *([note] if note.is_file() else [])]
    return list(dict.fromkeys(found))


def refused(paths: list[Path]) -> list[str]:
    """Return one line for each file that validation refuses."""
    return [f"{each.path}: {each.problem}" for each in validate.validate(paths) if each.problem]


def commands(submission: Submission, paths: list[Path]) -> list[str]:
    """Return the shell commands that send the files, for the root of the repository."""
    name = submission.facts["name"]
    names = " ".join(path.relative_to(submission.root).as_posix() for path in paths)
    branch = f"results-{name}-{submission.commit[:8]}"
    said = one_line(f"Results of {name}")
    return [
        f"git switch -c {branch}",
        f"git add {names}",
        f'git commit -m "{said}"',
        f"git push -u origin {branch}",
    ]
