"""The tables of a profile, from handmade traces: planted kernels of known length show where they belong."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ladder.core.protocol import CYCLE_STEPS
from ladder.receipts import categories, kernel_families
from ladder.studies.profile import measuring, record, study, tracing
from ladder.studies.profile.tracing import Ran
from stylegan_lite.config import Workload
from tests.support.small import LEAST

US = 1000
CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
MUL = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"
COPY = "Memcpy HtoD (Pinned -> Device)"
FUSED = "fused: activation and bias"
PLANTED = {  # name -> (category, us of a launch)
    CONV: ("convolution", 400.0),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": ("matmul", 90.0),
    MUL: ("elementwise", 25.0),
    COPY: ("copies", 60.0),
    "bias_act_kernel": (FUSED, 33.0),
    "modulate_kernel": ("normalization and modulation", 12.0),
    "void at::native::reduce_kernel<512, 1>(int)": ("reductions", 7.0),
    "void cudnn::ops::nchwToNhwcKernel<float>(int)": ("layout and dtype conversion", 18.0),
    "never_seen_before": ("other", 3.0),
}
FIELDS = Workload.from_dict(LEAST).to_dict() | {"data": None}
COPIED = [(1 << 20, 2 * US), (1 << 24, 16 * US)]  # (bytes, ns) of copies


def make_ran(name: str, us: float, at_us: float = 0, **more: Any) -> Ran:
    return Ran(name, kernel_families.name_family(name), int(at_us * US), int(us * US), **more)


def cut(
    kernels: list[tuple[str, int, int, int]], phases: tuple[str, ...] = ("G_main",)
) -> tuple[list[Any], int]:
    """Return one segment of kernels (name, stream, begin us, end us), and the ns in which any ran."""
    events = [(name, True, stream, begin * US, end * US) for name, stream, begin, end in kernels]
    return tracing.cut_events(events, [(phases, 10**12)], "cuda")


@pytest.fixture(scope="module")
def traced() -> tuple[list[Any], int]:
    """A cycle in which G_main runs every planted kernel and D_main the convolution twice, with its marks."""
    events: list[Any] = [("cudaGraphLaunch", False, 0, 0, 10), ("Event Sync", True, 7, 0, 10**9)]
    marks: list[tuple[tuple[str, ...], int]] = []
    for index in range(CYCLE_STEPS):
        begin = 10_000 * US * (index + 1)
        parts = ((0, [COPY]), (1000, [name for name in PLANTED if name != COPY]), (4000, [CONV, CONV]))
        for at_us, names in parts:
            at = begin + at_us * US
            for name in names:
                events.append((name, True, 7, at, at + int(PLANTED[name][1] * US)))
                at = events[-1][-1] + 2 * US
        marks += [((), begin + 900 * US), (("G_main",), begin + 3900 * US), (("D_main",), begin + 8000 * US)]
    return tracing.cut_events(events, marks, "cuda")


@pytest.fixture(scope="module")
def unlabelled(traced: tuple[list[Any], int]) -> list[Ran]:
    return tracing.label_segments({}, traced[0])


def derive_categories(ran: list[Ran], work: dict[str, float] | None = None) -> list[record.Category]:
    step = SimpleNamespace(profile=measuring.list_kernels(ran), work=work or {}, replaced={})
    return record.derive_categories(step)  # type: ignore[arg-type]


def test_each_planted_kernel_shows_in_its_category(traced: Any, unlabelled: list[Ran]) -> None:
    rows = {row.name: row for row in derive_categories(unlabelled)}
    assert rows.keys() == {category for category, _ in PLANTED.values()}
    for name, (category, us) in PLANTED.items():
        times = 3 if name == CONV else 1
        assert 1000 * rows[category].ms == pytest.approx(us * times) and rows[category].launches == times
    assert sum(row.share for row in rows.values()) == pytest.approx(1, abs=1e-4)
    total = sum(us for _, us in PLANTED.values()) + 2 * PLANTED[CONV][1]
    assert traced[1] == int(total * US) * CYCLE_STEPS  # no two ran at once


def test_every_instant_belongs_to_one_category_so_their_sum_is_gpu_time() -> None:
    """An instant of two streams belongs to the busier one, and rates are of all milliseconds."""
    segments, busy_ns = cut([(CONV, 7, 0, 4000), ("a_gemm", 8, 3000, 6000), (COPY, 9, 5000, 5500)])
    rows = derive_categories(tracing.label_segments({}, segments))
    us = {row.name: (16_000 * row.ms, 16_000 * row.shown_ms) for row in rows}
    assert us == {
        categories.CONVOLUTION: pytest.approx((4000, 4000)),
        categories.MATMUL: pytest.approx((3000, 2000)),
        categories.COPIES: pytest.approx((500, 0)),
    }
    assert busy_ns == 6000 * US and [row.share for row in rows] == [0.66667, 0.33333, 0.0]


def test_phases_are_cut_by_the_clock_and_sum_to_all_work(traced: Any, unlabelled: list[Ran]) -> None:
    rows = {row.name: row for row in measuring.list_phases(unlabelled, traced[0])}
    assert list(rows) == ["G_main", "D_main", "between phases"]
    assert 1000 * rows["D_main"].ms == pytest.approx(800) and rows["D_main"].runs == 1
    assert 1000 * rows["between phases"].ms == pytest.approx(60) and rows["between phases"].runs is None
    whole = sum(row.ms for row in derive_categories(unlabelled))
    assert sum(row.ms for row in rows.values()) == pytest.approx(whole)


def test_gaps_are_told_by_what_stands_at_their_ends() -> None:
    """A second stream's long kernel fills a gap of the first, and between two runs of phases nothing is told."""
    timeline = [("a", 0, 100), ("Memset (Device)", 104, 2), ("b", 110, 50), ("side", 150, 60), ("c", 165, 5)]
    timeline += [("Memcpy DtoD (Device -> Device)", 212, 8), ("d", 221, 9)]
    begins = [(("G_main",), 5000 * k) for k in range(CYCLE_STEPS)] + [((), 200_000)]
    segments = [
        (phases, [make_ran(name, us, begin + at) for name, at, us in timeline]) for phases, begin in begins
    ]
    gaps = measuring.list_gaps(segments)
    assert {(row.before, row.after): (row.ms, row.number, row.median_us) for row in gaps} == {
        ("kernel", "memset"): (0.004, 1, 4),
        ("memset", "kernel"): (0.004, 1, 4),
        ("kernel", "copy"): (0.002, 1, 2),
        ("copy", "kernel"): (0.001, 1, 1),
    }


