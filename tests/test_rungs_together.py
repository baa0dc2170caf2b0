"""All rungs of the full ladder at once: what each of them changes alone must also hold in company."""

import pytest

import kernels
from ladder import catalog, parity
from tests.test_parity import cache, prepared, rounding  # noqa: F401  (fixtures)

GPU_ONLY = (
    "cuda_graphs",
    "whole_step_graph",
    "cudnn_benchmark",
    "pin_memory",
    "async_copy",
    "prefetch_stream",
)
LOADING = (
    "workers",
    "persistent_workers",
    "prefetch_factor",
    "drop_last",
    "uint8_input",
    "cached_images",
    "adam",
)
SIZE = {"resolution": 8, "channel_base": 64}


def everything() -> dict:
    """The top of the full ladder, without what needs a GPU or loads images."""
    top = catalog.climb(catalog.load_ladder("full"), dict.fromkeys(catalog.NEEDS))[-1].recipe
    return {key: value for key, value in top.items() if key not in GPU_ONLY + LOADING}


@pytest.mark.slow
def test_the_top_of_the_ladder_computes_what_the_baseline_does(cache, rounding):  # noqa: F811
    if not kernels.tiles.INTERPRETED:
        pytest.skip("a GPU is there: test_the_whole_ladder_agrees_and_is_engaged_on_the_gpu")
    step = prepared(everything(), **SIZE)
    found = parity.check(step, cache=cache)
    assert found["verdict"] == "ok", found["problems"]
