"""A site of machines that never ran, for tests only: a toy history, results of several machines, hostile names."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benches import series
from ladder.publish.history.series import STEP
from tests.support import made_up, typed
from tests.support.repositories import commit_all, git

ROOT = Path(__file__).resolve().parents[2]
LADDER = "article-article-20261121T101500Z.json"

# Each says when it runs, and runs if it is ever taken for HTML; {} is where it was.
HOSTILE = "<img src=x onerror=\"window.hacked='{}'\">"
TAG = "v<img/src=x/onerror=window.hacked='tag'>"

H200 = {
    "machine": "nvidia-h200",
    "gpu": "NVIDIA H200",
    "gpu_memory": "140 GB",
    "cpu": "Intel(R) Xeon(R) Processor",
}
L40S = {"machine": "nvidia-l40s", "gpu": "NVIDIA L40S", "gpu_memory": "45 GB", "cpu": "AMD EPYC 9354"}
EVIL = {
    "machine": HOSTILE.format("machine"),
    "gpu": HOSTILE.format("gpu"),
    "gpu_memory": "1 GB",
    "cpu": "</script><script>window.hacked='cpu'</script>",
}
TIMES = {
    "baseline": 0.11, "channels_last": 0.105, "bf16": 0.104, "fused_norm": 0.102, "set_to_none": 0.103,
    "cuda_graphs": 0.069, "data_loading": 0.068, "fused_act": 0.062,
}  # fmt: skip
COLUMNS = [
    "result", "params", "version", "started_at", "duration", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25",
    "stats_q_75", "stats_number", "stats_repeat", "samples", "profile",
]  # fmt: skip
LATER = {"conv_double_backward": 0.045, "fused_resample": 0.038}


def project(folder: Path, commits: int = 4) -> list[str]:
    """A repository with `commits` commits and a configuration that measures nothing. Returns their hashes."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    hashes = []
    for number in range(commits):
        (folder / "code.py").write_text(f"VERSION = {number}\n")
        date = f"{1_790_000_000 + 86_400 * number} +0000"
        hashes.append(commit_all(folder, f"commit {number}", GIT_AUTHOR_DATE=date, GIT_COMMITTER_DATE=date))
    shutil.copyfile(ROOT / "asv.conf.json", folder / "asv.conf.json")
    text = (folder / "asv.conf.json").read_text()
    text = text.replace('"benchmark_dir": "benches"', f'"benchmark_dir": {json.dumps(str(ROOT / "benches"))}')
    (folder / "asv.conf.json").write_text(text)
    (folder / "results" / "asv").mkdir(parents=True)
    return hashes


def tag(folder: Path, name: str) -> None:
    git(folder, "tag", name)


def asv_result(
    folder: Path,
    machine: dict[str, str],
    commit: str,
    date: int,
    times: dict[str, float],
    torch: str = "2.11.0",
    where: str = "",
    **requirements: str,
) -> Path:
    """One result file of asv with seconds by rung, and the machine's record."""
    place = folder / "results" / "asv" / (where or machine["machine"])
    place.mkdir(exist_ok=True)
    facts = {"os": "Linux", "arch": "x86_64", "num_cpu": "16", "ram": "126 GB", **machine}
    (place / "machine.json").write_text(json.dumps({**facts, "version": 1}))
    software = {"torch": torch, "triton": "3.6.0", "cuda": "13.0", **requirements}
    name = "checkout-py3.11-" + "-".join(f"{key}{value}" for key, value in sorted(software.items()))
    file = f"{commit[:8]}-{name if not where else 'checkout-py3.11'}.json"
    rungs = [rung for rung in series.RUNGS if rung in times] + ["cached_uint8"]
    both = [*(times.get(rung, math.nan) for rung in rungs), *(math.nan for _ in rungs)]  # article, tiny
    stats = [[None if math.isnan(each) else each * by for each in both] for by in (0.98, 1.02, 0.99, 1.01)]
    counts = [[None if math.isnan(each) else count for each in both] for count in (1, 6)]
    params = [["'article'", "'tiny'"], [repr(rung) for rung in rungs]]
    body: dict[str, Any] = {
        "commit_hash": commit,
        "env_name": name,
        "date": 1000 * (1_790_000_000 + 86_400 * date),
        "params": {**facts, "python": "3.11", **software},
        "python": "3.11",
        "requirements": software,
        "env_vars": {},
        "result_columns": COLUMNS,
        "results": {STEP: [both, params, "1", 1_790_000_000_000, 100.0, *stats, *counts]},
        "durations": {},
        "version": 2,
    }
    (place / file).write_text(json.dumps(body))
    return place / file


def ladder_result(
    folder: Path, gpu: str | None = None, faster: float = 1.0, mode: str = "cumulative"
) -> Path:
    """A made-up result of an H200; with `gpu`, as if of another machine, `faster` times as fast."""
    data = made_up.judged_run(mode)
    name = LADDER if mode == "cumulative" else LADDER.replace("-2026", f"-{mode}-2026")
    if gpu:
        slug = gpu.lower().replace(" ", "-")
        data["machine"] |= {"name": slug, "gpu": gpu}
        data["rungs"] = [_scaled(rung, faster) for rung in data["rungs"]]
        data["twins"] = [_scaled(rung, faster) for rung in data["twins"]]
    place = folder / "results" / "ladder" / data["machine"]["name"]
    return typed.write_run(place / name, data)


def _scaled(value: Any, by: float, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _scaled(each, by, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_scaled(each, by, key) for each in value]
    times = key.endswith("_ms") and key != "article_ms" and isinstance(value, int | float)
    return value / by if times and not isinstance(value, bool) else value


PUBLISH = """
import shutil, sys
import benches._publishing as publishing
if sys.argv.pop(1) == "unvalidated":  # as if a hostile file had got through
    def accepted(results, into):
        shutil.copytree(results, into, dirs_exist_ok=True)
        return []
    publishing.accepted = accepted
from asv.main import main
sys.argv[0] = "asv"
main()
"""


def publish(folder: Path, *args: str, validated: bool = True) -> subprocess.CompletedProcess[str]:
    """`asv publish` of that project, with this checkout's plugins."""
    mode = "validated" if validated else "unvalidated"
    command = [
        sys.executable,
        "-c",
        PUBLISH,
        mode,
        "publish",
        "--config",
        str(folder / "asv.conf.json"),
        *args,
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def many(folder: Path) -> Path:
    """A project with two GPUs under the protocol, one that only asv measured, and a hostile one; its site."""
    hashes = project(folder, 6)
    tag(folder, TAG)
    for number, commit in enumerate(hashes):  # two lasting steps, of which two commits each are enough
        slower = {rung: seconds * (1, 1, 1.1, 1.1, 1.3, 1.3)[number] for rung, seconds in TIMES.items()}
        asv_result(folder, H200, commit, number, slower if number < 2 else slower | LATER)
    asv_result(folder, H200, hashes[3], 3, TIMES | LATER, torch="2.13.0")
    asv_result(folder, L40S, hashes[2], 2, {rung: 1.7 * seconds for rung, seconds in TIMES.items()})
    asv_result(folder, EVIL, hashes[3], 3, TIMES, where="evil", **{HOSTILE.format("requirement"): "1"})
    ladder_result(folder)
    ladder_result(folder, mode="leave-one-out")
    ladder_result(folder, "NVIDIA A100", 0.6)
    done = publish(folder, validated=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / ".asv" / "html"
