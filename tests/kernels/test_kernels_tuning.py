"""The four tuners: what they try can run and computes the same, and what they print can be pasted.

`tiles` is `python -m kernels.tuning`, the others are its modules of these names.
"""

import json
import math
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from kernels import choices
from kernels.choices import DIRECTIONS, TABLE, Choice, Key, choose
from kernels.common import sums as summing
from kernels.common.sums import Blocks, add_up
from kernels.norm import instance_norm_act_planes as walking
from kernels.norm.instance_norm_act_planes import Config as Walk
from kernels.tuning import __main__ as tiles
from kernels.tuning import filters, planes, sums, timing
from kernels.upfirdn import filtered_act_launch as fused
from kernels.upfirdn.upfirdn2d import Config
from ladder.publish.validation import validate
from ladder.receipts.watch import count_launches
from tests.kernels import opcases
from tests.support import committed, programs, sweeps

ROOT = Path(__file__).parents[2]
KEY = Key("modulate", "forward", 2, "nhwc", 90, "large")
KEYS = [
    planes.Key(direction, dtype, noise)
    for direction in planes.DIRECTIONS
    for dtype in planes.DTYPES
    for noise in (False, True)
]
WALKS = list(dict.fromkeys(how for key in KEYS for how in planes.candidates(key)))
BLOCKS = sums.candidates()


def read_timed(name):
    return json.loads(committed.file(f"results/kernels/nvidia-h200-{name}.json").read_text())["timed"]


@pytest.fixture
def walked(monkeypatch):
    """Any plane is walked over; the ways of walks that were made are noted."""
    made, launch = [], walking._launch
    monkeypatch.setattr(walking, "processor", lambda device: (90, 1))
    monkeypatch.setattr(walking, "LEAST_PIXELS", 1)
    monkeypatch.setattr(
        walking, "_launch", lambda kernel, how, *a, **k: (made.append(how), launch(kernel, how, *a, **k))
    )
    return made


# ---- candidates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", tiles.SHAPES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("itemsize", [2, 4])
def test_tiles_are_what_triton_and_a_multiprocessor_take(direction, size, itemsize):
    found = tiles.candidates(direction, size, itemsize)
    assert len(found) == len(set(found))
    for choice in [*found, *TABLE.values()]:
        assert choice.tile & (choice.tile - 1) == 0 and choice.columns <= choice.tile
        assert choice.per_sm * choice.warps <= 64  # resident warps of a multiprocessor
        assert direction == "forward" or choice.per_sm or choice not in found  # sums need few programs


@pytest.mark.parametrize("nhwc", [True, False])
@pytest.mark.parametrize("name", filters.NAMES)
def test_filters_and_the_one_in_force_are_configurations_that_cover(name, nhwc):
    found = [*filters.candidates(name, nhwc), filters.in_force(name, nhwc, (9, 0))]
    assert len(found[:-1]) == len(set(found[:-1]))
    strips = [config for config in found if isinstance(config, fused.Strip)]
    assert bool(strips) == (nhwc and name not in filters.MODES)
    assert all(strip.width >= 16 and strip.block_c >= 16 for strip in strips)
    assert not any(isinstance(config, fused.Strip) for config in filters.candidates(name, nhwc, short=False))
    up = filters.MODES.get(name, {}).get("up", 1)
    medium = filters.medium_candidates(name) if nhwc and name in filters.MODES else []
    assert len(medium) == len(set(medium))
    for config in (config for config in [*found, *medium] if config not in strips):
        threads = config.warps * 32
        assert config.rows % up == config.cols % up == 0 and math.log2(threads * config.width).is_integer()
        assert config.registers is None or config.registers * threads <= 65536


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)))
def test_walks_are_what_triton_and_a_multiprocessor_take_and_the_one_in_force_is_among_them(key):
    found = planes.candidates(key)
    assert len(found) == len(set(found)) >= 25
    for how in found:
        assert how.block & (how.block - 1) == 0 and how.block >= 8 * 32 * how.warps  # 16 bytes a thread
        assert how.per_sm * how.warps <= 32 and planes.needed(how, key) <= 227 << 10
        assert how.stages > 1 or not how.hints or how.again == 1  # marks to keep that nothing would take away
    assert {how.hints for how in found} == {True, False}
    share, how = planes.in_force(key)
    assert how is None or how in found
    shares = {("forward", "bfloat16"): 0.55, ("backward", "bfloat16"): 0.825, ("forward", "float32"): 1.1}
    assert key.noise or share == shares.get(key[:2], 1.65)  # of an H200's L2 cache


