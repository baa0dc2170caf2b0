"""NVIDIA's own step stands below a GPU's rungs, by both clocks."""

from pathlib import Path

import pytest

from ladder.publish.pages import ladders, studies
from tests.publish.test_pages import stored_runs
from tests.support import two_clocks


def test_nvidias_step_is_the_last_row_of_its_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = stored_runs(tmp_path, article=two_clocks.run())
    assert "NVIDIA's own" not in ladders.render_gpus(stored)
    asked = []

    def nvidias(committed: object, machine: str, workload: str) -> tuple[str, str, str]:
        asked.append((machine, workload))
        return "NVIDIA's own", "208.3", "61.93"

    monkeypatch.setattr(studies, "nvidias", nvidias)
    lines = [line for line in ladders.render_gpus(stored).splitlines() if line.startswith("| ")]
    assert lines[-1].startswith("| NVIDIA's own | 208.3 | 61.93 |  |")
    assert asked == [("nvidia-h200", "article")] and len({line.count("|") for line in lines}) == 1
