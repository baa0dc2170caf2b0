"""The tables of planted faults, bugs and sabotage: how they are made, and that they are complete."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ladder.plan import catalog
from tests.parity import test_moments, test_parity
from tests.rungs import test_rung_whole_step_graph
from tests.support import committed, outcomes

ROOT = Path(__file__).resolve().parents[2]


def recorded(what: str) -> list[dict[str, Any]]:
    return json.loads(committed.file(f"results/faults/{what}.json").read_text())["rows"]


def test_every_recorded_fault_names_a_test_that_exists() -> None:
    named = [row["test"].split() for row in recorded("faults") if " " in row["test"]]
    assert len(named) >= 20
    for module, test in named:
        (path,) = (ROOT / "tests").rglob(f"{module.split('.')[0]}.py")
        assert f"def test_{test}(" in path.read_text(), f"{path.name} has no test_{test}"


def test_every_fault_is_recorded_in_the_result() -> None:
    seen = recorded("faults")
    assert {row["fault"] for row in seen} == set(outcomes.FAULTS)
    assert all(row["kept"] is not False and row["count"] >= 1 for row in seen)
    # A number only where it is a good one, repeated until it was, or marked for what it is.
    numbered = {"outlying process", "throttled visit", "company on the GPU", "NVML absent or refused"}
    assert {row["fault"] for row in seen if row["number"]} == numbered


def test_every_planted_bug_is_recorded_as_over_its_budget() -> None:
    seen = recorded("planted-bugs")
    planted = [
        *test_parity.BUGS,
        *test_rung_whole_step_graph.BUGS,
        *(bug for _, bug in test_moments.LOST.values()),
    ]
    assert set(planted) <= {row["bug"] for row in seen}
    assert all(row["over_budget"] is None or row["over_budget"] > 1 for row in seen)


def test_every_rung_was_sabotaged() -> None:
    assert {row["rung"] for row in recorded("sabotaged-rungs")} == set(catalog.rungs())


def test_tables_depend_neither_on_the_order_of_tests_nor_on_time(tmp_path: Path) -> None:
    made = [
        outcomes.fault(fault=name, injected="so", outcome=f"said {k}", count=k, test="test_a.py b")
        for k, name in ((1, "hang"), (2, "worker killed"), (1, "hang"))
    ]
    for folder, order in (("a", made), ("b", made[::-1])):
        outcomes.write(tmp_path / folder, {"faults": order})
    texts = [
        (tmp_path / folder / f"faults.{kind}").read_text() for kind in ("json", "md") for folder in ("a", "b")
    ]
    assert texts[0] == texts[1] and texts[2] == texts[3]
    found = json.loads(texts[0])["rows"]
    assert [(row["fault"], row["count"]) for row in found] == [("worker killed", 2), ("hang", 2)]
    assert re.search(r"\| hang \| so \| 2 \| said 1 \|", texts[2])


def test_what_a_test_says_it_planted_must_be_storable_and_known() -> None:
    with pytest.raises(ValueError, match="no fault 'flood'"):
        outcomes.fault(fault="flood", injected="so", outcome="wet", test="t")
    with pytest.raises(ValueError, match="injected"):
        outcomes.fault(fault="hang", injected="<b>", outcome="x", test="t")
    bug = outcomes.planted_bug(
        bug="b", planted="p", problem="D_r1 update of a.w: error 3, budget 0.5", test="t"
    )
    assert (bug["phase"], bug["tensor"], bug["over_budget"]) == ("D_r1", "a.w", 6.0)


def test_nothing_is_recorded_where_a_test_fails(tmp_path: Path) -> None:
    test = tmp_path / "test_planted.py"
    for last, status in (("assert True", 0), ("assert False", 1)):
        test.write_text(
            "def test_a(outcome):\n"
            "    outcome(fault='hang', injected='so', outcome='ended')\n"
            f"    {last}\n"
            "def test_b():\n    raise AssertionError('not asked for')\n"
        )
        out = tmp_path / f"out{status}"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
        command += [
            "-c",
            str(ROOT / "pyproject.toml"),
            "-p",
            "tests.conftest",
            "-p",
            "pytest_timeout",
            str(test),
        ]
        alone = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to import others takes seconds
        seen = subprocess.run(
            [*command, "--record-outcomes", str(out)], cwd=ROOT, env=alone, capture_output=True, text=True
        )
        assert seen.returncode == status, seen.stdout
        assert (out / "faults.json").exists() == (status == 0)
