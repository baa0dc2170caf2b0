"""What asv costs for each commit besides measuring: `python -m ladder.asvoverhead`.

The newest commits of this repository, in a clone of it, are measured with a benchmark that does nothing: first one
of them, then all. The difference, without the seconds of the benchmarks' own processes, belongs to the commits:
checking out, starting and ending, saving. What asv does once in a run (discovery, asking the GPU) is said apart.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from ladder.base import files, git
from ladder.base import text as base_text
from ladder.base.errors import UserError, one_line
from ladder.base.paths import ROOT
from ladder.cli import options
from ladder.machine import system
from ladder.results import store as results

OUT = ROOT / "results" / "asv-overhead"
TARGET_S = 3.0
NOTHING = "def track_nothing():\n    return 1\n"


def measure(commits: int, repeats: int) -> dict[str, Any]:
    """The result as it is stored. UserError: asv failed."""
    head, dirty = git.commit_of(ROOT)
    facts = system.facts(system.choose_device())
    with tempfile.TemporaryDirectory(prefix="asv-overhead-") as folder:
        clone = Path(folder) / "clone"
        git.read(ROOT, *git.LF, "clone", "-q", "--no-hardlinks", str(ROOT), str(clone))
        if not (clone / "benches").is_dir():
            raise UserError("this commit has no benches/")
        (clone / "benches" / "nothing.py").write_text(NOTHING)
        chosen = git.read(clone, "rev-list", "--first-parent", f"-n{commits + 1}", "HEAD").split()
        if len(chosen) < 2:
            raise UserError("one commit is too few: there must be at least two to compare")
        _run(clone, chosen[:1])  # asv's own checkout is made once
        rows = [_repeat(clone, chosen) for _ in range(repeats)]
    return {
        "schema": 1,
        "kind": "asv overhead",
        "machine": {key: facts[key] for key in ("name", "gpu", "cpu", "cores", "python", "torch", "os")},
        "commit": head,
        "dirty": dirty,
        "commits": len(chosen) - 1,
        "rows": rows,
        "overhead_s": round(statistics.median(row["overhead_s"] for row in rows), 3),
        "once_s": round(statistics.median(row["once_s"] for row in rows), 3),
    }


def _repeat(clone: Path, chosen: list[str]) -> dict[str, Any]:
    one, (alone,) = _run(clone, chosen[:1])
    every, seen = _run(clone, chosen)
    added = len(chosen) - 1
    own = sum(each["benchmark_s"] for each in seen) - alone["benchmark_s"]
    overhead = (every - one - own) / added
    return {
        "run_of_one_s": round(one, 3),
        "run_of_all_s": round(every, 3),
        "overhead_s": round(overhead, 3),
        "checkout_s": [round(each["checkout_s"], 3) for each in seen],
        "once_s": round(one - overhead - alone["benchmark_s"], 3),
    }


def _run(clone: Path, commits: list[str]) -> tuple[float, list[dict[str, float]]]:
    """Seconds of a whole asv run, and what asv stored of each commit's."""
    for path in (clone / "results" / "asv").glob("*/*-checkout-*.json"):
        path.unlink()
    (clone / "hashes").write_text("\n".join(commits) + "\n")
    command = [sys.executable, "-m", "asv", "run", "HASHFILE:hashes", "-b", "^nothing"]
    start = time.perf_counter()
    run = subprocess.run(
        command, cwd=clone, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=_home(clone)
    )
    seconds = time.perf_counter() - start
    if run.returncode != 0:
        said = (run.stderr.strip() or run.stdout.strip()).splitlines()
        raise UserError(
            f"asv run ended with status {run.returncode}: {one_line(said[-1]) if said else 'no message'}"
        )
    seen = []
    for path in (clone / "results" / "asv").glob("*/*-checkout-*.json"):
        data = json.loads(path.read_text())
        columns = dict(zip(data["result_columns"], data["results"]["nothing.track_nothing"], strict=False))
        seen.append({"benchmark_s": columns["duration"], "checkout_s": data["durations"]["<build>"]})
    if len(seen) != len(commits):
        raise UserError(f"asv stored {len(seen)} of {len(commits)} commits")
    return seconds, seen


def _home(clone: Path) -> dict[str, str]:
    return os.environ | {"HOME": str(clone.parent)}


def markdown(data: dict[str, Any]) -> str:
    where = f"{data['machine']['gpu'] or data['machine']['cpu']}, {data['machine']['cores']} cores"
    most = max(max(row["checkout_s"]) for row in data["rows"])
    lines = [
        f"# asv's overhead for each commit: {where}",
        "",
        f"{data['overhead_s']:.2f} s for each of {data['commits']} commits (median of {len(data['rows'])} runs;"
        f" the target is {TARGET_S:.0f} s). Checking a commit out took {most:.2f} s at most. Once in a run:"
        f" {data['once_s']:.1f} s. Nothing is built or installed for a commit.",
        "",
        "| run | one commit, s | all commits, s | overhead for each, s | once in a run, s |",
        "|---:|---:|---:|---:|---:|",
    ]
    for number, row in enumerate(data["rows"], 1):
        cells = [row[key] for key in ("run_of_one_s", "run_of_all_s", "overhead_s", "once_s")]
        lines.append(f"| {number} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


@click.command()
@click.option("--commits", type=click.IntRange(1, 1000), default=8, show_default=True)
@click.option("--repeats", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--out", type=options.FOLDER, default=OUT, help="Folder for MACHINE.json and MACHINE.md.")
def main(commits: int, repeats: int, out: Path) -> None:
    """Measure what asv costs for each commit besides measuring it."""
    try:
        data = measure(commits, repeats)
        out.mkdir(parents=True, exist_ok=True)
        stem = results.place(out / f"{base_text.slug(data['machine']['name'])}.json", data).stem
        texts = {".json": json.dumps(data, indent=1, allow_nan=False) + "\n", ".md": markdown(data)}
        for suffix, text in texts.items():
            with files.replacing(out / f"{stem}{suffix}") as temporary:
                temporary.write_text(text, encoding="utf-8")
    except UserError as error:
        click.echo(f"asv overhead: {error}", err=True)
        raise SystemExit(2) from None
    click.echo(texts[".md"], nl=False)


if __name__ == "__main__":
    main()
