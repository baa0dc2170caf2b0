"""The article's ladder as asv benchmarks: seconds for one step, and peak memory, of every rung.

`article` is measured on a GPU, `tiny` on a CPU; what a machine cannot do is n/a. Put `rung` on the x axis of
asv's page and it draws the ladder.
"""

from __future__ import annotations

from benches import series
from benches._measure import available, following, measured


class Rung:
    """One fresh process a rung, prepared and warmed up before it is timed; both numbers come from one visit."""

    params = (series.WORKLOADS, series.RUNGS)  # literals, append-only
    param_names = ("workload", "rung")
    timeout = (
        1800  # seconds: compiling, tuning and capturing come first, and the photographs on the first run
    )
    version = "1"
    among = series.SERIES
    one_visit = True  # all numbers of a series: `_spawning` hands out what is there already

    def setup(self, workload: str, rung: str) -> None:
        self.series = available(workload, rung)

    def samples_step_time(self, workload: str, rung: str) -> list[float]:
        """Seconds for one step, lazy regularization and data included: a 16-step cycle / 16 is one sample."""
        return measured(self.series, "time", following(self))["samples_s"]

    def track_peak_memory(self, workload: str, rung: str) -> int:
        """Bytes: reserved by torch's allocator on a GPU, resident on a CPU."""
        seen = measured(self.series, "memory", following(self))
        return seen["peak_rss_bytes"] if self.series.device == "cpu" else seen["peak_reserved_bytes"]


Rung.track_peak_memory.unit = "bytes"
