"""`ladder doctor --roofline` with a made-up GPU: what is put together, shown, written, and refused; rates on record."""

import functools
import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core import git, text
from ladder.core.errors import UserError
from ladder.machine import system
from ladder.plan import needs as needss
from ladder.plan.catalog import load_workload
from ladder.receipts import kernel_families
from ladder.studies import frame
from ladder.studies.roofline import derive, floors, measure, study
from ladder.studies.roofline.derive import Op, Rate
from ladder.studies.roofline.floors import PHASES
from tests.support import committed, made_up
from tests.support.small import SMALL

STORED = committed.listed("results/roofline/*.json")
GOLDEN = Path(__file__).parents[1] / "goldens" / "roofline.json"
TUNED = committed.file("results/kernels/nvidia-h200-tuning.json")
GPU = dict(made_up.gpu_run()["machine"])
SGEMM = "void implicit_convolve_sgemm<float, float, 128>(int)"
FPROP = "sm90_xmma_fprop_implicit_gemm_x__5x_cudnn"
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
    monkeypatch.setattr(system, "describe_machine", lambda device: {**GPU})
    monkeypatch.setattr(system, "device_key", lambda device: None)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # set for the tests of kernels
    monkeypatch.setattr(system, "list_capabilities", lambda device: dict.fromkeys(needss.NEEDS))
    monkeypatch.setattr(study, "OUT", tmp_path / "roofline")

    def observe(fields, recipe):
        ms = made["step_us"] / 1000
        rows = kernel_families.derive_shares(events(made["step_us"]), 16)
        return derive.Timed(
            phases_ms=dict.fromkeys(PHASES, ms / 2),
            step_ms=ms,
            wall_ms=ms,
            busy_ms=0.8 * ms,
            families=[derive.Kernels(**row) for row in rows],
            settings={},
        )

    def measure_rates(ops, layout):
        rates = RATES | {op.key(layout): made["rate"] for op in ops}
        return derive.Today(rates=rates, skipped={}, seconds=1.0)

    monkeypatch.setattr(measure, "observe_step", observe)
    monkeypatch.setattr(measure, "measure_rates", measure_rates)
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


def run_measurement(workload, folder, rung="bf16"):
    """Measure with the made-up GPU; return the path of the file, and the file."""
    done = run("--roofline", "--workload", workload, "--rung", rung)
    assert done.exit_code == 0, done.output
    path = folder / "roofline" / f"nvidia-h200-small-full-{rung}.json"
    return path, frame.read_file(study.STUDY, path)


def test_it_shows_and_writes_ceilings_phases_and_families(gpu, workload, tmp_path):
    shown = json.loads(run("--roofline", "-w", workload, "--rung", "bf16", "--json").stdout)
    assert shown["kind"] == "roofline" and shown["recorded"].keys() >= RATES.keys()
    path, file = run_measurement(workload, tmp_path)
    page = path.with_suffix(".md").read_text()
    assert page.startswith("# Roofline of small") and "rung bf16 of ladder full" in page
    assert "| D\\_r1 |" in page and "implicit\\_convolve\\_sgemm" in page
    assert file.cases["bf16"].recipe["precision"] == "bf16" and file.workload["data"] is None


def test_a_bad_day_does_not_raise_the_floor_and_a_good_one_lowers_it(gpu, workload, tmp_path):
    def floor(rung="bf16"):
        return study.STUDY.derive(run_measurement(workload, tmp_path, rung)[1]).step["light_ms"]

    gpu["rate"] = 350e12
    first = floor()
    gpu["rate"] = 1e9
    assert floor() == floor() == first, "rates of the file that was replaced are lost"
    floor("baseline")  # of other convolutions: FP32
    assert floor() == first
    gpu["rate"] = 600e12
    assert floor() < first


def test_the_groups_and_the_families_add_up_to_the_distance(gpu, workload, tmp_path):
    result = study.STUDY.derive(run_measurement(workload, tmp_path)[1])
    measured, light_ms = result.measured, result.step["light_ms"]
    groups, rows = measured.groups, {row.family: row for row in measured.families}
    assert measured.distance_ms == pytest.approx(5.0 - light_ms)
    assert groups["convolutions"].ms == pytest.approx(3.0)
    assert groups["nothing runs"].ms == pytest.approx(1.0)
    assert sum(group.of_distance for group in groups.values()) == pytest.approx(1)
    assert sum(group.floor_ms for group in groups.values()) == pytest.approx(light_ms)
    idle = groups["nothing runs"].of_distance
    assert sum(row.of_distance for row in rows.values()) + idle == pytest.approx(1)
    assert rows[kernel_families.SGEMM].us == pytest.approx(1000)
    assert rows[kernel_families.FORWARD].of_step == pytest.approx(0.4)
    for busy_ms, overlap in ((4.0, []), (3.0, [["overlap of kernels", -1.0, 0.0]])):  # two streams in 3 ms
        both = msgspec.structs.replace(measured, busy_ms=busy_ms)
        *_, table, _ = study.list_tables(msgspec.structs.replace(result, measured=both))
        assert [row[:3] for row in table.rows[3:]] == overlap


