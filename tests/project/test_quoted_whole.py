"""README and docs say what a whole file says, not its best figure: each number and count is made anew from it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ladder.studies.claims import sentences
from ladder.studies.claims.view import View
from tests.project.test_quoted import ROOT, agree, all_agree, linked, memory_bound

THREE = ("bias_act", "modulate", "upfirdn2d")
COMPARED = ("ours faster", "compile faster", "plain faster", "ambiguous", "no measurable gain")


def words(path: str) -> str:
    return " ".join((ROOT / path).read_text().split())


def stored(path: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / path).read_text())


@pytest.fixture(scope="module")
def readme() -> str:
    return words("README.md")


def test_kernels_are_quoted_with_the_slow_ones_beside_the_fast(readme: str) -> None:
    rows = linked(readme, r"results/kernels/.*")["rows"]
    others = [
        100 * row["share"]["ours"]["median"]
        for row in rows
        if "ours" in row["share"] and len(row["shape"]) == 4 and row["shape"][2] in (128, 129, 256, 257)
        if row["function"] not in (*THREE, "conv2d", "conv_transpose2d")
    ]
    said = re.search(
        r"other ops' (\d+) figures there, convolutions apart, (\d+) are below 85%, down to (\d+)%", readme
    )
    all_agree(said.groups(), [[len(others)], [sum(share < 85 for share in others)], [min(others)]])
    slower = [row for row in rows if row["verdict"] == "compile faster"]
    counts = [len(slower), sum(row["verdict"] in COMPARED for row in rows)]
    counts.append(sum(row["verdict"] == "plain faster" for row in rows))
    said = re.search(r"In (\d+) of (\d+) comparisons torch.compile is faster, in (\d+) plain PyTorch", readme)
    all_agree(said.groups(), [[each] for each in counts])

    def most(among: list[dict[str, Any]]) -> float:
        return max(1 / row["against"]["compile"]["times_faster"] for row in among)

    ours = [row for row in slower if row["function"] in THREE]
    assert {row["direction"] for row in ours} == {"forward"}
    said = re.search(
        r"forward passes at most (\d+)% faster, (\d+)% on smaller maps; elsewhere .*?([\d.]+) times", readme
    )
    large = [row for row, _ in memory_bound({"rows": ours})]
    all_agree(said.groups(), [[100 * most(large) - 100], [100 * most(ours) - 100], [most(slower)]])
    said = re.search(r"Of the (\d+) figures of other ops .*? (\d+) are below 85%", words("docs/targets.md"))
    all_agree(said.groups(), [[len(others)], [sum(share < 85 for share in others)]])


def test_what_the_article_says_of_kernels_is_not_the_best_case_alone(readme: str) -> None:
    view = View(stored("claims/nvidia-h200.json"))
    names = ("norm forward bf16", *sentences.FORMS.values())
    cuda = [view.ratio(name, "PyTorch", "CUDA C++")["median"] for name in names]
    triton = [view.ratio(name, "CUDA C++", "Triton", 100)["median"] for name in names]
    said = re.search(
        r"four cases CUDA C\+\+ is ([\d.]+)x to ([\d.]+)x, and Triton (\d+) to (\d+)% of it", readme
    )
    all_agree(said.groups(), [[min(cuda)], [max(cuda)], [min(triton)], [max(triton)]])
    norm = [view.ratio("block size of the norm", each, "512 threads")["median"] for each in sentences.ADVISED]
    said = re.search(r"blocks of 128 and 256 threads take ([\d.]+)x and ([\d.]+)x the time of 512", readme)
    all_agree(said.groups(), [[each] for each in norm])
    assert "the most of 4 cases, 1.90x to 4.01x" in words("docs/claims.md")


def test_sixteen_bits_are_compared_with_tf32_as_well() -> None:
    found = {
        (row["claim"], row["on"]): row
        for row in stored("precision/nvidia-h200.json")["claims"]
        if (row["precision"], row["against"]) == ("bf16", "tf32")
    }
    speed, top, memory = (
        found[key] for key in (("throughput", "baseline"), ("throughput", "top"), ("memory", "top"))
    )
    said = re.search(
        r"BF16 is ([\d.]+) times as fast as TF32 on the baseline \(([\d.]+) to ([\d.]+)\), ([\d.]+) times on the top "
        r"\(([\d.]+) to ([\d.]+)\), and takes ([\d.]+) and ([\d.]+) times its memory. The batch is ([\d.]+) times",
        words("docs/claims.md"),
    )
    values = [
        speed["ours"],
        *speed["interval"],
        top["ours"],
        *top["interval"],
        found["memory", "baseline"]["ours"],
    ]
    all_agree(
        said.groups(), [[each] for each in (*values, memory["ours"], found["batch", "baseline"]["ours"])]
    )


def test_nvidias_step_is_named_as_the_file_has_it(readme: str) -> None:
    result = linked(readme, r"results/upstream/.*\.md")
    assert result["source"]["networks"] == "networks" and "stylegan2-ada-pytorch's networks" in readme
    assert result["programs"][0]["settings"]["fast_double_backward"] is False
    assert "Its fast double backward was off" in readme


def test_the_self_test_is_quoted_with_what_it_did_not_decide(readme: str) -> None:
    groups = stored("selftest/nvidia-h200-real.json")["groups"]
    same = [each["verdict"] for group in groups for each in group["comparisons"] if each["planted"] is None]
    said = re.search(r"(\d+) pairs of identical programs all read `ambiguous`", readme)
    agree(said[1], [len(same)])
    assert set(same) == {"ambiguous"}
    canary = stored("canary/nvidia-h200/tiny-article-20261121T124208Z.json")
    assert canary["workload"]["resolution"] == 32 and len(canary["rungs"]) == 8
    assert "`tiny`, 32x32, from three seeds, images of these eight" in readme and canary["seeds"] == 3


def test_targets_count_the_comparisons_that_a_gpu_made() -> None:
    names = (
        "article-bench-compare-captured",
        "article-bench-compare-eager",
        "article-b32-bench-compare-eager",
    )
    asked = [each for name in names for each in stored(f"selftest/nvidia-h200-{name}.json")["questions"]]
    same = [each["verdict"] for each in asked if each["planted"] is None]
    eager = [each["verdict"] for each in asked if each["planted"] == 0.05]
    said = re.search(r"5% of one eager step of two, and (\d+) A/A of (\d+)", words("docs/targets.md"))
    all_agree(said.groups(), [[sum(word != "slower" for word in same)], [len(same)]])
    assert sorted(eager) == ["no measurable gain", "slower"]


def test_what_is_left_out_is_quoted_from_its_files() -> None:
    page = words("docs/left-out.md")
    folder = Path("ladder/nvidia-h200")
    rows = {(row["precision"], row["on"]): row for row in stored("precision/nvidia-h200.json")["rows"]}
    agree(re.search(r"\[(\d+) fit\]", page)[1], [rows["bf16", "baseline"]["largest"]["batch"]])
    said = re.search(r"([\d.]+) ms where BF16 takes ([\d.]+)", page)
    all_agree(said.groups(), [[rows[name, "top"]["step_ms"]] for name in ("fp8", "bf16")])
    _, top = stored(f"{folder}/article-compile_autotune-20261122T231746Z.json")["rungs"]
    agree(re.search(r"\[([\d.]+) times\]\(\S+compile_autotune", page)[1], [top["speedup_total"]])
    ours, compiled = stored(f"{folder}/article-full_compile-20261124T063933Z.json")["rungs"]
    said = re.search(r"([\d.]+) ms where it was ([\d.]+)", page)
    all_agree(said.groups(), [[compiled["step_ms"]], [ours["step_ms"]]])
    rungs = {
        rung["name"]: rung
        for rung in stored(f"{folder}/article-full-leave-one-out-20261122T003518Z.json")["rungs"]
    }
    gain = rungs["cached_uint8"]["gain"]
    said = re.search(
        r"\[([\d.]+) times\]\(\S+leave-one-out\S+ its time \(([\d.]+) to ([\d.]+), `ambiguous`", page
    )
    all_agree(said.groups(), [[gain["ratio"]], *[[bound] for bound in gain["interval"]]])
    assert rungs["cached_uint8"]["verdict"] == "ambiguous" and gain["rounds"] == 2
    weights = stored("upstream/nvidia-h200-article.json")["programs"][0]["settings"]
    said = re.search(r"\[([\d.]+) and ([\d.]+) million\]", page)
    all_agree(said.groups(), [[weights[f"parameters_{net}"] / 1e6] for net in ("G", "D")])
