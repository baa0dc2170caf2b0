"""asv benchmarks: thin, import-safe, and the same for every measured commit.

asv imports this package from the working tree even when it measures an old commit. The measuring code (`ladder`) also
comes from the working tree. The measured code (`stylegan_lite`, `kernels`) comes from the commit's checkout, which
asv puts on the path. The finders below hide the checkout's own `ladder` and installed packages with the measured
names. A commit without one of these packages must not be measured with another commit's.

No module here may import torch, triton or pytest at its top. To find the benchmarks, asv imports all of them, and
again in a new process for each parameter.
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
CODE = "LADDER_ASV_CODE"  # set by _environment: the checkout of the measured commit


class _WorkingTree:
    """A finder of `ladder` beside this folder, whatever else is on the path."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(ROOT)], target) if name == "ladder" else None


class _MeasuredCommit:
    """A finder of the measured packages in the commit's checkout only."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        code = os.environ.get(CODE)
        if code is None or name not in ("stylegan_lite", "kernels"):
            return None
        if spec := PathFinder.find_spec(name, [code], target):
            return spec
        raise ModuleNotFoundError(f"this commit has no package {name}", name=name)


class SamplesBenchmark(Benchmark):
    """A benchmark whose method `samples_...` returns seconds, one per sample.

    asv computes median and interval.
    """

    name_regex = re.compile("^samples_.+$")

    def __init__(self, name: str, func: Any, attr_sources: list[Any]) -> None:
        super().__init__(name, func, attr_sources)
        self.type = "time"
        self.unit = "seconds"

    def run(self, *params: Any) -> dict[str, Any]:
        return {"samples": self.func(*params), "number": 1}


def _with_benchmarks(path: Sequence[str], prefix: str = "") -> Iterator[pkgutil.ModuleInfo]:
    """Yield the modules here that may hold benchmarks.

    Modules named with "_" hold none. The plugin among them needs asv itself, which the environments made by asv
    lack.
    """
    for module in pkgutil.iter_modules(path, prefix):
        if not module.name.rpartition(".")[2].startswith("_"):
            yield module


sys.meta_path[:0] = [_WorkingTree, _MeasuredCommit]
benchmark_types.append(SamplesBenchmark)
discovery.pkgutil = SimpleNamespace(iter_modules=_with_benchmarks)
