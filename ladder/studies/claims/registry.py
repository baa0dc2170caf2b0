"""The claims: the article's figure, ours by the measurements of a result, and the verdict.

`CLAIMS` is the registry. A claim has a figure and a function from a result to ours: a median with its 95% interval over
repeats. The numbers that stand behind ours are the templates of `ladder.studies.claims.sentences`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ladder.results.check import study
from ladder.studies.claims import sentences
from ladder.studies.claims.schema import ClaimResult, Claims
from ladder.studies.claims.sentences import ADVISED, BLOCKS, UNBOUNDED
from ladder.studies.claims.view import ADD, EQUAL, LAUNCH, View
from ladder.studies.kernelbench.schema import Summary, is_among

HOLDS, MORE, LESS = "holds", "more", "less"
NOT, AMBIGUOUS, MISSING = "does not hold", "ambiguous", "n/a"
NOT_SEPARATED = "not separated"  # the figure is of two things at once, so it says nothing of either
TOLERANCE = 0.1  # of the article's figure, which has two digits at most
SLOWER = 1.02  # from this ratio of times on, one contender is said to be slower


@dataclass(frozen=True)
class Claim:
    """A claim of the article.

    Args:
        figure: the article's, from and to (equal for a single number); None where the article gives none.
        unit: "x", "percent", "us", "ms" or "MB".
        needs: experiments that ours is made from; a missing number has their reason.
        ours: a median and its interval, or None.
        lacks: the reason where the experiments have numbers and this claim has none.
        tolerance: share of the figure that counts as the same.
        limit: whether the figure is the most that ours may be; ours beyond it does not hold.
        separated: whether the two times differ in nothing but the subject of the claim.
        once: why ours has no interval.
    """

    name: str
    statement: str
    figure: tuple[float, float] | None
    unit: str
    needs: tuple[str, ...]
    ours: Callable[[View], Summary | None]
    lacks: str = ""
    tolerance: float = TOLERANCE
    limit: bool = False
    separated: Callable[[View], bool] = lambda view: True
    once: str = ""


def verdict(claim: Claim, ours: Summary | None, separated: bool = True) -> str:
    """Compare ours with the claim's figure.

    Returns:
        `holds` where the interval comes within the claim's tolerance of the figure, else `more` or `less`. A limit
        `holds` where the whole interval is within it. Without a figure, ours is a gain in speed: `holds` where the gain
        is a difference.
    """
    if ours is None:
        return MISSING
    if not separated:
        return NOT_SEPARATED
    low, high = ours.interval or (ours.median, ours.median)
    if claim.limit and claim.figure:
        most = claim.figure[1] * (1 + claim.tolerance)
        return NOT if low > most else HOLDS if high <= most else AMBIGUOUS
    if claim.figure is None:
        if low > SLOWER:
            return HOLDS
        return NOT if high <= SLOWER else AMBIGUOUS
    if low > claim.figure[1] * (1 + claim.tolerance):
        return MORE
    return LESS if high < claim.figure[0] * (1 - claim.tolerance) else HOLDS


def judged(result: Claims) -> list[ClaimResult]:
    """Return a row for each claim: ours, the verdict, and the reason where there is no number."""
    view, rows = View(result), []
    for claim in CLAIMS:
        ours = claim.ours(view)
        rows.append(
            ClaimResult(
                name=claim.name,
                figure=claim.figure and list(claim.figure),
                unit=claim.unit,
                ours=ours,
                verdict=verdict(claim, ours, claim.separated(view)),
                reason=None if ours else view.reason(claim.needs, claim.lacks),
            )
        )
    return rows


def sentence(claim: Claim, result: Claims) -> str:
    """Return the numbers behind ours in words; the reason where there is no number."""
    view = View(result)
    if claim.ours(view) is None:
        return view.reason(claim.needs, claim.lacks)
    return sentences.sentence(claim.name, view)


def best_blocks(view: View) -> Summary | None:
    """Return the time of the better of 128 and 256 threads over the best of all, in the kernel where it costs most."""
    found = []
    for name in BLOCKS:
        best, usual = view.quickest(name), view.quickest(name, ADVISED)
        if best and usual:
            found.append(view.ratio(name, usual, best))
    return max((each for each in found if each), key=lambda each: each.median, default=None)


def at_equal_work(view: View) -> bool:
    """Return whether occupancies below and from 50% were compared with the same work a thread."""
    return view.by_occupancy(EQUAL, 0.0, 0.5) is not None and view.by_occupancy(EQUAL, 0.5, 1.01) is not None


def low_occupancy(view: View) -> Summary | None:
    """Return the time at the best occupancy below 50% over the time at the best from 50% on."""
    name = EQUAL if at_equal_work(view) else "occupancy"
    low, high = view.by_occupancy(name, 0.0, 0.5), view.by_occupancy(name, 0.5, 1.01)
    return view.ratio(name, low, high) if low and high else None


def saved(view: View) -> Summary | None:
    """Return the MB an image that fusion saves: in DRAM where DRAM was counted, else by arithmetic."""
    found = view.saved_by_fusion("dram")
    found = view.saved_by_fusion(None) if found is None else found
    return None if found is None else Summary(median=found, interval=None)


def launches_of_step(view: View) -> Summary | None:
    """Return the milliseconds of the CPU for the launches of a step of the ladder's baseline."""
    each, count = view.us("launches", f"{LAUNCH}: {ADD}"), view.result.kernels_per_step
    if each is None or count is None:
        return None
    return view.scaled(each, count / 1e3)


