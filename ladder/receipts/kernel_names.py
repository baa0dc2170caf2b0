"""Names of kernels for a table: short, and with what a template's arguments tell.

The same kernel has several spellings. PyTorch's profiler writes `Kernel<4, at::native::Functor<float>>(int, float*)`,
and Nsight Compute writes `Kernel<(int)4, at::native::Functor<float>>(T1, T2 *)`. A label holds words that both have,
and no numbers of a template. So both spellings have one label. Kernels that differ in such numbers share a label.
"""

from __future__ import annotations

import functools
import re

LONGEST = 64  # characters of a label
KEPT = 96  # characters of a name that a result stores
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::")
_RETURNED = re.compile(r"^(?:void |std::enable_if<.*?>::type )")
_WORD = re.compile(r"\w+")
# Templates around the kernel that a name means. CUTLASS launches all of its kernels through them.
_WRAPPERS = {"Kernel", "Kernel2", "device_kernel"}
_SAYS_NOTHING = {"kernel", *_WRAPPERS}
_WORK = re.compile(r"cutlass_\w*|\w*(?:gemm|conv|[fd]prop|[dw]grad)\w*", re.IGNORECASE)
# PyTorch's kernels take their operation as a functor, as a function with a lambda in it, or as one of std's functors.
_OPERATION = re.compile(
    r"\b(?:CUDAFunctor(?:On\w+)?_(?P<cuda>\w+?)|(?P<functor>\w+?)_?[Ff]unctor(?:_t)?|(?P<operation>\w*Ops?)"
    r"|(?P<function>\w+?)_kernel(?:_cuda|_impl|_gpu|_real|_mode)*)\b(?=[<(])"
)
_AROUND = {"BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "ReduceOp", "gpu_kernel_impl", "func_wrapper_t"}
_TYPES = {
    "BFloat16": "bf16", "__nv_bfloat16": "bf16", "Half": "fp16", "__half": "fp16", "half": "fp16", "float": "fp32",
    "double": "fp64",
}  # fmt: skip
_TYPE = re.compile(rf"\b(?:{'|'.join(_TYPES)})\b")
# cuDNN's and cuBLAS's: types of both operands, of the arithmetic and its sum, and of the result; then three layouts.
_XMMA = re.compile(r"^sm\d+_xmma_")
_CONVOLUTION = re.compile(r"fprop|dgrad|wgrad")
_NUMBER = r"(?:bf16|tf32|f16|f32|f64|i8|e4m3|e5m2)"
_XMMA_TYPES = re.compile(
    rf"_{_NUMBER}{{2}}_({_NUMBER})(?:f16|f32|f64|i32)_(?:bf16|f16|f32|f64|i8|e4m3|e5m2)(?=_|$)"
)
_XMMA_LAYOUT = re.compile(r"_(?:nhwc|nchw|ndhwc|ncdhw)[a-z]+_(nhwc|nchw|ndhwc|ncdhw)(?=_|$)")
_TILE = re.compile(r"_tilesize(\d+x\d+x\d+).*")


def name_function(name: str) -> str:
    """Return the name of a kernel's function, without namespaces, templates and arguments."""
    return _name_path(name).rsplit("::", 1)[-1]


def _name_path(name: str) -> str:
    """Return the name of a kernel's function with its namespaces."""
    return re.split(r"[(<]", _RETURNED.sub("", _UNNAMED.sub("", name)), maxsplit=1)[0].split(" ")[-1]


@functools.lru_cache(maxsize=4096)  # a cycle has 50,000 events of some hundred names
def name_stored(name: str) -> str:
    """Return the name of a kernel or a copy as a result stores it: a label, whole up to `KEPT` characters."""
    return _cut_name(
        re.split(r" ?[(<]", _make_label(name), maxsplit=1)[0], KEPT
    )  # "Memcpy DtoD (Device -> Device)"


@functools.lru_cache(maxsize=4096)
def name_label(name: str) -> str:
    """Return a kernel's name for a table. A label is its own label."""
    return _cut_name(_make_label(name), LONGEST)


def _make_label(name: str) -> str:
    if name.startswith(("aten::", "autograd::")) or " " in name.split("<")[0].split("(")[0].removeprefix(
        "void "
    ):
        return name  # an operator of a CPU, or a label
    own = name_function(name)
    if _XMMA.match(own):
        return _shorten_xmma(own)
    if own in _WRAPPERS and (work := find_word(name)):
        work = work.replace("_tensorop_", "_")
        return work if work.startswith("cutlass_") else f"{own} {work}"
    if own in _SAYS_NOTHING:
        own = "::".join(_name_path(name).split("::")[-2:])
    return " ".join(filter(None, (own, *_read_arguments(_find_arguments(name), name_function(name)))))


def find_word(name: str) -> str:
    """Return the word of a template's arguments that tells what the kernel does, or an empty one."""
    own, within = name_function(name), _find_arguments(name)
    if own in _WRAPPERS and (work := _WORK.search(within)):
        return work[0]
    return _read_arguments(within, own)[0]


def _find_arguments(name: str) -> str:
    """Return the arguments of a template, with all that stands behind them."""
    return _RETURNED.sub("", _UNNAMED.sub("", name)).partition("<")[2]


def _read_arguments(within: str, own: str) -> tuple[str, str]:
    """Return (operation, type of the tensors) that a template's arguments tell, each empty if they do not."""
    for found in _OPERATION.finditer(within):
        if found[0] not in _AROUND and found[0] != own:
            operation = found["cuda"] or found["functor"] or found["function"] or found["operation"]
            kind = _TYPE.search(within)  # an operation may compute in FP32 with tensors of BF16
            return operation, _TYPES[kind[0]] if kind else ""
    first = _WORD.search(within.removeprefix("c10::"))
    return "", _TYPES.get(first[0], "") if first else ""


def _shorten_xmma(name: str) -> str:
    """Return the short form of such a name: operation, arithmetic, layout and tile."""
    name = _TILE.sub(r"_\1", name)
    if _CONVOLUTION.search(name):
        name = name.replace("_implicit_gemm", "")
    return _XMMA_LAYOUT.sub(r"_\1", _XMMA_TYPES.sub(r"_\1", name))


def _cut_name(name: str, longest: int) -> str:
    """Return a name of at most so many characters. The end is kept, because alike names differ there."""
    return name if len(name) <= longest else f"{name[: longest - 26]}..{name[-24:]}"
