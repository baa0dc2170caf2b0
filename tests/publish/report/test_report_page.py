"""The full report: every part of its files, nothing from elsewhere, and a stranger's name stays a name."""

from __future__ import annotations

import html.parser
import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as change

from ladder.cli import report_page
from ladder.publish.report import inputs, page
from ladder.publish.report.sections import TONES
from ladder.report import panels
from ladder.report.themes import DARK, LIGHT
from ladder.results import loading, store
from ladder.results.run import Result
from ladder.show.page import list_colors
from ladder.studies.roofline import derive
from tests.support import two_clocks
from tests.support.commands import refused, succeed
from tests.support.typed import typed

DATA = Path(__file__).resolve().parents[2] / "data" / "results"
RUN = DATA / "ladder" / "nvidia-h100-80gb-hbm3" / "article-article-20261125T180506Z.json"
SUSTAINED, ROOFLINE = (
    DATA / kind / "nvidia-h100-80gb-hbm3-article.json" for kind in ("sustained", "roofline")
)
PARTS = (
    *("staircase", "advice", "verdicts", "categories", "steps", "memory", "energy", "light", "proofs"),
    *("environment", "raw"),
)
EVIL = "</script><img src=x onerror=alert(1)>"


class Page(html.parser.HTMLParser):
    """Every tag of a page with its attributes, its text, and the text of its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text, self.data = "", ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attributes}))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == ("script", {"type": "application/json", "id": "data"}):
            self.data += data
        else:
            self.text += data

    def ids(self, tag: str) -> list[str]:
        return [attributes["id"] for name, attributes in self.tags if name == tag and "id" in attributes]


@pytest.fixture(scope="module")
def whole() -> inputs.Inputs:
    return inputs.find_inputs([RUN], DATA)


@pytest.fixture(scope="module")
def text(whole: inputs.Inputs) -> str:
    return page.render_report(whole)


@pytest.fixture(scope="module")
def shown(text: str) -> Page:
    return Page(text)


def made(result: Result, **more: Any) -> inputs.Inputs:
    return inputs.Inputs((RUN, result), None, "measured by nobody", **more)


def part(of: inputs.Inputs, name: str) -> str:
    """Return the text of one section, "" where there is none."""
    return Page(render_section(of, name)).text


def render_section(of: inputs.Inputs, name: str) -> str:
    """Return the HTML of one section, "" where there is none."""
    opening = f'<section id="{name}" aria-labelledby="{name}-title">'
    return page.render_report(of).partition(opening)[2].partition("</section>")[0]


# --- its parts ------------------------------------------------------------------------------------------------------


def test_a_page_has_every_part_with_a_link_to_it(shown: Page, text: str) -> None:
    assert tuple(shown.ids("section")) == PARTS
    links = [attributes["href"] for tag, attributes in shown.tags if tag == "a"]
    assert links == ["#staircase", *(f"#{name}" for name in PARTS)]
    assert "NVIDIA H100 80GB HBM3" in shown.text
    assert "Not to be quoted" not in text.partition("<nav")[0]


def test_each_part_says_what_its_files_say(whole: inputs.Inputs) -> None:
    said = {name: part(whole, name) for name in PARTS}
    assert "1.13x faster (1.123-1.136x)" in said["staircase"] and "175.1 ms" in said["staircase"]
    assert (
        "undecided" in said["advice"] and "s/kimg" in said["advice"] and 'precision: "bf16"' in said["advice"]
    )
    assert "0.91x ambiguous" in said["verdicts"] and "95% interval" in said["verdicts"]
    assert "52.8" in said["categories"] and "4,080 launches" in said["categories"]
    assert "ms a stepconvolution" in said["categories"]  # a row a rung: a column each is wider than paper
    assert (
        "12.22 ms less GPU work than baseline" in said["steps"]
        and said["steps"].count("GPU time of that") == 4
    )
    assert "5.37 GiB" in said["memory"] and "at most 134" in said["energy"]
    assert "No score: no floor is frozen" in said["light"] and "TFLOP" in said["light"]
    assert "convolution FLOPs in BF16" in said["proofs"] and "D_r1" in said["proofs"]
    assert "580.159.04" in said["environment"] and "bc83a5c8a4" in said["environment"]


def test_what_is_not_decided_says_so(whole: inputs.Inputs) -> None:
    said = part(whole, "staircase")
    assert "0.91x ambiguous, not decided (0.862-0.969x)" in said
    assert said.count("not decided") == 2 and "faster, not decided" not in said
    none = loading.load_run(RUN)
    bare = [change(rung, gain=None, verdict=None, gpu_gain=None, gpu_verdict=None) for rung in none.rungs]
    said = part(made(change(none, rungs=bare)), "staircase")
    assert "1.13x, not decided" in said and said.count(", not decided") == 6


def test_a_gpu_time_above_the_step_is_told_as_the_table_tells_it() -> None:
    result = loading.load_run(RUN)
    above = change(result.rungs[-1], gpu_ms=(result.rungs[-1].step_ms or 0.0) + 5.0, waiting_ms=0.0)
    said = part(made(change(result, rungs=[*result.rungs[:-1], above])), "staircase")
    assert panels.short_ms(above.gpu_ms or 0.0) in said and "may exceed the step" in said


def test_the_outcome_has_no_factor_that_contradicts_its_times() -> None:
    result = loading.load_run(RUN)
    for total, interval, told in ((0.82, [0.78, 0.87], "0.82x"), (1.1, [0.31, 2.7], "not decided")):
        last = change(result.rungs[-1], speedup_total=total, total_interval=interval)
        shown = made(change(result, rungs=[*result.rungs[:-1], last]))
        step, work, hours, images = page.make_head(shown).tiles
        assert step == ("ms a step", "171 → 209", told) and work[2] == "1.52x"
    assert hours[1] == "181" and images[1:] == ("38.4", "46.8 at FP32 baseline")


@pytest.mark.parametrize("which", ["incomplete", "two generations"])
def test_a_page_of_too_little_is_marked_as_not_to_be_quoted(which: str) -> None:
    result = loading.load_run(RUN)
    if which == "incomplete":
        result = change(result, complete=False)
    else:
        result = change(result, rungs=[change(rung, rounds=rung.rounds[:2]) for rung in result.rungs])
    head = page.render_report(made(result)).partition("<nav")[0]
    assert "Not to be quoted" in head and ("incomplete" in head or "fewer than 3 generations" in head)


def test_the_joules_of_a_step_stand_beside_the_rung_with_that_very_recipe(whole: inputs.Inputs) -> None:
    rows = {line.split()[0]: line for line in _rows(whole, "advice", "J/step")}
    assert rows["fused_norm"].endswith(" 80") and rows["bf16"].endswith("at most 134")
    assert "J/step" not in part(made(loading.load_run(RUN)), "advice"), (
        "no file has energy, and a column is there"
    )


def test_nvidias_own_figures_stand_beside_the_rungs_at_their_resolution(whole: inputs.Inputs) -> None:
    said = part(whole, "advice")
    assert "NVIDIA's own, A10012.5379.887.0" in said and "docs/configs.md" in said
    result = loading.load_run(RUN)
    other = made(change(result, workload=result.workload | {"resolution": 128}))
    assert "A100" not in part(other, "advice")


def test_a_price_gives_the_money_of_a_training(whole: inputs.Inputs) -> None:
    rows = {line.split()[0]: line.split() for line in _rows(replace(whole, price=2.5), "advice", "money")}
    hours, money = (float(each.replace(",", "")) for each in rows["baseline"][-2:])
    assert money == pytest.approx(2.5 * hours, abs=0.2)


def _rows(of: inputs.Inputs, name: str, heading: str) -> list[str]:
    """Return the rows of the last table of a section that has a heading, a line of text each."""
    tables = render_section(of, name).split("<table>")
    table = [each for each in tables if f">{heading}</th>" in each][-1]
    rows = re.findall(r"<tr>(.*?)</tr>", table.partition("</table>")[0])
    return [" ".join(re.sub(r"<[^>]*>", " ", row).split()) for row in rows]


def test_a_score_stands_beside_each_rung_where_times_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    (((_, work), known),) = derive.FROZEN.items()
    monkeypatch.setattr(derive, "FROZEN", {("nvidia-h100-80gb-hbm3", work): known})
    said = part(inputs.find_inputs([RUN], DATA), "light")
    step = next(rung.step_ms for rung in loading.load_run(RUN).rungs if rung.name == "bf16")
    assert f"{derive.derive_score(step, known.base_ms, known.floor_ms):.3f}" in said
    assert "7.93 ms, frozen on 2026-11-24" in said and "Today's floor is 8.22 ms" in said


def test_an_older_result_without_profiles_has_no_categories_and_no_explanations() -> None:
    ids = [each.id for each in page.list_sections(made(typed(two_clocks.run())))]
    assert ids == ["staircase", "advice", "verdicts", "memory", "proofs", "environment", "raw"]


def test_a_rung_without_a_number_keeps_its_row_and_its_reason() -> None:
    result = loading.load_run(RUN)
    gone = change(
        result.rungs[2], status="failed", reason="it fell over", step_ms=None, gpu_ms=None, profile=None
    )
    said = part(made(change(result, rungs=[*result.rungs[:2], gone, result.rungs[3]])), "staircase")
    assert "failed: it fell over" in said


# --- nothing from elsewhere -----------------------------------------------------------------------------------------


def test_nothing_is_loaded_and_only_the_named_script_runs(text: str, shown: Page) -> None:
    for tag, attributes in shown.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    assert "http:" not in text.replace("http-equiv", "") and "https:" not in text and "url(" not in text
    (policy,) = [each["content"] for tag, each in shown.tags if each.get("http-equiv")]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "style=" not in text


def test_the_embedded_json_is_the_files_data(shown: Page) -> None:
    data = json.loads(shown.data)
    assert sorted(data) == sorted(f"{each.parent.name}/{each.name}" for each in (RUN, SUSTAINED, ROOFLINE))
    for path in (RUN, SUSTAINED, ROOFLINE):
        assert data[f"{path.parent.name}/{path.name}"] == json.loads(path.read_text())
    assert str(DATA) not in shown.data + shown.text


def test_hostile_names_are_escaped_everywhere(tmp_path: Path) -> None:
    result = loading.load_run(RUN)
    rungs = [
        change(
            rung, name=f"{EVIL}{number}", title=f"{EVIL}{number}", notes=[EVIL],
            receipts={EVIL: change(each, lines=[EVIL])},
            profile=change(
                rung.profile,
                families=[change(family, name=EVIL) for family in rung.profile.families[:1]],
                kernels=[change(kernel, name=EVIL) for kernel in rung.profile.kernels],
            ),
        )
        for number, rung in enumerate(result.rungs)
        for each in list(rung.receipts.values())[:1]
    ]  # fmt: skip
    machine = change(result.machine, gpu=EVIL, driver=EVIL, cpu=EVIL)
    result = change(
        result,
        machine=machine,
        rungs=rungs,
        environment={"A": EVIL},
        workload=result.workload | {"name": EVIL},
    )
    path = tmp_path / f"{EVIL}.json"
    store.write(path, {"title": EVIL})
    evil = page.render_report(replace(made(result), whose=EVIL, staircase=(path, result)))
    shown = Page(evil)
    assert "img" not in {tag for tag, _ in shown.tags} and evil.count("</script>") == 2
    assert shown.text.count("onerror=alert(1)") > 20 and json.loads(shown.data)


# --- the files of a page --------------------------------------------------------------------------------------------


def test_named_files_stand_in_place_of_the_stored_ones(tmp_path: Path) -> None:
    shutil.copy(SUSTAINED, tmp_path / "mine.json")
    names = [each.name for each in inputs.find_inputs([RUN, tmp_path / "mine.json"], DATA).files]
    assert names == [f"{tmp_path.name}/mine.json", f"roofline/{ROOFLINE.name}"]
    assert inputs.find_inputs([RUN], tmp_path).files == ()


def test_a_refused_file_beside_the_others_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "sustained").mkdir()
    (tmp_path / "sustained" / "broken.json").write_text("{")
    other = json.loads(SUSTAINED.read_text())
    other["machine"] |= {"name": "nvidia-a100", "gpu": "NVIDIA A100"}
    (tmp_path / "sustained" / "other.json").write_text(json.dumps(other))
    assert inputs.find_inputs([RUN], tmp_path).files == ()


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_where_it_is_told_or_beside_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_page, "RESULTS", DATA)
    monkeypatch.setattr(report_page, "REPORTS", tmp_path / "reports")
    said = succeed("report", "--html", tmp_path / "mine.html", RUN, "--price", "2.5/h").stdout
    assert "mine.html" in said and "money" in (tmp_path / "mine.html").read_text()
    for named in ([RUN], []):
        succeed("report", "--html", *named)
        (path,) = (tmp_path / "reports").iterdir()
        assert path.name == "nvidia-h100-80gb-hbm3-article-article.html"
        path.unlink()


def test_bad_requests_are_one_line_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_page, "RESULTS", DATA)
    monkeypatch.setattr(report_page, "REPORTS", tmp_path / "reports")
    other = json.loads(SUSTAINED.read_text())
    other["workload"]["batch"] = 16
    other["workload"]["name"] = "mine"
    (tmp_path / "other.json").write_text(json.dumps(other))
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps({"kind": "selftest"}))
    for arguments, words in (
        (("--html", tmp_path / "none.json"), "cannot be read"),
        (("--html", tmp_path / "page.txt", RUN), "the name of a page ends in .html"),
        (("--html", SUSTAINED), "name a result of"),
        (("--html", RUN, RUN), "2 runs of mode cumulative"),
        (("--html", RUN, tmp_path / "other.json"), "another machine or workload"),
        (("--html", RUN, unknown), "no section"),
        (("--html", RUN, "--json"), "leave out every other option"),
        (("--html", RUN, "--price", "dear"), "give the price of an hour"),
        (("--price", "2.5/h"), "--price is for --html"),
    ):
        assert words in refused("report", *arguments), arguments
    assert not (tmp_path / "reports").exists()


# --- colours --------------------------------------------------------------------------------------------------------


def _light(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * each for weight, each in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_figures_in_bars_and_every_text_have_a_contrast_of_four_and_a_half(theme: Any) -> None:
    colors = list_colors(theme)
    pairs = [(colors["on"], colors[name]) for name in ("busy", *(f"k{number}" for number in range(12)))]
    pairs += [(colors["ink"], colors[name]) for name in ("idle", "soft", "gap", "ground")]
    pairs += [(colors[name], colors["ground"]) for name in ("muted", "good", "bad", "open", "link", "busy")]
    pairs += [
        (colors["open"], colors["warn"]),
        (colors["ink"], colors["warn"]),
        (colors["muted"], colors["gap"]),
    ]
    for pair in pairs:
        low, high = sorted(map(_light, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair


def test_no_two_categories_share_a_colour() -> None:
    for one, other in itertools.combinations([*TONES.items()], 2):
        assert one[1] != other[1] or {one[0], other[0]} == {"random numbers", "other"}
