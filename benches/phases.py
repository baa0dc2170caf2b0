"""Each phase of the rungs' steps alone, as asv benchmarks: `asv run --bench phases`, or `--bench "phases.*G_pl"`.

One process times all phases of a rung. Their sum is not the step: see `ladder.engine.parts`.
"""

from __future__ import annotations

from benches import series
from benches._measure import available, phases

PHASES = ["G_main", "D_main", "G_pl", "D_r1"]


class Phase:
    """Six windows of ten runs of a phase, on a rung prepared as in `rungs.Rung`. Phases are captured separately."""

    params = (series.WORKLOADS, series.RUNGS, PHASES)  # literals, append-only
    param_names = ("workload", "rung", "phase")
    timeout = 1800  # seconds; compiling and capturing come first
    version = "1"
    among = series.SERIES
    one_visit = True

    def setup(self, workload: str, rung: str, phase: str) -> None:
        self.series = available(workload, rung)

    def samples_time(self, workload: str, rung: str, phase: str) -> list[float]:
        """Return the seconds of one run of the phase: losses, gradients, optimizer.

        D_main includes the moving average.
        """
        return phases(self.series, phase)
