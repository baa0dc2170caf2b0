"""`ladder upstream --patched`: the stand-in's copy with our ops, compared and timed."""

import contextlib
import json
import shutil
import threading
from types import SimpleNamespace

import pytest

from ladder.core.protocol import IN_ORDER
from ladder.engine import forkserver, inspection
from ladder.engine.pool import Pool, WorkerFailure
from ladder.engine.rounds import Interleaved
from ladder.publish.export import drop_in, package
from ladder.publish.pages.__main__ import TABLES
from ladder.publish.pages.committed import Committed
from ladder.publish.validation import validate
from ladder.studies import frame
from ladder.studies.upstream import record, source, step, study
from ladder.studies.upstream.record import PATCHED, UPSTREAM
from ladder.studies.upstream.study import STUDY
from tests.studies.upstream import test_upstream
from tests.support import servers
from tests.support.commands import refused
from tests.support.drop_in_cases import ORIGIN

clone, kept, kept_servers = test_upstream.clone, test_upstream.kept, servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")


@pytest.fixture(scope="module", autouse=True)
def plain_ops():
    """No worker runs kernels in Triton's interpreter, where a step takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(forkserver.QUIET, "TRITON_INTERPRET", "0")
        yield


def run_patched(clone, folder, *more):
    return test_upstream.run_upstream(clone, folder, "--patched", "--no-inspect", "--rounds", 1, *more)


def read_only(folder):
    return json.loads(next((folder / "out").glob("*.json")).read_text())


def derive(data):
    return record.Figures(frame.decode_file(STUDY, data))


def read_files(folder):
    return {
        path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory, kept_servers, plain_ops):
    """The folder of a whole run, for tests that only read it. The clone stays as it was."""
    folder = tmp_path_factory.mktemp("patched")
    with test_upstream.standing_in(folder / "clone") as clone:
        before = read_files(clone)
        run = run_patched(clone, folder)
        assert run.exit_code == 0 and read_files(clone) == before, run.output
    return folder


@pytest.mark.slow
def test_the_patched_clone_is_compared_and_then_timed_beside_the_clone(finished):
    data = read_only(finished)
    programs = [*derive(data).programs.values()]
    assert [each.side for each in programs] == ["upstream", "patched", "ours"]
    assert all(len(each.rounds) == 1 and each.status == "ok" for each in programs)
    patched = STUDY.derive(frame.decode_file(STUDY, data))["patched"]
    assert patched["parity"]["verdict"] == "ok" and set(patched["parity"]["phases"]) == set(IN_ORDER)
    for errors in patched["parity"]["phases"].values():  # FP32's rounding, and not zero: FP64 is another run
        assert 1e-9 < errors.unpatched < 1e-5 and 1e-9 < errors.patched < 1e-5, errors
    assert [each.settings["fast_double_backward"] for each in programs[:2]] == [False, True]
    for each in programs[:2]:
        (visit,) = each.rounds
        assert visit.main_ms > 0 and set(visit.lazy_ms) <= {"G_pl", "D_r1"}
    assert patched["ratio"].median == pytest.approx(programs[0].step_ms / programs[1].step_ms)
    assert patched["gpu_ratio"] is None and patched["phases"] is None  # a CPU has no GPU time
    (path,) = (finished / "out").glob("*.json")
    assert validate.problem_of(path) is None and str(finished) not in path.read_text()
    page = path.with_suffix(".md").read_text()
    assert "the same, patched" in page and "| both main phases |" in page and "parity ok at batch 2" in page


@pytest.mark.slow
def test_a_patched_clone_that_was_timed_has_no_number_without_parity(finished):
    """The verdict on parity follows from a file's errors, by today's budget."""
    for change, words in (
        (lambda errors: errors["D_r1"].update(patched=0.5), "D_r1: error"),
        (lambda errors: errors.pop("G_pl"), "G_pl: not compared"),
    ):
        data = read_only(finished)
        change(data["observed"][record.ERRORS]["errors"])
        program = derive(data).programs[PATCHED]
        assert program.status == "failed: parity" and words in program.reason


@pytest.mark.slow
def test_a_contender_with_other_gradients_is_not_timed(clone, tmp_path, monkeypatch):
    """One small tensor's gradient is missing."""
    texts, right = drop_in.render_files(ORIGIN), "return torch.addcmul(c, a, b)"
    assert right in texts["ops/fma.py"]
    texts["ops/fma.py"] = texts["ops/fma.py"].replace(right, "return torch.addcmul(c.detach(), a, b)")
    monkeypatch.setattr(drop_in, "render_files", lambda _: texts)
    run = run_patched(clone, tmp_path, "--ladder", "article")
    assert run.exit_code == 1 and "failed: parity" in run.output, run.output
    assert "patched: G_main: error" in run.output
    result = derive(read_only(tmp_path))
    assert [len(each.rounds) for each in result.programs.values()] == [1, 0, 1]
    assert result.programs[PATCHED].status == "failed: parity" and result.derive_wall_ratio(PATCHED) is None


def test_gradients_are_compared_while_ours_is_proved_and_again_alone_if_memory_was_short(
    clone, tmp_path, monkeypatch
):
    begun, calls = threading.Event(), []

    def compare(session, sitting, together):
        calls.append(together)
        begun.set()
        if len(calls) == 1:
            raise WorkerFailure("oom", "out of memory")
        return record.Observed(batch=2)

    def inspect(*_):
        assert begun.wait(60)
        return {"inspection": {"error": None}, "parity": None, "receipts": {}}

    monkeypatch.setattr(study, "ROOM_GB", 0)
    monkeypatch.setattr(study, "compare_gradients", compare)
    monkeypatch.setattr(inspection, "inspect_worker", inspect)
    monkeypatch.setattr(Interleaved, "round", lambda *_: (each for each in ()))
    test_upstream.run_upstream(clone, tmp_path, "--patched")
    assert len(calls) == 2 and read_only(tmp_path)["observed"][record.ERRORS]["batch"] == 2


