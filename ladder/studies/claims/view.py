"""Pure functions that a claim asks of a result: ratios of times, bandwidths, occupancies, counters."""

from __future__ import annotations

import math
import re

from ladder.studies.claims.schema import Claims, Counted, Kernel
from ladder.studies.kernelbench.schema import Summary
from ladder.studies.kernelbench.verdicts import summary

# Ways and kernels of the experiment "launches"
LAUNCH, REPLAY, WHOLE = "launch", "replay", "one replay of the graph"
ADD, EMPTY_TRITON, EMPTY_CUDA = "PyTorch elementwise op", "empty Triton kernel", "empty CUDA C++ kernel"
EQUAL = "occupancy at equal work"  # its contenders are one kernel with different blocks a multiprocessor
BLOCKS = re.compile(r"(\d{1,6}) blocks")


class View:
    """A view of a result of `ladder kernels --claims`. A missing value is None."""

    def __init__(self, result: Claims) -> None:
        self.result = result
        self.experiments = {each.name: each for each in result.experiments}

    def samples(self, experiment: str, contender: str | None) -> list[float]:
        """Return microseconds, one value a repeat; empty where nothing was measured."""
        return self.samples_of(experiment).get(contender, [])

    def samples_of(self, experiment: str) -> dict[str, list[float]]:
        """Return contender -> its samples."""
        found = self.experiments.get(experiment)
        return found.samples_us if found else {}

    def us(self, experiment: str, contender: str | None) -> Summary | None:
        values = self.samples(experiment, contender)
        return summary(values) if values else None

    def ratio(
        self, experiment: str, numerator: str | None, denominator: str | None, scale: float = 1.0
    ) -> Summary | None:
        """Return the time of one contender over that of another, paired by repeat."""
        samples = [self.samples(experiment, name) for name in (numerator, denominator)]
        ratios = [a / b for a, b in zip(*samples, strict=False)]
        return self.scaled(summary(ratios), scale) if ratios else None

    def faster(self, experiment: str, slow: str, quick: str) -> Summary | None:
        """Return how many times as fast `quick` is as `slow`."""
        return self.ratio(experiment, slow, quick)

    def scaled(self, found: Summary, scale: float) -> Summary:
        interval = found.interval and [bound * scale for bound in found.interval]
        return Summary(median=found.median * scale, interval=interval)

    def quickest(self, experiment: str, among: tuple[str, ...] | None = None) -> str | None:
        """Return the contender with the lowest median, of all or of `among`."""
        names = self._measured(experiment, among)
        return min(names, key=lambda name: names[name], default=None)

    def slowest(self, experiment: str) -> str | None:
        names = self._measured(experiment, None)
        return max(names, key=lambda name: names[name], default=None)

    def _measured(self, experiment: str, among: tuple[str, ...] | None) -> dict[str, float]:
        return {
            name: summary(values).median
            for name, values in self.samples_of(experiment).items()
            if among is None or name in among
        }

    def bandwidth(self, experiment: str, contender: str) -> float | None:
        """Return TB/s: the bytes that must cross memory, as the experiment counts them, over the median time."""
        found, us = self.experiments.get(experiment), self.us(experiment, contender)
        return None if found is None or us is None else found.bytes[contender] / us.median / 1e6

    def rate(self, experiment: str, contender: str) -> float | None:
        """Return TB/s: DRAM's counted bytes over the median time.

        Without a count, the bytes that must cross memory take their place.
        """
        counted, us = self.counted(experiment, contender), self.us(experiment, contender)
        seen = counted and [counted.dram_read, counted.dram_written]
        if us is None or not seen or None in seen:
            return self.bandwidth(experiment, contender)
        return sum(seen) / us.median / 1e6

    def kernel(self, experiment: str, contender: str | None) -> Kernel | None:
        """Return the contender's kernel with the most threads."""
        rows = [row for row in self.result.kernels if row.source == f"{experiment}: {contender}"]
        return max(rows, key=lambda row: row.threads * math.prod(row.grid), default=None)

    # ---- occupancy and counters -----------------------------------------------------------------------------------

    def occupancy(self, experiment: str, contender: str | None) -> float | None:
        """Return the theoretical occupancy of the contender's kernel with the most threads.

        No more blocks count than were launched.
        """
        largest = self.kernel(experiment, contender)
        if largest is None or experiment != EQUAL or not largest.blocks:
            return largest.occupancy if largest else None
        blocks = int(found[1]) if (found := BLOCKS.fullmatch(str(contender))) else largest.blocks
        # Blocks that do not fit run later, so more of them have no occupancy.
        return None if blocks > largest.blocks else largest.occupancy * blocks / largest.blocks

    def by_occupancy(self, experiment: str, low: float, high: float) -> str | None:
        """Return the quickest contender whose occupancy is from `low` to below `high`."""
        fitting = tuple(
            name
            for name in self.samples_of(experiment)
            if (share := self.occupancy(experiment, name)) is not None and low <= share < high
        )
        return self.quickest(experiment, fitting) if fitting else None

    def counted(self, experiment: str, contender: str) -> Counted | None:
        """Return the sums of Nsight Compute's counters over the contender's kernels."""
        return self.result.counters.get(f"{experiment}: {contender}")

    def saved_by_fusion(self, by: str | None) -> float | None:
        """Return the MB an image that one operator saves over three.

        ``by`` is None for the count of passes, or "dram" for DRAM's counters.
        """
        found = self.experiments.get("fusion")
        if found is None:
            return None
        images = found.shape[0]
        if by is None:  # two intermediates, each written and read
            return 4 * math.prod(found.shape[1:]) * found.itemsize / 1e6
        three, one = (self.counted("fusion", name) for name in ("three operators", "one"))
        if not three or not one:
            return None
        if None in (three.dram_read, three.dram_written, one.dram_read, one.dram_written):
            return None
        read, written = three.dram_read - one.dram_read, three.dram_written - one.dram_written
        return (read + written) / images / 1e6

    def precision(self, name: str, precision: str, base: str = "baseline") -> Summary | None:
        """Return a claim of `ladder precision` against FP32, on the ladder's baseline or top."""
        for row in self.result.precision:
            if (row.claim, row.precision, row.on) == (name, precision, base):
                return Summary(median=row.ours, interval=row.interval)
        return None

    def reason(self, needs: tuple[str, ...], lacks: str = "") -> str:
        """Return why there is no number: the first contender's reason, or `lacks`."""
        for name in needs:
            found = self.experiments.get(name)
            if found is None:
                return lacks or f"{name} was not measured"
            if found.samples_us and lacks:
                return lacks
            if found.reasons:
                return next(iter(found.reasons.values()))
        return "not measured here"
