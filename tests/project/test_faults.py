"""Faults injected from outside into a run: no bad number published, no hang, no finished result lost.

`docs/proof.md` lists them; those of one module are tested beside it.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.engine.pool import Worker
from ladder.machine import stillness
from ladder.report import tables
from ladder.results import loading, record
from ladder.results.loading import find_problem
from tests.support import commands
from tests.support.commands import call
from tests.support.fake_runs import alive, be_impatient, by_name, run, stored, wait_for
from tests.support.typed import Reading

tables = Reading(tables)
ROOT = Path(__file__).resolve().parents[2]
fakes = commands.fakes


@pytest.fixture(autouse=True, scope="module")
def without_quiet() -> Iterator[None]:
    """Fake steps need no quiet between visits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stillness, "wait_until_still", lambda group: 0.0)
        yield


def the_file(out: Path) -> Path:
    (path,) = out.glob("*/*.json")
    return path


# --- workers --------------------------------------------------------------------------------------------------------


TIME = "zero, negative or infinite time"
WRONG = {  # how it is injected: the fault, the recipe that plants it, the status, what the reason says
    "SIGKILL to itself in a cycle": ("worker killed", {"fault": "kill"}, "failed", "killed by SIGKILL"),
    "sys.exit while preparing": (
        "worker ends by itself",
        {"fault": "exit", "at": "prepare"},
        "failed",
        "ended with status 1: no licence",
    ),
    "CUDA's error in a cycle": ("out of memory", {"fault": "oom"}, "oom", "out of memory in visit, at most"),
    "a real MemoryError in build": (
        "out of memory",
        {"fault": "memory", "at": "build"},
        "oom",
        "out of memory in build",
    ),
    "a real MemoryError in a cycle": (
        "out of memory",
        {"fault": "memory"},
        "oom",
        "memory in visit, at most 0.",
    ),
    "the step reports a NaN gradient after the timing": (
        "NaN or Inf in a loss or gradient",
        {"fault": "nan"},
        "invalid",
        "gradient of D.b4.conv.weight is NaN",
    ),
    "an illegal access is raised": (
        "CUDA error",
        {"fault": "cuda"},
        "failed",
        "CUDA error: an illegal memory access",
    ),
    "bytes on every open pipe": (
        "writes into the protocol",
        {"fault": "garbage"},
        "failed",
        "something else wrote between",
    ),
    # The cycle that drains the loader replaces the clock.
    "a clock that stands still": (
        TIME,
        {"fault": "clock", "ticks": "0", "capacity": 1},
        "invalid",
        "a step of 0.0 s",
    ),
    "a clock that runs backwards": (
        TIME,
        {"fault": "clock", "ticks": "16 0", "capacity": 1},
        "invalid",
        "a step of -1.0 s",
    ),
    "a clock that jumps to infinity": (
        TIME,
        {"fault": "clock", "ticks": "0 inf", "capacity": 1},
        "invalid",
        "a step of inf s",
    ),
    "a clock that says NaN": (
        TIME,
        {"fault": "clock", "ticks": "nan", "capacity": 1},
        "invalid",
        "a step of nan s",
    ),
    "a clock of the measured code that goes at half speed": (
        TIME,
        {"fault": "half", "capacity": 1},
        "invalid",
        "the measured code replaced time.perf_counter",
    ),
}


