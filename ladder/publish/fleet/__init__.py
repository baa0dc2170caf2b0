"""Runs of the ladder on many kinds of machines of a cluster, by Slurm's `sbatch`.

A fleet is a folder that all nodes see. Each partition gets one job array with a task for each workload. The tasks run
`job.sh`, a plain script. They know nothing of each other, so a node that fails holds nobody up. docs/distributed.md
shows the folder.
"""

from __future__ import annotations

import re
import shlex
import shutil
import string
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ladder.base import files
from ladder.base.errors import UserError, one_line
from ladder.base.paths import ROOT
from ladder.base.text import last_line, slug
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


def script(fleet: Fleet, root: Path = ROOT) -> str:
    """Return the script of a fleet's tasks.

    Raises:
        UserError: a workload is unknown, or two have the same name.
    """
    names, workloads = [], []
    for workload in fleet.workloads:
        name, _ = catalog.load_workload(workload)
        names.append(slug(name))
        workloads.append(
            str(Path(workload).resolve()) if Path(workload).suffix in (".yaml", ".yml") else workload
        )
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"two workloads are named {twice}: the tasks would share a folder")
    words = {
        "root": [str(root)],
        "fleet": [str(fleet.folder.resolve())],
        "python": [sys.executable],
        "names": names,
        "workloads": workloads,
        "arguments": fleet.arguments,
        "wait_s": [str(WAIT_S)],
    }
    filled = {key: shlex.join(value) for key, value in words.items()}
    return string.Template(SCRIPT.read_text(encoding="utf-8")).substitute(filled)


def submit(fleet: Fleet) -> list[Job]:
    """Write the script, and give it to `sbatch` once for each partition.

    Raises:
        UserError: there is no `sbatch`, a name is none, a workload is unknown, or the folder cannot be written.
    """
    if shutil.which("sbatch") is None:
        raise UserError(
            "--slurm: no sbatch on the PATH: call this on a machine that submits to a Slurm cluster"
        )
    for partition in fleet.partitions:
        if not PARTITION.fullmatch(partition):
            raise UserError(
                f"--slurm: {one_line(partition)!r} is no name of a partition (letters, digits, . _ -)"
            )
    text = script(fleet)
    files.write(fleet.folder / "job.sh", text)
    (fleet.folder / "logs").mkdir(exist_ok=True)
    return [_give(fleet, partition) for partition in dict.fromkeys(fleet.partitions)]


def _give(fleet: Fleet, partition: str) -> Job:
    """Give the script to `sbatch` for one partition. A partition that is refused holds no other up."""
    folder = fleet.folder.resolve()
    command: Sequence[str] = [
        "sbatch",
        "--parsable",
        f"--partition={partition}",
        f"--array=0-{len(fleet.workloads) - 1}",
        f"--output={_escaped(folder / 'logs')}/{partition}-%a.log",
        *fleet.options,
        str(folder / "job.sh"),
    ]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Job(partition, None, f"sbatch did not answer in {SECONDS} s")
    except OSError as error:
        return Job(partition, None, f"sbatch: {error.strerror}")
    if run.returncode:
        return Job(partition, None, last_line(run.stderr, "refused"))
    return Job(partition, run.stdout.strip().partition(";")[0])


def _escaped(path: Path) -> str:
    """Return a path for sbatch's --output, in which % begins a pattern."""
    return str(path).replace("%", "%%")
