"""The self-test on a device, without one: waits by made-up clocks, planted code in real workers, judged as on a GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ladder import doctor, gpustate, machine, planting, selftest, selftest_gpu, spin, verdicts
from ladder.errors import UserError
from ladder.selftest_gpu import Group, SelfTest
from ladder.selftest_judging import judge, markdown, text
from ladder.selftest_rounds import Program, Visitor, most_ahead
from stylegan_lite.config import Recipe, Workload
from tests.fake_nvml import UUID, FakeNvml
from tests.small import SMALL
from tests.test_cli import call, refused

ROOT = Path(__file__).resolve().parent.parent
FACTS = machine.facts("cpu")

# A step of a millisecond on a clock of its own, so that no load on this machine changes what comes out. Whoever waits
# for it turns it: each look is a tenth of a microsecond.
CLOCKWORK = """
import random
import time

CONTRACT = 1
now = 0.0


def look():
    global now
    now += 1e-7
    return now


def make_step(workload, recipe, *, device=None, seed=0):
    time.perf_counter = look
    return Step(recipe)


class Step:
    data_capacity = 0

    def __init__(self, recipe):
        self.recipe, self.ms = recipe, 1 + random.gauss(0, 1e-4)

    def prepare(self):
        return {}

    def cycle(self, lazy=True):
        for _ in range(16):
            for phase in ("G_main", "D_main"):
                self.run_phase(phase)

    def run_phase(self, phase):
        global now
        now += self.ms / 2000

    def check_finite(self):
        return self.recipe.get("broken")

    def settings(self):
        return {"tf32": False}

    def close(self):
        pass
"""
GROUP = Group("captured", "clockwork", {}, {"a": 1}, 4, (0.005, 0.01, 0.1), (0.01, 0.1), "cpu")


@pytest.fixture
def clockwork(tmp_path: Path) -> Path:
    package = tmp_path / "clockwork" / "stylegan_lite"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLOCKWORK)
    return package.parent


def selftest_of(tmp_path: Path, source: Path, group: Group = GROUP, **more: Any) -> SelfTest:
    options = {"lengths_us": (), "source": source, "torch": False} | more
    return SelfTest(FACTS, [group], tmp_path / "out" / "x-real.json", 0.001, **options)


# --- waits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "clock", "wall", "event", "ok"),
    [
        (20, 20.0, 20.9, 20.5, True),  # 1 us is allowed to the short ones
        (20, 20.0, 21.1, 20.5, False),
        (20, 20.0, 18.9, 20.5, False),
        (20, 20.0, 20.5, 21.1, False),  # the wall clock is right and the events are not
        (10_000, 10_000.0, 10_049.0, 10_001.0, True),  # 0.5% to the long ones
        (10_000, 10_000.0, 10_051.0, 10_001.0, False),
        (10_000, 10_060.0, 10_060.0, 10_060.0, False),  # the wait was not the one that was asked for
    ],
)
def test_a_wait_comes_back_or_not(asked: int, clock: float, wall: float, event: float, ok: bool) -> None:
    row = spin.row(asked, 1, [clock] * 3, [clock, wall, clock], [clock, clock, event])
    assert row["ok"] == ok and bool(spin.broken([row])) != ok


def test_no_times_are_no_success() -> None:
    assert not spin.row(20, 250, [], [], None)["ok"]


def test_short_waits_are_timed_by_the_graph_and_none_is_left_out() -> None:
    assert spin.LENGTHS_US[0] == 20 and spin.LENGTHS_US[-1] == 100_000
    for us in spin.LENGTHS_US:
        assert spin.calls_for(us) * us >= 5000 and spin.repeats_for(us) >= 3
        assert spin.calls_for(us) * us < 5000 + us


def test_a_wait_goes_through_a_worker_and_back(tmp_path: Path) -> None:
    (row,) = spin.measure("cpu", tmp_path, (500,))
    assert len(row["wall_us"]) == len(row["clock_us"]) == 5 and row["calls"] == 10
    for wall, clock in zip(row["wall_us"], row["clock_us"], strict=True):
        assert wall >= clock >= 500  # it contains the wait, which is never shorter than asked


def test_a_worker_that_cannot_wait_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        spin, "PACKAGE", "CONTRACT = 1\ndef make_step(*_, **__): raise OSError('no such clock')\n"
    )
    rows = spin.measure("cpu", tmp_path, (500, 1000))
    assert len(rows) == 1 and "no such clock" in spin.broken(rows)[0]


def test_the_kernel_compiles_and_reads_the_clock_again_and_again(tmp_path: Path) -> None:
    """In a process of its own: this one may have Triton's interpreter on, which has no such clock."""
    pytest.importorskip("triton")
    program = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ladder.spin_kernel import spin_kernel