@pytest.fixture(scope="module")
def all_wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The rungs of one run in which every one but the first and the last goes wrong."""
    out = tmp_path_factory.mktemp("wrong")
    recipes = {f"wrong_{number}": recipe for number, (_, recipe, *_) in enumerate(WRONG.values())}
    rungs = by_name(run(out, {"before": {}, **recipes, "after": {}}, rounds=2))
    assert stored(out)["complete"]
    return rungs


@pytest.mark.parametrize("injected", WRONG)
def test_a_rung_that_goes_wrong_has_a_reason_and_no_number(
    all_wrong: dict[str, dict[str, Any]], injected: str, outcome: Any
) -> None:
    fault, _, status, says = WRONG[injected]
    wrong = all_wrong[f"wrong_{[*WRONG].index(injected)}"]
    assert wrong["status"] == status and says in wrong["reason"]
    assert wrong["step_ms"] is None and wrong["samples_ms"] == []
    kept = [len(all_wrong[name]["rounds"]) for name in ("before", "after")]  # in other processes
    assert kept == [2, 2]
    outcome(fault=fault, injected=injected, outcome=wrong, kept=kept == [2, 2])


@pytest.mark.parametrize("where", ["build", "prepare", "cycle"])
def test_a_hang_is_ended_by_the_watchdog(
    tmp_path: Path, where: str, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hang = {"fault": "hang", "at": where, "pids": str(tmp_path / "pids")}
    did = "visit" if where == "cycle" else where
    be_impatient(monkeypatch, "hung", **{where: 1.0})
    rungs = by_name(run(tmp_path / "out", {"fine": {}, "hung": hang}))
    assert rungs["hung"]["status"] == "failed" and f"{did}: no sign of life" in rungs["hung"]["reason"]
    assert rungs["fine"]["status"] == "ok"
    wait_for(lambda: not any(alive(pid) for pid in json.loads((tmp_path / "pids").read_text())))
    said = f"sleeps for ever in {where}, with a child process"
    outcome(fault="hang", injected=said, outcome=rungs["hung"], kept=rungs["fine"]["step_ms"] is not None)


def test_a_worker_killed_from_outside_costs_its_rung_alone_and_resume_makes_up_for_it(
    tmp_path: Path, outcome: Any
) -> None:
    pids, out, killed = tmp_path / "pids", tmp_path / "out", []

    def kill() -> None:
        """Kill it beside the others, and again when it is tried alone."""
        for _ in range(2):
            wait_for(lambda: pids.exists() and pids.read_text().endswith("]"))
            killed.extend(json.loads(pids.read_text()))
            pids.unlink()
            os.kill(killed[-2], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    rungs: dict[str, dict | None] = {"fine": {}, "victim": {"fault": "hang", "pids": str(pids)}}
    before = by_name(run(out, rungs, rounds=2))
    killer.join()
    assert before["victim"]["status"] == "failed" and "killed by SIGKILL" in before["victim"]["reason"]
    assert len(killed) == 4
    wait_for(lambda: not any(map(alive, killed)))  # nor does its data loader outlive it
    after = run(out, {**rungs, "victim": {}}, rounds=2, resume=the_file(out))
    assert by_name(after)["fine"]["rounds"] == before["fine"]["rounds"] and len(before["fine"]["rounds"]) == 2
    assert by_name(after)["victim"]["status"] == "ok" and after["complete"]
    same = by_name(after)["fine"]["rounds"] == before["fine"]["rounds"]
    outcome(
        fault="worker killed", injected="SIGKILL from outside in a cycle", outcome=before["victim"], kept=same
    )


def test_an_outlying_process_is_kept_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    real, timed, stoppers = Worker.call, [], []

    def stop(pid: int) -> None:
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            time.sleep(0.05 if sign == signal.SIGSTOP else 1.0)
            os.kill(pid, sign)

    def call(worker: Any, do: str, **fields: Any) -> dict[str, Any]:
        if do == "build":
            worker.named = fields["recipe"]["name"]
        if do == "cycle" and worker.named == "slow_once":
            timed.append(worker.pid)
            if len(timed) == 2:
                stoppers.append(threading.Thread(target=stop, args=[worker.pid]))
                stoppers[0].start()
        return real(worker, do, **fields)

    monkeypatch.setattr(Worker, "call", call)
    rungs: dict[str, dict | None] = {"first": {}, "slow_once": {"sleep": 0.3}}
    assert run(tmp_path / "out", rungs, rounds=5)["complete"]
    stoppers[0].join()
    rung = by_name(stored(tmp_path / "out"))["slow_once"]
    slow = [sample for sample in rung["samples_ms"] if sample > 50]
    assert len(slow) == 1 and len(rung["samples_ms"]) == 5 and rung["status"] == "ok"
    assert rung["step_ms"] < 50 and rung["interval_ms"][1] > 2 * rung["step_ms"]  # it is not hidden
    said = (
        f"{rung['status']}: {len(rung['samples_ms'])} of 5 rounds kept, {len(slow)} outlying, a wide interval"
    )
    injected = "a process that is stopped for a second while it is timed"
    outcome(fault="outlying process", injected=injected, outcome=said, number=True, kept=True)


# --- the whole run --------------------------------------------------------------------------------------------------


def another_process(program: str) -> subprocess.Popen:
    """A Python process that has `run` and `results`."""
    begin = f"import os, signal, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT)!r})\n"
    begin += "from ladder.results import store as results\nfrom tests.support.fake_runs import run\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", begin + program], cwd=ROOT, text=True, **pipes)


def hangs(folder: Path) -> dict[str, Any]:
    """The recipe of a rung that hangs while it is prepared, but for the first time."""
    return {"fault": "hang", "at": "prepare", "pids": str(folder / "pids"), "once": str(folder / "once")}


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A run in another process whose first generation is finished and whose second hangs, and its folder."""
    pids, out = tmp_path / "pids", tmp_path / "out"
    rungs = {"quick": {}, "hang": hangs(tmp_path)}
    process = another_process(f"run(Path({str(out)!r}), {rungs!r}, rounds=2)")
    wait_for(lambda: pids.exists() and pids.read_text().endswith("]"), process)
    yield process, out
    process.kill()
    process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in json.loads(pids.read_text())))


