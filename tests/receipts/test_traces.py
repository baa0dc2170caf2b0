"""Figures of a profiled cycle."""

import random

from ladder.receipts import traces
from ladder.receipts.traces import count_once, derive_communication, measure_union


def test_a_profiled_cycle_is_read_for_launches_replays_fills_and_overlap():
    cpu = [(name, False, 0, 0, 1) for name in ["cudaGraphLaunch"] * 32 + ["cudaLaunchKernel"] * 64]
    cpu += [("cudaMemcpyAsync", False, 0, 0, 1)] * 16 + [("cudaEventRecord", False, 0, 0, 1)] * 50
    gpu = [("conv", True, 7, 0, 600), ("ZeroFunctor<float>", True, 7, 500, 1000)]
    gpu += [("Memcpy HtoD (Pinned -> Device)", True, 20, 800, 1200), ("Stream Wait Event", True, 7, 0, 9000)]
    gpu += [("Memset (Device)", True, 7, 0, 5), ("triton_poi_fused_add_0", True, 7, 600, 900)]
    assert traces.digest_events(cpu + gpu) == {
        "launches": 7.0,
        "replays": 2.0,
        "kernels": 3 / 16,
        "inductor_kernels": 1 / 16,
        "zero_kernels": 1 / 16,
        "graph_memsets": 1 / 16,
        "copy_ms": 0.0,
        "overlap": 0.5,
        "busy_ms": 1200 / 1e6 / 16,  # what waits is not at work
        "parallel_ms": 400 / 1e6 / 16,
        "comm_ms": 0.0,
        "exposed_ms": 0.0,
        "comm_bursts": 0.0,
    }
    assert traces.digest_events(cpu) == {}  # a profiler that saw nothing says nothing


def test_a_memset_that_no_call_asked_for_is_of_a_graph():
    gpu = [(name, True, 7, 0, 5) for name in ["conv", "Memset (Device)", "Memset (Device)", "memset32_post"]]
    calls = [("cudaMemsetAsync", False, 0, 0, 1), ("cudaMemcpyAsync", False, 0, 0, 1)]
    assert traces.digest_events([*gpu, *calls])["graph_memsets"] == 2 / 16
    assert traces.digest_events([*gpu, *calls * 4])["graph_memsets"] == 0.0


def test_overlap_counts_a_moment_once():
    gpu = [("Memcpy HtoD (Pinned -> Device)", True, 20, 100, 200)]
    gpu += [
        (name, True, 7, *span) for name, span in {"a": (0, 120), "b": (110, 150), "d": (190, 400)}.items()
    ]
    gpu += [("c", True, 8, 140, 145)]
    assert traces.digest_events(gpu)["overlap"] == 0.6


def test_kernels_on_parallel_streams_count_once() -> None:
    assert measure_union([]) == 0
    assert measure_union([(10, 20), (0, 5), (15, 30), (16, 18)]) == 25


def test_communication_is_exposed_where_nothing_else_runs():
    nccl = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    ran = [
        ("conv", True, 7, 0, 1000),
        (nccl, True, 9, 400, 1600),
        ("Memcpy PtoP (Device -> Device)", True, 8, 1500, 1700),
    ]
    ran += [("Memcpy DtoD (Device -> Device)", True, 7, 1650, 1700), ("adam_kernel", True, 7, 2000, 2100)]
    found = derive_communication(ran, 16)
    assert found == {"comm_ms": 1300 / 1e6 / 16, "exposed_ms": 650 / 1e6 / 16, "comm_bursts": 1 / 16}
    assert derive_communication([], 16) == {"comm_ms": 0.0, "exposed_ms": 0.0, "comm_bursts": 0.0}


def test_buckets_between_kernels_are_bursts_and_what_follows_at_once_is_none():
    def bursts(order: str) -> float:
        ran = [
            ("ncclAllReduce" if kind == "c" else "conv", True, 7, at, at + 1) for at, kind in enumerate(order)
        ]
        return derive_communication(reversed(ran), 1)["comm_bursts"]

    assert bursts("kkkkckkkkckkkkckkk") == 3  # beside backward
    assert bursts("kkkkkkkkkkkkkccckk") == 1  # after it
    assert bursts("kkkkkkkkkkkkkckckc") == 1  # a copy between two of them


def test_spans_count_once_for_the_busiest_stream_and_there_for_the_first() -> None:
    draw = random.Random(5)
    spans = [
        (draw.randrange(3), begin := draw.randrange(900), begin + draw.randrange(1, 80)) for _ in range(120)
    ]
    owners: dict[int, tuple[object, ...]] = {}
    busy = [sum(last - first for stream, first, last in spans if stream == each) for each in range(3)]
    for place, (stream, first, last) in enumerate(spans):
        for at in range(first, last):
            rank = (-busy[stream], stream, first, last, place)
            owners[at] = min(owners.get(at, rank), rank)
    counts = [sum(rank[-1] == place for rank in owners.values()) for place in range(len(spans))]
    assert count_once(spans) == counts and sum(counts) == measure_union([each[1:] for each in spans])
