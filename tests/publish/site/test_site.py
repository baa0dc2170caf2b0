"""What `asv publish` writes: from valid results only, whole or not at all, and nothing that reaches outside."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from ladder.core.errors import UserError
from ladder.publish import gallery
from ladder.publish import site as publishing
from ladder.publish.history import series
from ladder.results import loading
from ladder.show.page import render_page
from tests.publish.validation.test_asvfiles import HOSTILE, plant
from tests.support import committed, made_up_asv, published, two_clocks
from tests.support.hostile_asv import RESULT_FILES
from tests.support.typed import typed, write_run

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
    assert done.returncode == 0 and "report 1 of 1: " in done.stdout, done.stdout + done.stderr
    refused = [line for line in done.stderr.splitlines() if "refused" in line and "benchmarks" not in line]
    assert len(refused) == 1 and "a100" in refused[0]
    return folder / ".asv" / "html"


def test_one_gpu_has_its_answer_its_history_and_its_report(site):
    page, report = Page(site / "index.html"), Page(site / REPORT)
    for text in ("NVIDIA H200", "96.08", "25.30"):
        assert text in page.text
    history = Page(site / "history-nvidia-h200.html")
    assert "fused_act" in history.text and "62.00 ms" in history.text
    for text in ("NVIDIA A100", "a100", "L40S", "l40s", "<b>"):
        assert text not in page.text, "drawn, though it was refused or is of no commit here"
    assert "NVIDIA H200" in report.text and published.LADDER in report.text
    index = json.loads((site / "asv" / "index.json").read_text())
    assert list(index["benchmarks"]) == [series.STEP]
    assert "'cached_uint8'" in index["benchmarks"][series.STEP]["params"][1]


@pytest.mark.parametrize("name", ["index.html", REPORT])
def test_no_page_can_run_a_script_of_others_or_loads_anything(site, name):
    page = Page(site / name)
    (policy,) = [each["content"] for each in page.of("meta") if each.get("http-equiv", "").startswith("Con")]
    assert policy.startswith("default-src 'none'") and "script-src-attr" not in policy
    assert "unsafe" not in policy and "script-src 'sha256-" in policy
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on")], f"{tag} has a handler"
        assert attributes.get("src", "data:").startswith("data:")


def test_every_link_leads_to_a_file_of_the_site(site):
    front = [each["href"] for each in Page(site / "index.html").of("a")]
    assert front.count(REPORT) == 2 and {"history.html", "history-nvidia-h200.html"} <= {*front}
    for path in (path for path in site.rglob("*.html") if "asv" not in path.parts):
        page = Page(path)
        ids = {each.get("id") for _, each in page.tags}
        for link in (each["href"] for each in page.of("a")):
            target, _, part = link.partition("#")
            assert (path.parent / unquote(target)).is_file() if target else part in ids, (
                f"{path.name}: {link}"
            )
    raw = site / "results" / "ladder" / "nvidia-h200" / published.LADDER
    assert json.loads(raw.read_text())["machine"]["gpu"] == "NVIDIA H200"


def test_the_front_page_of_all_committed_results_is_light_and_its_links_say_where_they_go(tmp_path):
    """At most 1 MB: a picture for each machine, workload or commit must not come back."""
    stored, _ = publishing.publish_results(committed.folder("results/ladder"), tmp_path)
    entries, pairs = (
        publishing.choose_entries(stored, tmp_path),
        gallery.pair_gpus([run for _, run in stored]),
    )
    sections = publishing.list_sections(entries, [], publishing.tabulate_files(stored, [], tmp_path))
    page = render_page(publishing.make_head(pairs), [publishing.show_staircase(pairs[0], []), *sections])
    assert len(stored) > 10 and len(page.encode()) < 1_000_000
    targets: dict[str, set[str]] = {}
    for address, text in re.findall(r'<a href="([^"#]+)[^>]*>([^<]*)</a>', page.partition("<main")[2]):
        targets.setdefault(text, set()).add(address)
    assert len(targets) > 10 and [text for text, addresses in targets.items() if len(addresses) > 1] == []


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
        (line,) = [line for line in lines if line.startswith(f"asv: refused: {where}: ")]
        assert words in line
    html = folder / ".asv" / "html"
    index = json.loads((html / "asv" / "index.json").read_text())
    drawn = {each["machine"] for each in index["graph_param_list"]}
    assert published.H200["machine"] in drawn and "NVIDIA H200" in Page(html / "index.html").text
    for number, name in enumerate(HOSTILE):
        if name in RESULT_FILES and name != "the same measurement for another commit":  # its first is genuine
            assert f"nvidia-some-gpu-{number}" not in drawn, name
    files = [path for path in html.rglob("*") if path.is_file()]
    assert not [path for path in html.rglob("*") if path.is_symlink()]
    assert not [path for path in files if b"onerror=alert(1)" in path.read_bytes()]


def test_an_old_site_stays_where_a_new_one_cannot_be_built(site, tmp_path):
    folder = tmp_path / "project"
    shutil.copytree(site.parent.parent, folder)
    before = (folder / ".asv" / "html" / "index.html").read_bytes()
    for path in (folder / "results" / "asv").glob("*/*-*.json"):
        path.unlink()
    done = published.publish(folder)
    assert done.returncode == 2 and "nothing is published" in done.stderr
    assert (folder / ".asv" / "html" / "index.html").read_bytes() == before
    assert not list((folder / ".asv").glob(".*"))


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    (precious := tmp_path / "thesis").mkdir()
    (precious / "thesis.tex").write_text("years")
    (tmp_path / "link").symlink_to(precious)
    for path in (precious, tmp_path / "link"):
        with pytest.raises(UserError, match="something else than a published site"):
            with publishing.replacing(path) as fresh:
                (fresh / "index.html").write_text("")
    assert (precious / "thesis.tex").read_text() == "years"


# --- runs of ladders ------------------------------------------------------------------------------------------------


def choose(tmp_path, **runs):
    """The entries of runs that lie in the site's folder."""
    stored = [(tmp_path / f"{name}.json", typed(run)) for name, run in runs.items()]
    return publishing.choose_entries(stored, tmp_path)