def test_blocks_are_what_triton_takes_and_the_table_goes_by_the_most_rows(monkeypatch):
    assert len(BLOCKS) == len(set(BLOCKS)) > 20
    for how in BLOCKS:
        assert all(number & (number - 1) == 0 for number in how)
        assert 1 <= how.rows * how.columns / (32 * how.warps) <= 32
    mosts = [most for most, _ in summing.BLOCKS]
    assert (
        mosts == sorted(mosts) and mosts[-1] == math.inf and {how for _, how in summing.BLOCKS} <= set(BLOCKS)
    )
    few, many = BLOCKS[:2]
    monkeypatch.setattr(summing, "BLOCKS", ((64, few), (math.inf, many)))
    assert [summing.blocks(rows) for rows in (1, 64, 65, 10**6)] == [few, few, many, many]


@pytest.mark.parametrize("how", sweeps.each_value(WALKS), ids=lambda how: "-".join(map(str, how)))
def test_every_walk_computes_the_same(how, walked):
    """Two planes a program and more; blocks of 4096 pixels are three, the last of them partial."""
    function, reference = opcases.functions("instance_norm_act noise")
    inputs = opcases.make_inputs("instance_norm_act noise", (2, 2, 95, 93))
    with walking.forced(how):
        got = opcases.values_and_grads(function, inputs)
    torch.testing.assert_close(got, opcases.values_and_grads(reference, inputs), rtol=1e-9, atol=1e-9)
    assert [walk[1:] for walk in walked] == [
        how[1:]
    ] * 3  # forward, backward, and backward to be differentiated
    assert walked[0].programs == max(1, int(how.per_sm))


@pytest.mark.parametrize("how", [Blocks(32, 8, 1), Blocks(64, 32, 8), BLOCKS[-1]], ids=str)
def test_every_block_adds_up_the_same(how):
    """Rows and channels that no block divides; sums by sample, by channel and over all programs in one launch."""
    torch.manual_seed(0)
    parts = [torch.randn(n, device=opcases.DEVICE) for n in (3 * 70 * 37, 300 * 37, 331)]
    outs = [torch.full(size, math.nan, device=opcases.DEVICE) for size in ((3, 37), (37,), ())]
    add_up(tuple(parts), outs, (70, 300, 331), 37, how)
    wanted = [parts[0].view(3, 70, 37).sum(1), parts[1].view(300, 37).sum(0), parts[2].sum()]
    torch.testing.assert_close(outs, wanted, rtol=1e-4, atol=1e-4)
    outs[1].fill_(math.nan)
    add_up((None, parts[1], None), (None, outs[1], None), (0, 300, 0), 37, how)
    torch.testing.assert_close(outs[1], wanted[1], rtol=1e-4, atol=1e-4)


# ---- tables are what was measured -----------------------------------------------------------------------------------


def test_rows_of_tiles_are_what_was_measured_best_on_their_gpu():
    """And the shares in the comments beside them are those of the file."""
    files = {"H200": read_timed("tuning"), "H200_MEDIUM": read_timed("tuning-medium-backward")}
    source = (ROOT / "kernels/choices.py").read_text()
    said = re.findall(r'Key\("(\w+)", "(\w+)", \*(\w+)\): .*# ([\d.]+)%, before ([\d.]+)%', source)
    assert {Key(op, direction, *getattr(choices, where)) for op, direction, where, *_ in said} == {
        key for key in TABLE if key.architecture is not None
    }
    for op, direction, where, share, before in said:
        key = Key(op, direction, *getattr(choices, where))
        rows = [row for row in files[where] if Key(**row["key"]) == key]
        best = max(rows, key=lambda row: row["share"] if row["all_shapes"] else 0.0)
        current = next(row for row in rows if row["current"])
        assert Choice(**best["choice"]) == TABLE[key] and best["share"] > 1.01 * current["share"]
        assert [float(share), float(before)] == [round(100 * r["share"] + 1e-9, 1) for r in (best, current)]
    for row in (row for rows in files.values() for row in rows):
        shares = [run["copy_microseconds"] / run["microseconds"] for run in row["runs"]]
        assert row["share"] == pytest.approx(math.prod(shares) ** (1 / len(shares)), abs=2e-4)


