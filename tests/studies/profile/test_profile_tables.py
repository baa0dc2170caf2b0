"""The tables of a profile, from handmade traces: planted kernels of known length show where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ladder.base.protocol import CYCLE_STEPS
from ladder.receipts import categories, kernel_families, operator_families
from ladder.studies.profile import attribution, record, tracing
from ladder.studies.profile.attribution import Label
from ladder.studies.profile.tracing import Segment, Traced
from stylegan_lite.config import Workload
from tests.support.small import LEAST

US = 1000
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
CONV = "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc"
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>(int)"
COPY = "Memcpy HtoD (Pinned -> Device)"
PLANTED = {  # name -> (category, us of a launch)
    CONV: ("convolution", 400.0),
    GEMM: ("matmul", 90.0),
    ELEMENTWISE: ("elementwise", 25.0),
    COPY: ("copies", 60.0),
    "bias_act_kernel": ("fused: activation and bias", 33.0),
    "modulate_kernel": ("normalization and modulation", 12.0),
    "void at::native::reduce_kernel<512, 1>(int)": ("reductions", 7.0),
    "void cudnn::ops::nchwToNhwcKernel<float>(int)": ("layout and dtype conversion", 18.0),
    "never_seen_before": ("other", 3.0),
}


def events(names: Sequence[str], begin: int, stream: int = 7) -> list[kernel_families.Event]:
    """Kernels of these names, one after the other from a moment on, with gaps between them."""
    found, at = [], begin
    for name in names:
        length = int(PLANTED[name][1] * US)
        found.append((name, True, stream, at, at + length))
        at += length + 2 * US
    return found


def cycle() -> tuple[list[kernel_families.Event], list[tuple[str, ...]], list[int]]:
    """A cycle in which G_main runs every planted kernel and D_main the convolution twice, with its marks."""
    found: list[Any] = [("cudaGraphLaunch", False, 0, 0, 10), ("Event Sync", True, 7, 0, 10**9)]
    labels: list[tuple[str, ...]] = []
    ended: list[int] = []
    for index in range(CYCLE_STEPS):
        begin = 10_000 * US * (index + 1)
        found += events([COPY], begin)
        found += events([name for name in PLANTED if name != COPY], begin + 1000 * US)
        found += events([CONV, CONV], begin + 4000 * US)
        for label, at in (((), 900), (("G_main",), 3900), (("D_main",), 8000)):
            labels.append(label)
            ended.append(begin + at * US)
    return found, labels, ended


@pytest.fixture(scope="module")
def traced() -> Traced:
    return tracing.cut_events(*cycle(), "cuda")


def unlabelled(traced: Traced) -> list[tuple[Segment, list[Label | None]]]:
    return list(attribution.label_segments({}, traced.segments))


def categories_of(labels: attribution.Labels, work: dict[str, float] | None = None) -> list[record.Category]:
    step = SimpleNamespace(profile=attribution.list_kernels(labels), work=work or {}, replaced={})
    return record.derive_categories(step)  # type: ignore[arg-type]


def test_each_planted_kernel_shows_in_its_category(traced: Traced) -> None:
    rows = categories_of(unlabelled(traced))
    found = {row.name: row for row in rows}
    assert found.keys() == {category for category, _ in PLANTED.values()}
    for name, (category, us) in PLANTED.items():
        wanted = us * (3 if name == CONV else 1)
        assert 1000 * found[category].ms == pytest.approx(wanted, rel=0.02, abs=10)
        assert found[category].launches == (3 if name == CONV else 1)
    assert sum(row.share for row in rows) == pytest.approx(1, abs=1e-4)
    total = sum(us for _, us in PLANTED.values()) + 2 * PLANTED[CONV][1]
    assert traced.busy_ns == int(total * US) * CYCLE_STEPS  # no two ran at once


def test_phases_are_cut_by_the_clock_and_sum_to_all_work(traced: Traced) -> None:
    rows = attribution.list_phases(unlabelled(traced))
    found = {row.name: row for row in rows}
    assert list(found) == ["G_main", "D_main", "between phases"]
    assert 1000 * found["D_main"].ms == pytest.approx(800) and found["D_main"].runs == 1
    assert 1000 * found["between phases"].ms == pytest.approx(60) and found["between phases"].runs is None
    whole = attribution.sum_categories(unlabelled(traced))
    assert sum(row.ms for row in rows) == pytest.approx(sum(each.ms for each in whole.values()))


def test_gaps_are_told_by_what_stands_at_their_ends() -> None:
    """A second stream's long kernel fills a gap of the first, and between two runs of phases nothing is told."""
    timeline = [("a", 0, 100), ("Memset (Device)", 104, 2), ("b", 110, 50), ("side", 150, 60), ("c", 165, 5)]
    timeline += [("Memcpy DtoD (Device -> Device)", 212, 8), ("d", 221, 9)]

    def segment(phases: tuple[str, ...], begin: int) -> Segment:
        family = kernel_families.family
        made = (tracing.Ran(name, family(name), (begin + at) * US, us * US) for name, at, us in timeline)
        return Segment(phases, tuple(made))

    parts = [segment(("G_main",), 5000 * k) for k in range(CYCLE_STEPS)] + [segment((), 200_000)]
    found = attribution.list_gaps(Traced(tuple(parts), 0))
    told = {(row.before, row.after): (row.ms, row.number, row.median_us) for row in found}
    assert told == {
        ("kernel", "memset"): (0.004, 1, 4),
        ("memset", "kernel"): (0.004, 1, 4),
        ("kernel", "copy"): (0.002, 1, 2),
        ("copy", "kernel"): (0.001, 1, 1),
    }


