"""The claims: what the article says, what ours is by the measurements of a result, and why the two differ.

`CLAIMS` is the registry. A claim is a few lines: its figure, a function from a result to ours (a median with its 95%
interval over repeats), and one that writes the sentence, from the numbers and not from what was expected of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ladder.claims import launching, timed
from ladder.claims.view import Summary, View, percent, times

HOLDS, MORE, LESS = "holds", "more", "less"
MEASURED, MISSING = "no figure", "n/a"
TOLERANCE = 0.1  # of the article's figure, which has two digits at most
SLOWER = 1.02  # from here on a ratio of times is said to be one


@dataclass(frozen=True)
class Claim:
    """Args:
    figure: the article's, from and to (equal for a single number); None: it gives none.
    unit: "x", "percent", "us", "ms" or "MB".
    needs: experiments it is made from; the reason for a missing number is theirs.
    ours: a median and its interval, or None.
    why: one sentence on how ours and the figure differ, or on what ours is.
    """

    name: str
    statement: str
    figure: tuple[float, float] | None
    unit: str
    needs: tuple[str, ...]
    ours: Callable[[View], Summary | None]
    why: Callable[[View], str]


def verdict(claim: Claim, ours: Summary | None) -> str:
    """`holds`: the interval comes within a tenth of the article's figure; else `more` or `less`."""
    if ours is None:
        return MISSING
    if claim.figure is None:
        return MEASURED
    low, high = ours["interval"] or (ours["median"], ours["median"])
    if low > claim.figure[1] * (1 + TOLERANCE):
        return MORE
    if high < claim.figure[0] * (1 - TOLERANCE):
        return LESS
    return HOLDS


