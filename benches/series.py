"""The frozen asv series: every (workload, rung) means one workload and one recipe for good.

asv identifies parameters by position, so the lists below are literals that may only grow at their end. A series
never changes its meaning, and its fingerprint is a literal too. When the ladder changes a rung's recipe, the rung
gets a new value here ("bf16-2"). The old value joins `RETIRED`, and its history stays on the page. The test
`tests/benches/test_benches.py` compares this file with the ladder `full`, whose first rungs are the article's. The
command `python -m benches.unfrozen` prints the missing entries.
"""

from __future__ import annotations

from benches._frozen import Series, default, fingerprint

WORKLOADS = ["article", "tiny"]
RUNGS = [
    "baseline",
    "channels_last",
    "bf16",
    "fused_norm",
    "set_to_none",
    "cuda_graphs",
    "data_loading",
    "fused_act",
    "fused_resample",
    "conv_double_backward",
    "cudnn_benchmark",
    "fused_adam",
    "whole_step_graph",
    "prefetch_stream",
    "fused_rgb",
    "fused_dense",
    "lean_weights",
    "fused_update",
    "joint_batch",
    "fused_filter",
    "fused_residual",
    "cached_uint8",
    "grouped_demod",
    "parallel_streams",
    "fused_modulation",
    "graph_fills",
]

# Pairs (workload, rung) that differ from today's ladder.
RETIRED: frozenset[tuple[str, str]] = frozenset({("article", "cudnn_benchmark")})
DEFAULT = default(RETIRED)  # selected by a bare `asv run`

_STYLEGAN2 = {
    "norm": "demod",
    "channel_max": 512,
    "z_dim": 512,
    "w_dim": 512,
    "mapping_layers": 8,
    "mbstd_group": 4,
    "style_mixing": 0.9,
    "w_avg_beta": 0.998,
    "r1_gamma": None,
    "r1_interval": 16,
    "pl_interval": 4,
    "pl_batch_shrink": 2,
    "pl_decay": 0.01,
    "pl_weight": 2.0,
    "lr": 0.002,
    "beta1": 0.0,
    "beta2": 0.99,
    "ema_images": 10_000,
    "flips": True,
}
_ARTICLE = _STYLEGAN2 | {"resolution": 256, "channel_base": 16384, "batch": 8}
_TINY = _STYLEGAN2 | {
    "resolution": 32,
    "channel_base": 1024,
    "batch": 4,
    "channel_max": 64,
    "z_dim": 64,
    "w_dim": 64,
    "mapping_layers": 2,
    "lr": 0.01,
    "r1_gamma": 1.0,
    "ema_images": 200,
}

_BASELINE = {
    "channels_last": False,
    "precision": "fp32",
    "modconv": "dense",
    "resample": "subpixel",
    "instance_norm": "functional",
    "fused_norm": False,
    "set_to_none": False,
    "cuda_graphs": False,
    "adam": "default",
    "workers": 0,
    "pin_memory": False,
    "persistent_workers": False,
    "prefetch_factor": None,
    "drop_last": False,
    "async_copy": False,
    "uint8_input": False,
    "fused_act": False,
}
_CHANNELS_LAST = _BASELINE | {"channels_last": True, "instance_norm": "var_mean"}
_BF16 = _CHANNELS_LAST | {"precision": "bf16"}
_BF16_SET_TO_NONE = _BF16 | {"set_to_none": True}  # without kernels, which a CPU cannot run
_FUSED_NORM = _BF16 | {"fused_norm": True}
_SET_TO_NONE = _FUSED_NORM | {"set_to_none": True}
_CUDA_GRAPHS = _SET_TO_NONE | {"cuda_graphs": True, "adam": "capturable"}
_DATA_LOADING = _CUDA_GRAPHS | {
    "workers": 8,
    "pin_memory": True,
    "persistent_workers": True,
    "prefetch_factor": 3,
    "drop_last": True,
    "async_copy": True,
    "uint8_input": True,
}
_FUSED_ACT = _DATA_LOADING | {"fused_act": True}