def test_kernels_at_the_same_time_count_once_in_gpu_time() -> None:
    both = [("a_gemm", True, 7, 0, 100), ("b_gemm", True, 8, 50, 150)]
    traced = tracing.cut_events(both, [("G_main",)], [1000], "cuda")
    assert traced.busy_ns == 150 and sum(each.ns for each in traced.segments[0].ran) == 200


def test_a_profile_names_families_and_the_heaviest_kernels(traced: Traced) -> None:
    found = attribution.list_kernels(unlabelled(traced))
    assert {categories.category(row.name) for row in found.families} == {c for c, _ in PLANTED.values()}
    assert found.kernels[0].name == "sm90_xmma_fprop_bf16_nhwc" and 1000 * found.kernels[
        0
    ].ms == pytest.approx(1200)
    many = [(f"gemm_{n}", True, 7, 10 * n, 10 * n + 5) for n in range(50)]
    kernels = attribution.list_kernels(
        unlabelled(tracing.cut_events(many, [("G_main",)], [10**6], "cuda"))
    ).kernels
    assert len(kernels) == 41 and kernels[-1].name == "10 other kernels"


def test_the_heaviest_kernels_are_told_with_the_phase_that_has_most_of_them(traced: Traced) -> None:
    found = {row.kernel: row for row in attribution.list_heaviest(unlabelled(traced))}
    conv = found["sm90_xmma_fprop_bf16_nhwc"]
    assert next(iter(found)) == conv.kernel and (conv.phase, conv.launches) == ("D_main", 3)
    assert 1000 * conv.ms == pytest.approx(1200) and 1000 * conv.phase_ms == pytest.approx(800)
    assert (conv.function, conv.word) == (CONV, None)
    product = found["vectorized_elementwise_kernel Mul fp32"]
    assert (product.function, product.word, product.phase) == (
        "vectorized_elementwise_kernel",
        "Mul",
        "G_main",
    )
    assert not [name for name in found if name.startswith("Memcpy")] and len(found) == len(PLANTED) - 1
    assert [row.kernel for row in attribution.list_heaviest(unlabelled(traced), 2)] == list(found)[:2]


def test_a_heavy_kernel_of_several_functions_is_found_by_what_they_share() -> None:
    names = [
        f"{CONV}_tilesize128x128x64_warpgroupsize1x1x1_g1_{end}" for end in ("k_on_kernel", "k_off_kernel")
    ]
    events_ = [(name, True, 7, 10 * n, 10 * n + 5) for n, name in enumerate(names)]
    whole = tracing.cut_events(
        events_, [("G_main", "D_main")], [1000], "cuda"
    )  # a whole-step graph, and no layers known
    (row,) = attribution.list_heaviest(unlabelled(whole))
    assert row.kernel == "sm90_xmma_fprop_bf16_nhwc_128x128x64" and row.phase == "unknown"
    assert row.function == f"{CONV}_tilesize128x128x64_warpgroupsize1x1x1_g1_k_o"[:96]


