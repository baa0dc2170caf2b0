"""The families of PyTorch's operators on a CPU, by the names that `kernel_families` gives to kernels of a GPU.

A CPU runs no kernels that a profiler sees, so a profile there counts each operator's own time. An operator's name
tells its purpose as well as a kernel's name does. Own time of views, of allocation and of autograd's bookkeeping is a
family of its own: a GPU does not wait for it, and a CPU does.
"""

from __future__ import annotations

import functools
import re

from ladder.receipts import kernel_families as families

BOOKKEEPING = families.BOOKKEEPING

# The first match counts. The names are without "aten::" and without a leading underscore.
PATTERNS = tuple(
    (family, re.compile(pattern))
    for family, pattern in (
        (families.UNTOLD, r"(mkldnn_)?conv(olution|[123]d|_transpose|_depthwise)|convolution|slow_conv|thnn_conv"),
        (families.MATMUL, r"(add|b|badd|sm)?mm\b|addmv|mv\b|matmul|linear|dot\b|mkldnn_linear"),
        (families.NORM, r"(native_|cudnn_)?(batch|layer|group|instance)_norm"),
        (families.OPTIMIZER, r"foreach_|fused_adam|Optimizer\.|_?fused_"),
        (families.RANDOM, r"normal_|uniform_|rand(n|int|perm)?\b|random_|bernoulli"),
        (families.BOOKKEEPING, r"(new_)?empty|as_strided|view|reshape|expand|permute|transpose|t\b"),
        (families.BOOKKEEPING, r"un(bind|squeeze|fold)|select|slice|narrow|detach|resize|squeeze|split|chunk"),
        (families.BOOKKEEPING, r"alias|set_|result_type|item|local_scalar|is_|lift|autograd::|.*Backward\d*$"),
        (families.BOOKKEEPING, r"record_function|[pP]rofiler"),
        (families.REDUCTION, r"(nan)?sum|mean|var|std|a?max\b|a?min\b|norm|linalg_.*norm|all\b|any\b|prod|softmax"),
        (families.COPY, r"copy|to\b|to_copy|contiguous|clone|cat\b|stack|repeat|constant_pad|pad\b|flatten|roll|flip"),
        (families.ELEMENTWISE, r"(r?sub|add|mul|div|pow|r?sqrt|square|neg|exp|log|abs|sign|where|lerp|clamp|erf)"),
        (families.ELEMENTWISE, r"(leaky_relu|relu|softplus|sigmoid|tanh|silu|gelu|threshold|reciprocal|round|floor)"),
        (families.ELEMENTWISE, r"(zero|one|fill|full|arange|(eq|ne|lt|le|gt|ge)\b|maximum|minimum|bitwise|logical)"),
        (families.ELEMENTWISE, r"(masked|index|gather|scatter|upsample|isfinite|isnan|addcmul|addcdiv|remainder)"),
    )
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def family(name: str) -> str:
    """Return the family of an operator, by the name that PyTorch's profiler gives it."""
    bare = name.removeprefix("aten::").lstrip("_")
    return next((family for family, pattern in PATTERNS if pattern.match(bare)), families.OTHER)
