"""The tables of a profile, from handmade traces, and its eager run, from handmade events: layers, bytes, memory."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import kernels
from kernels.pointwise import bias_act
from ladder.core.protocol import CYCLE_STEPS, IN_ORDER
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
    rows = {row.name: row for row in measuring.list_phases(unlabelled, traced[0], IN_ORDER)}
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
    phases = {row.name: row.launches for row in measuring.list_phases(labelled, steps, IN_ORDER)}
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


OLD = [True, False]  # PyTorch 2.11, which does not tell an event's activity, and 2.13


def event(name: str, kind: str, begin: int, end: int, *, old: bool = False, **more: Any) -> Any:
    """Return an event as PyTorch's profiler gives it."""
    on_gpu = kind in ("kernel", "gpu_user_annotation", "cuda_sync") or more.pop("on_gpu", False)
    values = {
        "name": name, "start_ns": begin, "duration_ns": end - begin, "start_thread_id": 1, "fwd_thread_id": 0,
        "device_type": torch.autograd.DeviceType.CUDA if on_gpu else torch.autograd.DeviceType.CPU,
        "is_user_annotation": kind.endswith("user_annotation"), "correlation_id": 0, "linked_correlation_id": 0,
        "sequence_nr": -1, "shapes": [], "dtypes": [], "nbytes": 0,
    }  # fmt: skip
    values |= more if old else {**more, "activity_type": kind}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def op(
    name: str, begin: int, end: int, number: int, sequence: int = -1, thread: int = 1, forward: int = 0
) -> Any:
    numbers: dict[str, Any] = {"correlation_id": number, "sequence_nr": sequence}
    return event(name, "cpu_op", begin, end, **numbers, start_thread_id=thread, fwd_thread_id=forward)


def layer(name: str, begin: int, end: int) -> Any:
    return event(f"{tracing.RANGE}{name}", "user_annotation", begin, end)


def kernel(name: str, begin: int, linked: int, **more: Any) -> Any:
    return event(name, "kernel", begin, begin + 5, linked_correlation_id=linked, **more)


def label(events: list[Any], device: str = "cuda", launches: Any = ()) -> list[Ran]:
    results = SimpleNamespace(events=lambda: events)
    profile = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
    return tracing.label_events(profile, "G_main", device, launches)


HOST = [
    layer("G conv0", 0, 100),
    op("aten::view", 5, 9, 1, 0),  # no node: it has the number of the next operator
    op("aten::convolution", 10, 60, 2, 0),
    op("aten::cudnn_convolution", 20, 50, 3),
    layer("G conv1", 110, 200),
    op("aten::leaky_relu", 120, 140, 4, 1),
    op("aten::sum", 210, 220, 5, 2),  # the loss, outside of every layer
    # backward passes run in a thread of their own
    op("autograd: SumBackward0", 300, 320, 6, 2, 2, 1),
    op("autograd: LeakyReluBackward0", 330, 350, 7, 1, 2, 1),
    op("aten::leaky_relu_backward", 335, 340, 8, 0, 2),  # recorded for a double backward
    op("autograd: ConvolutionBackward0", 360, 380, 9, 0, 2, 1),
    op("aten::convolution_backward", 362, 370, 10, thread=2),
    # the double backward of the activation: its node was made in thread 2
    op("autograd: LeakyReluBackwardBackward0", 400, 420, 11, 0, 2, 2),
    op("aten::mul", 405, 410, 12, thread=2),
]
LINKED = {  # kernel -> operator, layer, whether it is backward work
    "fprop": (3, "G conv0", False),
    "act": (4, "G conv1", False),
    "reduce": (5, tracing.OUTSIDE, False),
    "act_grad": (8, "G conv1", True),
    "dgrad": (10, "G conv0", True),
    "act_grad_grad": (12, "G conv1", True),
    "adam_kernel": (0, tracing.OUTSIDE, False),
    "strange": (0, record.UNKNOWN, False),
    "stranger": (99, record.UNKNOWN, False),
}


def test_kernels_have_the_layer_of_their_operator_also_in_a_double_backward() -> None:
    kernels = [kernel(name, 1000 + n, linked) for n, (name, (linked, *_)) in enumerate(LINKED.items())]
    found = {each.name: (each.layer, each.backward) for each in label(HOST + kernels)}
    assert found == {name: (layer, backward) for name, (_, layer, backward) in LINKED.items()}


@pytest.mark.parametrize(
    ("at", "place"), [(70, ("G conv0", False)), (250, (tracing.OUTSIDE, False)), (337, ("G conv1", True))]
)
def test_a_kernel_that_python_launched_belongs_where_its_launch_was(at: int, place: tuple[str, bool]) -> None:
    call = event("cuLaunchKernelEx", "cuda_driver", at, at + 2, correlation_id=3)
    (found,) = label([*HOST, call, kernel("ours", 2000, 0, correlation_id=3)])
    assert (found.layer, found.backward) == place