def test_the_articles_expectation_stands_beside_the_shares(traced: Traced) -> None:
    rows = categories_of(unlabelled(traced))
    share = {row.name: row.share for row in rows}
    found = {row.name: row for row in record.compare_with_article(rows)}
    assert found["convolutions"].share == pytest.approx(share["convolution"] + share["matmul"], abs=1e-4)
    assert found["normalization"].share == pytest.approx(share["normalization and modulation"], abs=1e-4)
    nonlinear = share["elementwise"] + share["fused: activation and bias"]
    assert found["nonlinearities"].share == pytest.approx(nonlinear, abs=1e-4)
    assert (found["convolutions"].low, found["convolutions"].high) == (0.35, 0.40)


# --- layers carried to a replay ------------------------------------------------------------------------------------


def label(name: str, layer: str, phase: str = "G_main", backward: bool = False) -> Label:
    return Label(name, phase, layer, backward, None)


def ran(*names: str) -> list[tracing.Ran]:
    return [
        tracing.Ran(name, kernel_families.family(name), 10 * US * n, 5 * US) for n, name in enumerate(names)
    ]


def found_layers(eager: list[Label], *names: str) -> list[str | None]:
    ((_, labels),) = attribution.label_segments({"G_main": eager}, [Segment(("G_main",), tuple(ran(*names)))])
    return [each and each.layer for each in labels]


EAGER = [label("a", "1"), label("b", "1"), label("a", "2"), label("c", "2"), label("a", "3")]


def test_names_that_ran_equally_often_are_matched_in_order() -> None:
    assert found_layers(EAGER, "a", "b", "a", "c", "a") == ["1", "1", "2", "2", "3"]
    # two streams: other names change places, those of one name do not
    assert found_layers(EAGER, "a", "a", "b", "a", "c") == ["1", "2", "1", "3", "2"]


def test_a_name_that_ran_less_often_is_matched_between_its_neighbours() -> None:
    assert found_layers(EAGER, "a", "b", "c", "a") == ["1", "1", "2", "3"]
    assert found_layers(EAGER, "b", "a", "c") == ["1", "2", "2"]


def test_a_name_is_never_matched_across_a_matched_neighbour() -> None:
    eager = [label("c", "1"), label("a", "2"), label("a", "3")]
    assert found_layers(eager, "a", "c") == [None, "1"]
    assert found_layers(eager, "c", "a") == ["1", "2"]


def test_a_memset_or_copy_that_a_graph_replays_as_a_kernel_is_the_same() -> None:
    eager = [
        "Memset (Device)",
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "Memcpy HtoD (Pinned -> Device)",
    ]
    replayed = ["memset32", "memcpy32_post", "Memset (Device)", "Memcpy DtoH (Device -> Pinned)"]
    assert attribution._match_names(eager, replayed) == [0, 1, 2, None]
    assert attribution._match_names(eager, [attribution.FILL, *replayed[1:]]) == [0, 1, 2, None]
    assert attribution.FILL in kernel_families.own_kernels()


def test_a_kernel_that_the_eager_run_lacks_is_unknown() -> None:
    assert found_layers(EAGER, "a", "new", "b", "a", "c", "a", "a") == ["1", None, "1", "2", "2", "3", None]


def test_layers_and_phases_of_a_whole_step_come_from_the_eager_runs() -> None:
    eager = {
        "G_main": [label("a", "G conv"), label("b", "G conv", backward=True)],
        "D_main": [label("a", "D conv", "D_main"), label("c", "D conv", "D_main")],
    }
    segments = [Segment(("G_main", "D_main"), tuple(ran("a", "b", "a", "c", "x")))] * CYCLE_STEPS
    labelled = list(attribution.label_segments(eager, segments))
    phases = {row.name: row.launches for row in attribution.list_phases(labelled)}
    assert phases == {"G_main": 2, "D_main": 2, "unknown": 1}
    rows = attribution.list_layers(labelled)
    assert {row.name: row.launches for row in rows} == {"G conv": 2, "D conv": 2, "unknown": 1}
    derived = record.derive_layers(SimpleNamespace(layers=rows, no_layers=None))  # type: ignore[arg-type]
    assert derived.unknown == pytest.approx(1 / 5)
    assert rows[0].backward_ms == pytest.approx(rows[0].ms / 2, abs=1e-5)


