"""A fleet on a real Slurm cluster of one node, which is started for this test in a temporary folder."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ladder.cli import submission
from ladder.publish import fleet

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
NEEDED = "needs slurm-wlm and munge"
LEAST = "resolution: 8\nchannel_base: 64\nchannel_max: 8\nz_dim: 8\nw_dim: 8\nmapping_layers: 2\nbatch: 4\n"
CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=here Nodes={host} MaxTime=INFINITE State=UP
"""


def free_ports() -> list[int]:
    """Return two ports that nobody listens on."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in (one, two)]


def wait_for(what: str, done: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, what
        time.sleep(0.2)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster of this machine, with a user's rights and without cgroups; it ends with the test."""
    missing = [
        name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None
    ]
    if missing:
        pytest.skip(f"{NEEDED}: no {', '.join(missing)}")
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin")
    folder = tmp_path_factory.mktemp("s")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    conf = CONF.format(
        folder=folder, host=host, user=getpass.getuser(), munge=folder / "m", ports=free_ports()
    )
    (folder / "slurm.conf").write_text(conf)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munge = ["munged", "-F", "-f", f"--key-file={key}", f"--socket={folder / 'm'}", "--num-threads=1"]
    munge += [f"--{name}-file={folder / name}" for name in ("pid", "seed")] + [
        "--log-file",
        str(folder / "munge.log"),
    ]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D"]):
            log = (folder / f"{command[0]}.out").open("wb")
            started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            time.sleep(0.5)
        end = time.monotonic() + 20
        while (
            "idle" not in subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True).stdout
        ):
            if time.monotonic() > end or any(each.poll() is not None for each in started):
                words = (path.read_text(errors="replace").strip() for path in folder.glob("*.out"))
                pytest.skip(f"Slurm does not start here: {' '.join(words)[-300:]}")
            time.sleep(0.2)
        yield
    finally:
        subprocess.run(["scancel", "--user", getpass.getuser()], capture_output=True)
        for each in reversed(started):
            each.terminate()
            each.wait(120)


def climbing(folder: Path) -> list[int]:
    """Return the processes of `ladder run` of a fleet's task."""
    found = subprocess.run(["pgrep", "-f", f"ladder run .*{folder}"], capture_output=True, text=True).stdout
    return [int(each) for each in found.split()]


def queued() -> str:
    """Return the state of each job that Slurm has."""
    return subprocess.run(["squeue", "-h", "-o", "%T"], capture_output=True, text=True).stdout.strip()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_cancelled_run_does_not_come_back(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "refuse_changes", lambda: "0" * 40)
    workload, out = tmp_path / "least.yaml", tmp_path / "fleet"
    workload.write_text(LEAST)
    asked = ("--rungs", "baseline", "--rounds", "3", "--cycles", "1", "--device", "cpu")
    asked_of_slurm = ("--gres=none", "--oversubscribe", "--cpus-per-task=1")
    (job,) = fleet.submit(fleet.Fleet(out, ("here",), (str(workload),), asked, asked_of_slurm))
    assert job.number, job.problem
    wait_for("the run", lambda: climbing(out / "tasks"))
    subprocess.run(["scancel", job.number], check=True)
    wait_for("its end", lambda: queued() not in ("RUNNING", "COMPLETING"))
    assert queued() == ""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_killed_run_is_requeued_and_goes_on_and_a_failing_one_holds_nobody_up(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "refuse_changes", lambda: "0" * 40)
    workloads = tuple(str(tmp_path / f"{name}.yaml") for name in ("least", "gone"))
    for path in workloads:
        Path(path).write_text(LEAST)
    out = tmp_path / "fleet"
    asked = ("--rungs", "baseline,channels_last", "--rounds", "3", "--cycles", "1", "--device", "cpu")
    asked_of_slurm = ("--gres=none", "--oversubscribe", "--cpus-per-task=1")
    (job,) = fleet.submit(fleet.Fleet(out, ("here",), workloads, asked, asked_of_slurm))
    assert job.number, job.problem
    Path(workloads[1]).unlink()  # its task fails
    log, own = out / "logs" / "here-0.log", out / "tasks" / "here" / "least"
    wait_for("a whole generation", lambda: log.is_file() and "after 1 generation" in log.read_text().lower())
    (path,) = own.glob("*/*.json")
    before = json.loads(path.read_text())["rungs"][0]["rounds"]
    for pid in climbing(own):
        os.kill(pid, signal.SIGKILL)
    wait_for("a requeued task", lambda: "requeued" in log.read_text())
    state = ["squeue", "-h", "-t", "PENDING", "-o", "%i"]
    wait_for(
        "its turn", lambda: f"{job.number}_0" in subprocess.run(state, capture_output=True, text=True).stdout
    )
    time.sleep(3)  # a node takes no job whose earlier start it gave up in the same second
    now = ["scontrol", "update", f"job={job.number}_0", "StartTime=now"]  # Slurm itself waits two minutes
    subprocess.run(now, check=True)
    wait_for("the result", lambda: [*(out / "results").rglob("*.json")])
    (shared,) = (out / "results").rglob("*.json")
    result = json.loads(shared.read_text())
    assert result["complete"] and shared.name == path.name, log.read_text()
    assert result["rungs"][0]["rounds"][: len(before)] == before and len(result["rungs"][0]["rounds"]) == 3
    assert "gone.yaml" in (out / "logs" / "here-1.log").read_text()
