"""The report's sections of studies and of NVIDIA's step: what their files say, and nothing without a file."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.records import plain
from ladder.machine import environment
from ladder.publish.report import inputs, page, studies
from ladder.results import loading, publishable
from ladder.results.types import head
from ladder.show.page import render_page
from tests.publish.report.test_report_page import RUN, Page
from tests.support import committed, made_up_ablation, made_up_profile, made_up_study
from tests.support.typed import write_run

SECTIONS = {
    "profiles": studies.show_profiles,
    "ablation": studies.show_ablations,
    "maps": studies.show_maps,
    "upstream": studies.show_upstream,
    "studies": studies.show_mistakes,
}
FILES = ["profiles", "ablation", "maps", "upstream"]


@pytest.fixture(scope="module")
def machine() -> dict[str, Any]:
    return plain(loading.load_run(RUN).machine)


@pytest.fixture(scope="module")
def folder(machine: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results beside the run: two profiles, two ablations, a map, and NVIDIA's step as it was timed."""
    results = tmp_path_factory.mktemp("results")
    timed = json.loads(committed.file("results/upstream/nvidia-h200-article.json").read_text())
    files = {
        "profile/h100-article-bf16": made_up_profile.of_profile(machine, "bf16", made_up_profile.FUSED),
        "profile/h100-article-baseline": made_up_profile.of_profile(
            machine, "baseline", made_up_profile.BASELINE
        ),
        "ablation/h100-article": made_up_ablation.of_ablation(machine),
        "ablation/h100-all": made_up_ablation.of_longer(machine),
        "map/h100-article": made_up_ablation.of_map(machine),
        "upstream/h100-article": timed | {"machine": machine},
    }
    for name, data in files.items():
        path = results / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(data))
    return results


@pytest.fixture(scope="module")
def whole(folder: Path) -> inputs.Inputs:
    return inputs.find_inputs([RUN], folder)


@pytest.fixture(scope="module")
def text(whole: inputs.Inputs) -> str:
    return page.render_report(whole)


def render_section(of: inputs.Inputs, name: str) -> str:
    """Return the HTML of one section."""
    section = SECTIONS[name](of)
    assert section is not None
    return render_page(page.make_head(of), [section]).partition("</h2>")[2].partition("</section>")[0]


def part(of: inputs.Inputs, name: str) -> str:
    return Page(render_section(of, name)).text


def test_each_study_has_its_place_on_the_page(text: str) -> None:
    ids = Page(text).ids("section")
    assert [each for each in ids if each in FILES] == FILES
    assert ids.index("steps") < ids.index("profiles") and ids.index("maps") < ids.index("memory")


def test_a_page_without_their_files_has_none_of_them(folder: Path) -> None:
    alone = inputs.find_inputs([RUN], folder / "nothing")
    assert not {*FILES} & {section.id for section in page.list_sections(alone)}


def test_categories_stand_side_by_side_in_the_ladders_order_with_the_change(whole: inputs.Inputs) -> None:
    said = part(whole, "profiles")
    assert "ms a stepbaselinebf16" in said
    assert "convolution50.0030.00 (-20.00)" in said and "fused: activation and bias0.002.00 (+2.00)" in said
    assert "copies0.500.50GPU time" in said  # a memset of a graph is the same memset
    assert "GPU time75.5040.50 (-35.00)" in said and "step76.5041.50 (-35.00)" in said
    assert "By phase" in said and "G_main" in said and "other is 0.0 percent" in said


def test_categories_of_older_profiles_add_up_to_gpu_time_with_what_ran_at_once(whole: inputs.Inputs) -> None:
    """An older profile has all milliseconds of each category alone, 3.5 of them beside another kernel."""
    files = []
    for each in whole.files:
        data = each.data
        if each.kind == "profile" and data["options"]["rung"] == "bf16":
            data = copy.deepcopy(data)
            step = data["observed"]["step"]["step"]
            step["gpu_ms"] -= 3.5
            for row in step["profile"]["families"]:
                del row["own_ms"]
        files.append(replace(each, data=data))
    said = part(replace(whole, files=tuple(files)), "profiles")
    assert "overlap of kernels0.00-3.50 (-3.50)" in said and "GPU time75.5037.00 (-38.50)" in said
    assert "overlap of kernels" not in part(whole, "profiles")


def test_one_profile_has_no_change(folder: Path, whole: inputs.Inputs) -> None:
    alone = inputs.find_inputs([RUN, folder / "profile" / "h100-article-bf16.json"], folder)
    said = part(alone, "profiles")
    assert "in brackets" not in said and "30.00 (" not in said and "in brackets" in part(whole, "profiles")


