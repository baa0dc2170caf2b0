"""The tables of `docs/attribute.md`: complete results are shown, others are not."""

import json
from pathlib import Path

from ladder.publish.pages import studies
from ladder.publish.pages.committed import Committed
from tests.support import committed, made_up_ablation
from tests.support.two_clocks import kept

MACHINE = json.loads(committed.file("results/ablation/nvidia-h200-article-full.json").read_text())["machine"]


def test_a_complete_ablation_is_shown_with_its_sources(tmp_path: Path) -> None:
    assert "*No complete run yet: `ladder ablate`.*\n" == studies.TABLES["ablated"](Committed(tmp_path))
    data = made_up_ablation.of_ablation(MACHINE, made_up_ablation.ARTICLE[:3])
    shown = studies.TABLES["ablated"](kept(tmp_path, "ablation/a.json", data))
    assert shown.startswith("**NVIDIA H200**, `article`, ladder `article`\n\n| rung |")
    assert "| bf16 | " in shown and "is its order" in shown and "(@/results/ablation/a.png)" in shown
    data["observed"].popitem()
    stopped = kept(tmp_path, "ablation/a.json", data)
    assert studies.TABLES["ablated"](stopped).startswith("*No complete run yet")


def test_a_map_is_shown(tmp_path: Path) -> None:
    assert "*No complete run yet: `ladder map`.*\n" == studies.TABLES["mapped"](Committed(tmp_path))
    shown = studies.TABLES["mapped"](kept(tmp_path, "map/a.json", made_up_ablation.of_map(MACHINE)))
    assert "| cuda\\_graphs, step | batch 4 |" in shown and "article's policy" in shown