def test_filters_of_medium_maps_are_what_was_measured_best():
    source = (ROOT / "kernels/upfirdn/upfirdn2d.py").read_text()
    said = re.findall(r'\("medium", True, (\d), (\d)\): Config\(.*# ([\d.]+)%, before ([\d.]+)%', source)
    assert len(said) == sum(key[0] == "medium" for key in filters.plain.CONFIGS) == 3
    names = {("1", "1"): filters.PAIR, ("2", "1"): "upfirdn2d up", ("1", "2"): "upfirdn2d down"}
    for up, down, share, before in said:
        timed = [
            row for row in read_timed("filter-tuning-medium") if row["kernel"] == f"{names[up, down]} medium"
        ]
        most = max(len(row["runs"]) for row in timed)
        best = max((row for row in timed if len(row["runs"]) == most), key=filters.share)
        (current,) = (row for row in timed if row["current"])
        assert Config(**best["config"]) == filters.plain.CONFIGS["medium", True, int(up), int(down)]
        assert [share, before] == [f"{100 * filters.share(row):.1f}" for row in (best, current)]
        assert filters.share(best) > 1.01 * filters.share(current)


def test_blocks_are_what_was_measured_best_but_for_noise():
    rows = read_timed("sums-tuning")
    for most, how in summing.BLOCKS:
        timed = {
            Blocks(**row["config"]): timing.mean_us(row["runs"])
            for row in rows
            if (row["most"] or math.inf) == most
        }
        assert timed[how] < 1.01 * min(timed.values())


# ---- reports and files ----------------------------------------------------------------------------------------------


def row_of_planes(key, how, taken, current=False):
    run = {"shape": planes.SHAPE, "share": 300 / taken, "microseconds": taken, "copy_microseconds": 300.0}
    about = {"cache_share": 0.8249, "config": how and how._asdict(), "current": current, "candidates": 34}
    return key._asdict() | about | {"runs": [run | {"bytes": 1 << 30}]}


def row_of_sums(how, microseconds, current=False, most=64):
    runs = [{"shape": shape, "microseconds": microseconds} for shape in sums.SHAPES[64]]
    return {"most": most, "config": how._asdict(), "current": current, "runs": runs}


def report_tiles():
    row = {"choice": Choice(2048, 512, 4)._asdict(), "current": True, "all_shapes": True, "share": 0.9}
    return tiles.report(KEY, [row | {"runs": [{"shape": (8, 64, 256, 256), "share": 0.9}]}])


def report_filter(name, config):
    run = {"shape": (8, 64, 256, 256), "share": 0.9, "microseconds": 40.0}
    row = {"kernel": name, "nhwc": True, "config": config._asdict(), "current": False, "runs": [run]}
    return filters.report([row, row | {"current": True, "runs": [run | {"share": 0.5}]}])


def report_planes(how):
    rows = [row_of_planes(KEYS[0], WALKS[0], 400.0, current=True), row_of_planes(KEYS[0], how, 320.0)]
    return planes.report(rows)


def report_sums(most):
    rows = [row_of_sums(BLOCKS[0], 2.5, current=True, most=most), row_of_sums(BLOCKS[1], 2.0, most=most)]
    return sums.report(rows)


FILTER, STRIP = Config(8, 2, 1, 64, 0.5, 4, 96), fused.Strip(32, 32, 64, 4)


