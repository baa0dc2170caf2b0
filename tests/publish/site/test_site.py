"""What `asv publish` writes: from valid results only, whole or not at all, and nothing that reaches outside."""

from __future__ import annotations

import html.parser
import json
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from ladder.base.errors import UserError
from ladder.publish.history import series as asvseries
from ladder.publish.site import building, collection, figures
from ladder.publish.site.building import Content, render_front
from ladder.report.themes import DARK, LIGHT
from ladder.results import loading
from tests.publish.validation.test_asvfiles import HOSTILE, plant
from tests.support import committed, made_up_asv, published
from tests.support.hostile_asv import RESULT_FILES
from tests.support.typed import write_run

ROOT = Path(__file__).resolve().parents[3]
REPORT = "reports/nvidia-h200-article-article.html"


class Page(html.parser.HTMLParser):
    """Every tag of a page with its attributes, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attributes}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One GPU under the protocol, as it is with a checkout of ours today."""
    folder = tmp_path_factory.mktemp("site") / "project"
    commit = published.project(folder, 2)[1]
    published.asv_result(folder, published.H200, commit, 1, published.TIMES)
    slower = {rung: 1.7 * seconds for rung, seconds in published.TIMES.items()}
    published.asv_result(folder, published.L40S, "f" * 40, 1, slower)  # of no commit here
    published.ladder_result(folder)
    broken = published.ladder_result(folder, "NVIDIA A100")
    broken.write_text(broken.read_text().replace('"gpu": "NVIDIA A100"', '"gpu": "<b>A100</b>"'))
    (folder / "results" / "asv" / "benchmarks.json").write_text('{"rungs.Rung.evil": null}')
    done = published.publish(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    refused = [line for line in done.stderr.splitlines() if "refused" in line and "benchmarks" not in line]
    assert len(refused) == 1 and "a100" in refused[0]
    return folder / ".asv" / "html"


def test_one_gpu_is_one_panel_with_its_verdicts(site):
    page = Page(site / "index.html")
    assert len(page.of("picture")) == 1 and "NVIDIA H200" in page.text
    assert "96.1 to 25.3 ms a step" in page.text and "faster" in page.text and "1 machine." in page.text
    assert "One commit so far: fused_act, 62.0 ms a step." in page.text
    for word in ("NVIDIA A100", "a100", "L40S", "l40s", "single run", "<b>"):
        assert word not in page.text, "drawn, though it was refused or is of no commit here"


def test_no_page_of_ours_can_run_a_script_of_others(site):
    for path in (site / "index.html", site / REPORT):
        page = Page(path)
        (policy,) = [
            each["content"] for each in page.of("meta") if each.get("http-equiv") == "Content-Security-Policy"
        ]
        assert policy.startswith("default-src 'none'") and "script-src-attr" not in policy
        assert "unsafe-eval" not in policy and "script-src 'unsafe" not in policy
        for tag, attributes in page.tags:
            assert not [name for name in attributes if name.startswith("on")], f"{tag} has a handler"
            if tag == "script":  # a report holds its script, which the policy names by its digest
                data = attributes.get("type") == "application/json"
                assert path == site / REPORT and (data or "script-src 'sha256-" in policy)


def test_the_card_and_the_panel_link_the_full_report_of_a_machine(site):
    links = [each["href"] for each in Page(site / "index.html").of("a")]
    assert links.count(REPORT) == 2
    report = Page(site / REPORT)
    assert "NVIDIA H200" in report.text and published.LADDER in report.text


def test_every_link_of_the_front_page_leads_to_a_file_of_the_site(site):
    page = Page(site / "index.html")
    links = [each["href"] for each in page.of("a")]
    assert len(links) > 8
    for link in links:
        path, _, part = link.partition("#")
        assert (
            (site / unquote(path)).is_file() if path else any(each.get("id") == part for _, each in page.tags)
        ), link
    raw = site / "results" / "ladder" / "nvidia-h200" / published.LADDER
    assert json.loads(raw.read_text())["machine"]["gpu"] == "NVIDIA H200"
    for chart in ("", "-dark"):
        assert (site / "charts" / f"nvidia-h200-article-article{chart}.svg").stat().st_size > 10_000


def test_benchmarks_are_those_of_the_checkout_that_have_a_result(site):
    index = json.loads((site / "asv" / "index.json").read_text())
    assert list(index["benchmarks"]) == [asvseries.STEP]
    assert "'cached_uint8'" in index["benchmarks"][asvseries.STEP]["params"][1]


def test_asv_calls_no_step_of_single_processes_a_regression(tmp_path):
    """Two commits, a quarter apart, as in the history of this repository: a candidate."""
    folder = tmp_path / "project"
    for number, commit in enumerate(published.project(folder, 6)):
        times = {rung: seconds * (1.25 if number > 2 else 1) for rung, seconds in published.TIMES.items()}
        published.asv_result(folder, published.H200, commit, number, times)
    done = published.publish(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    listed = json.loads((folder / ".asv" / "html" / "asv" / "regressions.json").read_text())
    assert listed["regressions"] == []


def test_asv_publish_among_every_hostile_file_draws_the_genuine_ones(tmp_path):
    """All in one folder, each of a machine of its own, and the command itself: a line each, and a whole site."""
    folder = tmp_path / "project"
    commit = published.project(folder, 2)[1]
    published.asv_result(folder, published.H200, commit, 1, published.TIMES)
    results, expected = folder / "results" / "asv", {}
    for number, name in enumerate(HOSTILE):
        machine = made_up_asv.facts(f"NVIDIA Some GPU {number}")
        seconds = {"baseline": 0.11 + 1e-3 * number, "cuda_graphs": 0.07 + 1e-3 * number}
        path, words = plant(results, name, machine=machine, seconds=seconds, commit=commit)
        expected[loading.show_path(path.relative_to(results))] = words
    assert len(expected) == len(HOSTILE)
    done = published.publish(folder)
    assert done.returncode == 0 and "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith("asv: refused: ") and line.isprintable() for line in lines), lines
    for where, words in expected.items():
        said = [line for line in lines if line.startswith(f"asv: refused: {where}: ")]
        assert len(said) == 1 and words in said[0], (where, words, said)
    index = json.loads((folder / ".asv" / "html" / "asv" / "index.json").read_text())
    drawn = {each["machine"] for each in index["graph_param_list"]}
    assert published.H200["machine"] in drawn
    for number, name in enumerate(HOSTILE):
        if name in RESULT_FILES and name != "the same measurement for another commit":  # its first is genuine
            assert f"nvidia-some-gpu-{number}" not in drawn, name
    assert "NVIDIA H200" in Page(folder / ".asv" / "html" / "index.html").text
    for path in (folder / ".asv" / "html").rglob("*"):
        assert not path.is_symlink() and not (path.is_file() and b"onerror=alert(1)" in path.read_bytes()), (
            path
        )


def test_an_old_site_stays_where_a_new_one_cannot_be_built(site, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(site.parent.parent, folder)
    before = (folder / ".asv" / "html" / "index.html").read_bytes()
    for path in (folder / "results" / "asv").glob("*/*-*.json"):
        path.unlink()
    done = published.publish(folder)
    assert done.returncode == 2 and "nothing is published" in done.stderr
    assert (folder / ".asv" / "html" / "index.html").read_bytes() == before
    assert [path.name for path in (folder / ".asv").iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    with pytest.raises(UserError, match="something else than a published site"):
        with building.replacing(precious) as made:
            (made / "index.html").write_text("")
    (tmp_path / "link").symlink_to(precious)
    with pytest.raises(UserError, match="something else"):
        with building.replacing(tmp_path / "link"):
            pass
    assert (precious / "thesis.tex").read_text() == "years"


# --- colours --------------------------------------------------------------------------------------------------------


def luminance(color: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_bars_stand_out_from_their_ground(theme):
    colors = building.colors(theme)
    for name in ("ink", "muted", "article", "bad", "good", "mark", "link", "busy"):
        assert contrast(colors[name], colors["ground"]) >= 4.5, name
    for name in ("ink", "muted", "bad"):
        assert contrast(colors[name], colors["gap"]) >= 4.5, f"{name} on a rung without a number"
    assert contrast(colors["busy"], colors["idle"]) >= 2.5, "the two parts of a bar"


# --- ladders beside each other --------------------------------------------------------------------------------------


def test_machines_of_one_workload_share_one_scale(tmp_path):
    published.ladder_result(tmp_path)
    published.ladder_result(tmp_path, "NVIDIA A100", 0.6)
    stored, refused = collection.publish_results(tmp_path / "results" / "ladder", tmp_path / "site")
    (group,) = collection.collect_groups(stored, [], tmp_path / "site")
    assert not refused and [panel.machine for panel in group.panels] == ["nvidia-a100", "nvidia-h200"]
    longest = [max(row.step_ms for row in panel.shown.rows) for panel in group.panels]
    bars = [figures.ladder_figure(panel.shown, group.most, LIGHT).axes[0].patches for panel in group.panels]
    widths = [max(bar.get_x() + bar.get_width() for bar in each) for each in bars]
    scales = [(width - figures.NAMES) / ms for width, ms in zip(widths, longest, strict=True)]
    assert max(longest) > 160 and scales == pytest.approx([scales[0]] * 2)


def test_what_is_shown_of_a_machine_is_whole_before_it_is_new(tmp_path):
    """An interrupted run, though newer, does not hide a whole one; it is listed among the raw results."""
    path = published.ladder_result(tmp_path)
    part = json.loads(path.read_text()) | {"started": "2026-11-26T00:00:00Z"}
    part["rungs"][1:] = [rung | {"status": "n/a", "rounds": []} for rung in part["rungs"][1:]]
    write_run(tmp_path / "b.json", part)
    found = [(tmp_path / "a.json", loading.load_run(path))]
    found += [(tmp_path / "b.json", loading.load_run(tmp_path / "b.json"))]
    (group,) = collection.collect_groups(found, [], tmp_path)
    assert [panel.path for panel in group.panels] == ["a.json"]
    assert [each.path for each in collection.list_raw(found, tmp_path)] == ["b.json", "a.json"]


# --- what is shown of asv's results ---------------------------------------------------------------------------------


def point(commit: str, ms: dict[str, float], torch: str = "2.11.0", date: int = 0) -> asvseries.Point:
    facts = (("gpu", "NVIDIA L40S"), ("machine", "nvidia-l40s"), ("torch", torch))
    return asvseries.Point("nvidia-l40s", facts, commit, date, "article", tuple(ms.items()), "x.json")


def test_a_line_is_named_by_what_tells_it_from_the_others():
    cpu, cuda, older = (
        ("torch 2.13.0", "cuda none"),
        ("torch 2.13.0", "cuda 13.0"),
        ("torch 2.11.0", "cuda 13.0"),
    )
    assert figures.name_software(cpu, [cpu, cuda]) == "torch 2.13.0, cuda none"
    assert figures.name_software(older, [older, ("torch 2.12.0", "cuda 13.0")]) == "torch 2.11.0"


def test_history_takes_the_highest_rung_of_each_commit_in_the_branchs_order():
    found = [
        point("b", {"baseline": 90.0, "bf16": 70.0}),
        point("a", {"baseline": 95.0}),
        point("elsewhere", {"baseline": 1.0}),
        point("b", {"baseline": 80.0}, "2.13.0"),
    ]
    (steps,) = asvseries.history(found, {"a": 3, "b": 7}).values()
    assert [(step.commit, step.rung, step.ms) for step in steps] == [
        ("a", "baseline", 95.0), ("b", "bf16", 70.0), ("b", "baseline", 80.0)
    ]  # fmt: skip
    assert [step.software for step in steps] == [("torch 2.11.0",), ("torch 2.11.0",), ("torch 2.13.0",)]


def test_a_commit_without_the_highest_rungs_is_in_the_table_and_no_step_of_the_line():
    found = [
        point("a", {"bf16": 95.0}), point("b", {"bf16": 70.0, "fused_act": 50.0}), point("c", {"bf16": 71.0}),
        point("d", {"fused_act": 49.0}), point("c", {"bf16": 60.0}, "2.13.0"),
    ]  # fmt: skip
    revisions = {"a": 1, "b": 2, "c": 3, "d": 4}
    (steps,) = asvseries.history(found, revisions).values()
    assert [(step.commit, step.whole) for step in steps] == [
        ("a", True), ("b", True), ("c", False), ("c", True), ("d", True)
    ]  # fmt: skip
    (history,) = collection.collect_histories(found[:4], [], revisions)
    about = (
        "3 commits, from 95.0 ms (bf16) to 49.0 ms (fused_act)."
        " 1 measured without the highest rungs, and in the table alone."
    )
    assert history.about == about and [step.commit for step in history.drawn] == ["a", "b", "d"]
    page = render_front(Content(histories=[history]))
    assert about in page and all(f"<code>{commit}</code>" in page for commit in "abcd")


def test_labels_of_the_history_keep_off_its_lines():
    times = [60.0, 90.0, 30.0, 31.0, 32.0, 80.0, 30.0]
    rungs = ["baseline", "baseline", "bf16", "bf16", "bf16", "fused_act", "fused_act"]
    steps = [
        asvseries.Step(f"{n}" * 8, rung, ms, ("torch 2.11.0",))
        for n, (rung, ms) in enumerate(zip(rungs, times, strict=True))
    ]
    axes = figures.history_figure(steps, LIGHT).axes[0]
    line = axes.lines[0].get_transform().transform_path(axes.lines[0].get_path())
    labels = [text for text in axes.texts if text.get_text()]
    assert len(labels) == 4 + 1  # and what the axis shows
    for label in labels:
        assert not line.intersects_bbox(label.get_window_extent(), filled=False), label.get_text()


def test_the_order_of_rungs_is_read_once_and_not_for_every_number(monkeypatch):
    """Each number once had a YAML file read."""
    read, load = [], asvseries.catalog.load_ladder
    monkeypatch.setattr(asvseries.catalog, "load_ladder", lambda name: read.append(name) or load(name))
    found = asvseries.points(committed.folder("results/asv"))
    assert read == ["full"] and sum(len(point.ms) for point in found) > 20
    heights = [asvseries._heights().get(rung, -1) for rung, _ in max(found, key=lambda each: len(each.ms)).ms]
    assert heights == sorted(heights) and heights[-1] > 5


def test_a_single_run_has_numbers_but_no_verdict_and_gives_way_to_the_protocol():
    found = [point("a", {"baseline": 90.0}, date=1), point("b", {"baseline": 80.0, "bf16": 40.0}, date=2)]
    ((used, shown),) = asvseries.single_runs(found, set(), ["baseline", "channels_last", "bf16"])
    assert used.commit == "b" and [row.status for row in shown.rows] == ["ok", "n/a", "ok"]
    assert [row.total for row in shown.rows] == [1.0, None, 2.0]
    assert not any(row.verdict or row.interval or row.gain for row in shown.rows)
    assert asvseries.single_runs(found, {("nvidia-l40s", "article")}, ["baseline"]) == []
