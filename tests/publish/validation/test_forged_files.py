"""Files with forged figures, one for each kind and each limit: none is accepted, and no command shows one."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.publish.validation import validate
from ladder.studies import frame
from tests.support import committed

RUN = "ladder/nvidia-h100-80gb-hbm3/article-article-20261128T061724Z.json"
PROFILE = "profile/nvidia-h200-article-fused_act.json"
GOLDENS = Path(__file__).parents[2] / "studies" / "goldens"
STEP = ("observed", "step", "step")


def forge(path: Path, places: tuple[Any, ...], change: Any) -> dict[str, Any]:
    """A file's data with a number that is there multiplied, and anything else replaced or added."""
    data = json.loads(path.read_bytes())
    *way, last = places
    holder = functools.reduce(lambda each, key: each[key], way, data)
    there = isinstance(holder, list) or last in holder
    holder[last] = holder[last] * change if there and isinstance(change, float) else change
    return data


def refusal(tmp_path: Path, name: str, data: Any) -> str:
    """Why a forged file is refused: by `ladder validate` and by `ladder report` in the same words."""
    (tmp_path / name).write_text(json.dumps(data))
    problem = validate.problem_of(tmp_path / name)
    shown = CliRunner().invoke(cli.main, ["report", str(tmp_path / name)])
    assert problem, "accepted"
    assert shown.exit_code == 2 and not shown.stdout and problem in shown.stderr
    return problem


@pytest.mark.parametrize("kind", [*frame.load_studies(), "ladder"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("started", "2099-01-01T00:00:00+00:00"), ("complete", True), ("verdict", "faster"), ("step_ms", 1.0)],
)
def test_no_kind_states_what_follows_from_its_observations(
    tmp_path: Path, kind: str, key: str, value: Any
) -> None:
    path = committed.file(f"results/{RUN}") if kind == "ladder" else GOLDENS / f"{kind}.json"
    assert key in refusal(tmp_path, path.name, forge(path, (key,), value))


@pytest.mark.parametrize(
    ("name", "places", "change", "problem"),
    [
        (RUN, ("rungs", 1, "step_ms"), 1.0, "step_ms"),
        (RUN, ("rungs", 1, "gain"), {"against": "baseline", "ratio": 99.0, "rounds": 3}, "gain"),
        (RUN, ("rungs", 1, "rounds", 0, "samples_ms", 0), 1e-3, "faster than"),
        (RUN, ("rungs", 1, "rounds", 0, "profiled", 0, "gpu_ms"), 1e3, "more than the wall time"),
        (RUN, ("rungs", 1, "parity", "phases", "G_main", "gradient", "nearest_budget"), 5, "nearest_budget"),
        (RUN, ("merged", 0, "started"), "2099-01-01T00:00:00+00:00", "in the future"),
        (PROFILE, (*STEP, "phases", 0, "ms"), 1e3, "more than all kernels"),
        (PROFILE, (*STEP, "heaviest", 0, "ms"), 1e3, "more than all kernels"),
        (PROFILE, (*STEP, "profile", "families", 0, "own_ms"), 1e3, "gpu_ms"),
        (PROFILE, (*STEP, "profile", "kernels", 0, "ms"), 1e3, "more than"),
        (PROFILE, (*STEP, "gpu_ms"), 1e-2, "gpu_ms"),
        ("map/nvidia-h200-article-article.json",
         ("observed", "32x32, batch 4, whole ladder", "look", "gpu_ms"), [1e6], "far more than wall_ms"),
    ],
)  # fmt: skip
def test_a_figure_that_no_machine_shows_is_refused(
    tmp_path: Path, name: str, places: tuple[Any, ...], change: Any, problem: str
) -> None:
    path = committed.file(f"results/{name}")
    assert problem in refusal(tmp_path, path.name, forge(path, places, change))


def test_parity_is_judged_by_the_budget_and_not_by_what_the_file_says(tmp_path: Path) -> None:
    path = committed.file(f"results/{RUN}")
    data = forge(path, ("rungs", 1, "parity", "phases", "G_main", "gradient", "nearest_error"), 1e6)
    (tmp_path / path.name).write_text(json.dumps(data))
    shown = CliRunner().invoke(cli.main, ["report", "--json", str(tmp_path / path.name)])
    assert json.loads(shown.stdout)["rungs"][1]["parity"]["verdict"] == "failed: parity"
