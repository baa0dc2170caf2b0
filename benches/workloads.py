"""The other workloads as asv benchmarks: time and memory of the baseline, the article's last rung and the ladder's.

They run only on request: `asv run --bench workloads` (or `--bench "workloads.*large"`). All of them need a GPU.
Values are frozen and append-only as in `benches/series.py`.
"""

from __future__ import annotations

from benches import series
from benches._frozen import Series
from benches._measure import available, following, gpu_time, measured

WORKLOADS = ["article-b32", "adain-256", "large", "stylegan2-512", "stylegan2-1024"]
# The last rung is today's top. adain-256 has no fused_modulation, because nothing is modulated there.
RUNGS = ["baseline", "fused_act", "cached_uint8", "fused_modulation", "graph_fills"]

_ARTICLE = series.SERIES["article", "baseline"].workload
_B32 = _ARTICLE | {"batch": 32}
_ADAIN = _ARTICLE | {"norm": "instance"}
_LARGE = _ARTICLE | {"channel_base": 32768, "batch": 32}
_512 = _ARTICLE | {"resolution": 512, "channel_base": 32768}
_1024 = _ARTICLE | {"resolution": 1024, "channel_base": 32768, "batch": 4}

_C, _, _G, *_ = (series.SERIES["article", rung].needs for rung in RUNGS)
_FIRST, _EIGHT, _ALL, _JOINED, _TOP = (series.SERIES["article", rung].recipe for rung in RUNGS)
_ALL_ADAIN = {
    key: value for key, value in _ALL.items() if key != "demodulation"
}  # adain-256 has no demodulation to group
_TOP_ADAIN = _ALL_ADAIN | {"graph_fills": True}

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
    ("article-b32", "graph_fills"): Series("cuda", _G, _B32, _TOP, "726dc99fe589"),
    ("adain-256", "graph_fills"): Series("cuda", _G, _ADAIN, _TOP_ADAIN, "e8448b54802a"),
    ("large", "graph_fills"): Series("cuda", _G, _LARGE, _TOP, "e8c3b5edd171"),
    ("stylegan2-512", "graph_fills"): Series("cuda", _G, _512, _TOP, "a0f3d360d623"),
    ("stylegan2-1024", "graph_fills"): Series("cuda", _G, _1024, _TOP, "4417f9b609dc"),
}


class Workload:
    """One fresh process per series, as in `rungs.Rung`. All numbers come from one visit."""

    params = (WORKLOADS, RUNGS)  # literals, append-only
    param_names = ("workload", "rung")
    timeout = 3600  # seconds; the first use makes the larger images, and kernels are compiled for each size
    version = "1"
    among = SERIES
    one_visit = True  # all numbers come from one visit, so `_spawning` hands out kept ones

    def setup(self, workload: str, rung: str) -> None:
        self.series = available(workload, rung, SERIES)

    def samples_step_time(self, workload: str, rung: str) -> list[float]:
        """Return the seconds of one step, as in `rungs.Rung.samples_step_time`."""
        return measured(self.series, "time", following(self))["samples_s"]

    def samples_gpu_time(self, workload: str, rung: str) -> list[float]:
        """Return the GPU seconds of one step, as in `rungs.Rung.samples_gpu_time`."""
        return gpu_time(self.series, following(self))

    def track_peak_memory(self, workload: str, rung: str) -> int:
        """Return the bytes reserved by torch's allocator."""
        return measured(self.series, "memory", following(self))["peak_reserved_bytes"]


Workload.track_peak_memory.unit = "bytes"