def test_a_profile_of_a_cpu_has_no_gpu_time(whole: inputs.Inputs) -> None:
    files = []
    for each in whole.files:
        data = each.data
        if each.kind == "profile":
            machine = data["machine"] | {"device": "cpu", "name": texts.slug(data["machine"]["cpu"])}
            data = data | {"machine": machine}
        files.append(replace(each, data=data))
    said = part(replace(whole, files=tuple(files)), "profiles")
    assert "all operators75.5040.50 (-35.00)" in said and "GPU time" not in said


def test_an_ablation_has_shapley_values_and_pairs(whole: inputs.Inputs, text: str) -> None:
    said = part(whole, "ablation")
    assert "act on each other most" in said and "all together" in said and "channels_last" in said
    assert "bf16" in said and "21 pairs" in said and "GPU time, ladder article" in said
    assert "not to be quoted" not in said
    section = text.partition('<section id="ablation"')[2].partition("</section>")[0]
    assert section.count("<picture>") == 2 and section.count("data:image/svg+xml,%3C") == 4
    assert said.index("all 5,040 orders") < said.index("gains at the top")  # as the heading says


def test_maps_have_heat_maps(whole: inputs.Inputs, text: str) -> None:
    said = part(whole, "maps")
    assert "ran out of memory" in said and "saves 2% of the step or more" in said
    assert "batch 64" in said
    section = text.partition('<section id="maps"')[2].partition("</section>")[0]
    assert section.count("<picture>") == 1


def test_nvidia_s_step_has_three_contenders_by_both_clocks_and_its_phases(whole: inputs.Inputs) -> None:
    said = part(whole, "upstream")
    assert "NVIDIA's stylegan2" in said and "the same, patched" in said and "ours, " in said
    assert "by the wall clock, paired by generation" in said and "its GPU time is" in said
    assert "By phase" in said and "D_r1" in said and "its fast double backward off" in said


def test_a_mark_of_a_file_stands_in_its_part(whole: inputs.Inputs) -> None:
    marked = tuple(replace(each, marks=("one <b>idle</b> word",)) for each in whole.files)
    for name in FILES:
        assert "not to be quoted: one &lt;b&gt;idle" in render_section(replace(whole, files=marked), name)


@pytest.mark.parametrize(
    "mark, line",
    [
        ("interrupted", "not to be quoted: interrupted"),
        ("quick: not to be quoted", "quick: not to be quoted"),
        ("noisy: not publishable: others took 20%", "noisy: not publishable: others took 20%"),
        *[(line, line) for line in environment.describe_variables({"OMP_NUM_THREADS": "1"})],
    ],
)
def test_a_mark_says_once_what_follows_and_a_variable_is_told_as_it_is(mark: str, line: str) -> None:
    assert publishable.told(mark) == line


# --- mistakes and levers --------------------------------------------------------------------------------------------


def of_study(machine: dict[str, Any], mode: str, times: dict[str, float]) -> dict[str, Any]:
    made = made_up_study.study(mode, times)
    return made | {"machine": machine, "workload": plain(head(loading.load_run(RUN))["workload"])}


def test_mistakes_and_levers_of_the_machine_join_the_page_with_both_clocks(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "ladder" / machine["name"]
    named = {
        "article-mistakes-20261126T101500Z": of_study(machine, "mistakes", made_up_study.TIMES),
        "article-levers-20261126T101500Z": of_study(machine, "levers", made_up_study.MODELS),
        "other-mistakes-20261126T101500Z": made_up_study.study("mistakes", made_up_study.TIMES),
    }
    for name, data in named.items():
        write_run(folder / f"{name}.json", data)
    of = inputs.find_inputs([RUN], tmp_path)
    assert [each[0].stem for each in of.studies] == [*named][:2] and len(of.raw) == 3
    said = part(of, "studies")
    assert "2.14x (slower)" in said and "times clean (GPU)" in said and "times unchanged (step)" in said
    assert "the GPU's work is 1.22x faster; the step shows less than" in said
    assert "studies" not in [each.id for each in page.list_sections(replace(of, studies=()))]


def test_a_named_study_is_of_the_machine_and_workload_of_the_page(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "article-mistakes-20261126T101500Z.json"
    write_run(path, of_study(machine, "mistakes", made_up_study.TIMES))
    levers = tmp_path / "ladder" / machine["name"] / "article-levers-20261126T101500Z.json"
    for stored in (levers, levers.with_stem("article-mistakes-20261126T101600Z")):
        mode = stored.stem.split("-")[1]
        times = made_up_study.MODELS if mode == "levers" else made_up_study.TIMES
        write_run(stored, of_study(machine, mode, times))
    assert [each[0] for each in inputs.find_inputs([RUN, path], tmp_path).studies] == [path, levers]
    with pytest.raises(UserError, match="a run of --mode mistakes; name a staircase"):
        inputs.find_inputs([path], tmp_path)
    write_run(path, made_up_study.study("mistakes", made_up_study.TIMES))
    with pytest.raises(UserError, match="of another machine or workload"):
        inputs.find_inputs([RUN, path], tmp_path)