def test_a_profile_names_the_heaviest_kernels_and_sums_the_rest() -> None:
    segments, _ = cut([(f"gemm_{n}", 7, 10 * n, 10 * n + 5) for n in range(50)])
    kernels = measuring.list_kernels(tracing.label_segments({}, segments)).kernels
    assert len(kernels) == 41 and kernels[-1].name == "10 other kernels"


def test_the_heaviest_kernels_have_the_phase_with_most_of_them(unlabelled: list[Ran]) -> None:
    rows = {row.kernel: row for row in measuring.list_heaviest(unlabelled)}
    conv = rows["sm90_xmma_fprop_bf16_nhwc"]
    assert next(iter(rows)) == conv.kernel and (conv.phase, conv.launches) == ("D_main", 3)
    assert (1000 * conv.ms, 1000 * conv.phase_ms) == pytest.approx((1200, 800))
    assert (conv.function, conv.word) == (CONV, None)
    product = rows["vectorized_elementwise_kernel Mul fp32"]
    assert (product.function, product.word) == ("vectorized_elementwise_kernel", "Mul")
    assert not [name for name in rows if name.startswith("Memcpy")] and len(rows) == len(PLANTED) - 1


def test_a_heavy_kernel_of_several_functions_is_found_by_what_they_share() -> None:
    names = [f"{CONV}_tilesize128x128x64_g1_{end}" for end in ("k_on_kernel", "k_off_kernel")]
    both = ("G_main", "D_main")  # a whole step, without layers
    segments, _ = cut([(name, 7, 10 * n, 10 * n + 5) for n, name in enumerate(names)], both)
    (row,) = measuring.list_heaviest(tracing.label_segments({}, segments))
    assert row.kernel == "sm90_xmma_fprop_bf16_nhwc_128x128x64" and row.phase == "unknown"
    assert row.function == f"{CONV}_tilesize128x128x64_g1_k_o"[:96]