def judged(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Every claim of a result: ours, the verdict, and the reason where there is no number."""
    view, rows = View(result), []
    for claim in CLAIMS:
        ours = claim.ours(view)
        rows.append(
            {
                "name": claim.name,
                "figure": claim.figure and list(claim.figure),
                "unit": claim.unit,
                "ours": ours,
                "verdict": verdict(claim, ours),
                "reason": None if ours else view.reason(claim.needs),
            }
        )
    return rows


def sentence(claim: Claim, result: dict[str, Any]) -> str:
    """Why ours differs; the reason where there is no number."""
    view = View(result)
    if claim.ours(view) is None:
        return view.reason(claim.needs)
    return claim.why(view)


# ---- sentences -------------------------------------------------------------------------------------------------------


def _norm(view: View) -> str:
    also = [
        f"{words} {times(found)}"
        for words, name in (
            ("backward", "norm backward bf16"),
            ("FP32 forward", "norm forward fp32"),
            ("FP32 backward", "norm backward fp32"),
        )
        if (found := view.faster(name, "PyTorch", "CUDA C++"))
    ]
    share = view.bandwidth("norm forward bf16", "CUDA C++", passes=2)
    text = "BF16 forward"
    if share:
        text += f", where CUDA C++ moves {share:.2f} TB/s of the two passes it cannot do without"
    return text + (f"; {', '.join(also)}" if also else "")


def _triton(view: View) -> str:
    forms = {
        "backward": "norm backward bf16",
        "FP32 forward": "norm forward fp32",
        "FP32 backward": "norm backward fp32",
    }
    also = [
        f"{word} {percent(found)}"
        for word, name in forms.items()
        if (found := view.ratio(name, "CUDA C++", "Triton", 100))
    ]
    return "time of CUDA C++ over Triton's, BF16 forward" + (f"; {', '.join(also)}" if also else "")


def _coalescing(view: View) -> str:
    access = view.faster("coalescing", "strided", "coalesced")
    blocks = view.faster("coalescing", "coalesced, N blocks", "coalesced")
    text = f"of it the access pattern alone is {times(access)}, a grid of N blocks alone {times(blocks)}"
    far, near = (view.counted("coalescing", name) for name in ("strided", "coalesced"))
    if far and near and far["sectors_a_load"] and near["sectors_a_load"]:
        text += f"; sectors a load {far['sectors_a_load']:.0f} and {near['sectors_a_load']:.0f}"
    return text


def _best_blocks(view: View) -> Summary | None:
    """The better of 128 and 256 threads against the best of all."""
    best = view.quickest("block size")
    usual = view.quickest("block size", ("128 threads", "256 threads"))
    return view.ratio("block size", usual, best) if best and usual else None


def _blocks(view: View) -> str:
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


def _low_occupancy(view: View) -> Summary | None:
    """Time at the best occupancy below 50% over the time at the best from 50% on."""
    low, high = view.by_occupancy("occupancy", 0.0, 0.5), view.by_occupancy("occupancy", 0.5, 1.01)
    return view.ratio("occupancy", low, high) if low and high else None


def _occupancy(view: View) -> str:
    low = view.by_occupancy("occupancy", 0.0, 0.5)
    share, found = view.occupancy("occupancy", low), _low_occupancy(view)
    lasts = found["interval"][0] if found and found["interval"] else (found or {"median": 0})["median"]
    text = f"{low} run at {share:.0%}" if share is not None else ""
    if lasts > SLOWER:
        return f"{text}, and are slower for it"
    return (
        f"{text}, and are no slower: more bytes a thread are on their way, and that hides the latency as well"
    )


def _pair(name: str, slow: str, quick: str, words: str) -> Callable[[View], str]:
    def why(view: View) -> str:
        found = view.faster(name, slow, quick)
        return words if found and found["median"] > SLOWER else f"no difference to speak of: {words}"

    return why


def _fusion(view: View) -> str:
    counted = view.saved_by_fusion(None)
    measured = view.saved_by_fusion("dram")
    time = view.faster("fusion", "three operators", "one")
    text = f"counted {counted:.0f} MB a layer and image (two intermediates, written and read, in BF16)"
    text += (
        f", {measured:.0f} MB in DRAM by Nsight Compute" if measured is not None else "; DRAM was not counted"
    )
    return text + (f"; one operator is {times(time)} as fast as three" if time else "")


def _saved(view: View) -> Summary | None:
    found = view.saved_by_fusion("dram")
    found = view.saved_by_fusion(None) if found is None else found
    return None if found is None else {"median": found, "interval": None}


def _launch(view: View) -> str:
    texts = []
    for what, words in ((launching.LAUNCH, "the CPU's time"), (launching.REPLAY, "in a graph")):
        found = [
            f"{name} {summary['median']:.2g} us"
            for name in (launching.ADD, launching.EMPTY_TRITON, launching.EMPTY_CUDA)
            if (summary := view.us("launches", f"{what}: {name}"))
        ]
        if found:
            texts.append(f"{words}: {', '.join(found)}")
    return "; ".join(texts)


def _step(view: View) -> Summary | None:
    """Milliseconds of the CPU for the launches of a step, as the ladder's baseline has them."""
    each, count = view.us("launches", f"{launching.LAUNCH}: {launching.ADD}"), view.result["kernels_per_step"]
    if each is None or count is None:
        return None
    return view.scaled(each, count / 1e3)


def _steps(view: View) -> str:
    count = view.result["kernels_per_step"]
    return (
        f"the ladder's baseline has {count:,.0f} kernels a step, where 1 to 2 ms would be {1000 / 5:.0f} of 5 to 10 us;"
        " it costs time only where the GPU is done before the CPU has launched the next"
    )


def _fast_math(view: View) -> str:
    errors = view.result["errors"]
    named = [
        f"{name} {errors[name]:.1e}"
        for name in ("CUDA C++", "CUDA C++, fast math", "PyTorch")
        if name in errors
    ]
    return (
        f"relative error against float64, FP32: {', '.join(named)}" if named else "errors were not measured"
    )


def _best_bound(view: View) -> Summary | None:
    best = view.quickest("launch bounds")
    return view.faster("launch bounds", "1024 threads", best) if best else None


def _bounds(view: View) -> str:
    text = f"{view.quickest('launch bounds')} is the quickest bound for blocks of 256"
    best = view.quickest("register bounds")
    tight = best and view.ratio("register bounds", "32 registers", "no bound")
    return text + (
        f"; in Triton 32 registers instead of as many as it likes take {times(tight)} the time"
        if tight
        else ""
    )


CLAIMS = (
    Claim(
        "CUDA C++ against PyTorch",
        "fused instance norm + leaky ReLU in CUDA C++ is 2.3x PyTorch's sequence, 8x512x256x256",
        (2.3, 2.3), "x", ("norm forward bf16",),
        lambda view: view.faster("norm forward bf16", "PyTorch", "CUDA C++"), _norm,
    ),
    Claim(
        "Triton against CUDA C++", "Triton reaches 85-95% of CUDA C++", (85, 95), "%", ("norm forward bf16",),
        lambda view: view.ratio("norm forward bf16", "CUDA C++", "Triton", 100), _triton,
    ),
    Claim(
        "coalescing", "coalesced access is 8x strided, 512 channels at 256x256", (8, 8), "x", ("coalescing",),
        lambda view: view.faster("coalescing", "strided, N blocks", "coalesced"), _coalescing,
    ),
    Claim(
        "block size", "blocks of 128 or 256 threads are best", (1, 1), "x", ("block size",), _best_blocks, _blocks
    ),
    Claim(
        "occupancy", "occupancy must be 50% or more: below it is slower", None, "x", ("occupancy",),
        _low_occupancy, _occupancy,
    ),
    Claim(
        "fusion saves traffic", "two intermediates less save 256 MB a layer, 512x256x256", (256, 256), "MB",
        ("fusion",), _saved, _fusion,
    ),
    Claim(
        "launch overhead", "a launch costs 5-10 us", (5, 10), "us", ("launches",),
        lambda view: view.us("launches", f"{launching.LAUNCH}: {launching.ADD}"), _launch,
    ),
    Claim(
        "launches of a step", "1-2 ms of a 50 ms step are launches", (1, 2), "ms", ("launches",), _step, _steps
    ),
    Claim(
        "warp divergence", "a branch inside a warp runs both sides", None, "x", ("divergence",),
        lambda view: view.faster("divergence", "divergent", "predicated"),
        _pair("divergence", "divergent", "predicated",
              "each side of the branch is as long as the predicated whole, and a warp that splits takes both"),
    ),
    Claim(
        "shared memory or shuffles", "shuffles beat shared memory in a reduction", None, "x", ("reduction",),
        lambda view: view.faster("reduction", "shared memory", "shuffles"),
        _pair("reduction", "shared memory", "shuffles",
              "a block reads 256 KiB and then adds 256 numbers: what adds them hardly shows beside the reading"),
    ),
    Claim(
        "vector width", "16-byte accesses beat 2-byte ones", None, "x", ("vector width",),
        lambda view: view.faster("vector width", "2 bytes", "16 bytes"),
        _pair("vector width", "2 bytes", "16 bytes",
              "a load takes a place in the queue whether it brings 2 bytes or 16; eight times as many are needed"),
    ),
    Claim(
        "launch bounds", "__launch_bounds__ lets the compiler fit more blocks", None, "x", ("launch bounds",),
        _best_bound, _bounds,
    ),
    Claim(
        "fast math", "--use_fast_math", None, "x", ("norm forward bf16",),
        lambda view: view.faster("norm forward bf16", "CUDA C++", "CUDA C++, fast math"), _fast_math,
    ),
)  # fmt: skip
BY_NAME = {claim.name: claim for claim in CLAIMS}
__all__ = ["BY_NAME", "CLAIMS", "Claim", "judged", "sentence", "timed", "verdict"]
