"""What a rung trains, as an asv benchmark: `asv run --bench training`.

Times say nothing about a commit that hurts training. On a CPU the numbers of a seed are the same in each run of a
commit, so any step in the history is one of the code or of a library.
"""

from __future__ import annotations

from benches import series
from benches._measure import available, trained

WORKLOADS = ["tiny"]
RUNGS = ["baseline", "cached_uint8"]  # the highest one of a CPU
SEEDS, STEPS = 3, 100  # part of the meaning of version 1
SERIES = {(workload, rung): series.SERIES[workload, rung] for workload in WORKLOADS for rung in RUNGS}


class Training:
    """Trainings of 400 images of Fashion-MNIST's sample, one after the other."""

    params = (WORKLOADS, RUNGS)  # literals, append-only
    param_names = ("workload", "rung")
    timeout = 1800  # seconds
    version = "1"
    among = SERIES

    def setup(self, workload: str, rung: str) -> None:
        self.series = available(workload, rung, SERIES)

    def track_distance(self, workload: str, rung: str) -> float:
        """Return the mean Fréchet distance of the seeds' samples to the data."""
        return trained(self.series, SEEDS, STEPS)


Training.track_distance.unit = "distance"
