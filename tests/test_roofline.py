"""`ladder doctor --roofline` with a made-up GPU: what is put together, shown, written, and refused."""

import json

import pytest
from click.testing import CliRunner

from ladder import catalog, ceilings, cli, distance, families, machine, roofline, roofline_view
from ladder.floors import PHASES
from tests.small import SMALL

GPU = {"name": "nvidia-h200", "gpu": "NVIDIA H200", "device": "cuda"}
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
    monkeypatch.setattr(machine, "choose_device", lambda requested: "cuda")
    monkeypatch.setattr(machine, "facts", lambda device: {**GPU})
    monkeypatch.setattr(machine, "device_key", lambda device: None)
    monkeypatch.setattr(machine, "capabilities", lambda device: dict.fromkeys(catalog.NEEDS))
    monkeypatch.setattr(roofline, "OUT", tmp_path / "roofline")

    def observe(fields, recipe):
        ms = made["step_us"] / 1000
        return {
            "phases_ms": dict.fromkeys([] if recipe["whole_step_graph"] else PHASES, ms / 2),
            "step_ms": ms,
            "wall_ms": ms,
            "busy_ms": 0.8 * ms,
            "families": families.shares(events(made["step_us"]), 16),
            "settings": {},
        }

    def measure(ops, layout, tell):
        rates = RATES | {op.key(layout): made["rate"] for op in ops}
        return {"rates": rates, "skipped": {}, "seconds": 1.0}

    monkeypatch.setattr(distance, "observe", observe)
    monkeypatch.setattr(ceilings, "measure", measure)
    return made


@pytest.fixture(scope="module")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("workloads") / "small.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in SMALL.items()))
    return str(path)


def run(*args):
    return CliRunner().invoke(cli.main, ["doctor", *args])


def test_it_shows_and_writes_ceilings_phases_and_families(gpu, workload, tmp_path):
    done = run("--roofline", "--workload", workload, "--rung", "bf16")
    assert done.exit_code == 0, done.output
    for said in ("Roofline of small", "BF16 channels_last", "G_main", "bias_act_kernel", "nothing runs"):
        assert said in done.stdout
    folder = tmp_path / "roofline"
    found = json.loads((folder / "nvidia-h200-small.json").read_text())
    page = (folder / "nvidia-h200-small.md").read_text()
    assert page.startswith("# Roofline of small") and "| D_r1 |" in page and "implicit_convolve_sgemm" in page
    assert found["rung"] == "bf16" and found["recipe"]["precision"] == "bf16" and "commit" in found
    assert found["machine"] == GPU and found["workload"]["data"] is None
    assert found["recorded"].keys() >= RATES.keys()
    assert (
        json.loads(run("--roofline", "-w", workload, "--rung", "bf16", "--json").stdout)["kind"] == "roofline"
    )


def test_phases_inside_one_graph_have_a_floor_and_no_time(gpu, workload, tmp_path):
    args = ("--roofline", "--workload", workload, "--ladder", "full", "--rung")
    assert run(*args, "whole_step_graph").exit_code == 0
    rows = (tmp_path / "roofline" / "nvidia-h200-small.md").read_text().splitlines()
    (phase,) = [line for line in rows if line.startswith("| D_r1 |")]
    (step,) = [line for line in rows if line.startswith("| step |")]
    assert phase.count("|") == step.count("|") == 10 and "5.00" in step and "-" in phase


def test_a_bad_day_does_not_raise_the_floor_and_a_good_one_lowers_it(gpu, workload, tmp_path):
    path = tmp_path / "roofline" / "nvidia-h200-small.json"

    def floor(rung="bf16"):
        done = run("--roofline", "--workload", workload, "--rung", rung)
        assert done.exit_code == 0, done.output
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
    assert run("--roofline", "--workload", workload).exit_code == 0
    found = json.loads((tmp_path / "roofline" / "nvidia-h200-small.json").read_text())
    measured, step = found["measured"], found["step"]
    assert measured["distance_ms"] == pytest.approx(5.0 - step["light_ms"])
    assert measured["groups"]["convolutions"]["ms"] == pytest.approx(3.0)
    assert measured["groups"]["nothing runs"]["ms"] == pytest.approx(1.0)
    assert sum(group["of_distance"] for group in measured["groups"].values()) == pytest.approx(1)
    rows = {row["family"]: row for row in measured["families"]}
    idle = measured["groups"]["nothing runs"]["of_distance"]
    assert sum(row["of_distance"] for row in rows.values()) + idle == pytest.approx(1)
    assert rows[families.SGEMM]["us"] == pytest.approx(1000)
    assert rows[families.FORWARD]["of_step"] == pytest.approx(0.4)


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
    monkeypatch.setattr(machine, "choose_device", lambda requested: pytest.fail("no device is needed"))
    done = run("--roofline", "--gpu", "nvidia-h200", "--workload", workload, "--rung", "cuda_graphs")
    assert done.exit_code == 0 and "Nothing was measured here" in done.stdout
    assert "rung cuda_graphs" in done.stdout and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--roofline", "--device", "cpu"], "--gpu NAME (nvidia-h200)"),
        (["--roofline", "--gpu", "abacus"], "no rates are recorded of 'abacus'"),
        (["--roofline", "--gpu", "h200", "--rung", "warp_drive"], "warp_drive not in ladder article"),
        (["--roofline", "--gpu", "h200", "--workload", "nothing"], "no workload 'nothing'"),
        (["--gpu", "h200"], "for --roofline"),
        (["--roofline", "-w", "tiny", "-w", "article"], "of one --workload"),
        (["--roofline", "--minutes", "3"], "--minutes is for --selftest"),
        (["--roofline", "--selftest"], "one at a time"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(args, said):
    done = run(*args)
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_rung_that_cannot_run_here_is_refused(gpu, monkeypatch):
    needs = dict.fromkeys(catalog.NEEDS) | {"bf16": "needs BF16 arithmetic"}
    monkeypatch.setattr(machine, "capabilities", lambda device: needs)
    done = run("--roofline", "--rung", "bf16")
    assert done.exit_code == 2 and "bf16 cannot run here: needs BF16 arithmetic" in done.stderr


def test_numbers_stand_on_the_right():
    table = [["what", "ms"], ["a", "1.5"], ["bb", "10.5"]]
    assert roofline_view._plain(table) == "what    ms\na      1.5\nbb    10.5"
    assert roofline_view._piped(table).splitlines()[1] == "| --- | ---: |"


@pytest.mark.gpu
def test_a_step_on_a_gpu_is_timed_and_traced():
    name, recipe = roofline.plan("article", "cuda_graphs", dict.fromkeys(catalog.NEEDS))
    seen = distance.observe(SMALL, recipe)
    assert name == "cuda_graphs" and seen["families"] and 0 < seen["busy_ms"] <= 1.1 * seen["step_ms"]
    assert all(ms > 0 for ms in seen["phases_ms"].values())
