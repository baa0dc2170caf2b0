"""The CUDA C++ sources run on a CPU: compiled by g++ against `cuda_on_cpu.h`, called as on a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import torch

from kernels.cuda import build, calls, pairs

HEADER = Path(__file__).parent / "cuda_on_cpu.h"
CACHE = build.FOLDER / "cuda_on_cpu"
_LAUNCH = re.compile(r"(\b\w+(?:<[^<>;(){}]*>)?)<<<(.+?)>>>\(", re.S)
_DYNAMIC = re.compile(r"extern __shared__ __align__\(16\) unsigned char (\w+)\[\];")


def translated(text: str) -> str:
    """A source without what only nvcc reads: launches are calls of `emulate`, dynamic shared memory is an array."""
    text = _DYNAMIC.sub(r"alignas(16) static unsigned char \1[256 << 10];", text)
    text = re.sub(r"#include <cuda_\w+\.h>", '#include "cuda_on_cpu.h"', text)
    text = re.sub(r"#pragma unroll( \d+)?", "", text)
    # `name<<<grid, threads, shared, stream>>>(a, b)`; the parentheses after it close those of `emulate`
    return _LAUNCH.sub(lambda m: f"emulate({m[2]}, {m[1]}, ", text).replace(
        "empty_kernel, )", "empty_kernel)"
    )


def compile_sources() -> ctypes.CDLL:
    files = [*build.sources(), *sorted(build.HERE.glob("*.cuh"))]
    texts = {path.name: translated(path.read_text()) for path in files} | {HEADER.name: HEADER.read_text()}
    name = hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    folder = CACHE / name
    built = folder / "kernels.so"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            (folder / file).write_text(text)
        everything = "\n".join(f'#include "{path.name}"' for path in build.sources())
        (folder / "all.cpp").write_text(everything)
        flags = ["-O1", "-std=c++17", "-mf16c", "-fPIC", "-shared", "-w"]
        made = folder / f"kernels.so.{os.getpid()}"  # tests run side by side
        subprocess.run(
            ["g++", *flags, "-o", made, folder / "all.cpp"], check=True, capture_output=True, text=True
        )
        made.rename(built)
    return ctypes.CDLL(str(built))


_OP = "kernels.cuda.instance_norm_act"  # the module: the package's attribute of that name is the function


@contextlib.contextmanager
def emulated(monkeypatch, shared: int = 227 << 10) -> Iterator[None]:
    """CPU tensors go through the kernels of `kernels.cuda`, with `shared` bytes of shared memory for a block."""
    library = compile_sources()
    ctypes.c_int.in_dll(library, "emulated_shared").value = shared

    def function(name, flags, device):
        found = getattr(library, name)
        found.argtypes, found.restype = calls.signatures()[name], ctypes.c_int
        return found

    with monkeypatch.context() as patch:
        patch.setattr(calls, "function", function)
        patch.setattr(sys.modules["kernels.cuda.resources"], "function", function)
        patch.setattr(pairs, "check_device", lambda x: None)
        patch.setattr(sys.modules[_OP], "_unavailable", lambda x, flags: None)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        patch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=None))
        yield
