"""What `ladder scale` stores of each point, the ways in which GPUs train together, and the figures that follow."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta
from msgspec.structs import replace

from ladder.core import records as r
from ladder.core import text
from ladder.core.errors import UserError
from ladder.core.options import declare_option
from ladder.core.plain import Fields as Recipe
from ladder.results import store as results
from ladder.results.file import Status
from ladder.stats import estimates
from ladder.studies import frame
from ladder.studies.base import StudyFile

WEAK, STRONG = "weak", "strong"
FEWEST = results.FEWEST_ROUNDS  # generations of a point that is quoted
STAYS = ("oom", "invalid", "failed: parity", "not engaged")  # a second try would end the same way
EAGER: Recipe = {"cuda_graphs": False, "whole_step_graph": False}
TOP = "the top"  # the highest rung of a ladder

# Name -> the ladder, its rung, and fields laid over the recipe.
WAYS: dict[str, tuple[str, str, Recipe]] = {
    "data_parallel": ("distributed_data_parallel", "data_parallel", {}),
    "ddp": ("distributed_ddp", "ddp", {}),
    "flat": ("distributed", "flat_reduce", {}),
    "captured": ("distributed", "captured_reduce", {}),
    "flat-top": ("distributed", TOP, EAGER),
    "top": ("distributed", TOP, {}),
}


class Options(frame.Options):
    """The options of `ladder scale`."""

    # fmt: off
    ways: Annotated[list[r.Name], r.size_between(100), declare_option("Ways.", argument=True, metavar="[WAY]...")] = []
    gpus: Annotated[str | None, declare_option(
        "Numbers of GPUs, or of ranks on a CPU. [default: 1, 2, 4, ... all]", metavar="N,N,...")] = None
    scaling: Annotated[Literal["weak", "strong", "both"], declare_option(
        "weak: the workload's batch on each GPU. strong: one total batch on any number.")] = "both"
    total: Annotated[Annotated[int, Meta(ge=1, le=2**16)] | None, declare_option(
        "Total batch of strong scaling. [default: that of weak scaling on the most GPUs]")] = None
    generations: Annotated[int, Meta(ge=1, le=100), declare_option(
        "Generations: fresh process groups of each point, including those of --resume.")] = 3
    visits: Annotated[int, Meta(ge=1, le=1000), declare_option("Timed 16-step cycles of a group.")] = 3
    no_proof: Annotated[bool, declare_option("Leave out receipts and parity; the result says so.")] = False
    seed: frame.Seed = 0
    # fmt: on


class Case(frame.Case, kw_only=True):
    """A way on so many GPUs with a total batch, to be timed or to be proved. `problem`: why it cannot be here."""

    kind: Literal["point", "proof"]
    way: r.Name
    scaling: Literal["weak", "strong"] | None = None
    gpus: Annotated[int, r.number_between(1, 4096)]
    batch: Annotated[int, r.number_between(1, 2**20)]
    recipe: r.Fields
    problem: r.Text | None = None

    @property
    def key(self) -> str:
        """Return the name of the case."""
        return (
            f"{self.way}, {self.scaling}, {self.gpus}"
            if self.kind == "point"
            else f"proof of {self.way} on {self.gpus}"
        )

    @property
    def sizes(self) -> dict[str, int]:
        return {"batch": max(1, self.batch // self.gpus)}

    @property
    def series(self) -> tuple[str, str | None]:
        """Return the way and the scaling, whose points are compared with each other."""
        return self.way, self.scaling

    @property
    def processes(self) -> int:
        """Return how many processes its step has."""
        from stylegan_lite import shares
        from stylegan_lite.config import Recipe

        return shares.processes(Recipe.from_dict(self.recipe))


class Late(r.Record, kw_only=True):
    """For how long of a profiled step others waited for a rank, and what its GPU did meanwhile."""

    rank: Annotated[int, r.number_between(0, 4095)]
    waited_ms: r.Amount
    idle_ms: r.Amount
    busiest: r.Text | None = None  # family of kernels


class Run(r.Record, kw_only=True):
    """One process group of one generation.

    A sample is the slowest rank's cycle. Communication is that of a profiled step, the least of all ranks: one that
    waits for another waits inside NCCL's kernel. The exposed part is the most of all ranks. Transfer is what is left
    of each collective once its last rank has come; older files lack it.
    """

    generation: Annotated[int, r.number_between(0, 9_999)]  # of a hundred merged runs
    samples_ms: Annotated[list[r.Ms], r.size_between(100_000, 1)]
    gpu_ms: r.Ms | None = None
    comm_ms: r.Amount | None = None
    exposed_ms: r.Amount | None = None
    transfer_ms: r.Amount | None = None
    late: Annotated[list[Late], r.size_between(4096)] = []
    peak_reserved_bytes: r.Bytes | None = None
    peak_allocated_bytes: r.Bytes | None = None
    device_used_bytes: r.Bytes | None = None
    peak_rss_bytes: r.Bytes
    prepare_s: r.Seconds
    rejected: r.Count
    others_cpu: r.Share | None = None

    @property
    def waiting_ms(self) -> float:
        """Return for how long of a step at least one rank waited for another."""
        return sum(each.waited_ms for each in self.late)


class Observed(frame.Compared, kw_only=True):
    """The process groups of a point; or of a proof the parity of the rank that is furthest off, and receipts' lines."""

    runs: Annotated[list[Run], r.size_between(1000)] = []
    lines: r.Notes = []

    def list_times(self) -> Iterable[float]:
        return (ms for run in self.runs for ms in run.samples_ms)


