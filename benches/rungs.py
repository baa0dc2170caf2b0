"""The article's ladder as asv benchmarks: seconds and GPU seconds of one step, and peak memory, of every rung.

`article` is measured on a GPU, `tiny` on a CPU, and other combinations are n/a. With `rung` on the x axis, asv's
page draws the ladder.
"""

from __future__ import annotations

from benches import series
from benches._measure import available, following, gpu_time, measured


class Rung:
    """One fresh process per rung, prepared and warmed up before it is timed. All numbers come from one visit."""

    params = (series.WORKLOADS, series.RUNGS)  # literals, append-only
    param_names = ("workload", "rung")
    timeout = (
        1800  # seconds; compiling, tuning and capturing come first, and the photographs on the first run
    )
    version = "1"
    among = series.SERIES
    one_visit = True  # all numbers come from one visit, so `_spawning` hands out kept ones

    def setup(self, workload: str, rung: str) -> None:
        self.series = available(workload, rung)

    def samples_step_time(self, workload: str, rung: str) -> list[float]:
        """Return the seconds of one step, with lazy regularization and data.

        A sample is a 16-step cycle / 16.
        """
        return measured(self.series, "time", following(self))["samples_s"]

    def samples_gpu_time(self, workload: str, rung: str) -> list[float]:
        """Return the seconds of one step in which the GPU works.

        A sample is one of two cycles that are profiled after the timed ones.
        """
        return gpu_time(self.series, following(self))

    def track_peak_memory(self, workload: str, rung: str) -> int:
        """Return the bytes reserved by torch's allocator on a GPU, or resident on a CPU."""
        seen = measured(self.series, "memory", following(self))
        return seen["peak_rss_bytes"] if self.series.device == "cpu" else seen["peak_reserved_bytes"]


Rung.track_peak_memory.unit = "bytes"