types = {"state_ptr": "*i64", "ns": "i32", "chained": "constexpr"}
for chained in (False, True):
    source = ASTSource(spin_kernel, types, constexprs={(2,): chained}, attrs={(0,): [["tt.divisibility", 16]]})
    for capability in (80, 90, 100):
        code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 1})
        before, loop = code.asm["ptx"].split("Loop Header")
        print(before.count("%globaltimer") == 1 and loop.count("%globaltimer") == 1)
"""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 6, done.stderr[-2000:]


@pytest.mark.gpu
def test_a_chain_lasts_what_its_calls_come_to() -> None:
    import torch

    from ladder.spin_kernel import spin_kernel

    state = torch.zeros(3, dtype=torch.int64, device="cuda")
    for _ in range(100):
        spin_kernel[(1,)](state, 100_000, chained=True, num_warps=1)
    until, begin, end = state.tolist()
    assert until - begin == 100 * 100_000 and 0 <= end - until < 20_000


@pytest.mark.gpu
def test_waits_on_the_gpu_come_back(tmp_path: Path) -> None:
    rows = spin.measure("cuda", tmp_path, (20, 1000, 20_000))
    assert not spin.broken(rows), rows
    assert all(row["event_us"] for row in rows)


# --- planted slowdowns ----------------------------------------------------------------------------------------------


def programs_of(code: Path | None, planted: Path, **common: Any) -> list[Program]:
    return [Program("plain", "g", code=code, **common), Program("planted", "g", code=planted, **common)]


def visited(programs: list[Program], torch: bool) -> dict[str, Any]:
    visitor = Visitor({**FACTS, "cores": 2}, cycles=1, seed=0, torch=torch)
    seen = {visit.program.name: visit for visit in visitor.round(0, programs)}
    assert all(visit.reason is None for visit in seen.values()), seen
    return seen


def test_a_planted_wait_is_in_every_step_and_not_in_the_recipe(tmp_path: Path, clockwork: Path) -> None:
    planted = planting.checkout(tmp_path / "planted", 0.001, "cpu", clockwork)
    seen = visited(programs_of(clockwork, planted, workload={}, recipe={"a": 1}), torch=False)
    plain, slow = (seen[name].record["samples_ms"][0] for name in ("plain", "planted"))
    assert slow - plain == pytest.approx(1.0, abs=0.01)
    assert seen["planted"].built == seen["plain"].built == {"recipe": {"a": 1}, "settings": {"tf32": False}}


@pytest.mark.slow
def test_the_real_step_takes_a_planted_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is never shorter than asked, however busy this machine is; a SMALL step takes some 20 ms."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    planted = planting.checkout(tmp_path / "planted", 0.1, "cpu")
    seen = visited(programs_of(None, planted, workload=SMALL, recipe={}), torch=True)
    assert seen["planted"].record["samples_ms"][0] >= 100
    assert seen["planted"].built == seen["plain"].built
    assert seen["plain"].built["recipe"] == Recipe().to_dict()


def test_what_cannot_be_planted_is_refused(tmp_path: Path, clockwork: Path) -> None:
    for seconds, where in ((0.0, "cpu"), (-1.0, "gpu"), (1.0, "disk")):
        with pytest.raises(ValueError, match="cannot be planted"):
            planting.checkout(tmp_path / "planted", seconds, where, clockwork)


# --- the whole ------------------------------------------------------------------------------------------------------


def test_planted_slowdowns_are_found_and_identical_programs_are_not_called_different(
    tmp_path: Path, clockwork: Path
) -> None:
    test = selftest_of(tmp_path, clockwork, lengths_us=(100,))
    result = test.run()
    (group,) = result["groups"]
    planted = {row["planted"]: row for row in group["comparisons"] if row["planted"]}
    same = [row for row in group["comparisons"] if row["planted"] is None]
    assert result["complete"] and result["protocol"]["rounds"] == 3  # no budget: as few as there may be
    assert len(same) == 5 and not any(row["verdict"] in ("faster", "slower") for row in same)
    assert planted[0.1]["verdict"] == planted[0.01]["verdict"] == "slower"
    assert planted[0.01]["seen"] == pytest.approx(0.01, abs=0.001)
    assert 0 < group["floor"] < 0.0025 and group["between_processes"] == pytest.approx(1e-4, rel=0.9)
    assert not [line for line in result["broken"] if not line.startswith("wait")]
    stored = json.loads(test.path.read_text())
    assert [len(each["rounds"]) for each in stored["programs"]] == [3] * 7 and stored["dirty"] in (
        True,
        False,
        None,
    )
    assert {"wall_us", "clock_us"} <= stored["spin"][0].keys()
    assert test.path.with_suffix(".md").read_text() == markdown(result)
    assert str(tmp_path) not in test.path.read_text() + markdown(result)


def test_a_step_that_fails_is_a_broken_promise(tmp_path: Path, clockwork: Path) -> None:
    group = Group("captured", "clockwork", {}, {"broken": "loss is NaN"}, 3, (1.0,), (1.0,), "cpu")
    result = selftest_of(tmp_path, clockwork, group).run()
    assert any("loss is NaN" in line for line in result["broken"])
    assert any("no two copies were compared" in line for line in result["broken"])


def test_a_plan_that_shows_in_the_recipe_is_a_broken_promise(
    tmp_path: Path, clockwork: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = planting.checkout

    def leaking(folder: Path, *how: Any) -> Path:
        init = clean(folder, *how) / "stylegan_lite" / "__init__.py"
        init.write_text(init.read_text().replace('"tf32": False', '"tf32": True'))
        return folder

    monkeypatch.setattr(planting, "checkout", leaking)
    result = selftest_of(tmp_path, clockwork).run()
    assert sum("not those of the step without a plan" in line for line in result["broken"]) == 3
    (group,) = result["groups"]
    assert len(group["comparisons"]) == 5  # the copies went on without them


def test_ctrl_c_keeps_what_is_finished(
    tmp_path: Path, clockwork: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Visitor.round

    def interrupted(self: Visitor, number: int, programs: list[Program]) -> Any:
        for count, visit in enumerate(real(self, number, programs)):
            if number == 1 and count == 2:
                raise KeyboardInterrupt
            yield visit

    monkeypatch.setattr(Visitor, "round", interrupted)
    test = selftest_of(tmp_path, clockwork)
    result = test.run()
    assert not result["complete"] and result["protocol"]["rounds"] == 1
    stored = json.loads(test.path.read_text())
    assert sum(len(each["rounds"]) for each in stored["programs"]) == 7 + 2
    assert "interrupted" in text(result)


# --- what is said of made-up rounds ---------------------------------------------------------------------------------


def made_up(tmp_path: Path, **times: list[float]) -> dict[str, Any]:
    """A result of five rounds: ms a step of each program ("c1" to "c4", "p0", "p1", "p2"), else 100 and some noise."""
    result = selftest_of(tmp_path, ROOT).result
    group = result["groups"][0]["name"]
    short = {f"{group} {n + 1}": f"c{n + 1}" for n in range(4)}
    short |= {name: f"p{n}" for n, name in enumerate(GROUP.planted_names().values())}
    for each in result["programs"]:
        steps = times.get(short[each["name"]])
        if steps is None:
            base = 100 * (1 + (each["planted"] or 0))
            steps = [base * (1 + 0.0002 * ((i * 7 + len(each["name"])) % 5 - 2)) for i in range(5)]
        each["status"] = "ok"
        each["rounds"] = [
            {"round": i, "samples_ms": [ms, ms * 1.0001], "rejected": []} for i, ms in enumerate(steps)
        ]
    judge(result)
    return result


def test_five_good_rounds_break_nothing(tmp_path: Path) -> None:
    assert made_up(tmp_path)["broken"] == []


UNEQUAL = {"c1": [100.0, 102.0, 98.0, 102.0, 98.0], "c4": [99.0, 98.9, 99.1, 99.0, 99.0]}


def test_twins_that_differ_keep_copies_from_being_called_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself is checked: a judge that does not listen to the twins calls copies different here."""
    called = [line for line in made_up(tmp_path, **UNEQUAL)["broken"] if "than captured" in line]
    assert called == []
    monkeypatch.setattr(verdicts, "noise_floor", lambda *_: 0.0)
    called = [line for line in made_up(tmp_path, **UNEQUAL)["broken"] if "than captured" in line]
    assert "captured: captured 4 was called faster than captured 2" in called


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"p1": [100.0, 100.01, 99.99, 100.0, 100.02]}, "a slowdown of 1% was called no measurable gain"),
        ({"p0": [90.0, 90.1, 90.0, 89.9, 90.0]}, "a slowdown of 0.5% was called faster"),  # not promised
        ({"p2": [100.0]}, "a slowdown of 10% was not compared"),
        ({f"c{n}": [] for n in range(1, 5)}, "no two copies were compared"),
    ],
)
def test_every_broken_promise_is_a_line(tmp_path: Path, times: dict[str, list[float]], said: str) -> None:
    result = made_up(tmp_path, **times)
    assert any(said in line for line in result["broken"]) and said in markdown(result)