File = StudyFile[Options, Case, Observed]


def list_points(
    names: Iterable[str], able: Mapping[str, str | None], workload: r.Fields, gpus: Iterable[int],
    scalings: Iterable[str], total: int,
) -> list[Case]:  # fmt: skip
    """Return the points of these ways (all, if none is named) on a machine with these capabilities.

    Weak ones have the workload's batch on each GPU, strong ones `total`. Alone a way has no reduction.
    """
    from ladder.plan import catalog
    from ladder.plan.needs import RANKS
    from stylegan_lite import shares
    from stylegan_lite.config import Recipe, Workload, suggestion

    points = []
    for name in dict.fromkeys([*names] or WAYS):
        if name not in WAYS:
            raise UserError(f"no way {name!r}{suggestion(name, WAYS)}")
        ladder_name, rung, over = WAYS[name]
        ladder = catalog.load_ladder(ladder_name)
        planned = {each.name: each for each in catalog.plan_climb(ladder, {**able, RANKS: None})}
        own = [each.name for each in ladder.rungs]
        if "pair" in workload:  # its top is the highest rung that is not about StyleGAN2's layers
            own = [each for each in own if planned[each].recipe is not None]
        way = planned[own[-1] if rung == TOP else rung]
        for scaling, n in itertools.product([s for s in (WEAK, STRONG) if s in scalings], gpus):
            batch = int(workload["batch"] or 1) * n if scaling == WEAK else total
            recipe: r.Fields = {} if way.recipe is None else way.recipe | over | {"ranks": n}
            if n == 1:
                recipe = {key: value for key, value in recipe.items() if key not in ("ranks", "reduce")}
            problem = way.skipped
            if way.recipe is not None and "pair" in workload:
                problem = find_problem_of_pair(recipe, batch, n)
            elif way.recipe is not None:
                shared = Workload.from_dict(workload | {"batch": batch, "data": None})
                problem = shares.problem_with(Recipe.from_dict(recipe), shared)
            points.append(
                Case(
                    kind="point", way=name, scaling=cast(Any, scaling), gpus=n, batch=batch, recipe=recipe,
                    problem=problem and text.make_display(problem),
                )
            )  # fmt: skip
    return points


def find_problem_of_pair(recipe: r.Fields, batch: int, ranks: int) -> str | None:
    """Return why the ranks cannot train a user's pair in a way, or None."""
    if recipe.get("reduce") == "data_parallel":
        return "nn.DataParallel is about the calls of networks, which a loss of the user's own makes itself"
    if batch % ranks:
        return f"batch {batch} is the total and must be a multiple of ranks ({ranks})"
    return None


