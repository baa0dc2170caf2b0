"""docs/targets.md says what was seen of each target: the numbers are those of the files linked beside them."""

import re
from typing import Any

import pytest

from tests.project import test_quoted
from tests.project.test_quoted import agree, tables
from tests.support import typed

DOCS = test_quoted.ROOT / "docs"
TOP = "fused_modulation"


@pytest.fixture(scope="module")
def table() -> dict[str, list[str]]:
    (found,) = tables((DOCS / "targets.md").read_text())
    return found


@pytest.fixture(scope="module")
def seen(table) -> dict[str, str]:
    """The second column by the first, without names, which have digits."""
    return {target: re.sub(r"`[^`]*`", "", cells[0]) for target, cells in table.items()}


@pytest.fixture(scope="module")
def cells(table) -> dict[str, str]:
    """The last column, which has the links."""
    return {target: cells[-1] for target, cells in table.items()}


def of(rows: dict[str, str], words: str) -> str:
    (text,) = [text for target, text in rows.items() if words in target]
    return text


def linked(text: str, part: str) -> dict[str, Any]:
    return test_quoted.linked(text, f".*{part}.*", DOCS)


def rungs(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {rung["name"]: rung for rung in result["rungs"]}


def test_the_step_at_batch_8(seen, cells):
    top = rungs(linked(of(cells, "(batch 8), top"), "article-full"))[TOP]
    agree(of(seen, "(batch 8), top"), [top["step_ms"], *top["interval_ms"]])
    other = list(rungs(linked(of(cells, "top over baseline"), "article-full")).values())[-1]
    values = [
        [each["speedup_total"], *each["total_interval"], each["main_speedup_total"]] for each in (top, other)
    ]
    agree(of(seen, "top over baseline"), [*values[0], *values[1]])


def test_the_step_at_batch_32(seen, cells):
    found = rungs(linked(of(cells, "`article-b32`"), "article-b32"))
    names = (TOP, "cached_uint8", "baseline")
    times = [value for name in names for value in (found[name]["step_ms"], *found[name]["interval_ms"])]
    agree(of(seen, "`article-b32`"), [*times, found[TOP]["speedup_total"], *found[TOP]["total_interval"]])


def test_the_lazy_phases(seen, cells):
    top = rungs(linked(of(cells, "R1's phase"), "article-full"))[TOP]
    added = typed.lazy_costs(top)
    agree(
        of(seen, "R1's phase").replace("R1", ""),
        [value for phase in ("D_r1", "G_pl") for value in (added[phase][0], *added[phase][1])],
    )


def test_the_opponents(seen, cells):
    text = of(cells, "stylegan3")
    at_8, at_32 = linked(text, r"h200-article\.md"), linked(text, r"h200-article-b32")
    theirs, ours = (program["step_ms"] for program in at_8["programs"])
    ratios = [[each["ratio"]["median"], *each["ratio"]["interval"]] for each in (at_8, at_32)]
    agree(re.sub(r"batch 8|at 32", "", of(seen, "stylegan3")), [*ratios[0], theirs, ours, *ratios[1]])
    plain, top = linked(of(cells, "torch.compile"), "compile_autotune")["rungs"]
    agree(
        of(seen, "torch.compile"),
        [top["speedup_total"], *top["total_interval"], plain["step_ms"], top["step_ms"]],
    )


def test_the_memory_bound_kernels(seen, cells):
    found = test_quoted.memory_bound(linked(of(cells, "of a copy"), "kernels/"))
    shares = sorted(share for _, share in found)
    large = [share for row, share in found if row["batch"] == 32]
    compiled = sum(row["verdict"] == "compile faster" for row, _ in found)
    said = re.sub(r"batch \d+|\d+x\d+", "", of(seen, "of a copy").partition(" torch.compile")[0])
    enough = sum(share >= 85 for share in shares)
    agree(said, [enough, len(shares), min(large), max(large), *shares[:2], compiled, len(shares)])


def test_the_seconds_before_the_first_step(seen, cells):
    text = of(cells, "first timed cycle")
    warm, cold = (rungs(linked(text, when))[TOP]["rounds"][0] for when in ("T215235Z", "T215416Z"))
    parts = [[each[f"{part}_s"] for part in ("start", "build", "prepare")] for each in (warm, cold)]
    said = of(seen, "first timed cycle").partition(", then")[0]
    agree(said, [sum(parts[0]), *parts[0], sum(parts[1]), *parts[1], cold["compile_kernels_s"]])
    assert warm["compile_kernels_s"] is None


def test_the_speed_of_light(seen, cells):
    text = of(cells, "speed of light")
    step = rungs(linked(text, "ladder/nvidia"))[TOP]["step_ms"]
    floor = linked(text, "roofline/")["step"]["light_ms"]
    agree(of(seen, "speed of light"), [step / floor, step, floor])