def test_an_unpromised_slowdown_may_be_missed(tmp_path: Path) -> None:
    result = made_up(tmp_path, p0=[100.0, 100.01, 99.99, 100.0, 100.02])
    assert result["broken"] == [] and "everything promised was kept" in text(result)


# --- on a GPU -------------------------------------------------------------------------------------------------------


def test_on_a_gpu_there_are_twenty_comparisons_of_identical_programs() -> None:
    groups = selftest_gpu.groups(dict.fromkeys(machine.CAPABILITIES))
    assert sum(g.copies * (g.copies - 1) // 2 - 1 for g in groups) >= 20
    captured, eager = groups
    assert captured.planted == (0.005, 0.01, 0.02, 0.05) and captured.promised == (0.01, 0.02, 0.05)
    assert eager.planted == (0.02, 0.05) and (captured.where, eager.where) == ("gpu", "cpu")
    for group in groups:
        Workload.from_dict(group.workload)
        recipe = Recipe.from_dict(group.recipe)
        assert recipe.workers == 0 and recipe.cuda_graphs == (group is captured)
        twins = group.copy_names()[:2]
        assert not any(group.against(share) in twins for share in group.planted)
    assert captured.recipe["fused_act"] and captured.recipe["precision"] == "bf16"


def test_no_more_workers_wait_than_the_machine_holds() -> None:
    h200 = {"cores": 16, "ram_gb": 128, "gpu_memory_gb": 139.8}
    assert most_ahead(h200) == 16
    assert most_ahead(h200 | {"gpu_memory_gb": 8.0}) == 2
    assert most_ahead(h200 | {"ram_gb": 1}) == 1


@pytest.mark.parametrize(
    ("compute", "foreign"),
    [
        ([7001, 7002, 7003], 0),  # a container: NVML's numbers are the host's
        ([7001, 7002, 7003, 7004], 1),
        ([1, 2, 3], 0),
        ([1, 2, 3, 7004], 1),
    ],
)
def test_workers_that_wait_are_no_company(compute: list[int], foreign: int) -> None:
    visitor = Visitor(FACTS, cycles=1, seed=0)
    nvml = FakeNvml(compute=dict.fromkeys(compute, 2**30))
    visitor.watch, visitor.quiet_percent = gpustate.Watch(UUID, nvml=nvml, interval_s=0.01), 0
    with visitor._watched({1, 2, 3}) as state:
        pass
    assert state["foreign_processes"] == foreign
    assert state["tenancy"] == ("shared" if foreign else "alone")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The command on a machine with a GPU, whose real part is made up."""
    small = {"table": [], "broken": [], "path": tmp_path / "results" / "selftest" / "x.json"}
    monkeypatch.setattr(machine, "choose_device", lambda requested: "cuda")
    monkeypatch.setattr(doctor, "machine", machine)
    monkeypatch.setattr(selftest, "run", lambda folder, device: dict(small))
    monkeypatch.setattr(selftest, "text", lambda found: "simulated")
    monkeypatch.setattr("ladder.cli.ROOT", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("times", "complete", "status"),
    [({}, True, 0), ({"p1": [100.0, 100.01, 99.99, 100.0, 100.02]}, True, 1), ({}, False, 130)],
)
def test_the_status_says_whether_promises_were_kept(
    gpu: Path, monkeypatch: pytest.MonkeyPatch, times: dict, complete: bool, status: int
) -> None:
    real = made_up(gpu, **times) | {"complete": complete}
    path = gpu / "results" / "selftest" / "x-real.json"
    monkeypatch.setattr(selftest_gpu, "run", lambda folder, minutes, tell: {**real, "path": path})
    seen = call("doctor", "--selftest", "--minutes", 6)
    assert seen.exit_code == status, seen.output
    assert seen.stdout.startswith("simulated") and "Planted slowdowns" in seen.stdout
    assert seen.stdout.rstrip().endswith("results/selftest/x-real.json, .md")
    seen = call("doctor", "--selftest", "--json")
    assert json.loads(seen.stdout)["real"]["broken"] == real["broken"] and seen.exit_code == status


def test_without_triton_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "facts", lambda device: FACTS)
    monkeypatch.setattr(
        machine, "capabilities", lambda device: dict.fromkeys(machine.CAPABILITIES) | {"triton": "no gcc"}
    )
    with pytest.raises(UserError, match="no gcc"):
        selftest_gpu.run(tmp_path)


def test_minutes_are_for_the_real_part() -> None:
    assert "--minutes" in refused("doctor", "--minutes", 3)
    assert "needs a CUDA GPU" in refused("doctor", "--selftest", "--minutes", 3, "--device", "cpu")
