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

from ladder.cli import stored
from ladder.core.errors import UserError
from ladder.core.records import write_whole
from ladder.publish import report as page
from ladder.results import loading, store
from ladder.results.run import Result
from ladder.show.page import Bar, Bars, Part, list_colors, render_page
from ladder.show.themes import DARK, LIGHT
from ladder.studies.roofline import derive
from tests.support import committed, made_up_ablation, made_up_profile, made_up_study, two_clocks
from tests.support.commands import refused, succeed
from tests.support.typed import typed, write_run

DATA = Path(__file__).resolve().parents[2] / "data" / "results"
RUN = DATA / "ladder" / "nvidia-h100-80gb-hbm3" / "article-article-20261125T180506Z.json"
SUSTAINED = DATA / "sustained" / "nvidia-h100-80gb-hbm3-article.json"
EVIL = "</script><img src=x onerror=alert(1)>"
PARTS = {  # the sections in their order, with what each shows of the files of the test
    "staircase": ["1.13x faster (1.119-1.141x)", "175.1 ms", "0.91x ambiguous, not decided (0.822-1.016x)"],
    "advice": ["undecided", "s/kimg", 'precision: "bf16"'],
    "verdicts": ["0.91x ambiguous", "0.822-1.016"],
    "categories": ["52.8", "4,080 launches", "ms a stepconvolution"],
    "steps": ["12.22 ms less GPU work than baseline"],
    "profile": ["fused: activation and bias", "G_main"],
    "ablation": ["channels_last", "all 5,040 orders"],
    "map": ["ran out of memory", "saves 2% of the step or more"],
    "memory": ["5.37 GiB"],
    "sustained": ["at most 134"],
    "roofline": ["TFLOP"],
    "upstream": ["NVIDIA's stylegan2", "the same, patched", "D_r1", "its fast double backward off"],
    "proofs": ["convolution FLOPs in BF16", "D_r1"],
    "environment": ["580.159.04", "bc83a5c8a4"],
    "raw": [RUN.name],
}


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


def write_studies(folder: Path) -> Path:
    """Write results of every kind of study of the run's machine below a folder, and return it."""
    machine = write_whole(loading.load_run(RUN).machine)
    step = json.loads(committed.file("results/upstream/nvidia-h200-article.json").read_text())
    files = {
        "profile/bf16": made_up_profile.of_profile(machine, "bf16", made_up_profile.FUSED),
        "ablation/article": made_up_ablation.of_ablation(machine),
        "map/article": made_up_ablation.of_map(machine),
        "upstream/article": step | {"machine": machine},
    }
    for name, data in files.items():
        path = folder / f"{name}.json"
        path.parent.mkdir()
        path.write_text(json.dumps(data))
    for kind in ("sustained", "roofline"):
        shutil.copytree(DATA / kind, folder / kind)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> page.Inputs:
    return page.find_inputs([RUN], write_studies(tmp_path_factory.mktemp("results")))


@pytest.fixture(scope="module")
def text(whole: page.Inputs) -> str:
    return render(whole)


def render(of: page.Inputs) -> str:
    return render_page(page.make_head(of), page.list_sections(of))


def made(result: Result, **more: Any) -> page.Inputs:
    return page.Inputs((RUN, result), None, "measured by nobody", **more)


def part(text: str, name: str) -> str:
    """Return the text of one section of a page, "" where there is none."""
    opening = f'<section id="{name}" aria-labelledby="{name}-title">'
    return Page(text.partition(opening)[2].partition("</section>")[0]).text


# --- its parts ------------------------------------------------------------------------------------------------------


def test_a_page_has_every_part_in_order_with_a_link_to_it(text: str) -> None:
    shown = Page(text)
    assert [each["id"] for tag, each in shown.tags if tag == "section"] == [*PARTS]
    links = [each["href"] for tag, each in shown.tags if tag == "a"]
    assert links == ["#staircase", *(f"#{name}" for name in PARTS)]
    assert "NVIDIA H100 80GB HBM3" in shown.text and "Not to be quoted" not in text.partition("<nav")[0]


def test_each_part_shows_what_its_files_hold(text: str) -> None:
    shown = {name: part(text, name) for name in PARTS}
    assert [(name, line) for name, lines in PARTS.items() for line in lines if line not in shown[name]] == []


def test_gains_at_the_top_change_no_explanation_of_a_step(whole: page.Inputs) -> None:
    """Two rungs of one run are compared by that run's own verdicts, with a leave-one-out run beside it or without."""
    assert whole.staircase is not None
    path, result = whole.staircase
    other = change(result, protocol=change(result.protocol, mode="leave-one-out"))
    alone, both = (page.show_steps(replace(whole, left_out=each)) for each in (None, (path, other)))
    assert alone is not None and alone == both


def test_a_run_alone_has_no_part_of_studies_and_an_older_one_none_of_profiles() -> None:
    ids = [each.id for each in page.list_sections(made(typed(two_clocks.run())))]
    assert ids == ["staircase", "advice", "verdicts", "memory", "proofs", "environment", "raw"]