def best_bound(view: View) -> Summary | None:
    """Return how many times as fast the quickest real launch bound is as none."""
    best = sentences.contender(view, "launch bounds", "bound")
    return view.faster("launch bounds", UNBOUNDED, best) if best else None


def _precision(name: str) -> Callable[[View], Summary | None]:
    return lambda view: view.precision(name, "bf16")


CLAIMS = (
    Claim(
        "CUDA C++ against PyTorch",
        "fused instance norm + leaky ReLU in CUDA C++ is 2.3x PyTorch's sequence, 8x512x256x256",
        (2.3, 2.3), "x", ("norm forward bf16",),
        lambda view: view.faster("norm forward bf16", "PyTorch", "CUDA C++"),
    ),
    Claim(
        "Triton against CUDA C++", "Triton reaches 85-95% of CUDA C++", (85, 95), "percent", ("norm forward bf16",),
        lambda view: view.ratio("norm forward bf16", "CUDA C++", "Triton", 100),
    ),
    Claim(
        "coalescing", "coalesced access is 8x strided, 512 channels at 256x256", (8, 8), "x", ("coalescing",),
        lambda view: view.faster("coalescing", "strided, N blocks", "coalesced"),
    ),
    Claim(
        "block size", "blocks of 128 or 256 threads are best: as fast as any", (1, 1), "x",
        tuple(BLOCKS), best_blocks, tolerance=0.02, limit=True,
    ),
    Claim(
        "occupancy", "below 50% occupancy a kernel is slower", None, "x", ("occupancy",),
        low_occupancy, "registers, and so the occupancy, are not known here",
        separated=at_equal_work,
    ),
    Claim(
        "fusion saves traffic", "two intermediates less save 256 MB a layer, 512x256x256", (256, 256), "MB",
        ("fusion",), saved, once="counted once",
    ),
    Claim(
        "launch overhead", "a launch costs 5-10 us", (5, 10), "us", ("launches",),
        lambda view: view.us("launches", f"{LAUNCH}: {ADD}"),
    ),
    Claim(
        "launches of a step", "1-2 ms of a 50 ms step are launches", (1, 2), "ms", ("launches",),
        launches_of_step,
        "the ladder has no result of this machine that says how many kernels a step has",
    ),
    Claim(
        "warp divergence", "a branch inside a warp runs both sides: predication is faster", None, "x", ("divergence",),
        lambda view: view.faster("divergence", "divergent", "predicated"),
    ),
    Claim(
        "shared memory or shuffles", "shuffles beat shared memory in a reduction", None, "x", ("reduction",),
        lambda view: view.faster("reduction", "shared memory", "shuffles"),
    ),
    Claim(
        "vector width", "16-byte accesses beat 2-byte ones", None, "x", ("vector width",),
        lambda view: view.faster("vector width", "2 bytes", "16 bytes"),
    ),
    Claim(
        "launch bounds", "__launch_bounds__ makes a kernel faster", None, "x", ("launch bounds",),
        best_bound,
    ),
    Claim(
        "fast math", "--use_fast_math is faster", None, "x", ("norm forward bf16",),
        lambda view: view.faster("norm forward bf16", "CUDA C++", "CUDA C++, fast math"),
    ),
    Claim(
        "spectral norm",
        "four Triton launches for all layers, two of the iteration and two of W / sigma, beat"
        " torch.nn.utils.parametrizations", None, "x",
        ("spectral norm",), lambda view: view.faster("spectral norm", "PyTorch", "Triton"),
    ),
    *(
        Claim(
            f"16-bit {name}", statement, (figure, figure), "x", ("precision",),
            _precision(name),
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


def contradicted(result: Claims) -> str | None:
    """Return what is impossible, or None: a median outside its samples, or a claim that its numbers contradict."""
    for experiment in result.experiments:
        for name, summary in experiment.us.items():
            if not is_among(summary.median, experiment.samples_us.get(name)):
                return f"{experiment.name}: the median of {name} is not among its samples"
    stored = {row.name: row for row in result.claims}
    if len(stored) < len(result.claims) or not stored.keys() <= BY_NAME.keys():
        return "claims: a name is unknown or appears twice"
    for row in judged(result):
        other = stored.get(row.name)
        if other is not None and other.verdict != row.verdict:
            return f"claim {row.name}: {other.verdict}, but the samples say {row.verdict}"
        if other is not None and row.ours is not None:
            theirs = other.ours.median if other.ours else None
            if theirs is None or abs(theirs - row.ours.median) > 1e-6 * abs(row.ours.median):
                return f"claim {row.name}: not what the samples say"
    return None


KIND = study("claims", Claims, contradicted)
