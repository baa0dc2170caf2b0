"""The reader of asv's result files: every benchmark as a series over commits, and the rungs of each commit.

A figure here is the median of one process' samples. No verdict can rest on it.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ladder.core.text import clean_line, make_slug
from ladder.publish.history import notes as asvnotes
from ladder.publish.validation import asv_files

STEP = "rungs.Rung.samples_step_time"  # benches/rungs.py; parameters: workload, rung
GPU_STEP = "rungs.Rung.samples_gpu_time"
# A result of asv has the first four. The notes have cuDNN and the driver's major version, which GPU time goes by.
SOFTWARE = ("torch", "triton", "cuda", "python", "cudnn", "driver")
# With the GPU all that GPU time depends on, whatever the host.
GPU_SOFTWARE = ("torch", "cuda", "cudnn", "driver")
STEP_TIME = re.compile(r"(?:.*\.)?samples_(step|gpu)_time")  # what bench-compare measures too
_TYPED = re.compile(r"[A-Za-z0-9_.,'() -]{1,140}")  # may stand in a command that somebody copies into a shell
UNCOMMITTED = "tree"  # a series of the working tree with changes: nobody can look up what it measured


@dataclass
class Series:
    """A benchmark with its parameters on one machine in one environment: value and weight by commit.

    GPU time does not depend on the host. There `machine` is named after the GPU alone, and a value is the median over
    hosts. `environment` is then torch, CUDA, cuDNN and the major version of the driver.
    """

    machine: str
    environment: str
    benchmark: str
    params: tuple[str, ...]
    quoted: tuple[str, ...] = ()  # the parameters as asv writes them: "'bf16'"
    facts: Mapping[str, str] = field(default_factory=dict)  # asv's parameters: gpu, cpu, torch, ...
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float | None] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)
    by_host: dict[str, list[float]] = field(default_factory=dict)  # values of each host
    gpu: dict[str, float] = field(default_factory=dict)  # behind a wall time: GPU seconds of that process

    @property
    def torch(self) -> str | None:
        """Return the version of PyTorch."""
        return self.facts.get("torch")

    @property
    def card(self) -> str:
        """Return the machine's GPU, or none."""
        return self.facts.get("gpu") or "none"

    @property
    def is_gpu(self) -> bool:
        """Return whether it is the GPU time of a rung."""
        return self.rung is not None and is_gpu_time(self.benchmark)

    @property
    def is_memory(self) -> bool:
        """Return whether it is the memory that a GPU's allocator reserved."""
        return self.card != "none" and self.benchmark.endswith(".track_peak_memory")

    @property
    def accepted_as(self) -> str:
        """Return the name by which a slowdown is accepted: `article/bf16` in both quantities."""
        return "/".join(self.rung) if self.rung else self.name

    @property
    def name(self) -> str:
        """Return `article/bf16` for the step time of a rung, else the benchmark with its parameters."""
        if self.rung:
            return "/".join(self.rung) + (" GPU time" if self.is_gpu else "")
        return f"{self.benchmark}({', '.join(self.params)})" if self.params else self.benchmark

    @property
    def rung(self) -> tuple[str, str] | None:
        """Return (workload, rung) of a step's wall or GPU time, which two commits can be compared by; else None."""
        if not STEP_TIME.fullmatch(self.benchmark) or len(self.params) != 2:
            return None
        return self.params[0], self.params[1]

    @property
    def pattern(self) -> str | None:
        """Return the regular expression that selects this series alone for asv; None if its name has other signs."""
        full = f"{self.benchmark}({', '.join(self.quoted)})" if self.quoted else self.benchmark
        return re.sub(r"([().])", r"\\\1", full) if _TYPED.fullmatch(full) else None


def _list_values(result: Any, benchmark: str) -> Iterator[tuple[tuple[str, ...], float, float | None]]:
    """Yield the parameters as asv writes them, the positive number and its weight of each combination that has one."""
    from asv import _stats

    params = result.get_result_params(benchmark) or []
    values, stats = (get(benchmark, params) for get in (result.get_result_value, result.get_result_stats))
    for each, value, stat in zip(itertools.product(*params), values, stats, strict=True):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(value) and value > 0:
            yield tuple(map(str, each)), float(value), _stats.get_weight(stat)


def read(folder: Path) -> list[Series]:
    """Return every series of a folder of accepted results (`validate.accept_asv`)."""
    from asv.results import Results

    every: dict[tuple[str, ...], Series] = {}
    for path in sorted(folder.glob("*/*.json")):
        if asv_files.kind_of(path) != "results":  # asv's own way looks into our notes, and complains of them
            continue
        result, note = Results.load(str(path)), asvnotes.read_note(path)
        commit, params = result.commit_hash, result.params
        names = result.get_all_result_keys()
        taken = [(name, *each) for name in names for each in _list_values(result, name)]
        gpu = {(name, quoted): value for name, quoted, value, _ in taken if is_gpu_time(name)}
        for benchmark, quoted, value, weight in taken:
            facts = {key: clean_line(each) for key, each in params.items() if isinstance(each, str)}
            where, libraries, values = path.parent.name, result.env_name, tuple(map(_unquote, quoted))
            if is_gpu_time(benchmark):
                facts = _find_gpu_facts(facts, asvnotes.find_conditions(note, benchmark))
                software = [f"{name} {facts[name]}" for name in GPU_SOFTWARE if name in facts]
                where, libraries = facts["machine"], ", ".join(software) or "unknown software"
            key = (where, libraries, benchmark, str(result.benchmark_version.get(benchmark)), *values)
            one = every.setdefault(key, Series(where, libraries, benchmark, values, quoted, facts))
            one.by_host.setdefault(commit, []).append(value)
            one.values[commit] = float(statistics.median(one.by_host[commit]))
            one.weights[commit], one.files[commit] = weight, path
            beside = benchmark.replace("samples_step_time", "samples_gpu_time"), quoted
            if not one.is_gpu and beside in gpu:
                one.gpu[commit] = gpu[beside]
    return list(every.values())


def is_gpu_time(benchmark: str) -> bool:
    """Return whether a benchmark is the GPU time of a step."""
    match = STEP_TIME.fullmatch(benchmark)
    return match is not None and match[1] == "gpu"


def _find_gpu_facts(
    params: Mapping[str, str], conditions: Mapping[asvnotes.Condition, str]
) -> dict[str, str]:
    """Return the facts that GPU time depends on: the GPU, torch, CUDA, cuDNN and the driver's major version."""
    gpu = str(params.get("gpu") or "none")
    known = {"machine": make_slug(gpu), "gpu": gpu}
    known |= {name: str(params[name]) for name in ("torch", "cuda") if params.get(name)}
    known |= {"cudnn": conditions["cudnn"]} if "cudnn" in conditions else {}
    known |= {"driver": conditions["driver"].partition(".")[0]} if "driver" in conditions else {}
    return {name: clean_line(value) for name, value in known.items()}


def list_software(one: Series) -> tuple[str, ...]:
    """Return the libraries that a series was measured with: "torch 2.11.0", "cuda 13.0"."""
    names = GPU_SOFTWARE if one.is_gpu else SOFTWARE
    return tuple(f"{name} {one.facts[name]}" for name in names if one.facts.get(name))


def _unquote(value: str) -> str:
    """Return a parameter, which asv keeps as Python would print it."""
    try:
        return clean_line(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return clean_line(value)
