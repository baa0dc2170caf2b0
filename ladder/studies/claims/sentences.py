"""What ours is, and why it differs: the functions behind `ladder.studies.claims.registry`, of the numbers of a result
alone."""

from __future__ import annotations

from collections.abc import Callable

from ladder.studies.claims import launching
from ladder.studies.claims.view import EQUAL, Summary, View, percent, times

SLOWER = 1.02  # from here on a ratio of times is said to be one


FORMS = {
    "backward": "norm backward bf16",
    "FP32 forward": "norm forward fp32",
    "FP32 backward": "norm backward fp32",
}


def forms(view: View, slow: str, quick: str, show: Callable[[Summary], str], scale: float = 1.0) -> str:
    """The ratio in the other direction and precision: `; backward 2.10x, FP32 forward ...`."""
    found = {word: view.ratio(name, slow, quick, scale) for word, name in FORMS.items()}
    also = [f"{word} {show(ratio)}" for word, ratio in found.items() if ratio]
    return f"; {', '.join(also)}" if also else ""


def span(view: View, slow: str, quick: str, show: Callable[[Summary], str], scale: float = 1.0) -> str:
    """From the least to the most of all directions and precisions, and where ours, BF16 forward, stands."""
    names = ("norm forward bf16", *FORMS.values())
    found = [ratio for name in names if (ratio := view.ratio(name, slow, quick, scale))]
    if len(found) < 2:
        return ""
    low, high = (pick(found, key=lambda each: each["median"]) for pick in (min, max))
    place = "the most" if high is found[0] else "the least" if low is found[0] else "one"
    return f"{place} of {len(found)} cases, {show(low)} to {show(high)}; "


def norm(view: View) -> str:
    rates = [view.rate("norm forward bf16", name) for name in ("PyTorch", "CUDA C++")]
    return (
        span(view, "PyTorch", "CUDA C++", times)
        + "in BF16, forward, PyTorch's two operators cross memory 5 times and CUDA C++ twice (a plane stays on the"
        " chip):"
        f" bytes alone make 2.5x, the rest is that PyTorch moves {rates[0]:.2f} TB/s and CUDA C++ {rates[1]:.2f}"
        + forms(view, "PyTorch", "CUDA C++", times)
    )


def triton(view: View) -> str:
    rates = [view.rate("norm forward bf16", name) for name in ("Triton", "CUDA C++")]
    text = (
        span(view, "CUDA C++", "Triton", percent, 100)
        + "a block of CUDA C++ keeps its plane in shared memory; Triton reads it again, from L2 or in a third pass"
        f" through memory for CUDA C++'s two, which make 67%; Triton moves {rates[0]:.2f} TB/s, CUDA C++ {rates[1]:.2f}"
    )
    read = [view.counted("norm forward bf16", name) for name in ("Triton", "CUDA C++")]
    if all(each and each["dram_read"] for each in read):
        text += f", and DRAM gives Triton {read[0]['dram_read'] / read[1]['dram_read']:.2f}x as much"
    return text + forms(view, "CUDA C++", "Triton", percent, 100)


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
    behind, best = (
        view.ratio("coalescing", "coalesced", "PyTorch"),
        view.faster("coalescing", "strided", "PyTorch"),
    )
    if behind and behind["median"] > 1.1:
        text += (
            f"; with one element a thread the coalesced kernel takes {times(behind)} PyTorch's time, so memory is not"
            f" what it waits for: PyTorch's is {times(best)} the strided one on a full grid"
        )
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
            parts.append(
                f"{words}: {best} are the quickest, {', '.join(taken)}{_block_reason(view, name, best)}"
            )
        else:
            parts.append(f"{words}: not measured")
    return "the better of 128 and 256 threads, in the kernel where it costs most; " + "; ".join(parts)


