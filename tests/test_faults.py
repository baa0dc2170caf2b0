"""Faults injected from outside into a run: no bad number published, no hang, no finished result lost.

`docs/faults.md` is the table of all faults; those of one module's own are tested beside it.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ladder import machine, record, report, validate
from ladder.errors import UserError
from tests import test_cli, test_measure
from tests.test_cli import call
from tests.test_measure import alive, by_name, run, stored, wait_for

ROOT = Path(__file__).resolve().parent.parent
fakes = test_cli.fakes


def the_file(out: Path) -> Path:
    (path,) = out.glob("*/*.json")
    return path


# --- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ({"fault": "cuda"}, "failed", "CUDA error: an illegal memory access"),
        ({"fault": "memory", "at": "build"}, "oom", "out of memory in build"),
        ({"fault": "memory"}, "oom", "out of memory in visit, at most 0."),
        ({"fault": "garbage"}, "failed", "something else wrote between"),
        ({"fault": "clock", "ticks": ["0"]}, "invalid", "a step of 0.0 s"),
        ({"fault": "clock", "ticks": ["0", "16"]}, "invalid", "a step of -1.0 s"),
        ({"fault": "clock", "ticks": ["inf", "0"]}, "invalid", "a step of inf s"),
        ({"fault": "clock", "ticks": ["nan"]}, "invalid", "a step of nan s"),
    ],
)
def test_a_rung_that_goes_wrong_has_a_reason_and_no_number(
    tmp_path: Path, fault: dict[str, Any], status: str, says: str
) -> None:
    rungs = by_name(run(tmp_path, {"before": {}, "wrong": fault, "after": {}}, rounds=2))
    assert rungs["wrong"]["status"] == status and says in rungs["wrong"]["reason"]
    assert rungs["wrong"]["step_ms"] is None and rungs["wrong"]["samples_ms"] == []
    assert len(rungs["before"]["rounds"]) == len(rungs["after"]["rounds"]) == 2  # in other processes
    assert stored(tmp_path)["complete"]


@pytest.mark.parametrize("where", ["build", "prepare"])
def test_a_hang_before_the_timing_is_ended_too(tmp_path: Path, where: str) -> None:
    hang = {"fault": "hang", "at": where, "pids": str(tmp_path / "pids")}
    rungs = by_name(run(tmp_path / "out", {"fine": {}, "hung": hang}, timeouts={where: 1.0}))
    assert rungs["hung"]["status"] == "failed" and f"{where}: no sign of life" in rungs["hung"]["reason"]
    assert rungs["fine"]["status"] == "ok"
    assert not any(alive(pid) for pid in json.loads((tmp_path / "pids").read_text()))


def test_a_worker_killed_from_outside_costs_its_rung_alone_and_resume_makes_up_for_it(tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "out"

    def kill() -> None:
        wait_for(lambda: pids.exists() and pids.read_text().endswith("]"))
        os.kill(json.loads(pids.read_text())[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    rungs: dict[str, dict | None] = {"fine": {}, "victim": {"fault": "hang", "pids": str(pids)}}
    before = by_name(run(out, rungs, rounds=2))
    killer.join()
    assert before["victim"]["status"] == "failed" and "killed by SIGKILL" in before["victim"]["reason"]
    wait_for(lambda: not alive(json.loads(pids.read_text())[1]))  # nor does its data loader outlive it
    after = run(out, {**rungs, "victim": {}}, rounds=2, resume=the_file(out))
    assert by_name(after)["fine"]["rounds"] == before["fine"]["rounds"] and len(before["fine"]["rounds"]) == 2
    assert by_name(after)["victim"]["status"] == "ok" and after["complete"]


def test_names_that_a_file_spells_otherwise_do_not_hinder_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cpu_name", lambda: "Genuine® [CPU] 50%")
    monkeypatch.setattr(test_measure.Ladder, "title", "Mine & yours; <all>!")
    run(tmp_path, {"a": {}})
    assert stored(tmp_path)["machine"]["cpu"] == "Genuine- (CPU) 50 percent"
    assert run(tmp_path, {"a": {}}, rounds=2, resume=the_file(tmp_path))["complete"]


# --- the whole run --------------------------------------------------------------------------------------------------


def another_process(program: str) -> subprocess.Popen:
    """A Python process that has `run` and `results`."""
    begin = f"import os, signal, sys\nfrom pathlib import Path\nsys.path.insert(0, {str(ROOT)!r})\n"
    begin += "from ladder import results\nfrom tests.test_measure import run\n"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", begin + program], cwd=ROOT, text=True, **pipes)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A run in another process whose first rung is finished and whose second hangs, and its folder."""
    pids, out = tmp_path / "pids", tmp_path / "out"
    rungs = {"quick": {}, "hang": {"fault": "hang", "pids": str(pids)}}
    seed = test_measure.seed_with_first("quick")
    process = another_process(f"run(Path({str(out)!r}), {rungs!r}, seed={seed})")
    wait_for(lambda: pids.exists() and pids.read_text().endswith("]"), process)
    yield process, out
    process.kill()
    process.communicate()
    wait_for(lambda: not any(alive(pid) for pid in json.loads(pids.read_text())))


