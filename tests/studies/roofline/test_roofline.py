"""`ladder doctor --roofline` with a made-up GPU: what is put together, shown, written, and refused."""

import dataclasses
import functools
import json

import pytest
from click.testing import CliRunner

import stylegan_lite
from ladder.base import git
from ladder.base.records import build
from ladder.cli import main as cli
from ladder.machine import system
from ladder.plan import needs as needss
from ladder.publish.validation import validate
from ladder.receipts import evidence, kernel_families
from ladder.studies.roofline import ceilings, distance, floors, in_step, schema
from ladder.studies.roofline import command as roofline
from ladder.studies.roofline import view as roofline_view
from ladder.studies.roofline.floors import PHASES
from tests.support import committed, made_up
from tests.support.small import SMALL
from tests.support.typed import problem_of

STORED = committed.listed("results/roofline/*.json")
TUNED = committed.file("results/kernels/nvidia-h200-tuning.json")
GPU = dict(made_up.gpu_run()["machine"])
SGEMM, FPROP = (
    "void implicit_convolve_sgemm<float, float, 128>(int)",
    "sm90_xmma_fprop_implicit_gemm_x__5x_cudnn",
)
RATES = {"copy": 4e12, "matmul bf16": 700e12, "matmul tf32": 380e12, "matmul fp32": 51e12}


def events(step_us):
    """A cycle of 16 steps in which convolutions take three fifths, a kernel of ours one fifth, nothing one fifth."""
    names = [FPROP, SGEMM, FPROP, "bias_act_kernel"]
    fifth = 1000 * 16 * step_us // 5
    return [(name, True, 7, k * fifth, (k + 1) * fifth) for k, name in enumerate(names)]


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Everything that needs a GPU, made up; returns what decides the figures."""
    made = {"rate": 1e12, "step_us": 5000}
    monkeypatch.setattr(system, "choose_device", lambda requested: "cuda")
    monkeypatch.setattr(system, "facts", lambda device: {**GPU})
    monkeypatch.setattr(system, "device_key", lambda device: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set for the tests of kernels
    monkeypatch.setattr(system, "capabilities", lambda device: dict.fromkeys(needss.NEEDS))
    monkeypatch.setattr(roofline, "OUT", tmp_path / "roofline")

    def observe(fields, recipe):
        ms = made["step_us"] / 1000
        return distance.Observed(
            phases_ms=dict.fromkeys(PHASES, ms / 2),
            step_ms=ms,
            wall_ms=ms,
            busy_ms=0.8 * ms,
            families=[
                build(in_step.Kernels, row) for row in kernel_families.shares(events(made["step_us"]), 16)
            ],
            settings={},
        )

    def measure(ops, layout, tell):
        rates = RATES | {op.key(layout): made["rate"] for op in ops}
        return schema.Today(rates=rates, skipped={}, seconds=1.0)

    monkeypatch.setattr(distance, "observe", observe)
    monkeypatch.setattr(ceilings, "measure", measure)
    return made


@pytest.fixture(scope="module", autouse=True)
def counted_once():
    """Count the work of a workload and precision once: it takes a second or two, and is the same in each test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(floors, "count", functools.cache(floors.count))
        yield


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("workloads") / "small.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in (SMALL | {"resolution": 8}).items()))
    return str(path)


def run(*args):
    return CliRunner().invoke(cli.main, ["doctor", *args])


def test_it_shows_and_writes_ceilings_phases_and_families(gpu, workload, tmp_path):
    done = run("--roofline", "--workload", workload, "--rung", "bf16")
    assert done.exit_code == 0, done.output
    for said in ("Roofline of small", "BF16 channels_last", "G_main", "bias_act_kernel", "nothing runs"):
        assert said in done.stdout
    folder = tmp_path / "roofline"
    found = json.loads((folder / "nvidia-h200-small-full-bf16.json").read_text())
    page = (folder / "nvidia-h200-small-full-bf16.md").read_text()
    assert page.startswith("# Roofline of small") and "rung bf16 of ladder full" in page
    assert "| D_r1 |" in page and "implicit_convolve_sgemm" in page
    assert found["rung"] == "bf16" and found["recipe"]["precision"] == "bf16" and "commit" in found
    assert found["machine"] == GPU and found["workload"]["data"] is None
    assert found["recorded"].keys() >= RATES.keys()
    assert (
        json.loads(run("--roofline", "-w", workload, "--rung", "bf16", "--json").stdout)["kind"] == "roofline"
    )