def test_the_outcome_has_no_factor_that_contradicts_its_times() -> None:
    result = loading.load_run(RUN)
    for total, interval, word in ((0.82, [0.78, 0.87], "0.82x"), (1.1, [0.31, 2.7], "not decided")):
        last = change(result.rungs[-1], speedup_total=total, total_interval=interval)
        step, work, hours, images = page.make_head(
            made(change(result, rungs=[*result.rungs[:-1], last]))
        ).tiles
        assert step == ("ms a step", "171 → 209", word) and work[2] == "1.52x"
        assert hours[1] == "148 → 181" and images[1] == "46.8 → 38.4"


def test_a_page_of_too_little_is_marked_as_not_to_be_quoted() -> None:
    result = loading.load_run(RUN)
    rungs = [change(rung, rounds=rung.rounds[:2]) for rung in result.rungs]
    outcome = render(made(change(result, complete=False, rungs=rungs))).partition("<nav")[0]
    assert all(words in outcome for words in ("Not to be quoted", "incomplete", "fewer than 3 generations"))


def test_a_rung_without_a_number_keeps_its_row_and_its_reason_and_no_verdict_is_called_open() -> None:
    result = loading.load_run(RUN)
    bare = [change(rung, gain=None, verdict=None, gpu_gain=None, gpu_verdict=None) for rung in result.rungs]
    bare[2] = change(bare[2], status="failed", reason="it fell over", step_ms=None, gpu_ms=None, profile=None)
    shown = part(render(made(change(result, rungs=bare))), "staircase")
    assert "failed: it fell over" in shown and shown.count(", not decided") == 4


def test_a_price_gives_the_money_of_a_training(whole: page.Inputs) -> None:
    (advice,) = (each for each in page.list_sections(replace(whole, price=2.5)) if each.id == "advice")
    table = advice.blocks[1]
    hours, money = ([each.title[:5] for each in table.columns].index(word) for word in ("hours", "money"))
    assert table.rows and all(row[money] == pytest.approx(2.5 * row[hours]) for row in table.rows)


def test_a_score_stands_beside_each_rung_where_times_are_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    (((_, work), known),) = derive.FROZEN.items()
    monkeypatch.setattr(derive, "FROZEN", {("nvidia-h100-80gb-hbm3", work): known})
    result = loading.load_run(RUN)
    shown = part(render(made(result)), "roofline")
    for rung in result.rungs:
        assert f"{derive.derive_score(rung.step_ms or 0.0, known.base_ms, known.floor_ms):.3f}" in shown
    assert "7.93 ms, frozen on 2026-11-24" in shown


# --- nothing from elsewhere -----------------------------------------------------------------------------------------


def test_nothing_is_loaded_and_only_the_named_script_runs(text: str) -> None:
    tags = Page(text).tags
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "srcset"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)
    links = re.sub(r"data:image/svg[^\"]*|http-equiv", "", text)  # a picture has a namespace
    assert "http:" not in links and "https:" not in links and "url(" not in links
    (policy,) = [each["content"] for tag, each in tags if each.get("http-equiv")]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "style=" not in links


def test_the_embedded_json_is_the_files_data(whole: page.Inputs, text: str) -> None:
    shown = Page(text)
    paths = [RUN, *(file.path for file in whole.files)]
    assert json.loads(shown.data) == {
        f"{path.parent.name}/{path.name}": json.loads(path.read_text()) for path in paths
    }
    assert len(paths) == 7 and str(DATA) not in shown.data + shown.text


def test_parts_of_a_bar_follow_each_other_and_an_interval_lies_where_its_numbers_are() -> None:
    bar = Bar("a rung", [Part(30.0, "busy"), Part(20.0, "idle"), Part(10.0, "busy")], interval=(40.0, 80.0))
    bars = Bars([bar], "ms", most=100.0)
    places = [(float(left), float(width)) for _, left, width, *_ in bars.place_parts(bar)]
    assert [left for left, _ in places] == pytest.approx(
        [0, *itertools.accumulate(w for _, w in places[:2])], abs=2e-3
    )
    assert [width * bars.width / 100 for _, width in places] == pytest.approx([30, 20, 10], abs=1e-3)
    (left, right, *_), *_ = bars.place_interval(bar)
    assert [float(end) * bars.width / 100 for end in (left, right)] == pytest.approx([40, 80], abs=1e-3)


def test_hostile_names_are_escaped_everywhere(tmp_path: Path) -> None:
    result = loading.load_run(RUN)
    rungs = [
        change(
            rung, name=f"{EVIL}{number}", title=f"{EVIL}{number}", notes=[EVIL],
            receipts={EVIL: change(each, lines=[EVIL])},
            profile=change(
                rung.profile,
                families=[change(family, name=EVIL) for family in rung.profile.families],
                kernels=[change(kernel, name=EVIL) for kernel in rung.profile.kernels],
            ),
        )
        for number, rung in enumerate(result.rungs)
        for each in list(rung.receipts.values())[:1]
    ]  # fmt: skip
    machine = change(result.machine, gpu=EVIL, driver=EVIL, cpu=EVIL)
    workload = result.workload | {"name": EVIL}
    result = change(result, machine=machine, rungs=rungs, environment={"A": EVIL}, workload=workload)
    path = tmp_path / f"{EVIL}.json"
    store.write(path, {"title": EVIL})
    evil = render(replace(made(result), whose=EVIL, staircase=(path, result)))
    shown = Page(evil)
    assert "img" not in {tag for tag, _ in shown.tags} and evil.count("</script>") == 2
    assert shown.text.count("onerror=alert(1)") > 20 and json.loads(shown.data)