@pytest.mark.parametrize(
    ("text", "row", "words"),
    [
        (report_tiles(), {KEY: Choice(2048, 512, 4)}, ()),
        (report_filter("filter_act", FILTER), {("filter_act", True): FILTER}, ("90%", "now: 50.0%")),
        (report_filter("upfirdn2d up", FILTER), {(True, 2, 1): FILTER}, ()),
        (report_filter("upfirdn2d up medium", FILTER), {("medium", True, 2, 1): FILTER}, ()),
        (report_filter("filter_act", STRIP), {"filter_act": STRIP}, ()),
        (report_planes(WALKS[1]), ((0.83, WALKS[1]),), ("best: 93.8% of a copy, 320 us", "now: 75.0% of a copy")),
        (report_planes(None), ((0.83, None),), ("2 of 34 timed",)),
        (report_sums(64), ((64, BLOCKS[1]),), ("best: 2.00 us", "now: 2.50 us")),
        (report_sums(None), ((math.inf, BLOCKS[1]),), ()),
    ],
)  # fmt: skip
def test_what_is_reported_is_a_row_of_the_table(text, row, words):
    names = {"Key": Key, "Choice": Choice, "Strip": fused.Strip, "Blocks": Blocks, "math": math}
    names["Config"] = Walk if "of a copy" in text and isinstance(row, tuple) else Config
    brackets = "{}" if isinstance(row, dict) else "()"
    assert eval(f"{brackets[0]}\n{text}\n{brackets[1]}", names) == row
    assert all(each in text for each in words)


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("planes tuning", row_of_planes(KEYS[0], WALKS[0], 400.0)),
        ("sums tuning", row_of_sums(BLOCKS[0], 2.5)),
    ],
)
def test_files_are_judged(kind, row, tmp_path):
    path = tmp_path / "tuning.json"
    good = {"schema": 1, "kind": kind, "gpu": "NVIDIA H200", "torch": "2.13.0", "timed": [row]}
    path.write_text(json.dumps(good))
    assert validate.problem_of(path) is None
    good["timed"][0]["config"]["rows"] = "8"
    path.write_text(json.dumps(good))
    assert "timed[0].config.rows: '8' is not" in validate.problem_of(path)


# ---- timing ---------------------------------------------------------------------------------------------------------


def test_the_yardstick_is_made_of_whole_pages_and_pieces_that_are_not_too_large():
    """134,743,040 bytes took 51 us on an H200, 136,331,264 took 34."""
    cpu = torch.device("cpu")
    assert [piece.numel() for piece in timing.make_copy(2 * 351, cpu, page=10, largest=100)()] == [90] * 4
    for page in timing.PAGES:
        (piece,) = timing.make_copy(134_743_040, cpu, page, largest=384 << 20)()
        assert piece.numel() % page == 0 and 0 <= piece.numel() - 134_743_040 // 2 < page


def test_the_yardstick_is_the_fastest_way_to_copy(monkeypatch):
    """A slow one would make every kernel look fast: an H200 copied 269,488,128 bytes, whole pages, at 2.7 TB/s."""
    took = {(4096, 384 << 20): 3.0, (65536, 384 << 20): 2.0, (4096, 128 << 20): 1.0, (65536, 128 << 20): 4.0}
    monkeypatch.setattr(timing, "make_copy", lambda total, device, page, largest: (page, largest))
    monkeypatch.setattr(timing, "seconds", lambda calls: took[calls[0]])
    assert timing.copy_seconds(2**30, torch.device("cpu"), 3) == 1.0


@pytest.mark.parametrize(
    ("taking", "candidates", "in_force"),
    [
        (tiles.taking, (Choice(64, 16, 2), None, Choice(32, 16, 2)), lambda shape: choose(*KEY)),
        (walking.forced, (WALKS[1], None, WALKS[2]), lambda shape: walking.config(torch.zeros(shape), 1)),
    ],
    ids=["tiles", "planes"],
)
def test_a_bench_times_what_it_is_given_and_says_what_fails(
    taking, candidates, in_force, walked, monkeypatch
):
    bench, taken = object.__new__(timing.Bench), []
    bench.taking, bench.shape, bench.calls, bench.copy, bench.bytes = taking, (2, 3, 4, 4), [], 1.0, 8

    def seconds(calls):
        taken.append(in_force(bench.shape))
        return 2.0 if len(taken) < 3 else 1 / 0

    monkeypatch.setattr(timing, "seconds", seconds)
    runs = [bench.run(how) for how in candidates]
    given = [in_force(bench.shape) if how is None and taking is tiles.taking else how for how in candidates]
    assert taken == given and [run.get("share") for run in runs] == [0.5, 0.5, None]
    assert runs[2]["error"] == "ZeroDivisionError: division by zero"


