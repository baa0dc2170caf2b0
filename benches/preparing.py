"""Seconds until a rung can begin to train, as asv benchmarks: `asv run --bench preparing`.

Cold and warm caches are two series. A first process compiles into its own empty folder, and the next processes
find its results there. The caches are those of Triton, Inductor, torch's extensions and the driver
(`ladder.machine.caches`).
"""

from __future__ import annotations

from benches import series
from benches._frozen import Series
from benches._measure import available, preparing

WORKLOADS = ["article", "tiny"]
RUNGS = ["baseline", "fused_act", "cached_uint8", "compile", "fused_modulation", "graph_fills"]
CACHES = ["cold", "warm"]

_ARTICLE, _TOP = series.SERIES["article", "baseline"].workload, series.SERIES["article", "cached_uint8"]
_DATA = (
    "workers",
    "pin_memory",
    "persistent_workers",
    "prefetch_factor",
    "drop_last",
    "async_copy",
    "uint8_input",
)
_PLAIN = series.SERIES["tiny", "fused_adam"].recipe | {"cuda_graphs": True, "adam": "capturable"}
_COMPILE = (
    _PLAIN | {key: _TOP.recipe[key] for key in _DATA} | {"compile": "default"}
)  # ladder compile_default

SERIES = {
    ("article", "baseline"): series.SERIES["article", "baseline"],
    ("article", "fused_act"): series.SERIES["article", "fused_act"],
    ("article", "cached_uint8"): _TOP,
    ("article", "compile"): Series("cuda", _TOP.needs, _ARTICLE, _COMPILE, "259c402d1f02"),
    ("tiny", "baseline"): series.SERIES["tiny", "baseline"],
    ("tiny", "cached_uint8"): series.SERIES["tiny", "cached_uint8"],
    ("article", "fused_modulation"): series.SERIES["article", "fused_modulation"],
    ("article", "graph_fills"): series.SERIES["article", "graph_fills"],
}


class _Preparing:
    """One process with cold caches, then three with warm caches, without the time to import and to build."""

    params = (WORKLOADS, RUNGS, CACHES)  # literals, append-only
    param_names = ("workload", "rung", "caches")
    timeout = 3600  # seconds for four processes; the first compiles everything
    version = "1"
    among = SERIES
    one_visit = True

    def setup(self, workload: str, rung: str, caches: str) -> None:
        self.series = available(workload, rung, SERIES)


class Compiling(_Preparing):
    def samples_seconds(self, workload: str, rung: str, caches: str) -> list[float]:
        """Return the seconds of preparing without capture: compiling, or finding it compiled, and warming up."""
        return preparing(self.series, caches, "compile")


class Capturing(_Preparing):
    def setup(self, workload: str, rung: str, caches: str) -> None:
        super().setup(workload, rung, caches)
        if not self.series.recipe["cuda_graphs"]:
            raise NotImplementedError(f"{rung} captures no graph")

    def samples_seconds(self, workload: str, rung: str, caches: str) -> list[float]:
        """Return the seconds of capturing CUDA graphs."""
        return preparing(self.series, caches, "capture")
