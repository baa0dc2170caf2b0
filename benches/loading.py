"""Data loading alone as asv benchmarks (`asv run --bench loading`): seconds per image, by loader setting.

The time covers the way from the file to the batch on the device (the GPU if there is one), with the sample
photographs. A step hides the part of it that the rungs from data_loading on can hide.
"""

from __future__ import annotations

from benches import series
from benches._frozen import Series
from benches._measure import able, loading

WORKLOADS = ["article", "tiny"]  # 256x256, batch 8; 32x32, batch 4
_WORKERS = {"persistent_workers": True, "prefetch_factor": 3, "drop_last": True, "uint8_input": True}
_DATA_LOADING = _WORKERS | {"workers": 8, "pin_memory": True, "async_copy": True}
RECIPES = {  # append-only, like SETTINGS
    "workers 0": {"workers": 0},
    "workers 0 uint8": {"workers": 0, "uint8_input": True},
    "workers 0 cached": {"workers": 0, "uint8_input": True, "cached_images": True},
    "workers 2 not persistent": {"workers": 2, "prefetch_factor": 2},
    "workers 1 uint8": _WORKERS | {"workers": 1},
    "workers 2 uint8": _WORKERS | {"workers": 2},
    "workers 4 uint8": _WORKERS | {"workers": 4},
    "workers 8 uint8": _WORKERS | {"workers": 8},
    "data_loading": _DATA_LOADING,
    "prefetch_stream": _DATA_LOADING | {"prefetch_stream": True},
    "cached_uint8": _DATA_LOADING | {"prefetch_stream": True, "cached_images": True},
}
SETTINGS = list(RECIPES)
FINGERPRINTS = {
    ("article", "workers 0"): "a3d2b1a06921",
    ("article", "workers 0 uint8"): "cd296d24540f",
    ("article", "workers 0 cached"): "2ff27cc3d4a0",
    ("article", "workers 2 not persistent"): "8802f60b6563",
    ("article", "workers 1 uint8"): "782eaec8136a",
    ("article", "workers 2 uint8"): "cf7f16d29720",
    ("article", "workers 4 uint8"): "4707eb612d1b",
    ("article", "workers 8 uint8"): "ec4813067780",
    ("article", "data_loading"): "a0f1788a87e1",
    ("article", "prefetch_stream"): "515c15f48b83",
    ("article", "cached_uint8"): "b8b3a15d3786",
    ("tiny", "workers 0"): "613f7c273243",
    ("tiny", "workers 0 uint8"): "8681977f491b",
    ("tiny", "workers 0 cached"): "2a97ca3af47f",
    ("tiny", "workers 2 not persistent"): "6f29b553f241",
    ("tiny", "workers 1 uint8"): "a1af4a113e54",
    ("tiny", "workers 2 uint8"): "3614c8611223",
    ("tiny", "workers 4 uint8"): "345349b0f2b3",
    ("tiny", "workers 8 uint8"): "a7668f17b52b",
    ("tiny", "data_loading"): "61a25e7f40c0",
    ("tiny", "prefetch_stream"): "ceb2802ccc33",
    ("tiny", "cached_uint8"): "d2ba9ceddcbd",
}
SERIES = {
    (workload, setting): Series(
        "any",
        ("cuda",) if RECIPES[setting].get("pin_memory") else (),
        series.SERIES[workload, "baseline"].workload,
        RECIPES[setting],
        found,
    )
    for (workload, setting), found in FINGERPRINTS.items()
}


class Loading:
    """The loader with nothing else to do. A sample is an epoch of all images, after one untimed epoch."""

    params = (WORKLOADS, SETTINGS)  # literals, append-only
    param_names = ("workload", "setting")
    timeout = 600  # seconds; the first use cuts the photographs
    version = "1"
    among = SERIES

    def setup(self, workload: str, setting: str) -> None:
        self.series = SERIES[workload, setting]
        able(self.series.needs)

    def samples_seconds_per_image(self, workload: str, setting: str) -> list[float]:
        """Return the seconds per image."""
        return loading(f"{self.series.fingerprint}-loading", self.series.workload, self.series.recipe)