def test_a_layer_has_the_milliseconds_of_its_planted_kernels(traced: Traced) -> None:
    order = [name for name in PLANTED if name != COPY]
    eager = {
        "G_main": [label(name, f"layer of {PLANTED[name][0]}") for name in order],
        "D_main": [label(CONV, "first", "D_main"), label(CONV, "second", "D_main")],
    }
    found = attribution.list_layers(list(attribution.label_segments(eager, traced.segments)))
    us = {row.name: 1000 * row.ms for row in found}
    assert us["first"] == pytest.approx(400) and us["second"] == pytest.approx(400)
    for name in order:
        assert us[f"layer of {PLANTED[name][0]}"] == pytest.approx(PLANTED[name][1], rel=0.02, abs=10)
    assert (
        us[attribution.OUTSIDE] == pytest.approx(60) and record.LAYER_UNKNOWN not in us
    )  # the copy between the phases


def test_names_of_layers() -> None:
    sides = [4, 8, 16]
    named = [tracing.layer_name("G", path, sides) for path in ("", "mapping", "mapping.layers.0", "blocks")]
    assert named == ["G", "G mapping", None, None]
    assert tracing.layer_name("G", "blocks.2.conv1", sides) == "G 16x16 conv1"
    assert tracing.layer_name("D", "blocks.0.skip", sides) == "D 16x16 skip"
    assert tracing.layer_name("D", "blocks.1", sides) == "D 8x8"


# --- a CPU's operators ---------------------------------------------------------------------------------------------


def test_an_operators_own_time_is_without_the_operators_inside_it() -> None:
    spans = [
        ("aten::conv2d", False, 1, 0, 100),
        ("aten::convolution", False, 1, 10, 90),
        ("aten::mkldnn_convolution", False, 1, 20, 80),
        ("aten::mul", False, 2, 20, 50),  # another thread
        ("aten::add", False, 1, 100, 120),
    ]
    own = {each.name: each.ns for each in tracing.take_own_times(spans)}
    assert own == {
        "aten::conv2d": 20, "aten::convolution": 20, "aten::mkldnn_convolution": 60, "aten::mul": 30, "aten::add": 20,
    }  # fmt: skip
    assert sum(own.values()) == 100 + 20 + 30


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::convolution_backward", "convolution"),
        ("aten::_slow_conv2d_forward", "convolution"),
        ("aten::addmm", "matmul"),
        ("aten::add_", "elementwise"),
        ("aten::leaky_relu_backward", "elementwise"),
        ("aten::fill_", "elementwise"),
        ("aten::_to_copy", "layout and dtype conversion"),
        ("aten::copy_", "layout and dtype conversion"),
        ("aten::cat", "layout and dtype conversion"),
        ("aten::sum", "reductions"),
        ("aten::std", "reductions"),
        ("aten::normal_", "random numbers"),
        ("aten::_foreach_lerp_", "optimizer"),
        ("aten::as_strided", "views and allocation"),
        ("aten::t", "views and allocation"),
        ("aten::transpose", "views and allocation"),
        ("aten::empty_strided", "views and allocation"),
        ("autograd::engine::evaluate_function: MulBackward0", "views and allocation"),
        ("ConvolutionBackward0", "views and allocation"),
        ("aten::never_seen_before", "other"),
    ],
)
def test_an_operators_name_tells_its_category(name: str, category: str) -> None:
    assert categories.category(operator_families.family(name)) == category


# --- rates and what was replaced -----------------------------------------------------------------------------------


def test_bytes_follow_from_shapes() -> None:
    big, small = [8, 64, 32, 32], [8, 64, 1, 1]
    count, scales = 8 * 64 * 32 * 32, 8 * 64
    assert attribution.count_moved("aten::mul", [big, small], ["c10::BFloat16", "c10::BFloat16"]) == 2 * (
        2 * count + scales
    )
    assert (
        attribution.count_moved("aten::copy_", [big, big, []], ["float", "c10::BFloat16", "Scalar"])
        == 6 * count
    )
    assert attribution.count_moved("aten::zero_", [big], ["float"]) == 4 * count
    assert attribution.count_moved("aten::sum", [big, []], ["float", "ScalarList"]) == 4 * count
    assert attribution.count_moved("aten::where", [big, big, big], ["bool", "float", "float"]) == 13 * count
    for name, shapes, kinds in (
        ("aten::convolution", [big, big], ["float", "float"]),
        ("aten::cat", [[big, big], []], ["float", "Scalar"]),
        ("aten::mul", [big, big], ["unknown", "unknown"]),
        ("aten::mul", [], []),
    ):
        assert attribution.count_moved(name, shapes, kinds) is None


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
    ran_ = ["a_kernel", "sgemm", "b_kernel", "b_kernel", "a_kernel", "adam_kernel"]
    assert attribution.match_launches(ran_, launches) == [10, None, None, None, 20, None]