def test_what_ran_faster_in_the_step_than_its_floor_lowers_the_floor(gpu, workload, tmp_path):
    gpu["rate"] = 1e3  # what the ceilings say of the convolutions that no fact covers: far too slow
    path, file = run_measurement(workload, tmp_path)
    result = study.STUDY.derive(file)
    floor, low, groups = result.step, result.in_step, result.measured.groups
    assert groups["convolutions"].ms == pytest.approx(3.0) and not study.STUDY.list_cautions(file)
    assert low["forward"].ms == pytest.approx(3.0) and low["forward"].alone_ms > 3.0
    assert low["convolutions"].ms == pytest.approx(3.0), "each kind takes all the time that is unclear"
    assert floor["convolutions_ms"] - floor["pointwise_ms"] == pytest.approx(3.0)
    intervals = zip(PHASES, (1, 1, 1 / 4, 1 / 16), strict=True)
    assert floor["light_ms"] == pytest.approx(sum(result.phases[p]["light_ms"] * n for p, n in intervals))
    gpu["step_us"] = 10000  # a slower day, or rung: the rate stays
    again = study.STUDY.derive(run_measurement(workload, tmp_path)[1])
    assert again.step["light_ms"] == pytest.approx(floor["light_ms"])
    assert again.in_step["forward"].source == path.name


def test_no_rate_of_a_traced_step_is_above_that_of_matmuls():
    """Triton's templates convolve under names that are no convolution's: what is left would run at any rate."""
    rows = [
        derive.Kernels(family=name, us=us, kernels=1.0, heaviest=name)
        for name, us in ((kernel_families.FORWARD, 1000.0), (kernel_families.INDUCTOR, 5000.0))
    ]
    amounts = dict.fromkeys(derive.PARTS, 1e12) | {"forward": 0.5e12}
    rates = derive.derive_step_rates(amounts, rows, {"precision": "bf16"}, 700e12)
    assert {key.split(", ")[1]: rate for key, rate in rates.items()} == {
        "forward": pytest.approx(500e12),
        "other kernels": pytest.approx(200e12),
    }


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_nothing_on_record_took_less_than_its_floor(path):
    file = frame.read_file(study.STUDY, path)
    assert study.STUDY.derive(file).measured.groups and not study.STUDY.list_cautions(file)


def test_floors_of_an_earlier_result_are_computed_again(gpu, workload, tmp_path):
    path, file = run_measurement(workload, tmp_path)
    light_ms = study.STUDY.derive(file).step["light_ms"]
    old = path.with_name("nvidia-h200-small.json")  # as such files were named
    stale = json.loads(path.read_text())
    for work in stale["observed"]["bf16"]["work"].values():
        work["bytes"]["optimizer"] *= 2
    path.unlink()
    old.write_text(json.dumps(stale))
    assert study.STUDY.derive(frame.read_file(study.STUDY, old)).step["light_ms"] > light_ms
    done = run("--roofline", "--again", str(old))
    assert done.exit_code == 0, done.output
    again = frame.read_file(study.STUDY, old)
    assert again.observed["bf16"].floors_commit == git.commit_of(study.ROOT)[0]
    assert again.started == file.started and again.observed["bf16"].step == file.observed["bf16"].step
    assert study.STUDY.derive(again).step["light_ms"] == pytest.approx(light_ms)
    gpu["rate"] = 1e9
    _, file = run_measurement(workload, tmp_path)
    assert study.STUDY.derive(file).step["light_ms"] == pytest.approx(light_ms), "old names are read"