def test_phases_of_a_step_that_is_one_graph_are_those_of_a_second_step(gpu, workload, tmp_path):
    assert run("--roofline", "--workload", workload, "--rung", "whole_step_graph").exit_code == 0
    page = (tmp_path / "roofline" / "nvidia-h200-small-full-whole_step_graph.md").read_text()
    (phase,) = [line for line in page.splitlines() if line.startswith("| D_r1 |")]
    assert " 2.50 |" in phase and "Phases were timed in a second step" in page
    assert run("--roofline", "--workload", workload, "--rung", "bf16").exit_code == 0
    page = (tmp_path / "roofline" / "nvidia-h200-small-full-bf16.md").read_text()
    assert "a second step" not in page


class Step:
    """A step as far as `observe` asks."""

    def __init__(self, recipe, log):
        self.together, self.log = [("G_main",)] if recipe["whole_step_graph"] else [], log
        self.name = "whole" if self.together else "apart"

    def __getattr__(self, name):
        return lambda *args: self.log.append((self.name, name, *args)) or {}


@pytest.mark.parametrize("whole", [True, False])
def test_each_phase_is_timed_whether_or_not_the_step_is_one_graph(monkeypatch, whole):
    log = []
    monkeypatch.setattr(stylegan_lite, "make_step", lambda fields, recipe, device: Step(recipe, log))
    monkeypatch.setattr(distance, "trace_cycle", lambda step: distance.Traced(1.0, [step.name]))
    monkeypatch.setattr(evidence, "synchronize", lambda step: None)
    monkeypatch.setattr(ceilings, "medians", lambda runs, **how: [each() or 0.001 for each in runs])
    seen = distance.observe(SMALL, {"whole_step_graph": whole})
    assert seen.phases_ms == dict.fromkeys(PHASES, 1.0)
    assert seen.families == [log[0][0]] == ["whole" if whole else "apart"], (
        "the step asked for is the one measured"
    )
    alone = [(name, *args) for name, call, *args in log if call == "run_phase"]
    assert alone == [("apart", phase) for phase in PHASES]
    closed = [name for name, call, *_ in log if call == "close"]
    assert closed == (["whole", "apart"] if whole else ["apart"])
    if whole:
        assert log.index(("whole", "close")) < log.index(("apart", "prepare")), "both in memory at once"


def test_a_bad_day_does_not_raise_the_floor_and_a_good_one_lowers_it(gpu, workload, tmp_path):
    def floor(rung="bf16"):
        done = run("--roofline", "--workload", workload, "--rung", rung)
        assert done.exit_code == 0, done.output
        path = tmp_path / "roofline" / f"nvidia-h200-small-full-{rung}.json"
        return json.loads(path.read_text())["step"]["light_ms"]

    gpu["rate"] = 350e12
    first = floor()
    gpu["rate"] = 1e9
    assert floor() == first, "rates of the file that was replaced are lost"
    floor("baseline")  # of other convolutions: FP32
    assert floor() == first
    gpu["rate"] = 600e12
    assert floor() < first


def test_the_groups_and_the_families_add_up_to_the_distance(gpu, workload, tmp_path):
    assert run("--roofline", "--workload", workload, "--rung", "bf16").exit_code == 0
    found = json.loads((tmp_path / "roofline" / "nvidia-h200-small-full-bf16.json").read_text())
    measured, step = found["measured"], found["step"]
    assert measured["distance_ms"] == pytest.approx(5.0 - step["light_ms"])
    assert measured["groups"]["convolutions"]["ms"] == pytest.approx(3.0)
    assert measured["groups"]["nothing runs"]["ms"] == pytest.approx(1.0)
    assert sum(group["of_distance"] for group in measured["groups"].values()) == pytest.approx(1)
    rows = {row["family"]: row for row in measured["families"]}
    idle = measured["groups"]["nothing runs"]["of_distance"]
    assert sum(row["of_distance"] for row in rows.values()) + idle == pytest.approx(1)
    assert rows[kernel_families.SGEMM]["us"] == pytest.approx(1000)
    assert rows[kernel_families.FORWARD]["of_step"] == pytest.approx(0.4)


def test_what_ran_beside_another_kernel_is_taken_off_once(gpu, workload, tmp_path):
    """Two streams: kernels of 4 ms ran in 3 ms, so 1 ms of the groups is there twice."""
    assert run("--roofline", "--workload", workload, "--rung", "bf16").exit_code == 0
    path = tmp_path / "roofline" / "nvidia-h200-small-full-bf16.json"
    found = build(schema.Result, json.loads(path.read_text()))
    assert [row[0] for row in roofline_view.groups(found)][1:] == [*found.measured.groups]
    both = dataclasses.replace(found.measured, step_ms=4.0, busy_ms=3.0, distance_ms=3.0)
    (*_, twice) = roofline_view.groups(dataclasses.replace(found, measured=both))
    assert twice[:2] == ["overlap of kernels", "-1.00"]
    parts = roofline_view.parts(both).values()
    assert sum(part.ms for part in parts) == pytest.approx(4.0)
    assert twice[3] == f"{-1 / 3:.1%}"


