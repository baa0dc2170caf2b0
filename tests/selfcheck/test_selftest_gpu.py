"""The self-test on a device, without one: planted code in real workers on a made-up clock, judged as on a GPU."""

import collections
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.engine.outcomes import Program
from ladder.engine.rounds import Interleaved
from ladder.engine.visit import Visits
from ladder.machine import gpu_state, stillness, system
from ladder.selfcheck.selftest import on_gpu, planting
from ladder.selfcheck.selftest.judging import markdown, text
from ladder.selfcheck.selftest.on_gpu import Group, SelfTest
from stylegan_lite import make_step
from stylegan_lite.config import Recipe, Workload
from tests.cli.test_cli import refused
from tests.support import servers
from tests.support.fake_nvml import UUID, FakeNvml
from tests.support.small import LEAST, SMALL

kept_servers = servers.kept_servers
pytestmark = pytest.mark.usefixtures("kept_servers")
ROOT = Path(__file__).resolve().parents[2]
FACTS = system.facts("cpu")

# A step of a millisecond on a clock of its own, so that no load on this machine changes what comes out. Whoever waits
# for it turns it: each look is a tenth of a microsecond.
CLOCKWORK = """
import random
import time

from ladder.engine import asides

CONTRACT = 1
now = 0.0


def look():
    global now
    now += 1e-7
    return now


def make_step(workload, recipe, *, device=None, seed=0):
    asides.CLOCK = time.perf_counter = look
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
def clockwork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The code of such steps, whose clock needs no quiet between visits."""
    monkeypatch.setattr(stillness, "wait", lambda group: 0.0)
    package = tmp_path / "clockwork" / "stylegan_lite"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLOCKWORK)
    return package.parent


def selftest_of(tmp_path: Path, source: Path, group: Group = GROUP, **more: Any) -> SelfTest:
    options = {"lengths_us": (), "source": source, "torch": False} | more
    return SelfTest(FACTS, [group], tmp_path / "out" / "x-real.json", 0.001, **options)


# --- planted slowdowns ----------------------------------------------------------------------------------------------


def programs_of(code: Path, planted: Path, **common: Any) -> list[Program]:
    return [
        Program(name, "g", name, code=each, **common)
        for name, each in (("plain", code), ("planted", planted))
    ]


def visited(programs: list[Program], torch: bool) -> dict[str, Any]:
    with contextlib.closing(Interleaved("cpu", cycles=1, seed=0, torch=torch)) as rounds:
        seen = {visit.program.name: visit for visit in rounds.round(0, programs)}
    assert all(visit.reason is None for visit in seen.values()), seen
    return seen


def test_a_planted_wait_is_in_every_step_and_not_in_the_recipe(tmp_path: Path, clockwork: Path) -> None:
    planted = planting.checkout(tmp_path / "planted", 0.001, "cpu", clockwork)
    seen = visited(programs_of(clockwork, planted, workload={}, recipe={"a": 1}), torch=False)
    plain, slow = (seen[name].round["samples_ms"][0] for name in ("plain", "planted"))
    assert slow - plain == pytest.approx(1.0, abs=0.01)
    assert seen["planted"].recipe == seen["plain"].recipe == {"a": 1}
    assert seen["planted"].settings == seen["plain"].settings
    assert seen["plain"].settings["tf32"] is False


@pytest.mark.slow
def test_the_real_step_takes_a_planted_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait is never shorter than asked, however busy this machine is; a LEAST step takes some 10 ms."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    planted = planting.checkout(tmp_path / "planted", 0.1, "cpu")
    seen = visited(programs_of(ROOT, planted, workload=LEAST, recipe={}), torch=True)
    assert seen["planted"].round["samples_ms"][0] >= 100
    assert (seen["planted"].recipe, seen["planted"].settings) == (
        seen["plain"].recipe,
        seen["plain"].settings,
    )
    assert seen["plain"].recipe == Recipe().to_dict()


