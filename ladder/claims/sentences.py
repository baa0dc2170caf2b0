"""What ours is, and why it differs: the functions behind `ladder.claims.registry`, of the numbers of a result alone."""

from __future__ import annotations

from collections.abc import Callable

from ladder.claims import launching
from ladder.claims.view import EQUAL, Summary, View, percent, times

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
    few, all_ = "strided, N blocks", "coalesced, N blocks"
    pattern = [view.faster("coalescing", *pair) for pair in ((few, all_), ("strided", "coalesced"))]
    grid = [view.faster("coalescing", *pair) for pair in ((all_, "coalesced"), (few, "strided"))]
    # Two ways from the article's strided kernel to its coalesced one; each multiplies up to ours.
    text = (
        f"access pattern, then full grid: {times(pattern[0])} and {times(grid[0])};"
        f" full grid, then access pattern: {times(grid[1])} and {times(pattern[1])}"
    )
    if all(pattern) and pattern[0]["median"] < pattern[1]["median"]:
        text += "; on N blocks, too few for the GPU, the pattern costs less"
    far, near = (view.counted("coalescing", name) for name in ("strided", "coalesced"))
    if far and near and far["sectors_a_load"] and near["sectors_a_load"]:
        text += f"; sectors a load {far['sectors_a_load']:.0f} and {near['sectors_a_load']:.0f}"
    return text


BLOCKS = {  # the sweeps over blocks of 32 to 1024 threads
    "block size": "leaky ReLU in Triton",
    "block size in CUDA": "the activation in CUDA C++",
    "block size of the norm": "the norm in CUDA C++",
}
ADVISED = ("128 threads", "256 threads")


def best_blocks(view: View) -> Summary | None:
    """The better of 128 and 256 threads against the best of all, of the kernel where that costs most."""
    found = []
    for name in BLOCKS:
        best, usual = view.quickest(name), view.quickest(name, ADVISED)
        if best and usual:
            found.append(view.ratio(name, usual, best))
    return max((each for each in found if each), key=lambda each: each["median"], default=None)


def blocks(view: View) -> str:
    parts = []
    for name, words in BLOCKS.items():
        if best := view.quickest(name):
            also = dict.fromkeys((*ADVISED, view.slowest(name)))
            taken = [
                f"{each} {times(view.ratio(name, each, best))}"
                for each in also
                if each != best and view.us(name, each)
            ]
            parts.append(f"{words}: {best} are the quickest, {', '.join(taken)}")
        else:
            parts.append(f"{words}: not measured")
    return "; ".join(parts)


def at_equal_work(view: View) -> bool:
    """Whether occupancies were compared with the same work a thread. Where registers limit it, they were not."""
    return view.by_occupancy(EQUAL, 0.0, 0.5) is not None and view.by_occupancy(EQUAL, 0.5, 1.01) is not None


def low_occupancy(view: View) -> Summary | None:
    """Time at the best occupancy below 50% over the time at the best from 50% on."""
    name = EQUAL if at_equal_work(view) else "occupancy"
    low, high = view.by_occupancy(name, 0.0, 0.5), view.by_occupancy(name, 0.5, 1.01)
    return view.ratio(name, low, high) if low and high else None


def occupancy(view: View) -> str:
    name = EQUAL if at_equal_work(view) else "occupancy"
    low = view.by_occupancy(name, 0.0, 0.5)
    others = {
        each: share
        for each in view.experiments[name]["bytes"]
        if each != low and view.us(name, each) and (share := view.occupancy(name, each)) is not None
    }
    taken = [f"{each} at {share:.0%} {times(view.ratio(name, each, low))}" for each, share in others.items()]
    text = f"{low} at {view.occupancy(name, low):.0%} against {', '.join(taken)} of its time"
    if name == EQUAL:
        return f"one kernel, the same work a thread, so many blocks a multiprocessor: {text}"
    return f"{text}: a thread's work differs in each of them, so what occupancy alone makes is not known"


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
    again = view.reads_beyond_fusion()
    if again is not None and again > 0.1 * counted:
        text += f", of which {again:.0f} are the norm's second read of x: one operator finds most of x in the L2 cache"
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
