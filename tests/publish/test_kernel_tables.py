"""The tables of `docs/kernels.md`: kernels timed alone, and in the step."""

import json
from pathlib import Path

from ladder.core.records import write_record
from ladder.publish.pages import explained, studies
from ladder.publish.pages.committed import Committed
from tests.support import committed, made_up_kernels, made_up_profile
from tests.support.two_clocks import kept

MACHINE = json.loads(committed.file("results/precision/nvidia-h200.json").read_text())["machine"]


def test_a_run_whose_time_was_used_up_says_how_many_cases_it_has(tmp_path: Path) -> None:
    cases = made_up_kernels.cases()
    rows = [made_up_kernels.row(case, way) for case in cases[1:] for way in case.directions]
    data = write_record(made_up_kernels.file(rows, cases[:1]))
    shown = studies.kernels(kept(tmp_path, "kernels/box.json", data), "box")
    assert f"*{len(cases) - 1} cases · 1 of {len(cases)} cases not measured" in shown


def test_kernels_in_a_step_stand_beside_copies(tmp_path: Path) -> None:
    asked = "*No complete run yet: `ladder profile graph_fills`.*\n"
    assert explained.passes(Committed(tmp_path), "box") == asked
    data = made_up_profile.of_profile(MACHINE, "fused_act", {"bias_act_kernel": 1.0})
    assert explained.passes(kept(tmp_path, "profile/box.json", data), "box") == asked  # of an older version
    known = {"kernel": "bias_act_kernel", "ms": 1.0, "launches": 4.0, "bytes": 2_000_000_000}
    data["observed"]["step"]["step"]["passes"] = [known | {"known_ms": 1.0, "copy_ms": 0.5}]
    shown = explained.passes(kept(tmp_path, "profile/box.json", data), "box")
    assert "| `bias_act_kernel` | 1.00 | 4.00 | 2,000 | 2.00 | 50.0% |" in shown
    assert "below 60%: bias\\_act\\_kernel" in shown and "(@/results/profile/box.md)" in shown
