"""`ladder submit`: one machine's contribution, by `ladder run`, then `asv run`, and a check of both results.

The paired protocol comes first, because verdicts need it. After it, asv adds a point for every rung to its
history, a few rungs per call. A call of asv writes only at its end; small groups keep the loss by Ctrl-C near a
minute. Existing results are not measured again, so the same command continues where it stopped.

With `--slurm`, jobs of a cluster run the ladder instead (`ladder.publish.fleet`).
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import click
from click.core import ParameterSource

from ladder.cli import climb
from ladder.core import git, options, starting
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.plain import Plain
from ladder.core.starting import name_program
from ladder.core.text import format_count, last_line
from ladder.images.for_workload import DEFAULT_WORKLOAD
from ladder.machine import environment, system
from ladder.plan import catalog, modes, needs
from ladder.publish import fleet as slurm
from ladder.publish.history import machines, series
from ladder.publish.validation import asv_files
from ladder.results import code_digest, loading, store

CODE = ("kernels", "stylegan_lite", "ladder", "benches", "asv.conf.json", "requirements.lock")
MINUTES = 18.0  # for measuring; with start-up and drawing 20 on a current GPU
PAIRED = 0.4  # share of MINUTES; 7.2 minutes are three rounds of the article's ladder and its inspections on an H200
GROUP = {"cuda": 6, "cpu": 1}  # rungs in one call of asv; their workers import side by side


@dataclass
class Submission:
    """One machine's results of one commit: the facts, the folder and the time left."""

    root: Path
    commit: str
    device: str
    facts: Plain
    minutes: float
    quick: bool = False  # whether `ladder run` is a quick one
    begin: float = field(default_factory=time.monotonic)

    @property
    def workload(self) -> str:
        return DEFAULT_WORKLOAD[self.device]

    @property
    def machine(self) -> str:
        """Return the name of this machine's folder under results/asv."""
        return machines.identify(self.facts, self.root / "results" / "asv")["machine"]


def say(line: str) -> None:
    click.echo(click.style(name_program(line), bold=True), err=True)


def prepare(minutes: float | None, root: Path = ROOT) -> Submission:
    """Return the submission of this machine and commit.

    Without a GPU and with `minutes` None, `ladder run` is a quick one.

    Raises:
        UserError: there is no commit, it has uncommitted changes, or the GPU is unusable. Nothing was measured.
    """
    commit = refuse_changes(root)
    device = system.choose_device()
    environment.refuse_variables(device)
    quick = device == "cpu" and minutes is None
    return Submission(root, commit, device, system.describe_machine(device), minutes or MINUTES, quick)


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
    if path and is_complete:
        say(f"ladder run: {path.name} is there and complete")
        return path
    protocol = loading.load_run(path).protocol if path else None
    quick = submission.quick and (protocol is None or protocol.quick)
    budget = None if quick or (protocol and protocol.fixed) else max(1.0, PAIRED * submission.minutes)
    how = f"going on with {path.name}" if path else "a quick one" if quick else f"about {budget:.0f} min"
    say(f"ladder run: {submission.workload} on {submission.device}, {how}")
    workload, out = None if path else submission.workload, folder.parent
    request = climb.Request(
        workload=workload, ladder=climb.ARTICLE, budget=budget, quick=quick, resume=path,
        device=submission.device, out=out,
    )  # fmt: skip
    path, result = climb.run(request)
    return path if result.complete else None


def find_run(submission: Submission, folder: Path) -> tuple[Path | None, bool]:
    """Return the newest result of the whole ladder by this code on this machine, and whether it is complete.

    Who ran it does not matter: `make ladder` did, or a submission. A quick result counts only for a quick submission.
    """
    code, runs = code_digest.digests(submission.root), []
    rungs = [step.name for step in catalog.load_ladder(climb.ARTICLE).rungs]
    for path in folder.glob(f"{submission.workload}-{climb.ARTICLE}-2*.json"):
        try:
            run = loading.load_run(path)
        except UserError:
            continue
        protocol, facts = run.protocol, submission.facts
        ours = run.measured_code == code and not run.dirty and run.images is None and not run.merged
        same = all(getattr(run.machine, key) == facts[key] for key in store.SERIES)
        kind = run.ladder.rungs == rungs and not protocol.gpu_memory_limit_gb
        if ours and same and kind and (submission.quick or not protocol.quick):
            runs.append((run.complete, run.started, path))
    return (max(runs)[2], max(runs)[0]) if runs else (None, False)