def test_what_ran_faster_in_the_step_than_its_floor_lowers_the_floor(gpu, workload, tmp_path):
    gpu["rate"] = 1.0  # what the ceilings say of the convolutions that no fact covers: far too slow
    path = tmp_path / "roofline" / "nvidia-h200-small-full-bf16.json"
    args = ("--roofline", "--workload", workload, "--rung", "bf16")
    done = run(*args)
    assert done.exit_code == 0, done.output
    found = json.loads(path.read_text())
    step, low = found["step"], found["in_step"]
    groups = build(schema.Result, found).measured.groups
    assert groups["convolutions"].ms == pytest.approx(3.0) and not in_step.below(groups)
    assert low["forward"]["ms"] == pytest.approx(3.0) and low["forward"]["alone_ms"] > 3.0
    assert low["convolutions"]["ms"] == pytest.approx(3.0), (
        "three kinds that each take all the time that is unclear"
    )
    assert step["convolutions_ms"] - step["pointwise_ms"] == pytest.approx(3.0)
    assert step["light_ms"] == pytest.approx(
        sum(found["phases"][p]["light_ms"] * n for p, n in zip(PHASES, (1, 1, 1 / 4, 1 / 16), strict=True))
    )
    assert "In a traced step (today) forward took 3.00 ms" in done.stdout
    gpu["step_us"] = 10000  # a slower day, or rung: the rate stays
    assert run(*args).exit_code == 0
    again = json.loads(path.read_text())
    assert again["step"]["light_ms"] == pytest.approx(step["light_ms"])
    assert again["in_step"]["forward"]["source"] == path.name
    assert problem_of(json.loads(path.read_text())) is None


def test_no_rate_of_a_traced_step_is_above_that_of_matmuls():
    """Triton's templates convolve under names that are no convolution's: what is left would run at any rate."""
    rows = [
        in_step.Kernels(family=name, us=us, kernels=1.0, heaviest=name)
        for name, us in ((kernel_families.FORWARD, 1000.0), (kernel_families.INDUCTOR, 5000.0))
    ]
    amounts = dict.fromkeys(in_step.PARTS, 1e12) | {"forward": 0.5e12}
    seen = in_step.seen(amounts, rows, "bf16", "channels_last", 700e12)
    assert {key.split(", ")[1]: rate for key, rate in seen.items()} == {
        "forward": pytest.approx(500e12),
        "other kernels": pytest.approx(200e12),
    }


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_nothing_on_record_took_less_than_its_floor(path):
    found = build(schema.Result, json.loads(path.read_text()))
    assert found.measured.groups and not in_step.below(found.measured.groups)
    assert path.with_suffix(".md").read_text() == roofline_view.markdown(found)


def test_a_group_below_its_floor_is_marked_and_said(gpu, workload, tmp_path):
    assert run("--roofline", "--workload", workload, "--rung", "bf16").exit_code == 0
    path = tmp_path / "roofline" / "nvidia-h200-small-full-bf16.json"
    found = json.loads(path.read_text())
    found["dirty"] = False
    found["measured"]["groups"]["convolutions"]["floor_ms"] = 3.01
    path.write_text(json.dumps(found))
    (judged,) = validate.validate([path])
    assert judged.problem is None and judged.marks == ("no floor: convolutions took less",)
    assert "Below its floor, so this is none: convolutions." in roofline_view.text(
        build(schema.Result, found)
    )


def test_floors_of_an_earlier_result_are_computed_again(gpu, workload, tmp_path):
    assert run("--roofline", "--workload", workload, "--rung", "bf16").exit_code == 0
    path = tmp_path / "roofline" / "nvidia-h200-small-full-bf16.json"
    old = tmp_path / "roofline" / "nvidia-h200-small.json"  # as such files were named
    before = json.loads(path.read_text())
    stale = before | {"step": {key: 2 * value for key, value in before["step"].items()}}
    del stale["in_step"], stale["ladder"]
    stale["recorded"] = {
        key: rate for key, rate in before["recorded"].items() if not key.startswith("step of")
    }
    path.unlink()
    old.write_text(json.dumps(stale))
    done = run("--roofline", "--again", str(old))
    assert done.exit_code == 0, done.output
    found = json.loads(old.read_text())
    assert (
        found.pop("floors_commit") == git.commit_of(roofline.ROOT)[0]
        and found.pop("in_step") == before["in_step"]
    )
    assert {key: found[key] for key in stale} == {key: before[key] for key in stale}
    assert "floors as commit" in old.with_suffix(".md").read_text()
    gpu["rate"] = 1e9
    assert run("--roofline", "--workload", workload, "--rung", "bf16").exit_code == 0
    assert json.loads(path.read_text())["step"]["light_ms"] == before["step"]["light_ms"], (
        "old names are read"
    )