def test_what_is_forced_is_over_when_it_is_over(walked):
    x = torch.zeros(2, 3, 4, 4)
    usual = walking.walk(x)
    with walking.forced(WALKS[0]), walking.forced(None):
        assert walking.walk(x) is None
    assert walking.walk(x) == usual != walking.Walk(1, *WALKS[0][1:])
    before, config = (fused.config, fused._cover), Config(4, 2, 0, 64, 0.5, 4, None)
    with filters.forced():
        assert filters.tried(lambda: None, config) is None
        assert fused.config("filter_act", True, (9, 0)) == config
        assert filters.tried(lambda: 1 / 0, config) == "ZeroDivisionError: division by zero"
    assert (fused.config, fused._cover) == before


@pytest.mark.parametrize("name", filters.NAMES)
def test_every_call_of_a_filter_launches_its_kernel(name, monkeypatch):
    """On the CPU in Triton's interpreter, at a size for that."""
    if not torch.cuda.is_available():
        for f in ("randn", "ones"):
            function = getattr(torch, f)
            monkeypatch.setattr(torch, f, lambda *a, function=function, device=None, **k: function(*a, **k))
    call, moved = filters.make_call(name, (1, 2, 4, 4), torch.float32, True)
    with count_launches() as seen:
        call()
    assert f"{name.split()[0]}_kernel" in seen and moved > 0


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("direction", planes.DIRECTIONS)
def test_every_call_of_planes_launches_the_kernel_of_its_direction(direction, noise, walked, monkeypatch):
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    key, x = planes.Key(direction, "float32", noise), torch.randn(1, 2, 4, 4)
    call, moved = planes.make_call(key.op, direction, x)
    walked.clear()
    with walking.forced(WALKS[0]), count_launches() as seen:
        call()
    name = "instance_norm_act_planes_grad_kernel" if key.tensors == 2 else "instance_norm_act_planes_kernel"
    assert [name] == [each for each in seen if "planes" in each] and len(walked) == 1
    assert moved == (key.tensors + 1) * x.nbytes + noise * 64


# ---- the search: with a bench that likes large tiles, rows or blocks, in place of a GPU -----------------------------


@pytest.fixture
def without_gpu(monkeypatch):
    for name, value in (
        ("is_available", True), ("empty_cache", None), ("synchronize", None), ("Stream", None),
        ("get_device_name", "NVIDIA H200"), ("get_device_capability", (9, 0)),
    ):  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: torch.no_grad())
    monkeypatch.setattr(timing, "available", lambda: None)


def assert_searched(rows, shapes, finalists, best):
    """The table's own comes first; it and the best few run at every shape."""
    assert [row["current"] for row in rows] == [True] + [False] * (len(rows) - 1)
    whole = [row for row in rows if len(row["runs"]) == len(shapes)]
    assert rows[0] in whole and len(whole) - finalists in (0, 1)
    assert max(map(best, rows)) in map(best, whole)


def test_the_table_s_tiles_and_the_best_few_run_at_every_shape(monkeypatch, without_gpu):
    class Bench:
        def __init__(self, make, shape, dtype, taking):
            self.shape = shape

        def run(self, choice):
            return {"shape": self.shape, "share": choice.tile / 1e6}

    compiled = []
    monkeypatch.setattr(tiles, "Bench", Bench)
    monkeypatch.setattr(tiles, "compile_ahead", compiled.append)
    rows = list(tiles.tune(KEY, torch.bfloat16, math.inf))
    assert_searched(rows, tiles.SHAPES["large"], tiles.FINALISTS["large"], lambda row: row["choice"]["tile"])
    assert Choice(**rows[0]["choice"]) == choose(*KEY) and len(compiled) == 2
    assert len(list(tiles.tune(KEY, torch.bfloat16, -math.inf))) == 1  # no time: the table's choice alone


