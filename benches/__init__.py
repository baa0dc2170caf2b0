"""asv benchmarks: thin, import-safe, and the same whichever commit is measured.

asv imports this package from the working tree also when it measures an old commit. What times (`ladder`) comes
from the working tree too, what is timed (`stylegan_lite`, `kernels`) from the commit's checkout, which asv puts
on the path. The finders below keep the checkout's own `ladder` out, and whatever else is installed under the names of
the measured packages: a commit that lacks one must not be measured with another's.

Nothing here, nor in the modules beside it, may import torch, triton or pytest: asv imports them all to find
the benchmarks, and again in a new process for each parameter.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from asv_runner import discovery
from asv_runner.benchmarks import benchmark_types
from asv_runner.benchmarks._base import Benchmark

ROOT = Path(__file__).resolve().parent.parent
CODE = "LADDER_ASV_CODE"  # set by _environment: the checkout of the commit that this process measures


class _WorkingTree:
    """Finds `ladder` beside this folder, whatever else is on the path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)], target) if name == "ladder" else None


class _MeasuredCommit:
    """Finds the measured packages in the commit's checkout and nowhere else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        code = os.environ.get(CODE)
        if code is None or name not in ("stylegan_lite", "kernels"):
            return None
        if spec := PathFinder.find_spec(name, [code], target):
            return spec
        raise ModuleNotFoundError(f"this commit has no package {name}", name=name)


class SamplesBenchmark(Benchmark):
    """A method `samples_...` that returns seconds, one for each sample; asv takes median and interval."""

    name_regex = re.compile("^samples_.+$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.type = "time"
        self.unit = "seconds"

    def run(self, *params: Any) -> dict[str, Any]:
        return {"samples": self.func(*params), "number": 1}


def _with_benchmarks(path: Sequence[str], prefix: str = "") -> Iterator[pkgutil.ModuleInfo]:
    """Modules here that may hold benchmarks. Those named with "_" hold none, and the plugin needs asv itself, which
    the environments that asv makes do not have.
    """
    for module in pkgutil.iter_modules(path, prefix):
        if not module.name.rpartition(".")[2].startswith("_"):
            yield module


sys.meta_path[:0] = [_WorkingTree, _MeasuredCommit]
benchmark_types.append(SamplesBenchmark)
discovery.pkgutil = SimpleNamespace(iter_modules=_with_benchmarks)
