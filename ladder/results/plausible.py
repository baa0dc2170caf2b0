"""The least time that a step can take: below it no GPU of that name can be, so such a result is refused.

A roofline floor, made to be too low rather than too high: the convolutions alone, counted from the workload in the
cheapest way each can be computed, over the highest rate that the GPU is sold with, memory never waited for. Rungs have
taken six to two hundred times as long. It does not find an optimistic number; it finds one in the wrong unit, one of
work that was never done, and one that was made up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ladder.core.records import write_whole
from ladder.results import sources
from ladder.results.run import Run, Rung, Twin

if TYPE_CHECKING:  # asv measures commits whose stylegan_lite keeps no more than the step's contract
    from stylegan_lite.config import Workload

Floor = tuple[float, float] | None  # least ms of a step with and without the lazy phases; None if unknown

# Dense TFLOP/s of FP16 or BF16 on tensor cores, from NVIDIA's data sheets, tables of architecture white papers and, for
# consumer cards, with FP16 accumulation: the fastest of the formats that a recipe can ask for. First match counts.
PEAKS = (
    (r"B300", 3500.0),
    (r"B200", 2500.0),
    (r"B100", 1750.0),
    (r"RTX PRO 6000|RTX 5090", 504.0),
    (r"H100|H200|H800", 989.5),  # the SXM card; PCIe and NVL are slower
    (r"A100|A800", 312.0),
    (r"L40S|RTX 6000 Ada|RTX 4090", 366.0),
    (r"\bL40\b", 181.0),
    (r"\bL4\b", 121.0),
    (r"A40\b|A6000|RTX 3090|A30\b|A10\b", 165.0),
    (r"V100|TITAN V|RTX 8000|RTX 6000|TITAN RTX", 131.0),
    (r"\bT4\b", 65.0),
)
FASTEST = 7000.0  # a GPU that is not in the table: twice the fastest there
PER_CORE = 10.0  # TFLOP/s of one CPU core: BF16 tiles of 1024 multiply-adds a cycle at 5 GHz
BOOST = 1.25  # clocks above the data sheet's
WINOGRAD = 2.25  # F(2x2, 3x3) of Lavin and Gray 2016 needs so many times fewer multiplications
LAZY = 4  # convolution passes of a penalty, at least: forward, gradient, and twice as much for its gradient


def floor_ms(machine: Mapping[str, Any], workload: Mapping[str, Any]) -> Floor:
    """Least ms of a step with and without the lazy phases; None for a workload that is none of this model."""
    from stylegan_lite.config import ConfigError, Workload

    known = {key: value for key, value in workload.items() if key in Workload.__dataclass_fields__}
    try:
        work = flops(Workload.from_dict(known | {"data": None}))
    except (ConfigError, OverflowError):
        return None
    rate = peak(machine) * 1e12 * BOOST * WINOGRAD
    return 1000 * work[0] / rate, 1000 * work[1] / rate


def floors_of(run: Run) -> dict[str, Floor]:
    """Return the floor of each rung and twin: the workload's, or that of the model that a variant trains."""
    machine = write_whole(run.machine)
    least = floor_ms(machine, run.workload)
    changed = {
        rung.name: rung.variant.workload for rung in run.rungs if rung.variant and rung.variant.workload
    }
    floors = {name: floor_ms(machine, {**run.workload, **fields}) for name, fields in changed.items()}
    return {part.name: floors.get(part.name, least) for part in sources.records(run)}


def peak(machine: Mapping[str, Any]) -> float:
    """Highest TFLOP/s of the machine's GPU, or of its CPU where that was measured."""
    if machine.get("device") == "cpu":
        cores = machine.get("cores")
        return PER_CORE * (cores if isinstance(cores, int) and cores > 0 else 1024)
    name = str(machine.get("gpu") or "")
    return next((rate for pattern, rate in PEAKS if re.search(pattern, name, re.IGNORECASE)), FASTEST)


def flops(workload: Workload) -> tuple[float, float]:
    """Convolution FLOPs of an average step with and without the lazy phases.

    G_main is forward, input and weight gradient of G and two thirds of that through D; D_main is G forward and D thrice
    on real and on made-up images, but for the gradient of the images themselves.
    """
    g, d, first = (2.0 * workload.batch * each for each in _macs(workload))
    main = (3 * g + 2 * d) + (g + 2 * (3 * d - first))
    shrunk = max(1, workload.batch // workload.pl_batch_shrink) / workload.batch
    lazy = LAZY * (d / workload.r1_interval + shrunk * g / workload.pl_interval)
    return main + lazy, main


def _macs(workload: Workload) -> tuple[float, float, float]:
    """Multiply-adds of one image forward through G's and D's convolutions, and through D's first.

    What changes the resolution counts at the lower one: nine taps a pixel there, whatever the spelling. Cheaper
    convolutions count as their 1x1 part, and a layer that a block lacks does not count.
    """
    full = getattr(workload, "convolution", "full") == "full"
    taps, plain = 9 if full else 1, getattr(workload, "block_layers", 2) - 1
    g, d = taps * 16 * workload.fmaps(4) ** 2, 9 * 16 * workload.fmaps(4) * (workload.fmaps(4) + 1)
    for resolution in workload.resolutions[1:]:
        low, pixels = workload.fmaps(resolution // 2), resolution**2
        high = workload.fmaps(resolution)
        resampling = taps * low * high * pixels / 4
        g += resampling + plain * taps * high * high * pixels
        d += resampling + plain * taps * high * high * pixels + low * high * pixels / 4
    first = 3 * workload.fmaps(workload.resolution) * workload.resolution**2
    return g, d + first, first


def too_fast(rung: Rung | Twin, least: Floor) -> str | None:
    """Return one line if a rung or twin has a time that cannot be, or None. `least` is what `floor_ms` gave."""
    return program_too_fast(
        {"rounds": [{"samples_ms": e.samples_ms, "main_ms": e.main_ms} for e in rung.rounds]}, least
    )


def program_too_fast(program: Mapping[str, Any], least: Floor) -> str | None:
    """Return one line if a program of another kind of result has a time that cannot be, or None."""
    rounds = program["rounds"]
    whole = [program.get("step_ms"), *(ms for each in rounds for ms in each.get("samples_ms") or ())]
    main = [program.get("main_ms"), *(each.get("main_ms") for each in rounds)]
    for times, bound in zip((whole, main), least or (), strict=False):
        seen = [ms for ms in times if ms]
        if seen and min(seen) < bound:
            return f"{min(seen):.3g} ms is faster than this GPU can compute: at least {bound:.3g} ms"
    return None