@pytest.mark.parametrize("whole", [False, True])
def test_a_cycle_is_marked_at_its_phases_or_at_its_whole_steps(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    step = SimpleNamespace(device="cpu", together=whole, run=ran.append, run_phase=ran.append)
    clock = SimpleNamespace(sleep=lambda _: ran.append("pause"), time_ns=lambda: ran.append("mark"))
    monkeypatch.setattr(tracing, "time", clock)
    both, marks = ("G_main", "D_main"), list[Any]()
    runs = [both] if whole else list(both)
    with tracing.mark_phases(step, marks):
        for each in runs:
            (step.run if whole else step.run_phase)(each)
    labels = [(), both] if whole else [(), ("G_main",), (), ("D_main",)]
    assert [label for label, _ in marks] == [(), *labels, ()]
    mark = ["pause", "mark", "pause"]  # apart from what ran before and behind it
    assert ran == [*mark, *(x for run in runs for x in (*mark, run, *mark)), *mark]


def test_runs_of_a_phase_that_differ_in_their_kernels_are_told() -> None:
    ran = [make_ran(f"k{n}", 5) for n in range(3)]
    parts = (("G_main", 3), ("", 1), ("G_main", 3), ("", 3), ("D_main", 2))
    segments = [((phase,) if phase else (), ran[:number]) for phase, number in parts]
    assert tracing.list_uneven(segments) == []
    assert tracing.list_uneven([*segments, (("D_main",), ran)]) == ["D_main"]


EAGER = [Ran(name, phase="G_main", layer=layer) for name, layer in zip("abaca", "11223", strict=True)]


@pytest.mark.parametrize(
    ("replayed", "layers"),
    [
        ("abaca", "11223"),  # equally often: in order
        ("aabac", "12132"),  # two streams: other names change places, those of one name do not
        ("abca", "1123"),  # less often: between its neighbours
        ("bac", "122"),
        ("axbacaa", "1?1223?"),  # kernels that the eager run lacks
    ],
)
def test_kernels_of_a_replay_have_the_layers_of_the_eager_run(replayed: str, layers: str) -> None:
    segment = ("G_main",), [make_ran(name, 5, 10 * n) for n, name in enumerate(replayed)]
    ran = tracing.label_segments({"G_main": EAGER}, [segment])
    assert "".join(each.layer.replace("unknown", "?") for each in ran) == layers


def test_names_are_never_matched_across_a_neighbour_and_graphs_replay_fills_as_kernels() -> None:
    assert tracing.match_names("caa", "ac") == [None, 0] and tracing.match_names("caa", "ca") == [0, 1]
    eager = ["Memset (Device)", "Memcpy DtoD (Device -> Device)", "Memset (Device)", COPY]
    for fill in ("memset32", tracing.FILL):
        replayed = [fill, "memcpy32_post", "Memset (Device)", "Memcpy DtoH (Device -> Pinned)"]
        assert tracing.match_names(eager, replayed) == [0, 1, 2, None]
    assert tracing.FILL in kernel_families.own_kernels()


def test_layers_and_phases_of_a_whole_step_come_from_the_eager_runs() -> None:
    g_main, d_main = ({"phase": phase, "layer": f"{phase[0]} conv"} for phase in ("G_main", "D_main"))
    eager = {
        "G_main": [Ran("a", **g_main), Ran("b", backward=True, **g_main)],
        "D_main": [Ran("a", **d_main), Ran("c", **d_main)],
    }
    steps = [
        (("G_main", "D_main"), [make_ran(name, 5, 10 * n) for n, name in enumerate("abacx")])
    ] * CYCLE_STEPS
    labelled = tracing.label_segments(eager, steps)
    phases = {row.name: row.launches for row in measuring.list_phases(labelled, steps)}
    assert phases == {"G_main": 2, "D_main": 2, "unknown": 1}
    rows = measuring.list_layers(labelled)
    assert {row.name: row.launches for row in rows} == {"G conv": 2, "D conv": 2, "unknown": 1}
    assert rows[0].backward_ms == pytest.approx(rows[0].ms / 2, abs=1e-5)


def test_a_layer_has_the_milliseconds_of_its_planted_kernels(traced: Any) -> None:
    eager = {
        "G_main": [Ran(name, layer=f"layer of {PLANTED[name][0]}") for name in PLANTED if name != COPY],
        "D_main": [Ran(CONV, layer="first"), Ran(CONV, layer="second")],
    }
    us = {row.name: 1000 * row.ms for row in measuring.list_layers(tracing.label_segments(eager, traced[0]))}
    expected = {f"layer of {category}": us for name, (category, us) in PLANTED.items() if name != COPY}
    expected |= {"first": 400, "second": 400, tracing.OUTSIDE: 60}  # the copy between the phases
    assert us == pytest.approx(expected)


def test_an_operators_own_time_is_without_the_operators_inside_it() -> None:
    spans = [
        ("aten::conv2d", False, 1, 0, 100),
        ("aten::convolution", False, 1, 10, 90),
        ("aten::mkldnn_convolution", False, 1, 20, 80),
        ("aten::mul", False, 2, 20, 50),  # another thread
        ("aten::add", False, 1, 100, 120),
    ]
    assert [each.ns for each in tracing.take_own_times(spans)] == [20, 20, 60, 30, 20]


def test_an_operators_name_tells_its_category() -> None:
    names = {
        "convolution": "convolution_backward _slow_conv2d_forward",
        "matmul": "addmm",
        "elementwise": "add_ leaky_relu_backward fill_",
        "layout and dtype conversion": "_to_copy copy_ cat",
        "reductions": "sum std",
        "random numbers": "normal_",
        "optimizer": "_foreach_lerp_",
        "views and allocation": "as_strided t transpose empty_strided ConvolutionBackward0 AddBackward0",
        "other": "never_seen_before",
    }
    for category, operators in names.items():
        families = [kernel_families.find_operator_family(f"aten::{name}") for name in operators.split()]
        assert {*map(categories.name_category, families)} == {category}


BIG, SMALL, BF16 = [8, 64, 32, 32], [8, 64, 1, 1], "c10::BFloat16"
COUNT = 8 * 64 * 32 * 32


@pytest.mark.parametrize(
    ("name", "shapes", "kinds", "moved"),
    [
        ("mul", [BIG, SMALL], [BF16, BF16], 2 * (2 * COUNT + 8 * 64)),
        ("copy_", [BIG, BIG, []], ["float", BF16, "Scalar"], 6 * COUNT),
        ("zero_", [BIG], ["float"], 4 * COUNT),
        ("sum", [BIG, []], ["float", "ScalarList"], 4 * COUNT),
        ("where", [BIG, BIG, BIG], ["bool", "float", "float"], 13 * COUNT),
        ("mul", [[4, 3], [5]], ["float", "float"], 4 * (12 + 5 + 20)),  # shapes that do not fit are no error
        ("convolution", [BIG, BIG], ["float", "float"], None),
        ("cat", [[BIG, BIG], []], ["float", "Scalar"], None),
        ("mul", [BIG, BIG], ["unknown", "unknown"], None),
        ("mul", [], [], None),
    ],
)
def test_bytes_follow_from_shapes(name: str, shapes: Any, kinds: list[str], moved: int | None) -> None:
    assert tracing.count_moved(f"aten::{name}", shapes, kinds) == moved


def test_bytes_of_our_kernels_are_those_of_the_tensors_that_they_are_given() -> None:
    torch, kernels = pytest.importorskip("torch"), pytest.importorskip("kernels")
    from kernels.pointwise import bias_act

    x, bias = torch.randn(2, 4, 8, 8), torch.randn(4)
    with tracing.note_launches() as launches:
        kernels.bias_act(x, bias)
    kernels.bias_act(x, bias)
    ((name, size),) = launches
    assert name.startswith("bias_act")
    assert bias_act.bytes_moved(x) <= size <= bias_act.bytes_moved(x) + 2 * bias.nbytes


def test_launches_are_matched_to_kernels_in_order() -> None:
    launches = [("a_kernel", 10), ("b_kernel", 7), ("a_kernel", 20), ("adam_kernel", 3)]
    ran = ["a_kernel", "sgemm", "b_kernel", "b_kernel", "a_kernel", "adam_kernel"]
    assert tracing.match_launches(ran, launches) == [10, None, None, None, 20, None]


def test_a_category_has_a_rate_only_if_most_of_its_bytes_are_known() -> None:
    families = {"a": "elementwise", "b": "elementwise", "c": "reduction", "d": "reduction"}
    known = {"a": 3000, "b": 5000, "c": 10}
    ran = [Ran(name, family, 0, US, moved=known.get(name)) for name, family in families.items()] * CYCLE_STEPS
    work = measuring.count_work(ran, FIELDS, "bf16")
    assert work == {"elementwise": pytest.approx(8000)}
    rates = {row.name: (row.rate, row.unit) for row in derive_categories(ran, work)}
    assert rates == {"elementwise": (0.004, "TB/s"), "reductions": (None, None)}  # 8,000 bytes in 2 us


def test_the_workload_has_the_work_of_categories_unless_its_convolutions_are_cheaper_ones() -> None:
    ran = [make_ran(name, 5) for name in (CONV, "a_gemm", "adam_kernel")]
    work = measuring.count_work(ran, FIELDS, "bf16")
    assert work.keys() == {"convolution", "matmul", "optimizer"} and all(work.values())
    cheaper = measuring.count_work(ran, FIELDS | {"convolution": "separable"}, "bf16")
    assert cheaper.keys() == {"optimizer"}


@pytest.mark.parametrize(("size", "us"), [(1 << 20, 2), (1 << 22, 2**2.5), (1 << 25, 32), (0, 2)])
def test_a_copy_between_two_measured_ones_is_between_their_times(size: int, us: float) -> None:
    assert measuring.interpolate_copy_ns(COPIED, size) == pytest.approx(us * US)


@pytest.mark.parametrize(
    ("works", "shares", "far"),
    [
        ([("bias_act_kernel", 20, 1 << 24), ("modulate_kernel", 8, 1 << 20), ("sm90_xmma_fprop", 500, None)],
         ["80.0%", "25.0%", "64.3%"], "none"),  # (16 + 2) of (20 + 8) us
        ([("adam_kernel", 400, None), ("bias_act_kernel", 20, 1 << 24)], ["", "80.0%", "80.0%"], "none"),
        ([("bias_act_kernel", 101, 1 << 24), ("modulate_kernel", 99, 1 << 20)], ["15.8%", "2.0%", "9.0%"],
         "bias_act_kernel"),
    ],
)  # fmt: skip
def test_each_kernel_of_ours_stands_beside_copies_of_its_bytes(
    works: Any, shares: list[str], far: str
) -> None:
    ran = [replace(make_ran(name, us), moved=moved) for name, us, moved in works * CYCLE_STEPS]
    table = study.tabulate_passes(measuring.list_passes(ran, COPIED))
    assert [row[-1] for row in table.format_cells()] == shares
    assert table.notes[-1].endswith(f": {far}")
    assert measuring.list_passes(ran, []) == []


@pytest.mark.gpu
def test_copies_are_timed_on_a_gpu() -> None:
    copies = tracing.time_copies("cuda")
    assert [size for size, _ in copies] == list(tracing.SIZES_COPIED)
    assert all(ns > 0 for _, ns in copies) and copies[-1][1] > copies[0][1]