class Launched:
    """Keeps what is launched."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def replay(self) -> None:
        self.seen.append("graph")


@pytest.mark.parametrize("whole", [False, True])
def test_a_step_is_kept_waiting_once_however_it_is_launched(
    monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The real step's own way from a cycle to its graphs, with graphs that do nothing."""
    step, graph = make_step(SMALL, {}, device="cpu"), Launched()
    monkeypatch.setitem(planting.WAITS, "cpu", lambda seconds: lambda: graph.seen.append("wait"))
    if whole:
        step.recipe = Recipe(cuda_graphs=True, whole_step_graph=True)
        step.graphs = step.held = collections.defaultdict(lambda: graph, {"G_main+D_main": graph})
    else:
        monkeypatch.setattr(step, "replay", lambda phase: graph.replay())
    slowed = planting.slowed(step, 1.0, "cpu")
    slowed.run(("G_main", "D_main"))
    assert graph.seen == (["graph", "wait"] if whole else ["graph", "wait", "graph"])
    assert slowed.check_finite() is None


def test_a_wait_that_no_step_reaches_is_no_slowdown() -> None:
    slowed = planting.slowed(make_step(SMALL, {}, device="cpu"), 1.0, "cpu")
    assert "never reached" in slowed.check_finite()
    slowed.run(("D_main",))
    assert "never reached" in slowed.check_finite()


@pytest.mark.parametrize("missed", [0, 15])
def test_a_cycle_that_is_not_kept_waiting_in_each_step_says_so(
    monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    """Waits of before, of a warm-up or another cycle, do not make up for it."""
    monkeypatch.setitem(planting.WAITS, "cpu", lambda seconds: lambda: None)
    step = make_step(SMALL, {}, device="cpu")
    step.replay, step.feed.next, phases = lambda phase: None, lambda: None, step.phases
    slowed = planting.slowed(step, 1.0, "cpu")
    slowed.cycle()
    slowed.cycle(lazy=False)
    assert slowed.check_finite() is None
    step.phases = lambda index, lazy: phases(index, lazy) if index != missed else ("D_main",)
    slowed.cycle()
    step.phases = phases
    slowed.cycle()
    assert slowed.check_finite() == "the planted wait was reached 15 times in a cycle, not 16"


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
    assert not any("profiled" in each for program in stored["programs"] for each in program["rounds"])
    assert test.path.with_suffix(".md").read_text() == markdown(result)
    assert str(tmp_path) not in test.path.read_text() + markdown(result)


def test_programs_of_a_group_are_known_to_take_what_its_first_took(tmp_path: Path) -> None:
    test = selftest_of(tmp_path, ROOT)
    test._recall(GROUP)
    assert not test.rounds.peaks  # a CPU tells nothing
    test.result["groups"][0]["calibration"] = {"peak_reserved_bytes": 5}
    test._recall(GROUP)
    first, *others = [each["name"] for each in test.result["programs"]]
    assert test.rounds.peaks == dict.fromkeys(others, 5) and first not in test.rounds.accepted


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
    real = Interleaved.round

    def interrupted(self: Interleaved, number: int, programs: list[Program]) -> Any:
        for count, visit in enumerate(real(self, number, programs)):
            if number == 1 and count == 2:
                raise KeyboardInterrupt
            yield visit

    monkeypatch.setattr(Interleaved, "round", interrupted)
    test = selftest_of(tmp_path, clockwork)
    result = test.run()
    assert not result["complete"] and result["protocol"]["rounds"] == 1
    stored = json.loads(test.path.read_text())
    assert sum(len(each["rounds"]) for each in stored["programs"]) == 7 + 2
    assert "interrupted" in text(result)


# --- on a GPU -------------------------------------------------------------------------------------------------------


def test_on_a_gpu_there_are_twenty_comparisons_of_identical_programs() -> None:
    groups = on_gpu.groups(dict.fromkeys(system.CAPABILITIES))
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
    nvml = FakeNvml(compute=dict.fromkeys(compute, 2**30))
    visits = Visits("cpu")
    visits.watch, visits.quiet_percent = gpu_state.Watch(UUID, nvml=nvml, interval_s=0.01), 0
    with visits.watched({1, 2, 3}) as state:
        pass
    assert state["foreign_processes"] == foreign
    assert state["tenancy"] == ("shared" if foreign else "alone")


def test_without_triton_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(system, "facts", lambda device: FACTS)
    monkeypatch.setattr(
        system, "capabilities", lambda device: dict.fromkeys(system.CAPABILITIES) | {"triton": "no gcc"}
    )
    with pytest.raises(UserError, match="no gcc"):
        on_gpu.run(tmp_path)


def test_minutes_are_for_the_real_part() -> None:
    assert "--minutes" in refused("doctor", "--minutes", 3)
    assert "needs a CUDA GPU" in refused("doctor", "--selftest", "--minutes", 3, "--device", "cpu")