# --- the files of a page --------------------------------------------------------------------------------------------


def test_named_files_stand_in_place_of_the_stored_ones_and_a_refused_one_is_left_out(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    shutil.copy(SUSTAINED, mine)
    shown = [each.path.name for each in page.find_inputs([RUN, mine], DATA).files]
    assert shown == ["mine.json", SUSTAINED.name]
    other = json.loads(SUSTAINED.read_text())
    other["machine"] |= {"name": "nvidia-a100", "gpu": "NVIDIA A100"}
    (tmp_path / "sustained").mkdir()
    (tmp_path / "sustained" / "broken.json").write_text("{")
    (tmp_path / "sustained" / "other.json").write_text(json.dumps(other))
    assert page.find_inputs([RUN], tmp_path).files == ()


def test_mistakes_and_levers_join_the_page_of_their_machine(tmp_path: Path) -> None:
    folder, named, run = (
        tmp_path / "ladder/nvidia-h100-80gb-hbm3",
        tmp_path / "mistakes.json",
        loading.load_run(RUN),
    )
    own = {"machine": write_whole(run.machine), "workload": run.workload}
    kinds = {"mistakes": made_up_study.TIMES, "levers": made_up_study.MODELS}
    paths = [folder / f"article-{mode}-20261126T101500Z.json" for mode in kinds]
    for path, mode in zip([*paths, named], [*kinds, "mistakes"], strict=True):
        write_run(path, made_up_study.study(mode, kinds[mode]) | own)
    other = made_up_study.study("mistakes", made_up_study.TIMES)
    write_run(folder / "other-mistakes-20261126T101500Z.json", other)
    of = page.find_inputs([RUN], tmp_path)
    assert [path for path, _ in of.others] == paths
    shown = part(render(of), "studies")
    assert "2.14x (slower)" in shown and "the GPU's work is 0.82x (faster)" in shown and RUN.name not in shown
    assert {path for path, _ in page.find_inputs([RUN, named], tmp_path).others} == {named, paths[1]}
    with pytest.raises(UserError, match="a run of --mode mistakes; name a staircase"):
        page.find_inputs([named], tmp_path)


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_into_its_file_or_beside_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "EVERYTHING", DATA)
    monkeypatch.setattr(stored, "REPORTS", tmp_path / "reports")
    printed = succeed("report", "--html", tmp_path / "mine.html", RUN, "--price", "2.5/h").stdout
    assert "mine.html" in printed and "money" in (tmp_path / "mine.html").read_text()
    for named in ([RUN], [DATA / "ladder"], []):
        succeed("report", "--html", *named)
        (path,) = (tmp_path / "reports").iterdir()
        assert path.name == "nvidia-h100-80gb-hbm3-article-article.html"
        path.unlink()


def test_bad_requests_are_one_line_and_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "EVERYTHING", DATA)
    monkeypatch.setattr(stored, "REPORTS", tmp_path / "reports")
    other = json.loads(SUSTAINED.read_text())
    other["workload"] |= {"batch": 16, "name": "mine"}
    (tmp_path / "other.json").write_text(json.dumps(other))
    write_run(tmp_path / "mistakes.json", made_up_study.study("mistakes", made_up_study.TIMES))
    unknown = tmp_path / "unknown.json"
    unknown.write_text(json.dumps({"schema": 1, "kind": "selftest"}))
    noise = committed.file("results/noise/nvidia-h100-80gb-hbm3-article-fused_act.json")
    for arguments, words in (
        (("--html", tmp_path / "none.json"), "cannot be read"),
        (("--html", tmp_path / "page.txt", RUN), "the name of a page ends in .html"),
        (("--html", SUSTAINED), "name a result of"),
        (("--html", RUN, RUN), "one run of each mode"),
        (("--html", RUN, tmp_path / "other.json"), "another machine or workload"),
        (("--html", RUN, tmp_path / "mistakes.json"), "another machine or workload"),
        (("--html", RUN, noise), "no section"),
        (("--html", RUN, unknown), "selftest"),
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
    pairs = [("on", name) for name in ("busy", *(f"k{number}" for number in range(12)))]
    pairs += [("ink", name) for name in ("idle", "soft", "gap", "ground", "warn")]
    pairs += [(name, "ground") for name in ("muted", "good", "bad", "open", "link", "busy")]
    for pair in [*pairs, ("open", "warn"), ("muted", "gap")]:
        low, high = sorted(_light(colors[name]) for name in pair)
        assert (high + 0.05) / (low + 0.05) >= 4.5, pair