def test_a_category_has_a_rate_only_if_most_of_its_bytes_are_known() -> None:
    families = {"a": "elementwise", "b": "elementwise", "c": "reduction", "d": "reduction"}
    kernels = [tracing.Ran(name, family, 0, US) for name, family in families.items()]
    segment = Segment(("G_main",), tuple(kernels * CYCLE_STEPS))
    known = {"a": 3000, "b": 5000, "c": 10}
    of_kernels = [Label(each.name, "G_main", "G", False, known.get(each.name)) for each in segment.ran]
    labels = [(segment, of_kernels)]
    fields = Workload.from_dict(LEAST).to_dict() | {"data": None}
    work = attribution.count_work(attribution.sum_categories(labels), fields, "bf16")
    assert work == {"elementwise": pytest.approx(8000)}
    rates = {row.name: (row.rate, row.unit) for row in categories_of(labels, work)}
    assert rates == {"elementwise": (0.004, "TB/s"), "reductions": (None, None)}  # 8,000 bytes in 2 us


def test_the_workload_has_the_work_of_categories_unless_its_convolutions_are_cheaper_ones() -> None:
    fields = Workload.from_dict(LEAST).to_dict() | {"data": None}
    sums = {name: attribution.Sum(ns=10**6) for name in ("convolution", "matmul", "optimizer")}
    work = attribution.count_work(sums, fields, "bf16")
    assert work.keys() == sums.keys() and all(work.values())
    cheaper = attribution.count_work(sums, fields | {"convolution": "separable"}, "bf16")
    assert cheaper.keys() == {"optimizer"}


def test_a_fused_category_stands_against_what_others_lost() -> None:
    fused = "fused: activation and bias"
    rungs = [
        ("plain", {"elementwise": 10.0, "convolution": 30.0}),
        ("first", {"elementwise": 4.0, "convolution": 31.0, fused: 2.0}),
        ("second", {"elementwise": 1.0, "convolution": 31.0, fused: 2.5, "fused: other": 1.0}),
    ]
    found = attribution.find_replaced([("run.json", rungs), ("later.json", rungs[1:])])
    assert (found[fused].at, found[fused].lost_ms, found[fused].fused_ms) == ("first", 6.0, 2.0)
    assert (found["fused: other"].at, found["fused: other"].lost_ms) == ("second", 3.0)
    assert found[fused].source == "run.json" and attribution.find_replaced([]) == {}


def test_a_fused_category_that_gained_little_has_no_claim_to_what_others_lost() -> None:
    sums, act = "fused: sums of gradients", "fused: activation and bias"
    rungs = [  # of an H100: at fused_norm nearly all that grew is the normalization
        ("bf16", {"elementwise": 14.7, "reductions": 4.0, "matmul": 3.5}),
        ("fused_norm", {"elementwise": 10.1, "reductions": 2.7, "matmul": 2.9, "normalization": 2.2, sums: 0.06}),
        ("fused_act", {"elementwise": 3.9, "reductions": 0.3, "matmul": 2.9, "normalization": 1, act: 2.2, sums: 0.1}),
    ]  # fmt: skip
    # the first source in which a category appears decides, also if it says nothing
    later = ("selected.json", [rungs[0], ("fused_norm", {"elementwise": 14.0, sums: 0.06})])
    found = attribution.find_replaced([("run.json", rungs), later])
    assert list(found) == [act]
    assert found[act].at == "fused_act" and found[act].lost_ms == pytest.approx(6.2 + 2.4 + 1.2)
    # of an H200: joint_batch saves convolutions, and its new kernel takes the place of hardly any of it
    joint = [("adam", {"convolution": 9.0}), ("joint_batch", {"convolution": 7.7, "fused: deviation": 0.026})]
    assert attribution.find_replaced([("run.json", joint)]) == {}
    # rungs between two that were run: what appears there shares the gains, and nothing has most of them
    jump = [rungs[0], ("rgb", {"elementwise": 1.0, "fused: a": 1.0, "fused: b": 0.9, "fused: c": 0.8})]
    assert attribution.find_replaced([("run.json", jump)]) == {}
