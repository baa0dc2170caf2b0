"""Builds the CUDA C++ of this folder at first use, and says in one line why where it cannot.

`torch.utils.cpp_extension` runs nvcc. The sources include no header of PyTorch, which is what makes building an
extension slow (what they export takes addresses and numbers, see `calls.py`). A build lies in a folder named after
everything that decides what comes out: sources, flags, architecture, nvcc and PyTorch. A changed source is a new
folder; two sets of flags stand side by side.
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
OLDEST = (7, 0)  # compute capability: from here on warps have shuffles that name their lanes, and __half


class Flags(NamedTuple):
    """What the sources are compiled with; each combination is a library of its own."""

    fast_math: bool = False  # --use_fast_math: approximate division, root and exponential; denormals are zero
    max_threads: int = 1024  # __launch_bounds__: the largest block that will be launched
    min_blocks: int = 1  # __launch_bounds__: blocks that must fit on a multiprocessor, whatever it costs

    def nvcc(self) -> list[str]:
        """Arguments of nvcc."""
        bounds = [f"-DMAX_THREADS={self.max_threads}", f"-DMIN_BLOCKS={self.min_blocks}"]
        return ["-O3", "-std=c++17", *bounds, *(["--use_fast_math"] if self.fast_math else [])]


class Unavailable(RuntimeError):
    """The kernels cannot be built or run here; the message is one line for a user."""


def sources() -> list[Path]:
    """What nvcc compiles."""
    return sorted(HERE.glob("*.cu"))


def key(flags: Flags, architecture: int, compiler: str) -> str:
    """Names a build: whatever changes the machine code changes it. architecture: 90 for compute capability 9.0."""
    digest = hashlib.sha256()
    for path in [*sources(), *sorted(HERE.glob("*.cuh"))]:
        text = path.read_bytes()
        digest.update(f"{path.name} {len(text)}\n".encode() + text)
    digest.update(repr((flags.nvcc(), architecture, compiler, torch.__version__)).encode())
    return f"{NAME}_{digest.hexdigest()[:16]}"


def available() -> str | None:
    """None if the kernels can be built and run on the current GPU, else one line why not. Builds nothing."""
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
    """The compiler's path: below CUDA_HOME as PyTorch finds it, else on the PATH."""
    from torch.utils import cpp_extension

    home = cpp_extension.CUDA_HOME or os.environ.get("CUDA_HOME")
    return shutil.which("nvcc", path=os.path.join(home, "bin")) if home else shutil.which("nvcc")


@functools.cache
def compiler() -> str:
    """What nvcc says of its version, for the key."""
    return subprocess.run([nvcc(), "--version"], capture_output=True, text=True, check=True).stdout.strip()


def library(flags: Flags, device: int) -> ctypes.CDLL:
    """The kernels, built for the GPU of this number if they have not been. Raises `Unavailable`."""
    found = _library(flags, *torch.cuda.get_device_capability(device)) if torch.cuda.is_available() else None
    if isinstance(found, ctypes.CDLL):
        return found
    raise Unavailable(found or available() or "CUDA C++ needs a CUDA GPU that PyTorch can use")


@functools.cache
def _library(flags: Flags, major: int, minor: int) -> ctypes.CDLL | str:
    """The library, or why there is none: a build that failed is not tried again by each call."""
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

    (folder / "lock").unlink(missing_ok=True)  # of a build that was killed; torch would wait for it for ever
    cpp_extension.load(
        name,
        [str(path) for path in sources()],
        extra_cuda_cflags=[*flags.nvcc(), f"-gencode=arch=compute_{architecture},code=sm_{architecture}"],
        build_directory=str(folder),
        extra_ldflags=["-Wl,-Bsymbolic"],  # two builds in one process: each calls its own kernels
        is_python_module=False,
    )


def _reason(error: Exception) -> str:
    """The line that says what is wrong, of the hundreds that a compiler may print."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if "error" in line.lower() and not line.startswith("ninja")]
    reason = (said[1:] or said or lines or [type(error).__name__])[0]
    return reason.replace(f"{HERE}/", "kernels/cuda/")[:300]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process builds, others wait; the lock of a process that dies is gone with it."""
    import fcntl

    with open(folder / "building", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
