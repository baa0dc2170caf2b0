"""The other workloads as asv benchmarks: baseline, the article's last rung and the ladder's, time and memory.

Off unless they are asked for: `asv run --bench workloads` (or `--bench "workloads.*large"`). All of them want a GPU.
Values are frozen and append-only as in `benches/series.py`.
"""

from __future__ import annotations

from benches import series
from benches._frozen import Series
from benches._measure import available, following, measured

WORKLOADS = ["article-b32", "adain-256", "large", "stylegan2-512", "stylegan2-1024"]
# The last one is the top of today.
RUNGS = ["baseline", "fused_act", "cached_uint8", "fused_modulation", "dependent_launch"]

_ARTICLE = series.SERIES["article", "baseline"].workload
_B32 = _ARTICLE | {"batch": 32}
_ADAIN = _ARTICLE | {"norm": "instance"}
_LARGE = _ARTICLE | {"channel_base": 32768, "batch": 32}
_512 = _ARTICLE | {"resolution": 512, "channel_base": 32768}
_1024 = _ARTICLE | {"resolution": 1024, "channel_base": 32768, "batch": 4}

_C, _, _G, _, _H = (series.SERIES["article", rung].needs for rung in RUNGS)
_FIRST, _EIGHT, _ALL, _JOINED, _TOP = (series.SERIES["article", rung].recipe for rung in RUNGS)
_ALL_ADAIN = {key: value for key, value in _ALL.items() if key != "demodulation"}  # it has none to group
_TOP_ADAIN = _ALL_ADAIN | {"dependent_launch": True}  # and modulates nothing

SERIES = {
    ("article-b32", "baseline"): Series("cuda", _C, _B32, _FIRST, "694ef4379d8e"),
    ("article-b32", "fused_act"): Series("cuda", _G, _B32, _EIGHT, "18e33b8cfd10"),
    ("article-b32", "cached_uint8"): Series("cuda", _G, _B32, _ALL, "e3e6deed22d4"),
    ("adain-256", "baseline"): Series("cuda", _C, _ADAIN, _FIRST, "5e171cad5062"),
    ("adain-256", "fused_act"): Series("cuda", _G, _ADAIN, _EIGHT, "b6b6924e5d17"),
    ("adain-256", "cached_uint8"): Series("cuda", _G, _ADAIN, _ALL_ADAIN, "0e2a71988d58"),
    ("large", "baseline"): Series("cuda", _C, _LARGE, _FIRST, "18f78b30a8a3"),
    ("large", "fused_act"): Series("cuda", _G, _LARGE, _EIGHT, "3e8b58241df8"),
    ("large", "cached_uint8"): Series("cuda", _G, _LARGE, _ALL, "f03255e91ae4"),
    ("stylegan2-512", "baseline"): Series("cuda", _C, _512, _FIRST, "b713e6082d48"),
    ("stylegan2-512", "fused_act"): Series("cuda", _G, _512, _EIGHT, "cd13b0b643a7"),
    ("stylegan2-512", "cached_uint8"): Series("cuda", _G, _512, _ALL, "c91754e5d466"),
    ("stylegan2-1024", "baseline"): Series("cuda", _C, _1024, _FIRST, "11151a93dbef"),
    ("stylegan2-1024", "fused_act"): Series("cuda", _G, _1024, _EIGHT, "038af65f1a2d"),
    ("stylegan2-1024", "cached_uint8"): Series("cuda", _G, _1024, _ALL, "4c9ad259ce50"),
    ("article-b32", "fused_modulation"): Series("cuda", _G, _B32, _JOINED, "23a9c8c2d485"),
    ("large", "fused_modulation"): Series("cuda", _G, _LARGE, _JOINED, "8a66c276de3f"),
    ("stylegan2-512", "fused_modulation"): Series("cuda", _G, _512, _JOINED, "7fbeb2638b0a"),
    ("stylegan2-1024", "fused_modulation"): Series("cuda", _G, _1024, _JOINED, "e35ad3d7b16a"),
    ("article-b32", "dependent_launch"): Series("cuda", _H, _B32, _TOP, "f48baea69623"),
    ("adain-256", "dependent_launch"): Series("cuda", _H, _ADAIN, _TOP_ADAIN, "19bfaf082344"),
    ("large", "dependent_launch"): Series("cuda", _H, _LARGE, _TOP, "fcf3e6e04149"),
    ("stylegan2-512", "dependent_launch"): Series("cuda", _H, _512, _TOP, "02c88e0f2657"),
    ("stylegan2-1024", "dependent_launch"): Series("cuda", _H, _1024, _TOP, "69b4eedd17c1"),
}


class Workload:
    """As `rungs.Rung`: one fresh process, whose one visit yields both numbers."""

    params = (WORKLOADS, RUNGS)  # literals, append-only
    param_names = ("workload", "rung")
    timeout = 3600  # seconds: the larger images are made at the first use, and kernels compiled for each size
    version = "1"
    among = SERIES
    one_visit = True  # all numbers of a series: `_spawning` hands out what is there already

    def setup(self, workload: str, rung: str) -> None:
        self.series = available(workload, rung, SERIES)

    def samples_step_time(self, workload: str, rung: str) -> list[float]:
        """Seconds for one step, as `rungs.Rung.samples_step_time`."""
        return measured(self.series, "time", following(self))["samples_s"]

    def track_peak_memory(self, workload: str, rung: str) -> int:
        """Bytes reserved by torch's allocator."""
        return measured(self.series, "memory", following(self))["peak_reserved_bytes"]


Workload.track_peak_memory.unit = "bytes"