def test_a_run_killed_outright_leaves_a_whole_file_and_a_folder_that_is_free(
    hanging: Any, tmp_path: Path, outcome: Any
) -> None:
    process, out = hanging
    process.kill()
    process.communicate()
    result = stored(out)
    assert not result["complete"] and by_name(result)["quick"]["step_ms"] > 0
    (tmp_path / "once").unlink()
    rungs = {"quick": {}, "hang": hangs(tmp_path)}
    after = run(out, rungs, rounds=2, resume=the_file(out))  # nobody holds the lock any more
    assert after["complete"] and len(by_name(after)["hang"]["rounds"]) == 2
    kept = by_name(after)["quick"]["rounds"][:1] == by_name(result)["quick"]["rounds"]
    assert kept
    said = "a whole file, complete: no, and resumed to complete: yes"
    injected = "SIGKILL to the orchestrator in a generation"
    outcome(fault="run killed outright", injected=injected, outcome=said, number=False, kept=kept)


def test_a_second_run_into_the_same_folder_is_refused_and_disturbs_nothing(
    hanging: Any, outcome: Any
) -> None:
    process, out = hanging
    before = the_file(out).read_bytes()
    with pytest.raises(UserError, match="another run is writing here") as refusal:
        run(out, {"quick": {}})
    kept = the_file(out).read_bytes() == before and process.poll() is None
    assert kept
    said = f"refused: {str(refusal.value).partition(': ')[2].partition(';')[0]}"
    injected = "a second run while the first is in it"
    outcome(fault="two runs into one folder", injected=injected, outcome=said, number=False, kept=kept)


def test_sigterm_to_a_run_leaves_a_whole_and_marked_result(hanging: Any, outcome: Any) -> None:
    process, out = hanging
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    result = stored(out)
    assert process.returncode == 0 and not result["complete"]
    assert "interrupted: whole generations are kept" in result["protocol"]["notes"]
    assert list(out.rglob("*.tmp")) == list(out.rglob(".lock")) == []
    assert [(len(rung["rounds"]), rung["step_ms"] > 0) for rung in result["rungs"]] == [(1, True)] * 2
    said = f"a whole file, complete: no; {result['protocol']['notes'][-1]}"
    outcome(
        fault="SIGTERM", injected="to the orchestrator in a generation", outcome=said, number=False, kept=True
    )


def test_nothing_measured_is_a_failure(
    tmp_path: Path, fakes: dict[str, Any], outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes["baseline"] = {"fault": "raise"}
    arguments = ("--workload", "tiny", "--rungs", "baseline", "--rounds", 1, "--cycles", 1, "--quick")
    failed = call("run", *arguments, "--out", tmp_path).exit_code
    assert failed == 1
    monkeypatch.setattr(loading, "find_problem", find_problem)  # the fixture's has no objections
    path = the_file(tmp_path)
    path.write_text(path.read_text().replace('"fault": "raise"', ""))
    judged = call("validate", path)
    assert judged.exit_code == 1 and "complete, but nothing was measured" in judged.stdout
    refused = call("run", "--rungs", "cuda_graphs", "--out", tmp_path / "none").exit_code
    assert refused == 2 and not (tmp_path / "none").exists()
    nothing = {"fault": "nothing measured", "number": False}
    said = f"exit status {failed}, and the file is refused by ladder validate"
    outcome(injected="the only rung raises", outcome=said, **nothing)
    outcome(injected="no rung can run here", outcome=f"exit status {refused}, and no file", **nothing)


def test_a_dirty_work_tree_is_marked_wherever_the_result_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> None:
    monkeypatch.setattr(record, "commit_of", lambda root: ("0123456789" * 4, True))
    result = run(tmp_path, {"a": {}})
    assert result["dirty"] is True and stored(tmp_path)["dirty"] is True
    result["workload"] |= {"resolution": 32}
    assert "with changes" in tables.markdown(result)
    said = f"dirty: {str(stored(tmp_path)['dirty']).lower()} in the file, with changes beside the commit"
    outcome(fault="dirty work tree", injected="git reports changes of the code", outcome=said)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an earlier run, for tests to copy."""
    out = tmp_path_factory.mktemp("earlier")
    run(out, {"a": {}, "b": {}}, rounds=2, quick=False)
    return out


@pytest.mark.parametrize("changed", ["torch", "cuda", "driver"])
def test_other_software_is_another_series(earlier: Path, tmp_path: Path, changed: str, outcome: Any) -> None:
    rungs: dict[str, dict | None] = {"a": {}, "b": {}}
    shutil.copytree(earlier, tmp_path, dirs_exist_ok=True)
    path = the_file(tmp_path)
    old = json.loads(path.read_text())
    old["machine"][changed] = "1.0"
    path.write_text(json.dumps(old))
    before = path.read_bytes()
    with pytest.raises(UserError, match=rf"machine\.{changed}: 1\.0 and ") as refusal:
        run(tmp_path, rungs, rounds=3, resume=path)
    assert path.read_bytes() == before
    said = (
        "resuming is refused: "
        + str(refusal.value).partition("another measurement: ")[2].partition(" and ")[0]
    )
    said += " there"
    injected = f"an earlier result was made with {changed} 1.0"
    outcome(fault="torch or CUDA upgrade", injected=injected, outcome=said, kept=path.read_bytes() == before)