@pytest.mark.parametrize("size", filters.SHAPES)
def test_the_best_filters_go_to_every_shape_one_kernel_after_another(size, monkeypatch, without_gpu):
    class Bench:
        def __init__(self, name, dtype, nhwc, shape):
            self.shape = shape

        def run(self, config):
            return {"shape": self.shape, "share": config.rows / 100, "microseconds": 1.0}

    monkeypatch.setattr(filters, "bench_of", Bench)
    monkeypatch.setattr(filters, "make_call", lambda *_: (lambda: None, 1))
    names = ["upfirdn2d", "upfirdn2d up"] if size == "medium" else ["act_filter", "upfirdn2d"]
    found = list(filters.tune(names, torch.bfloat16, True, math.inf, 1, size))
    assert [rows[0]["kernel"] for rows in found] == [f"{n} medium" if size == "medium" else n for n in names]
    for rows in found:
        assert_searched(
            rows, filters.SHAPES[size], filters.FINALISTS[size], lambda row: row["config"]["rows"]
        )
        assert filters.report(rows).count("\n") == 2


def test_the_time_for_planes_is_shared_out_and_the_file_is_accepted(
    monkeypatch, tmp_path, capsys, without_gpu
):
    made, clock, compiled = [], [0.0], []

    class Bench:
        def __init__(self, key, shape):
            made.append(key)

        def run(self, how):
            clock[0] += 1
            if how is not None and how.block == 8192:
                return {"shape": planes.SHAPE, "error": "OutOfResources"}
            return row_of_planes(KEYS[0], how, 1000.0 if how is None else 4e6 / how.block)["runs"][0]

    monkeypatch.setattr(planes, "bench_of", Bench)
    monkeypatch.setattr(planes, "compile_all", compiled.append)
    monkeypatch.setattr(planes.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(planes, "in_force", lambda key: (0.5, None if "32" in key.dtype else WALKS[2]))
    path = tmp_path / "nvidia-h200-planes-tuning.json"
    assert planes.main(["--seconds", "44", "--json", str(path)]) == 0
    timed = json.loads(path.read_text())["timed"]
    assert validate.problem_of(path) is None
    assert [(key.direction, key.dtype) for key in made] == [(r["direction"], r["dtype"]) for r in timed[::11]]
    assert [r["current"] for r in timed] == ([True] + [False] * 10) * 4
    assert [r["config"] for r in timed[::11]] == [WALKS[2]._asdict()] * 2 + [None] * 2
    assert [len(trials) for trials in compiled[0].values()] == [r["candidates"] for r in timed[::11]]
    assert {key.op for key in made} == {"instance_norm_act without noise"}
    assert capsys.readouterr().out.count("# best: ") == 4


def test_without_a_gpu_each_says_so_in_one_line():
    tuners = ["kernels.tuning", "kernels.tuning.filters", "kernels.tuning.planes", "kernels.tuning.sums"]
    ended = programs.run(*([tuner] for tuner in tuners), CUDA_VISIBLE_DEVICES="")
    for tuner, end in zip(tuners, ended, strict=True):
        assert (end.returncode, end.stderr) == (2, f"{tuner}: no CUDA GPU that PyTorch can use\n")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("tuner", "options", "count", "word"),
    [
        *(
            (tiles, f"--op modulate --direction {d} --size small --minutes 0.1", 1, "Choice(")
            for d in DIRECTIONS
        ),
        (filters, "--kernel act_filter --minutes 0.5 --processes 4", 1, "("),
        (planes, "--direction forward --dtype bfloat16 --seconds 15", 1, "Config("),
        (sums, "", len(sums.SHAPES), "Blocks("),
    ],
)
def test_it_finds_rows(tuner, options, count, word, tmp_path, capsys):
    path = tmp_path / "tuning.json"
    assert tuner.main([*options.split(), "--json", str(path)]) == 0
    timed = json.loads(path.read_text())["timed"]
    assert sum(row["current"] for row in timed) == count and validate.problem_of(path) is None
    runs = [run for row in timed if row["current"] for run in row["runs"]]
    assert all(0 < run.get("share", 1) < 2 for run in runs) and word in capsys.readouterr().out