def test_a_damaged_result_is_not_computed_again(tmp_path):
    for text in ("{", '{"schema": 1, "kind": "roofline"}', "[]"):
        path = tmp_path / "nvidia-h200-x.json"
        path.write_text(text)
        done = run("--roofline", "--again", str(path))
        assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1 and path.read_text() == text


def test_a_step_is_its_phases_at_their_intervals(workload):
    done = run("--roofline", "--gpu", "H200", "--workload", workload, "--json")
    found = json.loads(done.stdout)
    phases, step = found["phases"], found["step"]
    expected = sum(phases[p]["light_ms"] * n for p, n in zip(PHASES, (1, 1, 1 / 4, 1 / 16), strict=True))
    assert step["light_ms"] == pytest.approx(expected)
    for part in (*phases.values(), step):
        kinds = ("forward_ms", "input_gradient_ms", "weight_gradient_ms")
        assert part["convolutions_ms"] == pytest.approx(sum(part[kind] for kind in kinds))
        parts = part["convolutions_ms"] + part["bytes_ms"] + part["matmul_ms"]
        assert part["light_ms"] == pytest.approx(parts) and part["peak_ms"] < part["light_ms"]
    assert sum(row["flops"] for row in found["convolutions"]) == pytest.approx(step["flops"])


def test_without_a_gpu_the_floor_is_told_from_recorded_rates(workload, monkeypatch, tmp_path):
    monkeypatch.setattr(roofline, "OUT", tmp_path)
    monkeypatch.setattr(system, "choose_device", lambda requested: pytest.fail("no device is needed"))
    done = run("--roofline", "--gpu", "nvidia-h200", "--workload", workload, "--rung", "cuda_graphs")
    assert done.exit_code == 0 and "Nothing was measured here" in done.stdout
    assert "rung cuda_graphs" in done.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--roofline", "--device", "cpu"], "--gpu NAME (nvidia-h200)"),
        (
            ["--roofline", "--gpu", "NVIDIA H100"],
            "no rates are recorded of 'NVIDIA H100'; there are: nvidia-h200",
        ),
        (["--roofline", "--gpu", "h200", "--rung", "warp_drive"], "warp_drive not in ladder full"),
        (["--roofline", "--gpu", "h200", "--workload", "nothing"], "no workload 'nothing'"),
        (["--gpu", "h200"], "for --roofline"),
        (["--again", "x.json"], "for --roofline"),
        (["--roofline", "--again", "x.json"], "x.json: cannot be read: No such file"),
        (["--roofline", "--again", str(TUNED)], "not a result of the kind roofline"),
        (["--roofline", "--again", str(TUNED), "--rung", "bf16"], "--again takes all from its file"),
        (["--roofline", "--again", str(TUNED), "--ladder", "full"], "--again takes all from its file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(args, said):
    done = run(*args)
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_model_of_cheaper_convolutions_has_no_floor(tmp_path):
    path = tmp_path / "cheap.yaml"
    path.write_text("resolution: 8\nchannel_base: 64\nbatch: 4\nconvolution: separable\n")
    done = run("--roofline", "--gpu", "h200", "--workload", str(path))
    assert done.exit_code == 2 and "cheap has convolution: separable" in done.stderr


def test_a_rung_that_cannot_run_here_is_refused(gpu, monkeypatch):
    needs = dict.fromkeys(needss.NEEDS) | {"bf16": "needs BF16 arithmetic"}
    monkeypatch.setattr(system, "capabilities", lambda device: needs)
    done = run("--roofline", "--rung", "bf16")
    assert done.exit_code == 2 and "bf16 cannot run here: needs BF16 arithmetic" in done.stderr


def test_numbers_stand_on_the_right():
    table = [["what", "ms"], ["a", "1.5"], ["bb", "10.5"]]
    assert roofline_view._plain(table) == "what    ms\na      1.5\nbb    10.5"
    assert roofline_view._piped(table).splitlines()[1] == "| --- | ---: |"


@pytest.mark.gpu
def test_a_step_on_a_gpu_is_timed_and_traced():
    name, recipe = roofline.plan("article", "cuda_graphs", dict.fromkeys(needss.NEEDS))
    seen = distance.observe(SMALL, recipe)
    assert name == "cuda_graphs" and seen.families and 0 < seen.busy_ms <= 1.1 * seen.step_ms
    assert all(ms > 0 for ms in seen.phases_ms.values())
