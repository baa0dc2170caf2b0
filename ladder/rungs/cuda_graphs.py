"""Record each phase once as a CUDA graph, then replay it with a single launch.

Change. D_main and G_main, with their optimizer steps and the moving average, are captured after a warm-up. So are the
lazy phases (path length, R1). A replay runs the same kernels on the same addresses. So latents, noise and images are
written before each replay into buffers that never move, and two replays see different numbers. Adam becomes
`capturable`: its step count lives on the GPU. Code: `stylegan_lite/step/preparing.py`.

Why it should help. An eager step launches thousands of kernels, each from Python. At batch 8 a fast GPU finishes
them before the CPU has launched the next, and waits. A replay is one call, and the gaps between kernels all but
vanish. Here the rungs below pay off: BF16, channels_last and fusing made the kernels shorter, and only now does the
step follow. On an H100 and an H200 the GPU waited for more than half of the step, and now for 1%. The scatter from
process to process fell with it.

When it does not. If the GPU is already the bottleneck (large batch, high resolution, a slower GPU), there are few gaps
to close: compare the host-bound column of the rung below. Capture needs static shapes, no synchronization inside, and
memory that the graph keeps for itself. In PyTorch's default capture mode, `global`, a thread that pins memory breaks
the capture. The mode here is `thread_local`.
"""

from ladder.receipts import Receipt, judge, pair_of

title = "CUDA graphs"
change = {"cuda_graphs": True, "adam": "capturable"}
needs = ("cuda", "cuda_graphs")


def kinds_captured(found: dict) -> tuple[bool, str]:
    """Return a check that each kind of step in a cycle is a graph.

    A kind that is not runs eagerly, a step in sixteen.
    """
    kinds = found.get("together") or []
    there = [kind for kind in kinds if kind in found["captured"]]
    return 0 < len(kinds) == len(there), f"kinds of steps captured: {len(there)} of {len(kinds)}"


HANDFUL = 32  # launches a step: random inputs, a batch of images and the replays; an eager step has thousands


def receipt(seen: dict) -> Receipt:
    """Check that every phase, or kind of step, is replayed, with few launches a step, and Adam counts on the GPU."""
    found, adam, kinds = seen["graphs"], seen["adam"], seen["graphs"].get("together")
    captured = {phase for graph in found["captured"] for phase in graph.split("+")}
    checks = [
        (captured == {*pair_of(seen)["phases"]}, f"phases captured: {', '.join(sorted(captured)) or 'none'}"),
        *([kinds_captured(found)] if kinds else []),
        (
            found["operators"] <= HANDFUL,
            f"operators issued for one run of each phase: {found['operators']}, eagerly {found['operators_eager']}",
        ),
        (
            (adam["capturable"] and adam["steps_on"] == ["cuda"]) if pair_of(seen)["adam"] else None,
            f"Adam capturable: {adam['capturable']}, counts steps on: {', '.join(adam['steps_on'])}",
        ),
    ]
    if found["launches"] is None:
        return judge(*checks, (None, "launches and replays: not profiled"))
    replays, expected = found["replays"], found["phases_per_step"]
    if kinds:  # one graph for all phases of a step
        expected = 1.0
    return judge(
        *checks,
        (
            found["launches"] <= HANDFUL,
            f"launches a step: {found['launches']:.1f}, kernels: {found['kernels']:.0f}",
        ),
        (abs(replays - expected) < 0.01, f"graph replays a step: {replays:.2f}, expected: {expected:.2f}"),
    )