# The ladder `full` continues from here.
_CONV_DOUBLE_BACKWARD = _FUSED_ACT | {"conv": "double_backward"}
_FUSED_RESAMPLE = _CONV_DOUBLE_BACKWARD | {"resample": "triton"}
_FUSED_ADAM = _FUSED_RESAMPLE | {"fused_adam": True, "ema": "foreach"}
_JOINT_BATCH = _FUSED_ADAM | {"joint_batch": True}
_FUSED_DENSE = _JOINT_BATCH | {"dense": "triton"}
_FUSED_RGB = _FUSED_DENSE | {"rgb": "triton"}
_LEAN_WEIGHTS = _FUSED_RGB | {"weights": "once"}
_FUSED_UPDATE = _LEAN_WEIGHTS | {"fused_update": True}
_GROUPED_DEMOD = _FUSED_UPDATE | {"demodulation": "grouped"}
_FUSED_RESIDUAL = _GROUPED_DEMOD | {"fused_residual": True}
_FUSED_FILTER = _FUSED_RESIDUAL | {"fused_filter": True}
_PARALLEL_STREAMS = _FUSED_FILTER | {"streams": "two"}
_PREFETCH_STREAM = _PARALLEL_STREAMS | {"prefetch_stream": True}
_CUDNN_BENCHMARK = _PREFETCH_STREAM | {"cudnn_benchmark": True}
_WHOLE_STEP_GRAPH = _PREFETCH_STREAM | {"whole_step_graph": True}
_CACHED_UINT8 = _WHOLE_STEP_GRAPH | {"cached_images": True}
_FUSED_MODULATION = _CACHED_UINT8 | {"fused_modulation": True}
_GRAPH_FILLS = _FUSED_MODULATION | {"graph_fills": True}
_CPU_CONV_DOUBLE_BACKWARD = _BF16_SET_TO_NONE | {"conv": "double_backward"}
_CPU_FUSED_ADAM = _CPU_CONV_DOUBLE_BACKWARD | {"fused_adam": True, "ema": "foreach"}
_CPU_JOINT_BATCH = _CPU_FUSED_ADAM | {"joint_batch": True}
_CPU_LEAN_WEIGHTS = _CPU_JOINT_BATCH | {"weights": "once"}
_CPU_CACHED_UINT8 = _CPU_LEAN_WEIGHTS | {"cached_images": True}

_TRITON = ("cuda", "bf16", "triton")
_GRAPHS = (*_TRITON, "cuda_graphs")