def test_without_a_gpu_the_floor_follows_from_recorded_rates(workload, monkeypatch):
    monkeypatch.setattr(system, "choose_device", lambda requested: pytest.fail("no device is needed"))
    asked = ("--roofline", "--gpu", "H200", "--workload", workload, "--rung", "cuda_graphs")
    assert "Nothing was measured" in run(*asked).stdout
    shown = json.loads(run(*asked, "--json").stdout)
    phases, step = shown["phases"], shown["step"]
    assert shown["rung"] == "cuda_graphs"
    expected = sum(phases[p]["light_ms"] * n for p, n in zip(PHASES, (1, 1, 1 / 4, 1 / 16), strict=True))
    assert step["light_ms"] == pytest.approx(expected)
    for part in (*phases.values(), step):
        kinds = ("forward_ms", "input_gradient_ms", "weight_gradient_ms")
        assert part["convolutions_ms"] == pytest.approx(sum(part[kind] for kind in kinds))
        parts = part["convolutions_ms"] + part["bytes_ms"] + part["matmul_ms"]
        assert part["light_ms"] == pytest.approx(parts) and part["peak_ms"] < part["light_ms"]
    assert sum(row["flops"] for row in shown["convolutions"]) == pytest.approx(step["flops"])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--roofline", "--gpu", "h200", "--workload", "CHEAP"], "cheap has convolution: separable"),
        (["--roofline", "--device", "cpu"], "--gpu NAME"),
        (["--roofline", "--gpu", "H100"], "no rates are recorded of 'H100'; there are: nvidia-h200"),
        (["--roofline", "--gpu", "h200", "--rung", "warp_drive"], "warp_drive not in ladder full"),
        (["--roofline", "--gpu", "h200", "--workload", "nothing"], "no workload 'nothing'"),
        (["--gpu", "h200"], "for --roofline"),
        (["--again", "x.json"], "for --roofline"),
        (["--roofline", "--again", "x.json"], "x.json: cannot be read: No such file"),
        (["--roofline", "--again", __file__], "not a result file"),
        (["--roofline", "--again", str(TUNED)], "nvidia-h200-tuning.json: schema: 1 is none of 2"),
        (["--roofline", "--again", str(TUNED), "--rung", "bf16"], "--again takes all from its file"),
        (["--roofline", "--again", str(TUNED), "--ladder", "full"], "--again takes all from its file"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(args, said, tmp_path):
    cheap = tmp_path / "cheap.yaml"
    cheap.write_text("resolution: 8\nchannel_base: 64\nbatch: 4\nconvolution: separable\n")
    done = run(*(str(cheap) if arg == "CHEAP" else arg for arg in args))
    assert done.exit_code == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_rung_that_cannot_run_here_is_refused(gpu, monkeypatch):
    needs = dict.fromkeys(needss.NEEDS) | {"bf16": "needs BF16 arithmetic"}
    monkeypatch.setattr(system, "list_capabilities", lambda device: needs)
    done = run("--roofline", "--rung", "bf16")
    assert done.exit_code == 2 and "bf16 cannot run here: needs BF16 arithmetic" in done.stderr


def set_value(data, path, value):
    """Put a value at a path of keys; None removes what is there."""
    *path, last = path.split("/")
    for key in path:
        data = data[key]
    data[last] = value
    if value is None:
        del data[last]


FORWARD = "forward, 8x8x1x1 * 8x8x3x3, stride 1, padding {}, bf16 channels_last"
EACH = "observed/bf16/"
WIDE = json.loads(GOLDEN.read_text())["workload"]
WIDE |= {"resolution": 256, "channel_base": 16384, "channel_max": 512, "batch": 1024}


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (EACH + "today/rates/copy", 1e15, "copy: 1e+15 a second is more than this GPU can do"),
        (EACH + "recorded/matmul bf16", {"value": 2e15, "source": "x.json"}, "bf16: 2e+15 a second is more"),
        (EACH + "today/rates/" + FORWARD.format(1), 1e16, "1e+16 a second is more than"),
        ("workload", WIDE, "faster than this machine can compute"),
        (EACH + "step/busy_ms", 100.0, "busy_ms: longer than all kernels"),
        (EACH + "today/rates/copy", None, "no rate of 'copy' is recorded"),
        (EACH + "work/D_r1/convolutions", {FORWARD.format(0): 1}, "has no result"),
        ("workload/pl_interval", None, "no floor follows"),
        ("cases/second", {"recipe": {}}, "no floor follows"),
        (EACH + "step", None, "ok contradicts its step"),
    ],
)
def test_what_no_gpu_can_measure_is_refused(path, value, problem):
    data = json.loads(GOLDEN.read_text())
    data["machine"] |= {"name": "nvidia-h200-nvl", "gpu": "NVIDIA H200 NVL"}
    data["observed"]["bf16"].setdefault("recorded", {})
    assert frame.decode_file(study.STUDY, data)
    set_value(data, path, value)
    with pytest.raises(UserError) as refusal:
        frame.decode_file(study.STUDY, data)
    assert problem in str(refusal.value)


