"""The file of `make bench-kernels`: machine and commit as in all results, no host's name, and what is no result.

A plugin of its own (`-p tests.bench_plugin`): tests have no business with pytest-benchmark.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ladder.core import git

NOTE = "CPU smoke test: Triton's interpreter at tiny sizes, not to be quoted"
ROOT = Path(__file__).resolve().parent.parent


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def name() -> str:
    """Of the file: the machine's, as of all results, and whether it is one."""
    from ladder.machine import system

    where = device()
    return system.describe_machine(where)["name"] + ("-smoke" if where == "cpu" else "")


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """The project's record of a machine; `pytest-benchmark compare` reads node, machine and the CPU's name."""
    from ladder.machine import system

    facts = system.describe_machine(device())
    return facts | {"node": facts["name"], "machine": facts["os"], "cpu": {"brand_raw": facts["cpu"]}}


@pytest.hookimpl(tryfirst=True)
def pytest_benchmark_generate_commit_info(config: pytest.Config) -> dict[str, Any]:

    commit, dirty = git.commit_of(ROOT)
    return {"id": commit or "unknown", "dirty": bool(dirty)}


def pytest_benchmark_update_json(config: pytest.Config, benchmarks: list[Any], output_json: dict) -> None:
    output_json["note"] = NOTE if device() == "cpu" else None


def free_name() -> str:
    """The name for a new file: with the time where another host or commit has the machine's."""
    from ladder.machine import system
    from ladder.results import store

    path, now = ROOT / "results" / "benchmarks" / f"{name()}.json", system.describe_machine(device())
    before = store.read(path) if path.exists() else None
    commit = before and before["commit_info"]["id"]
    if before is None or (before["machine_info"].get("cores"), commit) == (
        now["cores"],
        git.commit_of(ROOT)[0],
    ):
        return path.stem
    return f"{path.stem}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"


if __name__ == "__main__":
    print(free_name())
