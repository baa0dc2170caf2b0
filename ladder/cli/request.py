"""The options of one `ladder run`, declared once for the command and for what calls it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from ladder.core import options
from ladder.core.paths import ROOT
from ladder.core.records import Record

RESULTS = ROOT / "results" / "ladder"


class RunOptions(Record):
    """The options of `ladder run` that no other command has. None, where the default depends on others."""

    # fmt: off
    ladder: Annotated[str | None, options.declare_option(
        "The ladder whose rungs are used. [default: article]", metavar="NAME|FILE")] = None
    rungs: Annotated[Any, options.declare_option(
        "Measure only these; each keeps its recipe of the whole ladder.", metavar="A,B,...")] = None
    without: Annotated[list[str], options.declare_option(
        "Measure the whole ladder, and the whole ladder without this rung; may be repeated.", metavar="RUNG")] = []
    budget: Annotated[float | None, Meta(gt=0), options.declare_option(
        "Time for measuring; generations and cycles are fitted to it. [default: 10; mistakes: 8]",
        metavar="MINUTES")] = None
    rounds: Annotated[int | None, Meta(ge=1, le=100), options.declare_option(
        "Exact number of generations. [default: 3 to 12, as the budget allows; quick: 3]",
        flags=["--generations"])] = None
    cycles: Annotated[int | None, Meta(ge=1, le=1000), options.declare_option(
        "Timed 16-step cycles of each process. [default: 2; quick: 1]")] = None
    seed: Annotated[int | None, Meta(ge=0, le=2**31 - 1), options.declare_option(
        "Seed for weights, latents, and the order of images and visits. [default: 0]")] = None
    quick: Annotated[bool, options.declare_option(
        "Three generations of one cycle. The result is marked as not to be quoted.")] = False
    mode: Annotated[Literal["cumulative", "solo", "leave-one-out", "mistakes", "levers"] | None, options.declare_option(
        "Rungs on top of each other, each rung alone, or all rungs but one, which says what to adopt. Or common"
        " mistakes beside a clean step, or levers that change the model. [default: cumulative]")] = None
    recipe: Annotated[str | None, options.declare_option(
        "Measure the baseline and this recipe alone: a YAML file of recipe fields, as `ladder recommend` writes it.",
        metavar="RUNG|FILE")] = None
    gpu_memory: Annotated[float | None, Meta(ge=2, le=10_000), options.declare_option(
        "Simulate a card with GIB of memory, the limit of each process. The result is marked, and is compared with"
        " no other.", metavar="GIB")] = None
    # fmt: on


class Request(RunOptions):
    """All options of one `ladder run`; `rungs` are a list of names.

    An option that was not given is None: the default holds, or with ``resume`` the value of that file.
    """

    workload: str | None = None
    resume: Path | None = None
    data: str | None = None
    device: str | None = None
    out: Path | None = None