def answer(tmp_path, **runs):
    """The rows of the only card's table, and what its links lead to."""
    ((card,),) = (block.cards for block in publishing.list_answers(choose(tmp_path, **runs)))
    table, marks = card.blocks
    return table.format_cells(), marks, dict(card.links)


def test_an_answer_has_baseline_and_tops_of_each_gpu_by_both_clocks(tmp_path):
    whole, longer = two_clocks.run(), two_clocks.selected("baseline", "fused_act", two_clocks.TOP)
    longer["protocol"] |= {"quick": True}
    longer["started"] = "2026-11-22T10:15:00+00:00"
    other = two_clocks.run() | {"machine": whole["machine"] | {"name": "nvidia-a100", "gpu": "NVIDIA A100"}}
    for rung in other["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))
    rows, marks, links = answer(tmp_path, a=whole, b=longer, c=other)
    a100, h200, work, article = rows
    assert a100 == ["A100", "160.0", "61.30", "2.61x", "", ""]
    assert h200 == ["H200", "160.0", "61.30", "2.61x", "40.00", "4.00x"]
    assert work == ["its GPU work", "105.0", "61.20", "1.72x", "39.90", "2.63x"]
    assert article[0].startswith("the article") and article[1:] == ["312.0", "104.0", "3.00x", "", ""]
    assert len(marks) == 1 and marks[0].startswith("H200: quick")
    assert [*links] == [
        f"Report of article, article, A100, {whole['started'][:10]}",
        f"Report of article, article, H200, {whole['started'][:10]}", "Report of article, full, H200, 2026-11-22",
    ]  # fmt: skip


def test_the_top_is_that_of_the_run_which_holds_it_and_has_a_report_of_its_own(tmp_path):
    more = two_clocks.selected("baseline", "bf16", "fused_norm", "cuda_graphs")
    ends = two_clocks.selected("baseline", "fused_act", two_clocks.TOP)
    ends["started"] = "2026-11-20T10:15:00+00:00"
    entries = choose(tmp_path, a=more, b=ends)
    top = "reports/nvidia-h200-article-full-top.html"
    assert {each.path: each.report for each in entries} == {"a.json": top.replace("-top", ""), "b.json": top}
    rows, _, links = answer(tmp_path, a=more, b=ends)
    assert [*links.values()] == [top] and {"61.30", "40.00"} <= {*rows[0]}


def test_an_answer_that_is_not_decided_has_no_factor_and_too_few_generations_no_gpu_time(tmp_path):
    """The factor is a mean over pairs, the times are medians: a noisy host's contradict each other."""
    run = two_clocks.run()
    run["rungs"][-1] |= {"speedup_total": 0.92, "total_interval": [0.31, 2.7]}
    run["rungs"][-1] |= {"gpu_interval_ms": None, "gpu_verdict": "too few generations"}
    (step, work, _), *_ = answer(tmp_path, a=run)
    assert step[2:4] == ["61.30", "not decided"] and work[2] == publishing.TOO_FEW


def test_the_headline_and_the_picture_are_of_a_gpu_that_was_measured_whole(tmp_path):
    pair = typed(two_clocks.run()), typed(two_clocks.selected("baseline", "fused_act", two_clocks.TOP))
    head = publishing.make_head([pair])
    assert "4.00x as fast" in head.heading and head.tiles[0][1:] == ("4.00x", "to 40.0 ms a step")
    assert head.tiles[1][1:] == ("2.63x", "to 39.9 ms GPU work")
    (chart,) = publishing.show_staircase(pair, []).blocks
    bars = [(bar.figure, round(sum(part.size for part in bar.parts), 1)) for bar in chart.bars]
    assert bars[0] == ("160.0 ms", 160.0) and bars[-2:] == [("61.30 ms", 61.3), ("40.00 ms", 40.0)]
    assert publishing.make_head([]).tiles == []


def test_what_is_shown_of_a_machine_is_whole_before_it_is_new(tmp_path):
    """An interrupted run, though newer, does not hide a whole one; it is listed among the raw results."""
    path = published.ladder_result(tmp_path)
    part = json.loads(path.read_text()) | {"started": "2026-11-26T00:00:00Z"}
    part["rungs"][1:] = [rung | {"status": "n/a", "rounds": []} for rung in part["rungs"][1:]]
    write_run(tmp_path / "b.json", part)
    shutil.copyfile(path, tmp_path / "a.json")
    stored = [(tmp_path / name, loading.load_run(tmp_path / name)) for name in ("a.json", "b.json")]
    entries = publishing.choose_entries(stored, tmp_path)
    assert [each.path for each in entries] == ["a.json"]
    cells = publishing.tabulate_files(stored, [], tmp_path).format_cells()
    assert [row[5] for row in cells] == ["b.json", "a.json"]
