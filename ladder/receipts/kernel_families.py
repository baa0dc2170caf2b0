"""The families of GPU kernels, told from their names, and the share of a step that each family takes.

Names are those of cuDNN 9, cuBLAS, PyTorch and Triton in a trace. They are no interface: a name without a pattern is
"other", and a table with much of it needs another line here. A convolution's name is cuDNN's: a transposed
convolution is an input gradient, and the double backward of an input gradient is a forward one.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TypedDict

from ladder.core.paths import ROOT
from ladder.receipts import kernel_names

KERNELS = ROOT / "kernels"

FORWARD, DGRAD = "convolution, forward", "convolution, input gradient"
WGRAD = "convolution, weight gradient"
UNTOLD = "convolution, name does not tell"
SGEMM = "convolution, implicit_convolve_sgemm"  # cuDNN's last resort: double backward
DEPTHWISE = "convolution, depthwise or grouped"
MATMUL, NORM, RANDOM = "matmul", "normalization", "random numbers"
OPTIMIZER = "optimizer and foreach"
REDUCTION, COPY, ELEMENTWISE = "reduction", "copy, cast, layout", "elementwise"
TRANSFER, INDUCTOR, OTHER = "memcpy and memset", "compiled by Inductor", "other"
BOOKKEEPING = "views, allocation, autograd"  # of a CPU's operators alone: a GPU does not wait for it
COMMUNICATION = "communication"
OURS = "Triton: "  # followed by the name of our kernel
OURS_CPP = "CUDA C++: "  # likewise

# The first match counts. Layout conversions and slow paths carry words of the others, so they come first. cuDNN's
# implicit GEMMs are convolutions, so they come before matmuls.
PATTERNS = tuple(
    (family, re.compile(pattern, re.IGNORECASE))
    for family, pattern in (
        (COMMUNICATION, r"nccl|^memcpy ptop"),
        (TRANSFER, r"^mem(cpy|set)\d*(_\w+)?\b"),  # in a replayed graph a memset may be a kernel, `memset32`
        (INDUCTOR, r"^triton_"),  # ours have no such name
        (SGEMM, r"(implicit|explicit|precomputed)_convolve_sgemm"),
        (DEPTHWISE, r"grouped_direct|_c1_k1_|depthwise|upfirdn2d_kernel_(small|large)"),
        (COPY, r"(folded)?n(chw|hwc)(to|2)(folded)?n(chw|hwc)|nhwcAddPadding|tensorTransform|convertTensor"),
        (COPY, r"transpose_r"),
        (WGRAD, r"wgrad|backward_?filter"),
        (DGRAD, r"dgrad|backward_?data"),
        (FORWARD, r"fprop|winograd\w*fwd|conv2d_\w*kernel|scudnn_winograd"),
        (NORM, r"bn_(fw|bw)|batch_?norm|layer_?norm|group_?norm"),
        (UNTOLD, r"cudnn|winograd|fft2d|\bDSE::|(regular|vector)_fft|flip_filter|convolve"),
        (RANDOM, r"distribution_|philox|curand|randperm"),
        (OPTIMIZER, r"multi_tensor_apply|FusedAdam|fused_adam"),
        (MATMUL, r"nvjet|gemm|gemv|cublas|splitK|cutlass|\bdot_kernel"),
        (COPY, r"copy_kernel|copy_device_to_device|CatArrayBatchedCopy|CatArray"),
        (REDUCTION, r"reduce_\d*_?kernel|reduce_kernel|softmax|cub::Device\w*(Reduce|Scan)"),
        (REDUCTION, r"scan_(inner|outer)most"),
        (ELEMENTWISE, r"elementwise_kernel|upsample|constant_pad|Functor|index|gather|scatter|fill|bias_act_kernel"),
    )
)  # fmt: skip
# Operators of PyTorch on a CPU, which runs no kernels. Names are without "aten::" and a leading underscore.
OPERATORS = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        (UNTOLD, r"(mkldnn_)?conv(olution|[123]d|_transpose|_depthwise)|convolution|slow_conv|thnn_conv"),
        (MATMUL, r"(add|b|badd|sm)?mm\b|addmv|mv\b|matmul|linear|dot\b|mkldnn_linear"),
        (NORM, r"(native_|cudnn_)?(batch|layer|group|instance)_norm"),
        (OPTIMIZER, r"foreach_|fused_adam|Optimizer\.|_?fused_"),
        (RANDOM, r"normal_|uniform_|rand(n|int|perm)?\b|random_|bernoulli"),
        (BOOKKEEPING, r"(new_)?empty|as_strided|view|reshape|expand|permute|transpose|t\b"),
        (BOOKKEEPING, r"un(bind|squeeze|fold)|select|slice|narrow|detach|resize|squeeze|split|chunk"),
        (BOOKKEEPING, r"alias|set_|result_type|item|local_scalar|is_|lift|autograd::|.*Backward\d*$"),
        (BOOKKEEPING, r"record_function|[pP]rofiler"),
        (REDUCTION, r"(nan)?sum|mean|var|std|a?max\b|a?min\b|norm|linalg_.*norm|all\b|any\b|prod|softmax"),
        (COPY, r"copy|to\b|to_copy|contiguous|clone|cat\b|stack|repeat|constant_pad|pad\b|flatten|roll|flip"),
        (ELEMENTWISE, r"(r?sub|add|mul|div|pow|r?sqrt|square|neg|exp|log|abs|sign|where|lerp|clamp|erf)"),
        (ELEMENTWISE, r"(leaky_relu|relu|softplus|sigmoid|tanh|silu|gelu|threshold|reciprocal|round|floor)"),
        (ELEMENTWISE, r"(zero|one|fill|full|arange|(eq|ne|lt|le|gt|ge)\b|maximum|minimum|bitwise|logical)"),
        (ELEMENTWISE, r"(masked|index|gather|scatter|upsample|isfinite|isnan|addcmul|addcdiv|remainder)"),
    )
)  # fmt: skip
CONVOLUTIONS = (FORWARD, DGRAD, WGRAD, UNTOLD, SGEMM)  # depthwise ones resample: no FLOPs in a floor
FUNCTION = re.compile(r"(?:void )?(\w+)\b")  # of a demangled name: what stands before templates and arguments
WAITING = ("Stream Wait", "Stream Sync", "Event Sync", "Context Sync")
Event = tuple[str, bool, int, int, int]  # as `ladder.receipts.traces.list_events` gives them


@functools.lru_cache(maxsize=4096)  # a cycle has 50,000 events of some hundred names
def name_family(name: str) -> str:
    """Return the family of one kernel, or of a copy as the profiler names it ("Memcpy HtoD (Pinned -> Device)")."""
    if name in own_kernels():
        return OURS + name
    if (compiled := FUNCTION.match(name)) and compiled[1] in own_cpp_kernels():
        return OURS_CPP + compiled[1]
    return next((family for family, pattern in PATTERNS if pattern.search(name)), OTHER)


@functools.lru_cache(maxsize=4096)
def find_operator_family(name: str) -> str:
    """Return the family of an operator of a CPU, by the name that PyTorch's profiler gives it."""
    bare = name.removeprefix("aten::").lstrip("_")
    return next((family for family, pattern in OPERATORS if pattern.match(bare)), OTHER)


