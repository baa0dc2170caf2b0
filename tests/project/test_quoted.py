"""README's tables hold what the result files linked beside them hold: replaced files take them along."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import committed, typed

ROOT = Path(__file__).parents[2]
TITLES = {"bf16": "BF16 mixed precision", "data loading": "optimized data loading"}  # shorter in README


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """README's text by heading."""
    parts = re.split(r"^## (.+)$", (ROOT / "README.md").read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def linked(text: str, pattern: str, page: Path = ROOT) -> dict[str, Any]:
    """The result whose link matches; `page` is the folder that links begin in."""
    (path,) = {found for found in re.findall(r"\]\(([^)]+)\)", text) if re.fullmatch(pattern, found)}
    return of(os.path.relpath((page / path).with_suffix(".json"), ROOT))


def of(path: str) -> dict[str, Any]:
    """A committed result by its path."""
    return json.loads(committed.file(path).read_text())


def newest(pattern: str) -> dict[str, Any]:
    """The newest committed result of the H200 of that name."""
    return json.loads(max(committed.folder("results/ladder/nvidia-h200").glob(pattern)).read_text())


def tables(text: str) -> list[dict[str, list[list[str]]]]:
    """Each table as {first cell: the other cells}, without its head."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        found.append({row[0]: row[1:] for row in rows[2:]})
    return found


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+\.\d+|\d+", text)


def agree(quoted: str, values: list[float]) -> None:
    """The numbers of a cell, each rounded as it is written there."""
    assert quoted and len(numbers(quoted)) == len(values), quoted
    for text, value in zip(numbers(quoted), values, strict=True):
        digits = len(text.partition(".")[2])
        assert abs(float(text) - value) <= 0.51 * 10**-digits, (quoted, value)


def all_agree(quoted: Sequence[str], values: Sequence[list[float]]) -> None:
    for text, each in zip(quoted, values, strict=True):
        agree(text, each)


def staircase(table: dict[str, list[str]], result: dict[str, Any], last: str) -> None:
    """Baseline, last rung and speedup, with and without lazy phases."""
    base, top = result["rungs"][0], result["rungs"][-1]
    for name, rung in (("baseline", base), (last, top)):
        whole, main = table[name]
        with_interval = "95%" in whole
        agree(whole.replace("95%", ""), [rung["step_ms"], *(rung["interval_ms"] if with_interval else [])])
        agree(main, [rung["main_ms"]])
    ((whole, main),) = (cells for name, cells in table.items() if name.startswith("speedup"))
    agree(
        whole.replace("95%", ""), [top["speedup_total"], *(top["total_interval"] if "95%" in whole else [])]
    )
    agree(main, [top["main_speedup_total"]])


def left_out(table: dict[str, list[str]], result: dict[str, Any]) -> None:
    """Gain and interval of what each rung is worth on top of all others; ADOPT stands for `faster`."""
    ends = r" and without | and \d| \("  # what cannot stand without it goes, too
    rungs = {re.split(ends, rung["title"].removeprefix("without "))[0]: rung for rung in result["rungs"]}
    assert len(table) == sum(rung["verdict"] == "faster" for rung in result["rungs"])
    for name, (gain, interval, advice) in table.items():
        name = re.split(ends, name)[0]
        rung = rungs[TITLES.get(name, name)]
        agree(gain, [rung["gain"]["ratio"]])
        agree(interval, rung["gain"]["interval"])
        assert (advice, rung["verdict"]) == ("ADOPT", "faster"), name


def test_the_articles_ladder(sections):
    stairs, leave_one_out = tables(sections["What one H200 said"])
    head = next(iter(re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.M)))
    staircase(stairs, linked(head, r"results/ladder/.*/article-article-\d.*"), "all eight rungs")
    left_out(leave_one_out, linked(head, r"results/ladder/.*/article-article-leave-one-out-.*"))


def test_beyond_the_article(sections):
    text = sections["Beyond the article"]
    stairs, _, leave_one_out = tables(text)
    result = linked(
        text.partition("Other workloads")[0].partition("[an earlier run]")[0],
        r"results/ladder/.*/article-full-\d.*",
    )
    staircase(stairs, result, f"all {len(result['rungs'])} rungs")
    left_out(leave_one_out, newest("article-full-leave-one-out-*.json"))


def test_other_workloads(sections):
    text = sections["Beyond the article"]
    _, table, _ = tables(text)
    assert len(table) == 5
    for name, (baseline, eight, top, speedup, rounds) in table.items():
        linked_chart = r"\[`(\S+)`\]\(results/charts/nvidia-h200-\1-full(-partial)?\.md\)"
        workload = re.match(linked_chart, name).group(1)
        found = newest(f"{workload}-full-2*.json")["rungs"]
        rungs = {rung["name"]: rung for rung in found if rung["rounds"]}
        best = list(rungs.values())[-1]
        assert all(rung["status"] == "ok" and rung["parity"]["verdict"] == "ok" for rung in rungs.values())
        agree(baseline, [rungs["baseline"]["step_ms"]])
        agree(top, [best["step_ms"]])
        agree(speedup.replace("95%", ""), [best["speedup_total"], *(best["total_interval"] or [])])
        if "fused_act" in rungs:
            agree(eight, [rungs["fused_act"]["step_ms"]])
        else:
            assert eight == "not measured"
        counts = {len(rung["rounds"]) for rung in rungs.values()}
        agree(rounds, sorted({min(counts), max(counts)}))
    assert workload == "stylegan2-1024"  # the table's last
    costs = [typed.lazy_costs(rungs[name])["D_r1"][0] for name in ("baseline", best["name"])]
    said = re.search(
        r"at 1024x1024 R1\s+adds ([\d,]+) ms to a step that has it on the baseline, and (\d+) ms", text
    )
    all_agree([each.replace(",", "") for each in said.groups()], [[cost] for cost in costs])


def adopted(said: str, workload: str) -> dict[str, Any]:
    """The newest leave-one-out run's rungs, by name; each that reads ADOPT is quoted, the largest gain first."""
    rungs = {rung["name"]: rung for rung in newest(f"{workload}-full-leave-one-out-*.json")["rungs"]}
    adopt = [rung["gain"]["ratio"] for rung in rungs.values() if rung["verdict"] == "faster"]
    all_agree(re.findall(r"\(([\d.]+)x\)", said), [[gain] for gain in sorted(adopt, reverse=True)])
    return rungs


def test_leave_one_out_with_instance_norm(sections):
    said = sections["Beyond the article"].partition("On `adain-256`")[2].partition("At batch 32")[0]
    rungs = adopted(said, "adain-256")
    graphs = re.search(r"takes ([\d.]+) ms\s+instead of ([\d.]+)\.", said)
    all_agree(graphs.groups(), [[rungs["cuda_graphs"]["step_ms"]], [rungs["all"]["step_ms"]]])
    prefetch = rungs["prefetch_stream"]["gain"]
    quoted = re.search(r"`prefetch_stream` reads ([\d.]+)x \(([\d.-]+)\)", said)
    all_agree(quoted.groups(), [[prefetch["ratio"]], prefetch["interval"]])


def test_leave_one_out_at_batch_32(sections):
    said = sections["Beyond the article"].partition("At batch 32")[2].partition("NVIDIA")[0]
    rungs = adopted(said, "article-b32")
    without = re.search(
        r"takes ([\d.]+) ms instead of ([\d.]+), without CUDA graphs ([\d.]+), .* backward ([\d.]+):", said
    )
    names = ("bf16", "all", "cuda_graphs", "conv_double_backward")
    all_agree(without.groups(), [[rungs[name]["step_ms"]] for name in names])
    assert {rungs[name]["verdict"] for name in names if name != "all"} == {"ambiguous"}


def test_it_lasts(sections):
    text = " ".join(sections["Beyond the article"].split())
    said = re.search(
        r"top takes ([\d.]+) ms where it took ([\d.]+) at first.*? ([\d.]+) ms where it took ([\d.]+)", text
    )
    at_8, at_32 = (
        linked(text, rf"results/sustained/nvidia-h200-{name}\.png")["rungs"][0]
        for name in ("article", "article-b32")
    )
    all_agree(said.groups(), [[at[key]] for at in (at_8, at_32) for key in ("sustained_ms", "first_ms")])


def test_nvidias_own(sections):
    text = " ".join(sections["Beyond the article"].split())
    said = re.search(
        r"takes ([\d.]+) ms on the same images, the top of that day ([\d.]+) ms: "
        r"([\d.]+) times as fast \(95%: ([\d.-]+)\)",
        text,
    )
    result = linked(text, r"results/upstream/.*\.md")
    theirs, ours = (program["step_ms"] for program in result["programs"])
    all_agree(said.groups(), [[theirs], [ours], [result["ratio"]["median"]], result["ratio"]["interval"]])


def test_torch_compile(sections):
    text = " ".join(sections["Beyond the article"].split())
    said = re.search(
        r"takes ([\d.]+) ms \(95%: ([\d.-]+)\), the top in the same three rounds ([\d.]+) ms: "
        r"([\d.]+) times as fast \(95%: ([\d.-]+)\)",
        text,
    )
    plain, top = linked(text, r"results/ladder/.*compile_autotune.*")["rungs"]
    times = [[plain["step_ms"]], plain["interval_ms"], [top["step_ms"]]]
    all_agree(said.groups(), [*times, [top["speedup_total"]], top["total_interval"]])
    (untuned,) = re.search(r"Not autotuned it takes ([\d.]+) ms", text).groups()
    agree(untuned, [linked(text, r"results/ladder/.*compile_default.*")["rungs"][-1]["step_ms"]])
    ours, compiled = linked(text, r"results/ladder/.*full_compile.*")["rungs"]
    said = re.search(r"slower, ([\d.]+) ms where it was ([\d.]+)", text).groups()
    all_agree(said, [[compiled["step_ms"]], [ours["step_ms"]]])
    assert compiled["verdict"] == "slower"


def test_the_speed_of_light(sections):
    text = " ".join(sections["Beyond the article"].split())
    floor, times = re.search(r"is ([\d.]+) ms a step: the top is ([\d.]+) times that", text).groups()
    result = linked(text, r"results/roofline/.*")
    agree(floor, [result["step"]["light_ms"]])
    agree(times, [result["measured"]["step_ms"] / result["step"]["light_ms"]])


def test_the_kernels_by_themselves(sections):
    text = " ".join(sections["Beyond the article"].split())
    least, most, enough, all_ = re.search(r"(\d+) to (\d+)%, (\d+) of (\d+) from 85% on", text).groups()
    shares = [share for _, share in memory_bound(linked(text, r"results/kernels/.*"))]
    agree(least, [min(shares)])
    agree(most, [max(shares)])
    assert (int(enough), int(all_)) == (sum(share >= 85 for share in shares), len(shares))


def memory_bound(result: dict[str, Any]) -> list[tuple[dict[str, Any], float]]:
    """Rows of maps of 128x128 and 256x256, or a pixel more after a transposed convolution; and percents of a copy."""
    return [
        (row, 100 * row["share"]["ours"]["median"])
        for row in result["rows"]
        if row["function"] in ("bias_act", "modulate", "upfirdn2d")
        and row["shape"][2] in (128, 129, 256, 257)
        and "ours" in row["share"]
    ]


def test_precisions(sections):
    text = sections["FP32, TF32, BF16 or FP16"]
    (table,) = tables(text)
    rows = {
        (row["precision"], row["on"]): row["step_ms"]
        for row in linked(text, r"results/precision/.*\.md")["rows"]
    }
    for name, cells in table.items():
        precision = name.split(",")[0].lower()
        for on, cell in zip(("baseline", "top"), cells, strict=True):
            agree(cell, [rows[precision, on]])