# --- asv run ----------------------------------------------------------------------------------------------------------


def measure_history(submission: Submission) -> list[str]:
    """Add a point for every rung to asv's history while time is left, and return the rungs without one."""
    rungs, stored = list_rungs(submission), list_measured(submission)
    missing, size, longest_s = [rung for rung in rungs if rung not in stored], GROUP[submission.device], 0.0
    number = format_count(len(rungs), "rung")
    say(
        f"asv run: {number} of {submission.workload} as {submission.machine}, {len(rungs) - len(missing)} stored"
    )
    for first in range(0, len(missing), size):
        group, begin = missing[first : first + size], time.monotonic()
        left_s = submission.begin + 60 * submission.minutes - begin
        if first and left_s < longest_s * len(group):
            say(f"asv run: the time is over; {', '.join(missing[first:])}: left for the next call")
            break
        say(f"asv run: {', '.join(group)} ({len(missing) - first} left)")
        names = "|".join(map(re.escape, group))
        status = run_asv(submission, rf"^rungs\.Rung\.\w+\('{submission.workload}', '({names})'\)$")
        if status not in (0, 2):  # 2: a benchmark failed
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
    rungs = {rung for name, rung, _, *retired in rows if name == submission.workload and not retired}
    return sorted(rungs - skipped, key=lambda rung: order.get(rung, len(order)))


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
    from ladder.publish.validation import validate

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


# --- the command ------------------------------------------------------------------------------------------------------


def submit_machine(budget: float | None) -> int:
    """Measure this machine, print the files and the commands that send them, and return the exit status."""
    from ladder.publish.validation import validate

    submission, problem = prepare(budget), None
    if not all(importlib.util.find_spec(name) for name in ("asv", "asv_runner")):
        python = starting.shorten_path(sys.executable)
        install = f"`{starting.install_command(python)}`, then `ladder submit` adds its point"
        problem = f"asv is not installed for {python}: {install}"
        say(f"without asv's history: {problem}")
    ladder, is_over = measure_ladder(submission), False
    try:
        if ladder is not None and problem is None and (left := measure_history(submission)):
            problem = f"asv has no time of {', '.join(left)}: call `ladder submit` again"
    except UserError as error:
        problem = str(error)  # the run of the ladder can be sent all the same
    except KeyboardInterrupt:
        is_over = True
    if ladder is None or is_over:
        click.echo(name_program("ladder: interrupted; `ladder submit` goes on"), err=True)
        return 130
    paths = [ladder]
    for path in find_asv_results(submission):
        note = path.parent / asv_files.NOTES / path.name
        paths += [path.parent / "machine.json", path, *([note] if note.is_file() else [])]
    paths = list(dict.fromkeys(paths))
    if refused := [f"{each.path}: {each.problem}" for each in validate.validate(paths) if each.problem]:
        head = "These files would be refused, which is a mistake of this project; please report it:"
        click.echo("\n".join([head, *refused]), err=True)
        return 1
    names, machine = (
        [path.relative_to(submission.root).as_posix() for path in paths],
        submission.facts["name"],
    )
    lines = [
        name_program(f"{format_count(len(paths), 'file')} to send, all accepted by `ladder validate`:"),
        *(f"  {name}" for name in names),
        "To send them as a pull request, in a fork of the repository:",
        f"  git switch -c results-{machine}-{submission.commit[:8]}",
        f"  git add {' '.join(names)}",
        f'  git commit -m "Results of {machine}"',
        f"  git push -u origin results-{machine}-{submission.commit[:8]}",
    ]
    click.echo("\n".join(lines))
    if problem:
        click.echo(name_program(f"{problem}; what is there can be sent all the same"))
    return 1 if problem else 0