def test_the_score_is_one_at_the_floor_and_a_half_at_the_base():
    assert derive.derive_score(8.0, 24.0, 8.0) == 1.0 and derive.derive_score(24.0, 24.0, 8.0) == 0.5
    assert derive.derive_score(12.0, 24.0, 8.0) == pytest.approx(1 / (1 + 4 / 16))
    assert derive.derive_score(1e9, 24.0, 8.0) < 1e-6
    for below in ((7.9, 24.0, 8.0), (9.0, 8.0, 8.0), (9.0, 7.0, 8.0), (9.0, 24.0, None)):
        assert derive.derive_score(*below) is None


def test_the_h200_has_frozen_times_for_article_alone():
    fields = load_workload("article")[1]
    known = derive.find_frozen("nvidia-h200", fields)
    assert known is not None and round(known.floor_ms, 2) == 7.93 and round(known.base_ms, 2) == 24.46
    assert derive.find_frozen("nvidia-h200", fields | {"batch": 32}) is None
    assert derive.find_frozen("nvidia-h100", fields) is None


OP = Op("forward", (8, 64, 256, 256), (64, 64, 3, 3), 1, 1, "bf16")
KEY = OP.key("channels_last")
H200 = "nvidia-h200"
CEILINGS = {"copy": 4e12, "matmul bf16": 774e12, "matmul tf32": 395e12, "matmul fp32": 50e12}


def write_result(folder, name, recorded, gpu="NVIDIA H200", kind="roofline"):
    """Write the golden file with other rates of its day."""
    folder.mkdir(exist_ok=True)
    data = json.loads(GOLDEN.read_text())
    data["machine"] |= {"name": text.make_slug(gpu), "gpu": gpu}
    data["kind"] = kind
    data["observed"]["bf16"]["today"]["rates"] |= recorded
    (folder / name).write_text(json.dumps(data))


def test_the_highest_of_earlier_results_and_today_counts(tmp_path):
    write_result(tmp_path, f"{H200}-article.json", {"copy": 4.5e12, KEY: 500e12})
    write_result(tmp_path, f"{H200}-large.json", {"copy": 4.1e12, KEY: 600e12})
    rates = study.load_rates(H200, tmp_path)
    assert rates.known["copy"] == Rate(4.5e12, f"{H200}-article.json")
    rates.add({KEY: 550e12, "copy": 4.6e12}, "today")
    assert rates.known[KEY].value == 600e12, "a bad day must not raise the floor"
    assert rates.known["copy"].source == "today"
    assert {study.choose_rates(name, tmp_path).gpu for name in (H200, "NVIDIA H200", "h200")} == {H200}
    with pytest.raises(UserError, match=f"no rates are recorded of 'A100'; there are: {H200}"):
        study.choose_rates("A100", tmp_path)
    with pytest.raises(UserError, match="no rate of 'matmul bf16' is recorded for nvidia-l4"):
        derive.Rates("nvidia-l4").time_convolution(OP, "nchw")


IMPOSSIBLE = [float("nan"), float("inf"), -1, True, "9e12", [9e12], None]


@pytest.mark.parametrize(
    ("value", "more"),
    [(9e12, {"gpu": "NVIDIA H200 NVL"}), (9e12, {"kind": "profile"}), *((value, {}) for value in IMPOSSIBLE)],
)
def test_another_gpus_rates_other_files_and_impossible_values_do_not_count(tmp_path, value, more):
    write_result(tmp_path, f"{H200}-x.json", {"copy": value}, **more)
    (tmp_path / f"{H200}-z.json").write_text("{")
    assert not study.load_rates(H200, tmp_path).known


LARGE = Op("forward", (8, 128, 128, 128), (128, 128, 3, 3), 1, 1, "bf16").key("channels_last")
NARROW = Op("forward", (8, 32, 512, 512), (32, 32, 3, 3), 1, 1, "bf16")
THIN = Op("forward", (8, 64, 256, 256), (8, 64, 1, 1), 1, 0, "bf16")
RGB = Op("forward", (8, 64, 256, 256), (3, 64, 1, 1), 1, 0, "bf16")
FP32 = Op("forward", (8, 512, 64, 64), (512, 512, 3, 3), 1, 1, "fp32")
THIN_BYTES = 2 * (8 * 64 * 256**2 + 8 * 64 + 8 * 8 * 256**2)