def _block_reason(view: View, name: str, best: str) -> str:
    """What else a block's size changes, where the numbers show it."""
    plane, kernels = view.plane_bytes(name), {each: view.kernel(name, each) for each in (best, "256 threads")}
    if all(kernels.values()) and plane and kernels[best]["shared_bytes"] and best != "256 threads":
        kept = {each: min(1.0, kernel["shared_bytes"] / plane) for each, kernel in kernels.items()}
        shares = " and ".join(f"{share:.0%} at {each}" for each, share in kept.items())
        return f" (a block also keeps as much of its plane as its share of shared memory holds, {shares})"
    rates = [view.started(name, f"{threads} threads") for threads in (32, 64)]
    if (
        all(rates) and abs(rates[0] / rates[1] - 1) < 0.05
    ):  # twice the threads do twice as much in the same time
        return f" (small blocks of one element a thread wait to be started, {rates[0]:,.0f} a us whatever their size)"
    return ""


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
        text = f"one kernel, as many bytes on their way a thread, so many blocks a multiprocessor: {text}"
        measured = {each: view.occupancy("occupancy", each) for each in view.samples_of("occupancy")}
        lowest = min(
            (each for each in measured if measured[each]), key=lambda each: measured[each], default=None
        )
        if lowest and measured[lowest] < 0.5:
            behind = view.ratio("occupancy", lowest, view.quickest("occupancy"))
            text += f"; more bytes a thread make up for it: {lowest} a thread at {measured[lowest]:.0%} take"
            text += f" {times(behind)} the time of the best"
        return text
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
        "1 to 2 ms, 2 to 4% of such a step, are 200 launches of 5 to 10 us, and the ladder's baseline has"
        f" {count:,.0f} kernels a step; that costs time only where the GPU is done before the CPU has launched the next"
    )


def fast_math(view: View) -> str:
    errors = view.result["errors"]
    named = [
        f"{name} {errors[name]:.1e}"
        for name in ("CUDA C++", "CUDA C++, fast math", "PyTorch")
        if name in errors
    ]
    text = (
        f"relative error against float64, FP32: {', '.join(named)}" if named else "errors were not measured"
    )
    return f"the sources ask for the approximate root and quotient by name, so there is little left to relax; {text}"


UNBOUNDED = "1024 threads"  # the most that a block may have: a bound that bounds nothing


def _tightest(view: View) -> str | None:
    """The quickest of the real bounds."""
    return view.quickest(
        "launch bounds", tuple(n for n in view.samples_of("launch bounds") if n != UNBOUNDED)
    )


def best_bound(view: View) -> Summary | None:
    best = _tightest(view)
    return view.faster("launch bounds", UNBOUNDED, best) if best else None


def bounds(view: View) -> str:
    text = f"{_tightest(view)} is the quickest bound for blocks of 256, against one of {UNBOUNDED}"
    names = view.samples_of("launch bounds")
    shares = {view.occupancy("launch bounds", name) for name in names}
    if len(shares) == 1 and None not in shares:
        text += (
            f"; all of them stand at {shares.pop():.0%}, because shared memory says how many blocks fit, and fewer"
            f" registers gain nothing: {view.slowest('launch bounds')} takes"
            f" {times(view.ratio('launch bounds', view.slowest('launch bounds'), UNBOUNDED))} the time"
        )
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
    layers = next(
        iter(view.experiments["spectral norm"]["notes"]), "14 weights of 3x3 as a discriminator has them"
    )
    return f"{shown} for {layers}: PyTorch launches a dozen kernels a layer, one after another"


PRECISION = {  # why, by docs/precision.md
    "throughput": "FP32 is IEEE, which Tensor Cores do not compute, and the baseline waits for the CPU in 16 bits",
    "memory": "cuDNN asks for workspaces in IEEE FP32 that neither TF32 nor 16 bits need",
    "batch": "found to a sixteenth, on the baseline alone",
}


def precision(view: View, name: str) -> str:
    """The same claim for FP16, and on the ladder's top."""
    forms = {
        f"{precision.upper()} on the {base}": view.precision(name, precision, base)
        for base in ("baseline", "top")
        for precision in ("bf16", "fp16")
    }
    also = [f"{form} {times(found)}" for form, found in forms.items() if found]
    return f"against IEEE FP32: {', '.join(also)}, by results/precision; {PRECISION[name]}"