def submit_fleet(fleet: slurm.Fleet) -> int:
    """Give a fleet to Slurm, print where its results come, and return the exit status: 2 if every partition refused.

    Raises:
        UserError: an option that `ladder run` does not take, or that a task sets: it would fail after its turn.
    """
    run = cast("click.Group", click.get_current_context().find_root().command).commands["run"]
    context = click.Context(run, info_name="ladder run")
    try:
        run.parse_args(context, [*fleet.arguments])
    except click.UsageError as error:
        raise UserError(f"behind --, options of `ladder run`: {error.format_message()}") from None
    for name in ("workload", "out", "resume"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UserError(f"behind --: --{name} is set by each task: leave it out")
    values, able = context.params, dict.fromkeys(needs.NEEDS)  # a node has what this machine may lack
    ladder, rungs = catalog.load_ladder(values["ladder"] or "article"), options.split_names(values["rungs"])
    modes.plan_run(values["mode"] or modes.CUMULATIVE, ladder, able, rungs)
    refuse_changes()
    jobs = slurm.submit(fleet)
    numbers = [job.number for job in jobs if job.number]
    for job in jobs:
        what = f"job {job.number}, {len(fleet.workloads)} tasks" if job.number else f"refused: {job.problem}"
        click.echo(f"{job.partition}: {what}", err=job.number is None)
    if numbers:
        click.echo(
            f"`squeue -j {','.join(numbers)}` shows them, {fleet.folder / 'logs'} has their logs; then:"
        )
        click.echo(name_program(f"  ladder report {shlex.quote(str(fleet.folder / 'results' / 'ladder'))}"))
    return 0 if len(numbers) == len(jobs) else 1 if numbers else 2


@click.command(
    epilog="""\b
Examples:
  ladder submit                  on an otherwise idle machine; once more after Ctrl-C, it goes on
  ladder submit --budget 40      tighter intervals
  ladder submit --slurm a100 --slurm h100 -w article -w article-b32 --sbatch=--gres=gpu:1 -- --budget 20
                                 two workloads on a node of each partition of a Slurm cluster"""
)
@click.option("--budget", metavar="MINUTES", type=options.FloatRange(2, 600),
              help="Time of this call: two fifths for `ladder run`, the rest for asv, which the next call"
              " continues. [default: 18; without a GPU `ladder run --quick`, then asv]")  # fmt: skip
@click.option("--slurm", "partitions", multiple=True, metavar="PARTITION",
              help="Measure a node of this partition instead of this machine; may be repeated."
              " docs/distributed.md")  # fmt: skip
@click.option("-w", "--workload", "workloads", multiple=True, metavar="NAME|FILE",
              help="With --slurm: a workload; may be repeated. [default: article]")  # fmt: skip
@click.option("--sbatch", "extra", multiple=True, metavar="OPTION",
              help="With --slurm: an option of sbatch's; may be repeated.")  # fmt: skip
@click.option("--out", type=options.FOLDER, metavar="DIR",
              help="With --slurm: the fleet's folder. [default: runs/fleet]")  # fmt: skip
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- OPTIONS OF ladder run]")
def submit(
    budget: float | None, partitions: tuple[str, ...], workloads: tuple[str, ...], extra: tuple[str, ...],
    out: Path | None, arguments: tuple[str, ...],
) -> None:  # fmt: skip
    """Measure this machine for others, and say how to send it.

    `ladder run` and `asv run` measure, and the files are checked. Nothing is sent. Without a GPU the workload is
    `tiny`, and without --budget its run is then a quick one and marked so. With --slurm, jobs of a cluster run the
    ladder, with the options behind --. Their results meet in one folder.

    Exit status: 0 if everything is measured. 1 if a rung has no number or is left for the next call. 2 if it is
    impossible here. 130 if interrupted.
    """
    if not partitions:
        options.refuse_idle("works only with --slurm PARTITION", "workloads", "extra", "out")
        if arguments:
            raise UserError("arguments behind -- work only with --slurm PARTITION")
        sys.exit(submit_machine(budget))
    if budget is not None:
        raise UserError(
            "--budget is for this machine: with --slurm give it to `ladder run`: -- --budget MINUTES"
        )
    folder = out or Path("runs/fleet")
    sys.exit(submit_fleet(slurm.Fleet(folder, partitions, workloads or ("article",), arguments, extra)))
