"""Environment variables that change what is measured: recorded in every result, and refused if they falsify it.

The list is here alone. Every command that measures calls `refuse`, stores `read_variables` under `KEY`, and prints
`describe_variables`.
Two results whose records differ were measured under other conditions: `list_differences` names each variable.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePath

import click

from ladder.core import git, text
from ladder.core.errors import UserError
from ladder.core.paths import ROOT

KEY = "environment"
MOST = 64  # variables of one result


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "no", "off")


# name -> (whether this value falsifies, why)
FALSIFIES: dict[str, tuple[Callable[[str], bool], str]] = {
    "CUDA_LAUNCH_BLOCKING": (_is_on, "every launch waits for its kernel"),
    "NVIDIA_TF32_OVERRIDE": (bool, "it overrules which rungs use TF32"),
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": (_is_on, "it overrules which rungs use TF32"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (
        lambda value: True,
        "every allocation goes to the driver",
    ),  # 0 does it, too
    "TORCHDYNAMO_DISABLE": (_is_on, "what should be compiled is not"),
    "TORCH_COMPILE_DISABLE": (_is_on, "what should be compiled is not"),
    "TRITON_KERNEL_OVERRIDE": (_is_on, "Triton runs other kernels than those of this project"),
    "CUDA_INJECTION64_PATH": (bool, "a profiler or checker is attached to every kernel"),
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": (_is_on, "the driver traps every kernel"),
    "NSYS_PROFILING_SESSION_ID": (bool, "a profiler is attached"),
    "PYTHONPROFILEIMPORTTIME": (bool, "Python reports every import"),
    "PYTHONTRACEMALLOC": (_is_on, "Python traces every allocation"),
    "COVERAGE_PROCESS_START": (bool, "Python traces every line"),
}
# Only on a GPU: on a CPU, Triton kernels run in the interpreter alone.
ON_A_GPU = {"TRITON_INTERPRET": (_is_on, "Triton kernels run in Python, on the CPU")}

PREFIXES = (
    *("CUDA_", "CUDNN_", "CUBLAS_", "CUBLASLT_", "NVIDIA_TF32_", "NVTE_", "NCCL_LAUNCH_"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_", "ATEN_", "VECLIB_", "TBB_"),
    *("TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "AOT_", "TRITON_", "DISABLE_ADDMM_", "MLIR_"),
    *("MALLOC_", "GLIBC_TUNABLES", "TCMALLOC_", "JEMALLOC_", "MIMALLOC_", "LD_PRELOAD", "LD_BIND_NOW"),
    *("PYTHONMALLOC", "PYTHONDEVMODE", "PYTHONDEBUG", "PYTHONOPTIMIZE", "PYTHON_GIL", "PYTHON_JIT"),
    *("PYTHONFAULTHANDLER", "COVERAGE_PROCESS_", "NSYS_PROFILING_", "PYTHONPROFILE", "PYTHONTRACE"),
)
# Left out: which GPU, where files lie, which build; symmetric memory, which no step here uses. Either a fact of the
# machine, or no matter to a time.
_NO_MATTER = re.compile(
    r"CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|ARCH.*|PKG.*)|TORCH_CUDA_ARCH_LIST|TORCH_NVCC_FLAGS|TORCH_SHOW_.*|PYTORCH_BUILD.*"
    r"|TORCH_SYMM_MEM_.*"
    r"|.*(VERSION|HOME|DIR|ROOT|FOLDER|CACHE_PATH|REDIS|HOST|PORT|ADDR|URL|USER|TOKEN|SECRET|PASSWORD|LICENSE|LIBRARY"
    r"|LIBRARIES|INCLUDE|LOGS|_KEY|MPS_PIPE_DIRECTORY|MPS_LOG_DIRECTORY|BIN|BIN_PATH|TOOLKIT|LIB_PATH)"
)
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
_LIBRARY = re.compile(r"lib[A-Za-z0-9_+.-]+\.so[0-9.]*")
_PLAIN = re.compile(r"[A-Za-z0-9 ._:,=+()#'{}\[\]@-]{1,64}")


def read_variables(environ: Mapping[str, str] = os.environ, without: Collection[str] = ()) -> dict[str, str]:
    """Return every variable that changes what is measured, with a value that a result may hold: no path.

    A preloaded library is there by its name, and text that is not plain by its digest.
    `without`: variables that the harness sets itself, so the user's value is in force nowhere.
    """
    recorded = {}
    for name, value in sorted(environ.items()):
        if not value or name in without or not name.startswith(PREFIXES) or not _NAME.fullmatch(name):
            continue
        if name == "LD_PRELOAD":
            libraries = [PurePath(each).name for each in re.split(r"[ :]+", value) if each]
            is_plain, shown = all(map(_LIBRARY.fullmatch, libraries)), " ".join(libraries)
        else:
            is_plain, shown = bool(_PLAIN.fullmatch(value)), value
        digest = hashlib.sha256(value.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        recorded[name] = text.make_display(shown) if is_plain else f"not shown, #{digest}"
    return dict(list(_filter_recorded(recorded).items())[:MOST])


def refuse_variables(device: str, environ: Mapping[str, str] = os.environ) -> None:
    """Raise `UserError`, one line, if a variable falsifies what is measured on this device ("cuda" or "cpu")."""
    rules = FALSIFIES | (ON_A_GPU if device == "cuda" else {})
    bad = [name for name, (falsifies, _) in rules.items() if name in environ and falsifies(environ[name])]
    if bad:
        causes = "; ".join(f"{name} is set: {rules[name][1]}" for name in bad)
        raise UserError(f"{causes}, so the numbers would be wrong: unset {' '.join(bad)}")


def _filter_recorded(recorded: Mapping[str, str]) -> dict[str, str]:
    """Return what matters to a time. Stored results have other variables, too."""
    return {name: value for name, value in sorted(recorded.items()) if not _NO_MATTER.fullmatch(str(name))}


def describe_variables(recorded: Mapping[str, str] | None) -> list[str]:
    """Return a line for each variable that was set. Empty if there were none, or none are known."""
    rows = _filter_recorded(recorded or {}).items()
    return [text.make_display(f"measured with {name}={value}") for name, value in rows]


def print_conditions(quiet: bool = False, without: Collection[str] = ()) -> None:
    """Name on stderr what is set here and changes what is measured, and why the result will belong to no commit."""
    if not quiet:
        lines, problem = describe_variables(read_variables(without=without)), git.find_problem(ROOT)
        for line in [*lines, f"without a commit: {problem}"] if problem else lines:
            click.echo(line, err=True)


def list_differences(
    first: Mapping[str, str] | None, other: Mapping[str, str] | None
) -> list[tuple[str, str, str]]:
    """Return (variable, value in the first, value in the other) of two environments. Empty if one is not known."""
    if first is None or other is None:
        return []
    one, two = _filter_recorded(first), _filter_recorded(other)
    rows = [
        (name, str(one.get(name, "not set")), str(two.get(name, "not set"))) for name in sorted({*one, *two})
    ]
    return [row for row in rows if row[1] != row[2]]
