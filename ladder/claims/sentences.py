"""What ours is, and why it differs: the functions behind `ladder.claims.registry`, of the numbers of a result alone."""

from __future__ import annotations

from collections.abc import Callable

from ladder.claims import launching
from ladder.claims.view import Summary, View, percent, times

SLOWER = 1.02  # from here on a ratio of times is said to be one


def forms(view: View, slow: str, quick: str, show: Callable[[Summary], str], scale: float = 1.0) -> str:
    """The ratio in the other direction and precision: `; backward 2.10x, FP32 forward ...`."""
    forms = {
        "backward": "norm backward bf16",
        "FP32 forward": "norm forward fp32",
        "FP32 backward": "norm backward fp32",
    }
    also = [
        f"{word} {show(found)}"
        for word, name in forms.items()
        if (found := view.ratio(name, slow, quick, scale))
    ]
    return f"; {', '.join(also)}" if also else ""


def norm(view: View) -> str:
    share = view.bandwidth("norm forward bf16", "CUDA C++")
    return (
        "in BF16, forward, PyTorch's two operators cross memory 5 times and CUDA C++ twice (a plane stays on the chip):"
        f" bytes alone make 2.5x; CUDA C++ moves {share:.2f} TB/s" + forms(view, "PyTorch", "CUDA C++", times)
    )


def triton(view: View) -> str:
    rates = [view.bandwidth("norm forward bf16", name) for name in ("Triton", "CUDA C++")]
    return (
        "a block of CUDA C++ keeps its plane in shared memory; Triton reads it again, from L2 or in a third pass"
        f" through memory for CUDA C++'s two, which make 67%; Triton moves {rates[0]:.2f} TB/s, CUDA C++ {rates[1]:.2f}"
        + forms(view, "CUDA C++", "Triton", percent, 100)
    )


def coalescing(view: View) -> str:
    access = view.faster("coalescing", "strided", "coalesced")
    blocks = view.faster("coalescing", "coalesced, N blocks", "coalesced")
    text = f"of it the access pattern alone is {times(access)}, a grid of N blocks alone {times(blocks)}"
    far, near = (view.counted("coalescing", name) for name in ("strided", "coalesced"))
    if far and near and far["sectors_a_load"] and near["sectors_a_load"]:
        text += f"; sectors a load {far['sectors_a_load']:.0f} and {near['sectors_a_load']:.0f}"
    return text


def best_blocks(view: View) -> Summary | None:
    """The better of 128 and 256 threads against the best of all."""
    best = view.quickest("block size")
    usual = view.quickest("block size", ("128 threads", "256 threads"))
    return view.ratio("block size", usual, best) if best and usual else None


def blocks(view: View) -> str:
    parts = []
    for name, words in (
        ("block size", "Triton"),
        ("block size in CUDA", "CUDA C++"),
        ("block size of the norm", "the norm in CUDA C++"),
    ):
        best = view.quickest(name)
        if best and (worst := view.ratio(name, view.slowest(name), best)):
            parts.append(f"{words}: {best} are the quickest, the slowest take {times(worst)}")
    return "; ".join(parts)


def low_occupancy(view: View) -> Summary | None:
    """Time at the best occupancy below 50% over the time at the best from 50% on."""
    low, high = view.by_occupancy("occupancy", 0.0, 0.5), view.by_occupancy("occupancy", 0.5, 1.01)
    return view.ratio("occupancy", low, high) if low and high else None


def occupancy(view: View) -> str:
    low = view.by_occupancy("occupancy", 0.0, 0.5)
    share, found = view.occupancy("occupancy", low), low_occupancy(view)
    lasts = found["interval"][0] if found and found["interval"] else (found or {"median": 0})["median"]
    text = f"{low} run at {share:.0%}" if share is not None else ""
    if lasts > SLOWER:
        return f"{text}, and are slower for it"
    return (
        f"{text}, and are no slower: more bytes a thread are on their way, and that hides the latency as well"
    )


def pair(name: str, slow: str, quick: str, words: str) -> Callable[[View], str]:
    def why(view: View) -> str:
        found = view.faster(name, slow, quick)
        return words if found and found["median"] > SLOWER else f"no difference to speak of: {words}"

    return why


def fusion(view: View) -> str:
    counted = view.saved_by_fusion(None)
    measured = view.saved_by_fusion("dram")
    time = view.faster("fusion", "three operators", "one")
    text = f"two intermediates in BF16, each written and read, are {counted:.0f} MB an image"
    text += f", {counted / 1.048576:.0f} MiB"
    text += (
        f", {measured:.0f} MB in DRAM by Nsight Compute" if measured is not None else "; DRAM was not counted"
    )
    return text + (f"; one operator is {times(time)} as fast as three" if time else "")


def saved(view: View) -> Summary | None:
    found = view.saved_by_fusion("dram")
    found = view.saved_by_fusion(None) if found is None else found
    return None if found is None else {"median": found, "interval": None}


def launch(view: View) -> str:
    texts = []
    for what, words in ((launching.LAUNCH, "the CPU's time"), (launching.REPLAY, "in a graph")):
        found = [
            f"{name} {summary['median']:.3g} us"
            for name in (launching.ADD, launching.EMPTY_TRITON, launching.EMPTY_CUDA)
            if (summary := view.us("launches", f"{what}: {name}"))
        ]
        if found:
            texts.append(f"{words}: {', '.join(found)}")
    return "; ".join(texts)


def step(view: View) -> Summary | None:
    """Milliseconds of the CPU for the launches of a step, as the ladder's baseline has them."""
    each, count = view.us("launches", f"{launching.LAUNCH}: {launching.ADD}"), view.result["kernels_per_step"]
    if each is None or count is None:
        return None
    return view.scaled(each, count / 1e3)


def steps(view: View) -> str:
    count = view.result["kernels_per_step"]
    return (
        f"1 to 2 ms are 200 launches of 5 to 10 us, and the ladder's baseline has {count:,.0f} kernels a step; that"
        " costs time only where the GPU is done before the CPU has launched the next"
    )


def fast_math(view: View) -> str:
    errors = view.result["errors"]
    named = [
        f"{name} {errors[name]:.1e}"
        for name in ("CUDA C++", "CUDA C++, fast math", "PyTorch")
        if name in errors
    ]
    return (
        f"relative error against float64, FP32: {', '.join(named)}" if named else "errors were not measured"
    )


def best_bound(view: View) -> Summary | None:
    best = view.quickest("launch bounds")
    return view.faster("launch bounds", "1024 threads", best) if best else None


def bounds(view: View) -> str:
    text = f"{view.quickest('launch bounds')} is the quickest bound for blocks of 256"
    best = view.quickest("register bounds")
    tight = best and view.ratio("register bounds", "32 registers", "no bound")
    return text + (
        f"; in Triton 32 registers instead of as many as it likes take {times(tight)} the time"
        if tight
        else ""
    )


def spectral(view: View) -> str:
    us = [view.us("spectral norm", name) for name in ("PyTorch", "Triton")]
    shown = " and ".join(f"{found['median']:.0f} us" for found in us if found)
    return f"{shown} for all layers of a discriminator: PyTorch launches a dozen kernels a layer, one after another"


def precision(view: View, name: str) -> str:
    """The same claim for FP16, and on the ladder's top."""
    forms = {
        f"{precision.upper()} on the {base}": view.precision(name, precision, base)
        for base in ("baseline", "top")
        for precision in ("bf16", "fp16")
    }
    also = [f"{form} {times(found)}" for form, found in forms.items() if found]
    return f"against FP32: {', '.join(also)}, by results/precision"