@pytest.mark.parametrize(
    ("op", "rates", "expected"),
    [
        (OP, {KEY: 400e12}, OP.flops / 400e12),
        (OP, {KEY: 100e12}, OP.flops / 340e12),  # the least that this kind is known to reach
        (NARROW, {NARROW.key("channels_last"): 100e12}, NARROW.flops / 100e12),  # nothing is known of 32 channels
        (OP, {LARGE: 650e12}, OP.flops / 650e12),  # not measured: the highest of its kind, and of its layout
        (OP, {LARGE: 650e12, LARGE.replace("channels_last", "nchw"): 700e12}, OP.flops / 650e12),
        (THIN, {}, THIN_BYTES / 4e12),  # not measured: at least a copy of its tensors
        (RGB, {RGB.key("channels_last"): 2.6e12}, 2 * (3 * 64 + 8 * 3 * 256**2) / 4e12),  # however slow
        (FP32, {}, FP32.flops / 395e12),  # no class known: the matmul rate
    ],
)  # fmt: skip
def test_the_best_time_of_a_convolution(op, rates, expected):
    known = derive.Rates(H200)
    known.add(CEILINGS | rates, "today")
    assert known.time_convolution(op, "channels_last")[0] == pytest.approx(expected)


def tune(folder, rows, gpu="NVIDIA H200", **fields):
    """Write a file of kernels.tuning beside a folder of rooflines; return its rate of a copy."""
    key = {
        "op": "x",
        "direction": "forward",
        "itemsize": 2,
        "layout": "nhwc",
        "architecture": 90,
        "size": "large",
    }
    choice = dict.fromkeys(("tile", "columns", "warps", "per_sm", "stages"), 1)
    row = {"key": key, "choice": choice, "current": True, "all_shapes": True, "share": 0.9}
    row["runs"] = [{"shape": [8]} | each for each in rows]
    content = {"schema": 1, "kind": "tuning", "gpu": gpu, "torch": "2.11", "timed": [row]} | fields
    (folder / "kernels").mkdir(exist_ok=True)
    (folder / "kernels" / "x-tuning.json").write_text(json.dumps(content))
    return study.load_rates(H200, folder / "roofline").known.get("copy")


def test_copies_that_kernels_were_tuned_against_are_on_record(tmp_path):
    slow = {"bytes": 10**9, "copy_microseconds": 300.0}
    fast = {"bytes": 9 * 10**8, "copy_microseconds": 200.0}
    rows = [slow, fast, {"error": "out of memory"}]
    assert tune(tmp_path, rows) == Rate(pytest.approx(4.5e12), "x-tuning.json")
    assert tune(tmp_path, [slow | {"driver_copy_microseconds": 200.0}]).value == pytest.approx(5e12)


DAMAGE = [
    {"gpu": "NVIDIA L4"},
    {"gpu": 7},
    {"kind": ["tuning"]},
    {"kind": "a tuning"},
    {"timed": 3},
    {"more": 1},
]


@pytest.mark.parametrize(
    ("us", "damage"), [(1.0, each) for each in DAMAGE] + [(us, {}) for us in (0, *IMPOSSIBLE)]
)
def test_a_tuning_of_another_gpu_or_damaged_does_not_count(tmp_path, us, damage):
    assert tune(tmp_path, [{"bytes": 10**9, "copy_microseconds": us}], **damage) is None


def test_the_committed_results_hold_the_rates_of_the_h200():
    known = study.load_rates(H200, committed.file("results/roofline")).known
    assert known["copy"].value > 4.24e12 and known["copy"].source.endswith("-tuning.json")
    assert all(known[name].value > rate for name, rate in CEILINGS.items())


@pytest.mark.gpu
def test_a_step_on_a_gpu_is_timed_and_traced():
    options = study.Options(rung="cuda_graphs", ladder="article")
    workload = SMALL | {"norm": "demod"}
    (case,) = study.plan_rung(options, "small", workload, dict.fromkeys(needss.NEEDS)).values()
    timed = measure.observe_step(workload, case.recipe)
    assert timed.families and 0 < timed.busy_ms <= 1.1 * timed.step_ms
    assert all(ms > 0 for ms in timed.phases_ms.values())