# Missing pairs are n/a: `tiny` is the CPU's workload and lacks the rungs that need CUDA.
SERIES = {
    ("article", "baseline"): Series("cuda", ("cuda",), _ARTICLE, _BASELINE, "98afe349c6ee"),
    ("article", "channels_last"): Series("cuda", ("cuda",), _ARTICLE, _CHANNELS_LAST, "64db4478342f"),
    ("article", "bf16"): Series("cuda", ("cuda", "bf16"), _ARTICLE, _BF16, "e5c309d790f8"),
    ("article", "fused_norm"): Series("cuda", _TRITON, _ARTICLE, _FUSED_NORM, "77b8415bd0e4"),
    ("article", "set_to_none"): Series("cuda", _TRITON, _ARTICLE, _SET_TO_NONE, "42b21ac8f08f"),
    ("article", "cuda_graphs"): Series("cuda", _GRAPHS, _ARTICLE, _CUDA_GRAPHS, "47342dda28cf"),
    ("article", "data_loading"): Series("cuda", _GRAPHS, _ARTICLE, _DATA_LOADING, "e4d7af25b7b6"),
    ("article", "fused_act"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_ACT, "960e156cd4c2"),
    ("tiny", "baseline"): Series("cpu", (), _TINY, _BASELINE, "b9c675e74717"),
    ("tiny", "channels_last"): Series("cpu", (), _TINY, _CHANNELS_LAST, "06f0e0fccc98"),
    ("tiny", "bf16"): Series("cpu", ("bf16",), _TINY, _BF16, "69bb52bab5f8"),
    ("tiny", "set_to_none"): Series("cpu", ("bf16",), _TINY, _BF16_SET_TO_NONE, "b3f233839ca4"),
    ("article", "conv_double_backward"): Series(
        "cuda", _GRAPHS, _ARTICLE, _CONV_DOUBLE_BACKWARD, "4e9bfa3e4fe1"
    ),
    ("article", "fused_resample"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_RESAMPLE, "b1b591cfd2d1"),
    ("article", "fused_adam"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_ADAM, "10fe1f24a0ac"),
    ("article", "joint_batch"): Series("cuda", _GRAPHS, _ARTICLE, _JOINT_BATCH, "b847c1d268d4"),
    ("article", "fused_dense"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_DENSE, "828aab1c7d56"),
    ("article", "fused_rgb"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_RGB, "87ec1310b7dd"),
    ("article", "lean_weights"): Series("cuda", _GRAPHS, _ARTICLE, _LEAN_WEIGHTS, "94790d479a94"),
    ("article", "fused_update"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_UPDATE, "6ae44ba8f4a6"),
    ("article", "grouped_demod"): Series("cuda", _GRAPHS, _ARTICLE, _GROUPED_DEMOD, "1545dce8395f"),
    ("article", "fused_residual"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_RESIDUAL, "eecd9c7f4f22"),
    ("article", "fused_filter"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_FILTER, "481635b3f48e"),
    ("article", "parallel_streams"): Series("cuda", _GRAPHS, _ARTICLE, _PARALLEL_STREAMS, "0724a15380a7"),
    ("article", "prefetch_stream"): Series("cuda", _GRAPHS, _ARTICLE, _PREFETCH_STREAM, "aa375367444a"),
    ("article", "cudnn_benchmark"): Series("cuda", _GRAPHS, _ARTICLE, _CUDNN_BENCHMARK, "5ebac8e96d39"),
    ("article", "whole_step_graph"): Series("cuda", _GRAPHS, _ARTICLE, _WHOLE_STEP_GRAPH, "a017afbed741"),
    ("article", "cached_uint8"): Series("cuda", _GRAPHS, _ARTICLE, _CACHED_UINT8, "142460634a7b"),
    ("tiny", "conv_double_backward"): Series(
        "cpu", ("bf16",), _TINY, _CPU_CONV_DOUBLE_BACKWARD, "36ddb442c7c8"
    ),
    ("tiny", "fused_adam"): Series("cpu", ("bf16",), _TINY, _CPU_FUSED_ADAM, "b69f9928d852"),
    ("tiny", "joint_batch"): Series("cpu", ("bf16",), _TINY, _CPU_JOINT_BATCH, "899221573a26"),
    ("tiny", "lean_weights"): Series("cpu", ("bf16",), _TINY, _CPU_LEAN_WEIGHTS, "c412a72ccf6a"),
    ("tiny", "cached_uint8"): Series("cpu", ("bf16",), _TINY, _CPU_CACHED_UINT8, "f84dfa411938"),
    ("article", "fused_modulation"): Series("cuda", _GRAPHS, _ARTICLE, _FUSED_MODULATION, "caa740a47a8f"),
    ("article", "graph_fills"): Series("cuda", _GRAPHS, _ARTICLE, _GRAPH_FILLS, "0e48eb5664f5"),
}

if __name__ == "__main__":  # `python -m benches.series` prints the fingerprints
    for pair, frozen in SERIES.items():
        print(*pair, fingerprint(frozen.workload, frozen.recipe), *["retired"] * (pair in RETIRED))
