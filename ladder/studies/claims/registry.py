"""The claims: what the article says, what ours is by the measurements of a result, and why the two differ.

`CLAIMS` is the registry. A claim is a few lines: its figure, a function from a result to ours (a median with its 95%
interval over repeats), and one that writes the sentence, from the numbers and not from what was expected of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ladder.studies.claims import launching, sentences
from ladder.studies.claims.view import Summary, View

HOLDS, MORE, LESS = "holds", "more", "less"
NOT, AMBIGUOUS, MISSING = "does not hold", "ambiguous", "n/a"
NOT_SEPARATED = "not separated"  # the figure is of two things at once, so it says nothing of either
TOLERANCE = 0.1  # of the article's figure, which has two digits at most


@dataclass(frozen=True)
class Claim:
    """Args:
    figure: the article's, from and to (equal for a single number); None: it gives none.
    unit: "x", "percent", "us", "ms" or "MB".
    needs: experiments it is made from; the reason for a missing number is theirs.
    ours: a median and its interval, or None.
    why: one sentence on how ours and the figure differ, or on what ours is.
    lacks: what is missing where the experiments have numbers and this claim has none.
    tolerance: share of the figure that counts as the same.
    limit: the figure is the most that ours may be, so what is beyond does not hold.
    separated: whether what differs between ours' two times is what the claim is about, and that alone.
    once: why ours has no interval.
    """

    name: str
    statement: str
    figure: tuple[float, float] | None
    unit: str
    needs: tuple[str, ...]
    ours: Callable[[View], Summary | None]
    why: Callable[[View], str]
    lacks: str = ""
    tolerance: float = TOLERANCE
    limit: bool = False
    separated: Callable[[View], bool] = lambda view: True
    once: str = ""


def verdict(claim: Claim, ours: Summary | None, separated: bool = True) -> str:
    """Against a figure: `holds` where the interval comes within the claim's tolerance of it, else `more` or `less`.

    A limit `holds` where the whole interval is within it. Without a figure, ours is how many times as fast what the
    claim recommends is: `holds` where that is a difference.
    """
    if ours is None:
        return MISSING
    if not separated:
        return NOT_SEPARATED
    low, high = ours["interval"] or (ours["median"], ours["median"])
    if claim.limit and claim.figure:
        most = claim.figure[1] * (1 + claim.tolerance)
        return NOT if low > most else HOLDS if high <= most else AMBIGUOUS
    if claim.figure is None:
        if low > sentences.SLOWER:
            return HOLDS
        return NOT if high <= sentences.SLOWER else AMBIGUOUS
    if low > claim.figure[1] * (1 + claim.tolerance):
        return MORE
    return LESS if high < claim.figure[0] * (1 - claim.tolerance) else HOLDS


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
                "verdict": verdict(claim, ours, claim.separated(view)),
                "reason": None if ours else view.reason(claim.needs, claim.lacks),
            }
        )
    return rows


def sentence(claim: Claim, result: dict[str, Any]) -> str:
    """Why ours differs; the reason where there is no number."""
    view = View(result)
    if claim.ours(view) is None:
        return view.reason(claim.needs, claim.lacks)
    return claim.why(view)


CLAIMS = (
    Claim(
        "CUDA C++ against PyTorch",
        "fused instance norm + leaky ReLU in CUDA C++ is 2.3x PyTorch's sequence, 8x512x256x256",
        (2.3, 2.3), "x", ("norm forward bf16",),
        lambda view: view.faster("norm forward bf16", "PyTorch", "CUDA C++"), sentences.norm,
    ),
    Claim(
        "Triton against CUDA C++", "Triton reaches 85-95% of CUDA C++", (85, 95), "percent", ("norm forward bf16",),
        lambda view: view.ratio("norm forward bf16", "CUDA C++", "Triton", 100), sentences.triton,
    ),
    Claim(
        "coalescing", "coalesced access is 8x strided, 512 channels at 256x256", (8, 8), "x", ("coalescing",),
        lambda view: view.faster("coalescing", "strided, N blocks", "coalesced"), sentences.coalescing,
    ),
    Claim(
        "block size", "blocks of 128 or 256 threads are best: as fast as any", (1, 1), "x",
        tuple(sentences.BLOCKS), sentences.best_blocks, sentences.blocks, tolerance=0.02, limit=True,
    ),
    Claim(
        "occupancy", "below 50% occupancy a kernel is slower", None, "x", ("occupancy",),
        sentences.low_occupancy, sentences.occupancy, "registers, and so the occupancy, are not known here",
        separated=sentences.at_equal_work,
    ),
    Claim(
        "fusion saves traffic", "two intermediates less save 256 MB a layer, 512x256x256", (256, 256), "MB",
        ("fusion",), sentences.saved, sentences.fusion, once="counted once",
    ),
    Claim(
        "launch overhead", "a launch costs 5-10 us", (5, 10), "us", ("launches",),
        lambda view: view.us("launches", f"{launching.LAUNCH}: {launching.ADD}"), sentences.launch,
    ),
    Claim(
        "launches of a step", "1-2 ms of a 50 ms step are launches", (1, 2), "ms", ("launches",),
        sentences.step, sentences.steps,
        "the ladder has no result of this machine that says how many kernels a step has",
    ),
    Claim(
        "warp divergence", "a branch inside a warp runs both sides: predication is faster", None, "x", ("divergence",),
        lambda view: view.faster("divergence", "divergent", "predicated"),
        sentences.pair("divergence", "divergent", "predicated",
              "each side of the branch is as long as the predicated whole, and a warp that splits takes both"),
    ),
    Claim(
        "shared memory or shuffles", "shuffles beat shared memory in a reduction", None, "x", ("reduction",),
        lambda view: view.faster("reduction", "shared memory", "shuffles"),
        sentences.pair("reduction", "shared memory", "shuffles",
              "a block reads 256 KiB and then adds 256 numbers: what adds them hardly shows beside the reading"),
    ),
    Claim(
        "vector width", "16-byte accesses beat 2-byte ones", None, "x", ("vector width",),
        lambda view: view.faster("vector width", "2 bytes", "16 bytes"),
        sentences.pair("vector width", "2 bytes", "16 bytes",
              "eight times as many loads, by eight times as many blocks of a load a thread: a load takes a place in"
              " the queue whether it brings 2 bytes or 16, a block has to be started; what costs is not separated"),
    ),
    Claim(
        "launch bounds", "__launch_bounds__ makes a kernel faster", None, "x", ("launch bounds",),
        sentences.best_bound, sentences.bounds,
    ),
    Claim(
        "fast math", "--use_fast_math is faster", None, "x", ("norm forward bf16",),
        lambda view: view.faster("norm forward bf16", "CUDA C++", "CUDA C++, fast math"), sentences.fast_math,
    ),
    Claim(
        "spectral norm",
        "four Triton launches for all layers, two of the iteration and two of W / sigma, beat"
        " torch.nn.utils.parametrizations", None, "x",
        ("spectral norm",), lambda view: view.faster("spectral norm", "PyTorch", "Triton"), sentences.spectral,
    ),
    *(
        Claim(
            f"16-bit {name}", statement, (figure, figure), "x", ("precision",),
            lambda view, name=name: view.precision(name, "bf16"),
            lambda view, name=name: sentences.precision(view, name),
            "measured by ladder precision, which has no figure of this machine",
        )
        for name, statement, figure in (
            ("throughput", "FP16 and BF16 have twice the throughput", 2.0),
            ("memory", "FP16 and BF16 halve the memory", 0.5),
            ("batch", "FP16 and BF16 double the batch", 2.0),
        )
    ),
)  # fmt: skip
BY_NAME = {claim.name: claim for claim in CLAIMS}
