"""Builds of this folder's CUDA C++ at first use, and one line that says why where they are impossible.

`torch.utils.cpp_extension` runs nvcc. Building an extension is slow because of PyTorch's headers, and the sources
include none (exported functions take addresses and numbers, see `calls.py`). A build lies in a folder named after
everything that decides its code: sources, flags, architecture, nvcc and PyTorch. A changed source makes a new folder.
Two sets of flags stand side by side.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / ".cache" / "extensions"  # unless TORCH_EXTENSIONS_DIR names another
NAME = "ladder_cuda"
OLDEST = (7, 0)  # compute capability; from here on warps have shuffles that name their lanes, and __half


class Flags(NamedTuple):
    """The flags of a compilation. Each combination is a library of its own."""

    fast_math: bool = False  # --use_fast_math: approximate division, root and exponential; denormals are zero
    max_threads: int = 1024  # __launch_bounds__: the largest block that will be launched
    min_blocks: int = 1  # __launch_bounds__: blocks that must fit on a multiprocessor, at any cost

    def nvcc(self) -> list[str]:
        """Return the arguments of nvcc."""
        bounds = [f"-DMAX_THREADS={self.max_threads}", f"-DMIN_BLOCKS={self.min_blocks}"]
        return ["-O3", "-std=c++17", *bounds, *(["--use_fast_math"] if self.fast_math else [])]


class Unavailable(RuntimeError):
    """The error that the kernels cannot be built or run here. Its message is one line for a user."""


def sources() -> list[Path]:
    """Return the files that nvcc compiles."""
    return sorted(HERE.glob("*.cu"))


def key(flags: Flags, architecture: int, compiler: str) -> str:
    """Return the name of a build: whatever changes the machine code changes it.

    architecture: 90 for compute capability 9.0.
    """
    digest = hashlib.sha256()
    for path in [*sources(), *sorted(HERE.glob("*.cuh"))]:
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)}\n".encode() + text)
    digest.update(repr((flags.nvcc(), architecture, compiler, torch.__version__)).encode())
    return f"{NAME}_{digest.hexdigest()[:16]}"


def available() -> str | None:
    """Return None if the kernels can be built and run on the current GPU, else one line why not. Builds nothing."""
    if not torch.cuda.is_available():
        return "CUDA C++ needs a CUDA GPU that PyTorch can use"
    if torch.version.hip or sys.platform == "win32":
        return "CUDA C++ is built here with nvcc on Linux only"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) < OLDEST:
        return f"CUDA C++ here needs compute capability {OLDEST[0]}.{OLDEST[1]}, this GPU has {major}.{minor}"
    if nvcc() is None:
        release = ".".join((torch.version.cuda or "").split(".")[:2])
        return (
            f"CUDA C++ needs nvcc, which was not found: install the CUDA toolkit {release} (conda install -c nvidia "
            f"cuda-toolkit={release}, or your system's package) and set CUDA_HOME to it"
        )
    if shutil.which("ninja") is None:
        return "CUDA C++ needs ninja to be built (pip install ninja)"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "c++"), "g++", "c++")):
        return "CUDA C++ needs a host compiler (apt-get install g++)"
    return None


@functools.cache
def nvcc() -> str | None:
    """Return the compiler's path: below CUDA_HOME as PyTorch finds it, else on the PATH."""
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME or os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=os.path.join(home, "bin")) if home else shutil.which("nvcc")


@functools.cache
def compiler() -> str:
    """Return nvcc's statement of its version, for the key."""
    return subprocess.run([nvcc(), "--version"], capture_output=True, text=True, check=True).stdout.strip()


def library(flags: Flags, device: int) -> ctypes.CDLL:
    """Return the kernels, built for the GPU of this number if they have not been. Raises `Unavailable`."""
    found = _library(flags, *torch.cuda.get_device_capability(device)) if torch.cuda.is_available() else None
    if isinstance(found, ctypes.CDLL):
        return found
    raise Unavailable(found or available() or "CUDA C++ needs a CUDA GPU that PyTorch can use")


@functools.cache
def _library(flags: Flags, major: int, minor: int) -> ctypes.CDLL | str:
    """Return the library, or why there is none. Later calls do not repeat a failed build."""
    if reason := available():
        return reason
    architecture = major * 10 + minor
    try:
        name = key(flags, architecture, compiler())
        folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or FOLDER) / name
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not (folder / "done").exists():
                _compile(name, folder, flags, architecture)
                (folder / "done").touch()
        return ctypes.CDLL(str(folder / f"{name}.so"))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return f"CUDA C++ could not be built: {_reason(error)}"


def _compile(name: str, folder: Path, flags: Flags, architecture: int) -> None:
    from torch.utils import cpp_extension

    # The lock of a build that was killed. Torch would wait for it for ever.
    (folder / "lock").unlink(missing_ok=True)
    cpp_extension.load(
        name,
        [str(path) for path in sources()],
        extra_cuda_cflags=[*flags.nvcc(), f"-gencode=arch=compute_{architecture},code=sm_{architecture}"],
        build_directory=str(folder),
        extra_ldflags=["-Wl,-Bsymbolic"],  # Two builds in one process: each calls its own kernels.
        is_python_module=False,
    )


def _reason(error: Exception) -> str:
    """Return the line that names the error, of the hundreds that a compiler may print."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if "error" in line.lower() and not line.startswith("ninja")]
    reason = (said[1:] or said or lines or [type(error).__name__])[0]
    return reason.replace(f"{HERE}/", "kernels/cuda/")[:300]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock while one process builds and others wait. The system frees the lock of a process that dies."""
    import fcntl

    with open(folder / "building", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
