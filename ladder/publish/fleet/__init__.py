"""Runs of the ladder on many kinds of machines of a cluster, by Slurm's `sbatch`.

A fleet is a folder that all nodes see. Each partition gets one job array with a task for each workload. The tasks run
`job.sh`. They know nothing of each other, so a node that fails holds nobody up. docs/distributed.md
shows the folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import string
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ladder.core import files
from ladder.core.errors import UserError, one_line
from ladder.core.paths import ROOT
from ladder.core.text import last_line, make_slug
from ladder.plan import catalog

SCRIPT = Path(__file__).with_name("job.sh")
PARTITION = re.compile(r"[\w][\w.-]*")
SECONDS = 60  # until `sbatch` must have answered
WAIT_S = 120  # for the lock of a task: a network file system releases that of a dead node late


@dataclass(frozen=True)
class Fleet:
    """The workloads to run, the partitions to run them on, and the folder of the results."""

    folder: Path  # seen by all nodes
    partitions: tuple[str, ...]
    workloads: tuple[str, ...]  # presets or YAML files
    arguments: tuple[str, ...] = ()  # more options of `ladder run`
    options: tuple[str, ...] = ()  # more options of `sbatch`


@dataclass(frozen=True)
class Job:
    """The answer of `sbatch` for one partition: the number of the job, or one line why there is none."""

    partition: str
    number: str | None
    problem: str | None = None


def write_script(fleet: Fleet) -> None:
    """Write the script of a fleet's tasks into its folder.

    Raises:
        UserError: a workload is unknown, two have the same name, or the folder cannot be written.
    """
    names = [make_slug(catalog.load_workload(workload)[0]) for workload in fleet.workloads]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two workloads are named {twice}: the tasks would share a folder")
    paths = [
        each if Path(each).suffix not in (".yaml", ".yml") else str(Path(each).resolve())
        for each in fleet.workloads
    ]
    words = {
        "root": [str(ROOT)], "fleet": [str(fleet.folder.resolve())], "python": [sys.executable], "names": names,
        "workloads": paths, "arguments": fleet.arguments, "wait_s": [str(WAIT_S)],
    }  # fmt: skip
    template = string.Template(SCRIPT.read_text(encoding="utf-8"))
    script = template.substitute({key: shlex.join(value) for key, value in words.items()})
    files.write_file(fleet.folder / "job.sh", script)
    (fleet.folder / "logs").mkdir(exist_ok=True)


def submit(fleet: Fleet) -> list[Job]:
    """Write the script, and give it to `sbatch` once for each partition. One that is refused holds no other up.

    Raises:
        UserError: there is no `sbatch`, a name is none, a workload is unknown, or the folder cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise UserError("--slurm: no sbatch on the PATH: a machine that submits to a Slurm cluster has it")
    for name in fleet.partitions:
        if not PARTITION.fullmatch(name):
            raise UserError(f"--slurm: {one_line(name)!r} is no name of a partition (letters, digits, . _ -)")
    write_script(fleet)
    folder, jobs = fleet.folder.resolve(), []
    logs = str(folder / "logs").replace("%", "%%")  # % begins a pattern
    for partition in dict.fromkeys(fleet.partitions):
        command = [
            "sbatch",
            "--parsable",
            f"--partition={partition}",
            f"--array=0-{len(fleet.workloads) - 1}",
        ]
        command += [f"--output={logs}/{partition}-%a.log", *fleet.options, str(folder / "job.sh")]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
            )
        except subprocess.TimeoutExpired:
            jobs.append(Job(partition, None, f"sbatch did not answer in {SECONDS} s"))
            continue
        if run.returncode:
            jobs.append(Job(partition, None, last_line(run.stderr, "refused")))
        else:
            jobs.append(Job(partition, run.stdout.strip().partition(";")[0]))
    return jobs