class Point(r.Record, kw_only=True):
    """One way on so many GPUs, its process groups, and the figures that follow from them.

    `batch` is the total. Efficiency compares with the same way on the fewest GPUs: 1 is perfect.
    """

    way: str
    scaling: str
    gpus: int
    batch: int
    recipe: r.Fields
    status: Status
    reason: str | None
    runs: list[Run]
    step_ms: float | None = None
    images_per_s: float | None = None
    efficiency: float | None = None
    low: float | None = None
    high: float | None = None
    comm_ms: float | None = None
    exposed_ms: float | None = None
    transfer_ms: float | None = None
    late: list[Late] = []
    peak_bytes: float | None = None

    @property
    def series(self) -> tuple[str, str]:
        """Return the way and the scaling, whose points are compared with each other."""
        return self.way, self.scaling

    @property
    def medians(self) -> dict[int, float]:
        """Return the median ms of a step in each generation."""
        return {run.generation: statistics.median(run.samples_ms) for run in self.runs}


def derive_points(file: File) -> list[Point]:
    """Return all points, those of a way and scaling together, with their figures."""
    points = []
    for key, case in file.cases.items():
        if case.kind == "point":
            each = file.observed.get(key, Observed(status="n/a", reason=case.problem or "not measured"))
            points.append(
                Point(
                    way=case.way, scaling=case.scaling or WEAK, gpus=case.gpus, batch=case.batch,
                    recipe=case.recipe, status=each.status, reason=each.reason, runs=each.runs,
                )
            )  # fmt: skip
    order = list(dict.fromkeys(point.series for point in points))
    points.sort(key=lambda point: (order.index(point.series), point.gpus))
    return [_derive_figures(point, find_fewest(point, points)) if point.runs else point for point in points]


def _derive_figures(point: Point, fewest: Point) -> Point:
    own = point.medians
    step_ms = statistics.median(own.values())
    # Images a second and GPU, relative to the fewest GPUs: one formula for weak and strong scaling.
    unit = (point.batch / point.gpus) / (fewest.batch / fewest.gpus)
    ratios = [unit * ratio for ratio in estimates.paired_ratios(fewest.medians, own)]
    is_alone = point.gpus == fewest.gpus or len(ratios) < FEWEST
    low, high = (None if is_alone else estimates.log_interval(ratios)) or (None, None)

    waits = sorted((run for run in point.runs if run.late), key=lambda run: run.waiting_ms)
    split = waits[len(waits) // 2] if waits else None  # one generation, so that its parts belong together

    def find_median(name: str) -> float | None:
        return estimates.median(
            [float(value) for run in point.runs if (value := getattr(run, name)) is not None]
        )

    return replace(
        point, step_ms=step_ms, images_per_s=1000 * point.batch / step_ms,
        efficiency=statistics.median(ratios) if ratios else None, low=low, high=high, comm_ms=find_median("comm_ms"),
        exposed_ms=find_median("exposed_ms"), transfer_ms=split.transfer_ms if split else None,
        late=sorted(split.late, key=lambda each: -each.waited_ms) if split else [],
        peak_bytes=find_median("peak_reserved_bytes"),
    )  # fmt: skip


def find_fewest(point: Point, points: Iterable[Point]) -> Point:
    """Return the point of the same way and scaling on the fewest GPUs that has runs."""
    same = [each for each in points if each.series == point.series and each.runs]
    return min(same, key=lambda each: each.gpus, default=point)


def find_efficiency(point: Point, points: Iterable[Point]) -> float | None:
    """Return a point's efficiency, None for several GPUs relative to themselves: that is no scaling."""
    return None if point.gpus == find_fewest(point, points).gpus > 1 else point.efficiency


def is_short(point: Point, points: Iterable[Point]) -> bool:
    """Return whether too few generations hold both a point and that on the fewest GPUs, so that it is not quoted."""
    paired = point.medians.keys() & find_fewest(point, points).medians.keys()
    return bool(point.runs) and len(paired) < FEWEST


def list_short(points: Sequence[Point]) -> list[str]:
    """Return the names of the ways with too few generations, with their GPUs if other points have enough."""
    names = []
    for series in dict.fromkeys(point.series for point in points):
        measured = [point for point in points if point.series == series and point.runs]
        few = [point for point in measured if is_short(point, points)]
        on = f" on {', '.join(str(point.gpus) for point in few)}" if len(few) < len(measured) else ""
        names += [f"{' '.join(series)}{on}"] if few else []
    return names


def find_end(file: File) -> int:
    """Return the number after that of the last generation."""
    return max((run.generation + 1 for each in file.observed.values() for run in each.runs), default=0)