def test_a_run_killed_outright_leaves_a_whole_file_and_a_folder_that_is_free(hanging: Any) -> None:
    process, out = hanging
    process.kill()
    process.communicate()
    result = stored(out)
    assert not result["complete"] and by_name(result)["quick"]["step_ms"] > 0
    seed = result["protocol"]["seed"]
    after = run(
        out, {"quick": {}, "hang": {}}, seed=seed, resume=the_file(out)
    )  # nobody holds the lock any more
    assert after["complete"] and by_name(after)["hang"]["status"] == "ok"
    assert by_name(after)["quick"]["rounds"] == by_name(result)["quick"]["rounds"]


def test_a_second_run_into_the_same_folder_is_refused_and_disturbs_nothing(hanging: Any) -> None:
    process, out = hanging
    before = the_file(out).read_bytes()
    with pytest.raises(UserError, match="another run is writing here"):
        run(out, {"quick": {}})
    assert the_file(out).read_bytes() == before and process.poll() is None


def test_sigterm_to_a_run_leaves_a_whole_and_marked_result(hanging: Any) -> None:
    process, out = hanging
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    result = stored(out)
    assert process.returncode == 0 and not result["complete"]
    assert "interrupted: what was finished is kept" in result["protocol"]["notes"]
    assert list(out.rglob("*.tmp")) == list(out.rglob(".lock")) == []


def test_nothing_measured_is_a_failure(tmp_path: Path, fakes: dict[str, Any]) -> None:
    fakes["baseline"] = {"fault": "raise"}
    arguments = ("--workload", "tiny", "--rungs", "baseline", "--rounds", 1, "--cycles", 1, "--quick")
    assert call("run", *arguments, "--out", tmp_path).exit_code == 1
    assert call("validate", the_file(tmp_path)).exit_code == 1
    assert call("run", "--rungs", "cuda_graphs", "--out", tmp_path / "none").exit_code == 2
    assert not (tmp_path / "none").exists()


def test_a_dirty_work_tree_is_marked_wherever_the_result_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "commit_of", lambda root: ("0123456789" * 4, True))
    result = run(tmp_path, {"a": {}})
    assert result["dirty"] is True and stored(tmp_path)["dirty"] is True
    result["workload"] |= {"resolution": 32}
    assert "with changes" in report.markdown(result)


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB. Only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no tmpfs can be mounted here: {error}")
    if made.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take all the space that is left."""
    path = folder / "ballast"
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path


def test_a_disk_that_fills_up_costs_nothing_that_was_finished(small_disk: Path) -> None:
    kept: list[bytes] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "visited" and not kept:
            kept.append(the_file(small_disk).read_bytes())
            fill(small_disk)

    with pytest.raises(UserError, match="No space left on device"):
        run(small_disk, {"a": {}, "b": {}}, rounds=2, on_event=on_event)
    path = the_file(small_disk)
    assert path.read_bytes() == kept[0] and list(small_disk.rglob("*.tmp")) == []
    assert (
        sum(len(rung["rounds"]) for rung in [*stored(small_disk)["rungs"], *stored(small_disk)["twins"]]) == 1
    )
    (small_disk / "ballast").unlink()
    assert run(small_disk, {"a": {}, "b": {}}, rounds=2, resume=path)["complete"]


@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_a_write_torn_by_a_kill_leaves_the_old_file_whole(tmp_path: Path, where: str) -> None:
    run(tmp_path, {"a": {}})
    path = the_file(tmp_path)
    before = path.read_bytes()
    torn = another_process(
        f"path = Path({str(path)!r})\nresult = results.load(path)\n"
        f"os.{where} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "results.write(path, result | {'complete': False})"
    )
    torn.communicate()
    assert torn.returncode == -signal.SIGKILL
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 2  # what it left is hidden
    found, refused = report.collect([tmp_path])
    assert found == [json.loads(before)] and refused == []
    assert [each.path for each in validate.validate([tmp_path])] == [str(path)]
    assert run(tmp_path, {"a": {}}, rounds=2, resume=path)["complete"]


def test_truncated_and_duplicate_results_are_kept_out_with_a_status(tmp_path: Path) -> None:
    whole = ROOT / "tests" / "data" / "article-article-20261121T015325Z.json"
    (tmp_path / "whole.json").write_bytes(whole.read_bytes())
    (tmp_path / "twice.json").write_bytes(whole.read_bytes())
    (tmp_path / "short.json").write_bytes(whole.read_bytes()[:20_000])
    seen = call("report", tmp_path)
    assert (
        seen.exit_code == 1 and "short.json" in seen.stderr and seen.stdout.count("rungs on NVIDIA H200") == 1
    )
    judged = {Path(each.path).name: each.problem for each in validate.validate([tmp_path])}
    assert judged["twice.json"] is None and "the same measurement as" in judged["whole.json"]
    assert "not a result file" in judged["short.json"]


# --- the table ------------------------------------------------------------------------------------------------------


def test_every_test_that_the_table_names_is_there() -> None:
    table = (ROOT / "docs" / "faults.md").read_text()
    named = re.findall(r"`(test_\w+)\.py` (\w+)", table)
    assert len(named) >= 20
    for module, test in named:
        source = (ROOT / "tests" / f"{module}.py").read_text()
        assert f"def test_{test}(" in source, f"tests/{module}.py has no test_{test}"