@pytest.mark.parametrize("old", OLD)
def test_events_of_either_pytorch_become_labels_and_changes_of_memory(old: bool) -> None:
    of_tensors = {"shapes": [[8, 8]], "dtypes": ["float"], "correlation_id": 7}
    events = [
        event(f"{tracing.RANGE}G conv0", "user_annotation", 0, 100, old=old),
        event("aten::relu", "cpu_op", 10, 30, old=old, **of_tensors),
        event(
            "cudaLaunchKernel", "cuda_runtime", 12, 13, old=old, correlation_id=21, linked_correlation_id=7
        ),
        event("cuLaunchKernelEx", "cuda_driver", 40, 41, old=old, correlation_id=22),
        event("Lazy Function Loading", "overhead", 42, 43, old=old),
        event("[memory]", "cpu_instant_event", 15, 15, old=old, nbytes=256, on_gpu=True),
        event("[memory]", "cpu_instant_event", 16, 16, old=old, nbytes=64),
        event("relu_kernel", "kernel", 500, 505, old=old, correlation_id=21, linked_correlation_id=7),
        event("second_kernel", "kernel", 506, 507, old=old, linked_correlation_id=7),
        event("ours_kernel", "kernel", 510, 515, old=old, correlation_id=22),
        event(f"{tracing.RANGE}G conv0", "gpu_user_annotation", 500, 515, old=old),
        event("Stream Wait Event", "cuda_sync", 505, 506, old=old),
    ]
    found = [(each.name, each.layer, each.moved) for each in label(events, launches=[("ours_kernel", 96)])]
    # the bytes of an operator count once for all of its kernels
    expected = [("relu_kernel", 512), ("second_kernel", 0), ("ours_kernel", 96)]
    assert found == [(name, "G conv0", moved) for name, moved in expected]


def test_on_a_cpu_operators_stand_for_kernels() -> None:
    found = {each.name: each.layer for each in label(HOST, "cpu")}
    assert len(found) == len([each for each in HOST if not each.is_user_annotation()])
    assert found["aten::cudnn_convolution"] == "G conv0" and found["aten::convolution_backward"] == "G conv0"


def test_names_of_layers() -> None:
    names = {
        ("G", ""): "G", ("G", "mapping"): "G mapping", ("G", "mapping.layers.0"): None, ("G", "blocks"): None,
        ("G", "blocks.2.conv1"): "G 16x16 conv1", ("D", "blocks.0.skip"): "D 16x16 skip", ("D", "blocks.1"): "D 8x8",
    }  # fmt: skip
    assert {each: tracing.layer_name(*each, [4, 8, 16]) for each in names} == names


@pytest.mark.parametrize("mode, hooks", [("off", True), ("default", False)])
def test_layers_of_compiled_code_get_no_hooks(mode: str, hooks: bool) -> None:
    blocks = torch.nn.ModuleDict({"mapping": torch.nn.Linear(1, 1)})
    work = SimpleNamespace(resolutions=[4])
    step = SimpleNamespace(networks={"G": blocks}, workload=work, recipe=SimpleNamespace(compile=mode))
    with tracing.name_layers(step):
        assert bool(blocks["mapping"]._forward_hooks) is hooks
    assert not blocks["mapping"]._forward_hooks


def test_layers_that_cannot_be_recorded_leave_the_rest() -> None:
    compiled = SimpleNamespace(recipe=SimpleNamespace(compile="default"))
    assert measuring.run_eagerly(compiled, 0)[-1] == measuring.COMPILED
    broken = SimpleNamespace(recipe=SimpleNamespace(compile="off"), graphs={}, held={}, device="cpu")
    assert "the eager run failed" in (measuring.run_eagerly(broken, 0)[-1] or "")


def test_a_timeline_tells_gradients_from_the_rest() -> None:
    changes = [(0, 100), (1_000_000, 300), (2_000_000, 50), (3_000_000, -300), (4_000_000, -100)]
    found = measuring.make_timeline(changes, [(-5, 0), (1_500_000, 50)], before=1000, lasting=1000)
    assert [each.at_ms for each in found] == [0, 0, 1, 2, 3, 4, 4]  # its beginning and its end twice
    assert [each.activations for each in found] == [0, 100, 400, 400, 100, 0, 0]
    assert [each.gradients for each in found] == [0, 0, 0, 50, 50, 50, 50]
    assert measuring.make_timeline([], [], 0, 0) == []


def test_a_timeline_is_short_and_keeps_its_peak() -> None:
    changes = [(1000 * n, 10 if n < 3000 else -10) for n in range(6000)]
    found = measuring.make_timeline(changes, [], before=0, lasting=0)
    assert len(found) <= measuring.MOST_MOMENTS + 2 and found[0].activations == found[-1].activations == 0
    assert max(each.activations for each in found) == 30_000


@pytest.mark.gpu
def test_copies_are_timed_on_a_gpu() -> None:
    copies = tracing.time_copies("cuda")
    assert [size for size, _ in copies] == list(tracing.SIZES_COPIED)
    assert all(ns > 0 for _, ns in copies) and copies[-1][1] > copies[0][1]
