"""What a claim may ask of a result: ratios of times, bandwidths, occupancies, counters. Pure functions of the data."""

from __future__ import annotations

import math
import re
from typing import Any

from ladder.studies.claims import timed

EQUAL = "occupancy at equal work"  # its contenders are blocks a multiprocessor of one kernel
BLOCKS = re.compile(r"(\d{1,6}) blocks")
Summary = dict[str, Any]  # {"median": number, "interval": [from, to] or None}


class View:
    """A result of `ladder kernels --claims`. Whatever is missing is None."""

    def __init__(self, result: dict[str, Any]) -> None:
        self.result = result
        self.experiments = {each["name"]: each for each in result["experiments"]}

    def samples(self, experiment: str, contender: str | None) -> list[float]:
        """Microseconds, one a repeat; empty where there are none."""
        return self.samples_of(experiment).get(contender, [])

    def samples_of(self, experiment: str) -> dict[str, list[float]]:
        """Contender -> its samples."""
        found = self.experiments.get(experiment)
        return found["samples_us"] if found else {}

    def plane_bytes(self, experiment: str) -> int | None:
        """Bytes of one channel of one sample."""
        found = self.experiments.get(experiment)
        return found and math.prod(found["shape"][2:]) * found["itemsize"]

    def us(self, experiment: str, contender: str | None) -> Summary | None:
        values = self.samples(experiment, contender)
        return timed.summary(values) if values else None

    def ratio(
        self, experiment: str, numerator: str | None, denominator: str | None, scale: float = 1.0
    ) -> Summary | None:
        """Time of one contender over that of another, paired by repeat."""
        found = timed.ratio(self.samples(experiment, numerator), self.samples(experiment, denominator))
        return found and self.scaled(found, scale)

    def faster(self, experiment: str, slow: str, quick: str) -> Summary | None:
        """How many times as fast `quick` is as `slow`."""
        return self.ratio(experiment, slow, quick)

    def scaled(self, summary: Summary, scale: float) -> Summary:
        interval = summary["interval"]
        return {
            "median": summary["median"] * scale,
            "interval": interval and [bound * scale for bound in interval],
        }

    def quickest(self, experiment: str, among: tuple[str, ...] | None = None) -> str | None:
        """The contender with the lowest median, of all or of these."""
        names = self._measured(experiment, among)
        return min(names, key=lambda name: names[name], default=None)

    def slowest(self, experiment: str) -> str | None:
        names = self._measured(experiment, None)
        return max(names, key=lambda name: names[name], default=None)

    def _measured(self, experiment: str, among: tuple[str, ...] | None) -> dict[str, float]:
        return {
            name: timed.summary(values)["median"]
            for name, values in self.samples_of(experiment).items()
            if among is None or name in among
        }

    def bandwidth(self, experiment: str, contender: str) -> float | None:
        """TB/s: the bytes that must cross memory, as the experiment counts them, over the median time."""
        found, us = self.experiments.get(experiment), self.us(experiment, contender)
        return None if found is None or us is None else found["bytes"][contender] / us["median"] / 1e6

    def rate(self, experiment: str, contender: str) -> float | None:
        """TB/s: what DRAM saw over the median time, or what must cross it at least where nobody counted."""
        counted, us = self.counted(experiment, contender), self.us(experiment, contender)
        seen = counted and [counted[key] for key in ("dram_read", "dram_written")]
        if us is None or not seen or None in seen:
            return self.bandwidth(experiment, contender)
        return sum(seen) / us["median"] / 1e6

    def kernel(self, experiment: str, contender: str | None) -> dict[str, Any] | None:
        """The contender's kernel with the most threads."""
        rows = [row for row in self.result["kernels"] if row["source"] == f"{experiment}: {contender}"]
        return max(rows, key=lambda row: row["threads"] * math.prod(row["grid"]), default=None)

    def started(self, experiment: str, contender: str | None) -> float | None:
        """Blocks that the GPU gets through in a microsecond."""
        kernel, us = self.kernel(experiment, contender), self.us(experiment, contender)
        return None if kernel is None or us is None else math.prod(kernel["grid"]) / us["median"]

    # ---- occupancy and counters -----------------------------------------------------------------------------------

    def occupancy(self, experiment: str, contender: str | None) -> float | None:
        """Theoretical, of the contender's kernel with the most threads; of no more blocks than were launched."""
        largest = self.kernel(experiment, contender)
        if largest is None or experiment != EQUAL or not largest["blocks"]:
            return largest and largest["occupancy"]
        blocks = int(found[1]) if (found := BLOCKS.fullmatch(str(contender))) else largest["blocks"]
        # More of them than fit run one after another, and are no occupancy at all.
        return None if blocks > largest["blocks"] else largest["occupancy"] * blocks / largest["blocks"]

    def by_occupancy(self, experiment: str, low: float, high: float) -> str | None:
        """The quickest contender whose occupancy is from `low` to below `high`."""
        fitting = tuple(
            name
            for name in self.samples_of(experiment)
            if (share := self.occupancy(experiment, name)) is not None and low <= share < high
        )
        return self.quickest(experiment, fitting) if fitting else None

    def counted(self, experiment: str, contender: str) -> dict[str, Any] | None:
        """Sums of Nsight Compute's counters over the contender's kernels."""
        return self.result["counters"].get(f"{experiment}: {contender}")

    def saved_by_fusion(self, by: str | None) -> float | None:
        """MB an image that one operator moves less than three: counted, or what DRAM saw ("dram")."""
        found = self.experiments.get("fusion")
        if found is None:
            return None
        images = found["shape"][0]
        if by is None:  # two intermediates, each written and read
            return 4 * math.prod(found["shape"][1:]) * found["itemsize"] / 1e6
        three, one = (self.counted("fusion", name) for name in ("three operators", "one"))
        if not three or not one or None in (three["dram_read"], three["dram_written"]):
            return None
        if None in (one["dram_read"], one["dram_written"]):
            return None
        return (sum(three[k] - one[k] for k in ("dram_read", "dram_written"))) / images / 1e6

    def reads_beyond_fusion(self) -> float | None:
        """MB an image that DRAM was read less than the two intermediates make."""
        counted, measured = self.saved_by_fusion(None), self.saved_by_fusion("dram")
        if counted is None or measured is None:
            return None
        three, one = (self.counted("fusion", name) for name in ("three operators", "one"))
        saved = (three["dram_read"] - one["dram_read"]) / self.experiments["fusion"]["shape"][0] / 1e6
        return saved - counted / 2

    def precision(self, name: str, precision: str, base: str = "baseline") -> Summary | None:
        """A claim of `ladder precision` against FP32, on the ladder's baseline or top."""
        for row in self.result["precision"]:
            if (row["claim"], row["precision"], row["on"]) == (name, precision, base):
                return {"median": row["ours"], "interval": row["interval"]}
        return None

    def reason(self, needs: tuple[str, ...], lacks: str = "") -> str:
        """Why there is no number: the reason of the first contender that has none, or what else is lacking."""
        for name in needs:
            found = self.experiments.get(name)
            if found is None:
                return lacks or f"{name} was not measured"
            if found["samples_us"] and lacks:
                return lacks
            if found["reasons"]:
                return next(iter(found["reasons"].values()))
        return "not measured here"


def times(summary: Summary | None) -> str:
    return "n/a" if summary is None else f"{summary['median']:.2f}x"


def percent(summary: Summary | None) -> str:
    return "n/a" if summary is None else f"{summary['median']:.0f}%"