def test_a_clone_that_lacks_a_replaced_file_is_refused_before_anything_is_written(clone, tmp_path):
    replaced = [path for path in drop_in.render_files(ORIGIN) if path.count("/") == 1]
    assert len(replaced) > 3
    for path in replaced:
        text = (clone / "torch_utils" / path).read_text()
        (clone / "torch_utils" / path).unlink()
        run = run_patched(clone, tmp_path)
        assert run.exit_code == 2 and run.output.count("\n") == 1 and path in run.output, run.output
        (clone / "torch_utils" / path).write_text(text)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [(), ("--patched",)])
def test_a_clone_with_the_drop_in_files_in_it_is_not_measured_as_nvidias(clone, tmp_path, more):
    """Who follows docs/adopt.md may give the very clone that has the files already."""
    drop_in.export(package.read_origin(), tmp_path / "ops")
    shutil.copytree(tmp_path / "ops/torch_utils", clone / "torch_utils", dirs_exist_ok=True)
    line = refused("upstream", clone, "--device", "cpu", "--out", tmp_path / "out", *more)
    assert (
        "torch_utils/ops/bias_act.py comes from `ladder export`" in line
        and "git checkout torch_utils" in line
    )
    assert not (tmp_path / "out").exists()


def copy_patched(clone, folder):
    facts = record.Source(source.networks_of(clone), source.digest_of(clone))
    return study.copy_patched(study.Clone(clone, facts, drop_in.render_files(ORIGIN), ""), folder)


def test_the_copy_has_the_drop_in_files_and_else_the_clones(clone, tmp_path):
    (clone / "training" / "data.zip").write_bytes(b"x")
    theirs, copied = read_files(clone), read_files(copy_patched(clone, tmp_path / "copy"))
    changed = {path for path in copied if copied[path] != theirs.get(path)}
    assert {f"torch_utils/{path}" for path in drop_in.render_files(ORIGIN)} == {
        path.as_posix() for path in changed
    }
    assert theirs.keys() <= copied.keys()


@pytest.mark.slow
def test_gpu_times_reach_the_report(finished, tmp_path):
    """Stored as on a GPU: profiled cycles of a step, and the runs of each phase."""
    data = read_only(finished)
    observed, cases = data["observed"], data["cases"]
    for side, factor in ((UPSTREAM, 1.0), (PATCHED, 0.5), ("ours", 0.25)):
        cycle = {"gpu_ms": 40.0 * factor, "wall_ms": 99.0, "kernels": 9.0}
        observed["generation 1"]["programs"][side]["round"]["profiled"] = [cycle]
    for number in (1, 2):  # fewer generations are not quoted
        again = json.loads(json.dumps(observed["generation 1"]))
        for visit in again["programs"].values():
            visit["round"]["round"] = number
        observed[f"generation {number + 1}"] = again
        cases[f"generation {number + 1}"] = cases["generation 1"]
    times = {phase: {"gpu_ms": [30.0, 10.0, 20.0], "kernels": 5.0} for phase in IN_ORDER}
    patched = times | {"D_r1": {"gpu_ms": [4.0], "kernels": 5.0}}
    observed[record.PHASES] = {"phases": {UPSTREAM: times, PATCHED: patched}}
    cases[record.PHASES] = cases["generation 1"]
    file = frame.decode_file(STUDY, data)
    assert STUDY.derive(file)["patched"]["gpu_ratio"].median == pytest.approx(2)
    _, phases = STUDY.list_tables(file)
    rows = {row[0]: row for row in phases.rows}
    assert rows["D_r1"][3:6] == [20.0, 4.0, 5.0] and rows["G_main"][5] == 1.0
    assert rows["both main phases"][1] and rows["G_main"][1] is None
    (tmp_path / "results/upstream").mkdir(parents=True)
    (tmp_path / "results/upstream/m-least.json").write_text(json.dumps(data))
    shown = TABLES["upstream"](Committed(tmp_path), "m")
    assert "| 20.00 | 4.00 | 5.00x |" in shown and shown.count("\n|---") == 2


@pytest.mark.gpu
def test_a_gpu_has_the_same_gradients_and_tells_the_time_of_each_phase(clone, tmp_path):
    """The patched stand-in runs the fused ops, forward and through both derivatives."""
    study.add_package(tmp_path)
    copy = copy_patched(clone, tmp_path / "patched")
    job = SimpleNamespace(workload=test_upstream.WORKLOAD | {"data": None}, device="cuda")
    session = SimpleNamespace(job=job, report=print)
    with Pool(code=tmp_path) as workers:
        sitting = SimpleNamespace(clones={UPSTREAM: clone, PATCHED: copy}, theirs=workers)
        compared = study.compare_gradients(session, sitting, contextlib.nullcontext)
        times = study.examine_clone(session, workers, copy, step.TIMES)
    assert record.find_parity_problem(compared) is None and set(times) == set(IN_ORDER)
    assert all(len(each["gpu_ms"]) == step.REPEATS and each["kernels"] > 5 for each in times.values())