@functools.cache
def own_kernels() -> frozenset[str]:
    """Return the names of the Triton kernels in `kernels/`, read from their source. A new file needs no line here."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in KERNELS.rglob("*.py"))
    return frozenset(re.findall(r"^def (\w+_kernel)\(", text, re.MULTILINE))


@functools.cache
def own_cpp_kernels() -> frozenset[str]:
    """Return the names of the kernels in CUDA C++ in `kernels/`, read from their source."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in KERNELS.rglob("*.cu"))
    return frozenset(re.findall(r"\b__global__\b[^(;]*?\b(\w+_kernel)\(", text))


def is_convolution(name: str) -> bool:
    return name in CONVOLUTIONS


class Share(TypedDict):
    """The share of a step that one family of kernels takes."""

    family: str
    us: float  # microseconds a step
    kernels: float  # launches a step
    heaviest: str  # name of the kernel that takes most


def derive_shares(events: Iterable[Event], steps: int) -> list[Share]:
    """Return the families' shares, the longest first.

    ``events`` are those of ``steps`` steps. Events of the host and of waiting streams do not count.
    """
    took: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for name, on_device, _, begin, end in events:
        if on_device and not name.startswith(WAITING):
            took[name_family(name)][name].append(end - begin)
    rows: list[Share] = []
    for name, kernels in took.items():
        heaviest = max(kernels, key=lambda each: sum(kernels[each]))
        rows.append(
            {
                "family": name,
                "us": sum(map(sum, kernels.values())) / 1000 / steps,
                "kernels": sum(map(len, kernels.values())) / steps,
                "heaviest": kernel_names.name_stored(heaviest),
            }
        )
    return sorted(rows, key=lambda row: -row["us"])
