"""Documents: their tables are those of the committed results, and what they name is there."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ladder.core.records import write_record
from ladder.publish.pages import __main__ as pages
from ladder.publish.pages import tables
from ladder.publish.pages.committed import Committed, find_shortfall
from ladder.results.combine import comparing as across
from tests.report.test_chart import check_layout, lay_out
from tests.support import (
    claims_chart,
    committed,
    made_up,
    made_up_ablation,
    made_up_kernels,
    made_up_profile,
    made_up_scaled,
    made_up_study,
    two_clocks,
)
from tests.support.repositories import commit_all, git
from tests.support.two_clocks import kept, stored_runs
from tests.support.typed import write_run

ROOT = committed.ROOT
PAGE = "<!-- table: rungs nvidia-h200/article/article -->\nold\n<!-- end -->\n"
RESULT = "results/ladder/nvidia-h200/a.json"
MACHINE = json.loads(committed.file("results/ablation/nvidia-h200-article-full.json").read_text())["machine"]


@pytest.fixture(scope="module")
def stored() -> Committed:
    return Committed(committed.folder("results").parent)


@pytest.mark.parametrize("path", pages.list_documents(ROOT), ids=lambda path: path.stem)
def test_a_document_holds_what_the_committed_results_hold(stored: Committed, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert pages.fill_text(text, path.relative_to(ROOT), stored) == text, "run make docs"


def test_each_gpu_with_a_whole_run_has_its_page(stored: Committed) -> None:
    for name in stored.machines:
        page = (ROOT / f"{pages.PREFIX}{name}.md").read_text(encoding="utf-8")
        assert pages.render_machine(stored, name) == page, "run make docs"
    generated = [path for path in (ROOT / "docs").glob("*.md") if pages.is_generated(path)]
    assert len(generated) == len(stored.machines)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with one staged result and a document of it; the command works there."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# A\n")
    (tmp_path / "docs" / "a.md").write_text("Before.\n" + PAGE + "After.\n")
    write_run(tmp_path / RESULT, made_up.judged_run())
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", RESULT)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    return tmp_path


def test_only_the_regions_change_and_only_git_s_results_count(checkout: Path, capsys) -> None:
    page = checkout / "docs" / "a.md"
    mine = made_up.judged_run(fused_act=9.9) | {"started": "2026-11-26T00:00:00+00:00"}
    write_run(checkout / "results/ladder/nvidia-h200/mine.json", mine)
    assert pages.main([]) == 0 and capsys.readouterr().out.splitlines()[0] == "docs/a.md"
    text = page.read_text()
    assert text.startswith("Before.\n<!-- table: ") and text.endswith("<!-- end -->\nAfter.\n")
    assert "| FP32 baseline | " in text and "old" not in text and "9.90" not in text
    assert f"(../{RESULT})" in text
    write_run(checkout / RESULT, made_up.judged_run() | {"dirty": True})
    git(checkout, "add", RESULT)
    assert pages.main([]) == 0 and "dirty: not publishable" in page.read_text()
    (checkout / RESULT).write_text("{")
    git(checkout, "add", RESULT)
    assert pages.main([]) == 2 and "a.json" in capsys.readouterr().err


def few_rounds(run: dict[str, Any]) -> dict[str, Any]:
    """The run with two of its rounds."""
    return run | {"rungs": [rung | {"rounds": rung["rounds"][:2]} for rung in run["rungs"]]}


@pytest.mark.parametrize("spoil", [two_clocks.interrupt, few_rounds], ids=["stopped", "few"])
def test_no_document_quotes_a_stopped_run_or_one_of_few_rounds(checkout: Path, capsys, spoil: Any) -> None:
    """Its region is refused, and its machine has no page; a page that was there goes."""
    page = checkout / "docs" / "results-nvidia-h200.md"
    assert pages.main([]) == 0 and "| FP32 baseline | " in page.read_text()
    write_run(checkout / RESULT, spoil(made_up.judged_run()))
    git(checkout, "add", RESULT)
    assert pages.main([]) == 2 and "no committed result" in capsys.readouterr().err
    (checkout / "docs" / "a.md").write_text("No region.\n")
    assert pages.main([]) == 0 and not page.exists()


@pytest.mark.parametrize(
    "region, says",
    [
        ("<!-- table: rungz a -->\n<!-- end -->\n", "docs/b.md:2: no table 'rungz'; did you mean 'rungs'?"),
        ("<!-- table: rungs -->\n<!-- end -->\n", "docs/b.md:2: table 'rungs': missing a required argument"),
        (
            "<!-- table: rungs a/b/c -->\n<!-- end -->\n",
            "docs/b.md:2: no committed result of a/b/c",
        ),
        ("<!-- table: rungs a/b/c -->\n", "docs/b.md:2: the region has no line `<!-- end -->`"),
        ("<!-- table: targets -->\n" + PAGE, "docs/b.md:2: the region has no line `<!-- end -->`"),
    ],
)
def test_a_bad_region_is_one_line_and_no_document_changes(
    checkout: Path, capsys, region: str, says: str
) -> None:
    (checkout / "docs" / "b.md").write_text("# B\n" + region)
    before = (checkout / "docs" / "a.md").read_text()
    assert pages.main([]) == 2 and pages.main(["x"]) == 2
    line, usage = capsys.readouterr().err.splitlines()
    assert line.startswith("docs: ") and says in line and "takes no arguments" in usage
    assert (checkout / "docs" / "a.md").read_text() == before


def test_a_page_and_a_picture_of_an_older_code_are_made_anew_and_no_file_is_added(tmp_path: Path) -> None:
    source = tmp_path / "results/scaled/a.json"
    write_run(source, made_up_scaled.of_scaled(MACHINE, (1, 2)))
    page, picture = source.with_suffix(".md"), source.with_suffix(".svg")
    page.write_text("# 1 generations\n")
    picture.write_bytes(b"an older drawing")
    git(tmp_path, "init", "-q")
    assert pages.redraw_pages(tmp_path) == [], "git does not have the result"
    commit_all(tmp_path, "a")
    assert pages.redraw_pages(tmp_path) == [page, picture]
    assert page.read_text().startswith("# Several GPUs: ") and picture.read_bytes().startswith(b"<?xml")
    assert not source.with_suffix(".png").exists()
    assert pages.redraw_pages(tmp_path) == []


# ---- tables ----------------------------------------------------------------------------------------------------------


def test_the_row_of_full_is_of_the_run_that_has_the_top(tmp_path: Path) -> None:
    ends = two_clocks.selected("baseline", "fused_act", two_clocks.TOP)
    ends["started"] = "2026-11-22T10:15:00+00:00"
    more = two_clocks.selected("baseline", "bf16", "fused_norm", "fused_act")
    more["started"] = "2026-11-23T10:15:00+00:00"
    stored = stored_runs(tmp_path, article=two_clocks.run(), more=more)
    assert "of [`full`]" not in tables.render_gpus(stored)
    stored = stored_runs(tmp_path, ends=ends)
    (row,) = [line for line in tables.render_gpus(stored).splitlines() if "of [`full`]" in line]
    assert row.startswith("| all 3 rungs of [`full`](") and "| 40.00 | 39.90 |" in row and "| 4.00x |" in row
    assert "ladder/nvidia-h200/ends.json)" in row  # results/charts shows the run of more rungs


def test_gains_of_two_gpus_are_compared_as_the_command_compares_their_files(tmp_path: Path) -> None:
    runs = {}
    for letter in "abc":
        run = two_clocks.run()
        runs[letter] = run | {
            "machine": run["machine"] | {"name": f"nvidia-{letter}", "gpu": f"NVIDIA {letter}"}
        }
    runs["b"] |= {"commit": "b" * 40}
    assert tables.render_agreement(stored_runs(tmp_path / "one", a=runs["a"])) == ""
    pair = stored_runs(tmp_path / "two", a=runs["a"], b=runs["b"])
    rows = across.compare_gains(
        *(pair.find_ladder(f"nvidia-{letter}/article/article") for letter in "ab"), {}
    )
    shown = tables.render_agreement(pair).splitlines()
    assert shown[0] == "| rung | gain of GPU time, NVIDIA a | NVIDIA b | verdict | where it lies |"
    assert [line.split(" | ")[3] for line in shown[2:9]] == [across.told(row.gpu) for row in rows]
    assert shown[-1].startswith("*7 of 7 gains agree within ") and shown[-1].endswith(
        f" · {across.OTHER_CODE}*"
    )
    assert tables.render_agreement(stored_runs(tmp_path / "three", **runs)).count("gain of GPU time") == 3


def test_the_target_of_light_stands_beside_the_floor_of_the_rung_that_it_names(tmp_path: Path) -> None:
    """The floor of an earlier rung is another: the page of the roofline would have another factor."""
    run = two_clocks.selected("baseline", two_clocks.TOP)
    for rung in run["rungs"]:
        rung["rounds"][1]["lazy_ms"] = {"D_r1": 4.75, "G_pl": 4.14}
    stored = stored_runs(tmp_path, a=run)
    shown = {row[0].partition(":")[0]: row[1:] for row in tables.list_targets(stored)}
    assert shown["batch 8"][0] == "4.75 ms and 4.14 ms" and "generations: 3" in shown["batch 8"][1]
    command = f"`ladder doctor --roofline --rung {two_clocks.TOP}`"
    assert shown["within 1.8 times the speed of light"] == ("no complete run", command)
    for rung, name in (("fused_modulation", "graph_fills"), (two_clocks.TOP, "fused_modulation")):
        data = committed.file(f"results/roofline/nvidia-h200-article-full-{name}.json").read_text()
        kept(tmp_path, f"roofline/nvidia-h200-article-full-{rung}.json", json.loads(data))
    (light,) = [row for row in tables.list_targets(Committed(tmp_path)) if "speed of light" in row[0]]
    assert light[1].endswith("and a floor of 7.93")


def test_a_page_has_the_runs_of_every_ladder_and_links_the_rest(tmp_path: Path) -> None:
    gone = two_clocks.run()
    gone["ladder"] |= {"name": "gone", "title": "All of it, and one more"}
    mistakes = made_up_study.study("mistakes", made_up_study.TIMES)
    stored = stored_runs(tmp_path, a=gone, b=mistakes)
    kept(tmp_path, "profile/nvidia-h200-a.json", made_up_profile.of_profile(MACHINE, "bf16", {"k": 1.0}))
    page = pages.render_machine(stored, "nvidia-h200")
    assert "## All of it, and one more (`gone`)" in page and "`mine`, mistakes:" in page.replace(
        "`article`", "`mine`"
    )
    assert "| times clean (GPU) |" in page and "| 1.20x (slower) |" in page
    assert "| profile | [a](../results/profile/nvidia-h200-a.md) |" in page


def test_a_table_links_the_samples_where_the_charts_show_another_run(tmp_path: Path) -> None:
    ends = two_clocks.selected("baseline", two_clocks.TOP)
    stopped = two_clocks.interrupt(two_clocks.selected("baseline", "bf16", two_clocks.TOP))
    stopped["started"] = "2026-11-23T10:15:00+00:00"
    (best,) = stored_runs(tmp_path, ends=ends).best.values()
    assert Committed(tmp_path).find_chart(best) == "charts/nvidia-h200-article-full-some-rungs.md"
    assert stored_runs(tmp_path, stopped=stopped).find_chart(best) in (
        "charts/nvidia-h200-article-full-some-rungs.md", "ladder/nvidia-h200/ends.json",
    )  # fmt: skip


def test_the_cards_that_a_workload_needs_follow_from_the_gpu_where_it_holds_most(tmp_path: Path) -> None:
    absent = "*No complete run yet: `ladder run --ladder article`.*\n"
    assert tables.render_cards(Committed(tmp_path), "article") == absent
    runs = {}
    for name, most in (("a", 17.6), ("b", 15.2)):
        runs[name] = two_clocks.run()
        runs[name]["machine"] |= {"name": f"nvidia-{name}", "gpu": f"NVIDIA {name}"}
        for place, rung in enumerate(runs[name]["rungs"]):
            held = {0: 15.0, 2: most}.get(place, 7.6)
            rung["rounds"][0]["device_used_bytes"] = int(held * 2**30)
    (row,) = tables.render_cards(stored_runs(tmp_path, **runs), "article").splitlines()[2:]
    assert row == "| `article` | 15.0 | 17.6 | 24 GB | 7.60 | 10 GB |"
    runs["a"]["rungs"][-1]["rounds"][0]["device_used_bytes"] = 90 << 30
    assert tables.render_cards(stored_runs(tmp_path, **runs), "article").endswith("| over 80 GB |\n")


def test_usual_advice_stands_beside_the_rung_that_judges_it_or_the_command_that_would(tmp_path: Path) -> None:
    """Channels_last takes 93.0 ms of GPU time, and BF16 73.8."""
    shown = tables.render_usual(stored_runs(tmp_path, a=two_clocks.run())).splitlines()
    table = "[table](@/results/charts/nvidia-h200-article-article.md)"
    assert f"| BF16 after TF32 convolutions | 2x | GPU work | 1.26x | less | {table} |" in shown
    absent = "no complete run |  | `ladder run --ladder cudnn_benchmark` |"
    assert f"| `cudnn.benchmark` | 5 to 20% | GPU work | {absent}" in shown


@pytest.mark.parametrize(
    ("ratio", "usual", "word"),
    [
        (1.96, (2, 2), "holds"), (1.85, (2, 2), "less"), (0.5, (2, 2), "less"), (2.2, (2, 2), "more"),
        (1.046, (1.05, 1.2), "holds"), (1.04, (1.05, 1.2), "less"), (1.23, (1.05, 1.2), "more"),
        (0.53, (0.5, 0.5), "holds"), (0.6, (0.5, 0.5), "less"), (0.4, (0.5, 0.5), "more"),
        (0.94, (0.91, 0.91), "less"), (0.8, (0.91, 0.91), "more"), (1.5, None, ""),
    ],
)  # fmt: skip
def test_advice_holds_within_a_tenth_of_its_usual_effect(ratio: float, usual: Any, word: str) -> None:
    assert tables.judge_usual(ratio, usual) == word


@pytest.mark.parametrize(
    ("table", "command", "folder", "words"),
    [
        ("ablated", "ablate", "ablation", ["ladder `article`", "| bf16 | ", "is its order"]),
        ("mapped", "map", "map", ["| batch 4 |", "article's policy"]),
    ],
)
def test_a_complete_study_is_shown_with_its_sources(
    tmp_path: Path, table: str, command: str, folder: str, words: list[str]
) -> None:
    ablation = made_up_ablation.of_ablation(MACHINE, made_up_ablation.ARTICLE[:3])
    data = ablation if command == "ablate" else made_up_ablation.of_map(MACHINE)
    absent = f"*No complete run yet: `ladder {command}`.*\n"
    assert pages.TABLES[table](Committed(tmp_path)) == absent
    shown = pages.TABLES[table](kept(tmp_path, f"{folder}/a.json", data))
    assert shown.startswith("**NVIDIA H200**, `article`") and f"(@/results/{folder}/a.json)" in shown
    assert [each for each in words if each not in shown] == []
    data["observed"].popitem()
    assert pages.TABLES[table](kept(tmp_path, f"{folder}/a.json", data)) == absent


def test_kernels_are_counted_by_op_and_stand_beside_copies_in_a_step(tmp_path: Path) -> None:
    cases = made_up_kernels.cases()
    rows = [made_up_kernels.row(case, way) for case in cases[1:] for way in case.directions]
    data = write_record(made_up_kernels.file(rows, cases[:1]))
    shown = tables.render_kernels(kept(tmp_path, "kernels/box.json", data), "box")
    assert f"*{len(cases) - 1} cases · 1 of {len(cases)} cases not measured" in shown
    absent = "*No complete run yet: `ladder profile graph_fills`.*\n"
    data = made_up_profile.of_profile(MACHINE, "fused_act", {"bias_act_kernel": 1.0})
    assert (
        tables.render_passes(kept(tmp_path, "profile/box.json", data), "box") == absent
    )  # of an older version
    known = {"kernel": "bias_act_kernel", "ms": 1.0, "launches": 4.0, "bytes": 2_000_000_000}
    data["observed"]["step"]["step"]["passes"] = [known | {"known_ms": 1.0, "copy_ms": 0.5}]
    shown = tables.render_passes(kept(tmp_path, "profile/box.json", data), "box")
    assert "| bias\\_act\\_kernel | 1.00 | 4.00 | 2,000 | 2.00 | 50.0% |" in shown
    assert "below 60%: bias\\_act\\_kernel" in shown and "(@/results/profile/box.md)" in shown


# ---- what documents name ---------------------------------------------------------------------------------------------


def test_no_document_but_the_log_links_a_stopped_run_or_one_of_few_generations(stored: Committed) -> None:
    charts = {stored.find_chart(each).removesuffix(".md") for each in stored.best.values()}
    wrong = []
    for path in pages.list_documents(ROOT):
        text = "" if path.stem == "log" else path.read_text(encoding="utf-8")
        for name in sorted(set(re.findall(r"\bresults/([\w./-]+)\.(?:md|json|png|txt)\b", text))):
            file = stored.root / f"{name}.json"
            if name.startswith("charts/"):
                wrong += [name] * (
                    name not in charts and not name.startswith(("charts/gpus-article", "charts/hero"))
                )
            elif file.is_file() and not name.startswith("ladder/"):
                wrong += [name] * bool(find_shortfall(json.loads(file.read_text())))
    assert wrong == []


@pytest.mark.parametrize(
    "data, reason",
    [
        ({"complete": False}, "was stopped"),
        ({"complete": True, "protocol": {"rounds": 2}}, "fewer than 3 generations"),
        ({"complete": True, "protocol": {"rounds": 3}}, None),
        ({"light_ms": 7.9}, None),
    ],
)
def test_results_of_other_commands_are_quoted_from_three_generations_on(
    data: Any, reason: str | None
) -> None:
    shortfall = find_shortfall(data)
    assert bool(shortfall) == bool(reason) and (reason or "") in (shortfall or "")


def test_the_index_links_every_document_once() -> None:
    links = re.findall(r"\]\(([\w./-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    others = {path.name for path in (ROOT / "docs").glob("*.md") if not pages.is_generated(path)} - {
        "index.md"
    }
    assert sorted(links) == sorted([*others, "../CONTRIBUTING.md"])


@pytest.mark.parametrize(
    "path", [*pages.list_documents(ROOT), ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem
)
def test_documents_name_modules_and_headings_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"(?<=-m )((?:ladder|kernels|benches|tests)(?:\.\w+)*)", text))
    assert [name for name in named if importlib.util.find_spec(name) is None] == []
    for file, heading in re.findall(r"\]\(([\w./-]*\.md)?#([\w-]+)\)", text):
        target = path.parent / file if file else path
        titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
        assert heading in slugs, f"{path.name} links {file}#{heading}"


# --- the picture of the claims ---------------------------------------------------------------------------------------

CLAIMS = [
    ("coalesced access beats strided", "8x", "45.4x"), ("a launch costs", "5-10 us", "6.54 us"),
    ("16 bits halve the memory", "0.5x", "0.14x"),
    ("a name that is far too long for the picture to hold it", "1x", "39x"),
    ("of the least that the axis shows", "39x", "1x"),
]  # fmt: skip


def test_labels_stand_beside_the_marks_and_each_mark_at_its_value() -> None:
    figure, texts = lay_out(lambda: claims_chart.draw(CLAIMS))
    check_layout(figure, texts)
    (axes,) = figure.axes
    marks = [line for line in axes.lines if line.get_marker() == "o"]
    ticks = {line.get_xdata()[0] for line in axes.lines if line.get_marker() != "o"}
    _, one, ten = sorted(ticks)
    values = [10 ** float((line.get_xdata()[0] - one) / (ten - one)) for line in marks]
    assert values == pytest.approx([45.4 / 8, 6.54 / 7.5, 0.14 / 0.5, 39, 1 / 39])
    for line in marks:
        (x, y), reach = axes.transData.transform(line.get_xydata()[0]), 8 / 2 * figure.dpi / 72
        near = [text for text, box in texts if box.y0 < y + reach and box.y1 > y - reach]
        assert len(near) >= 2, "its name and its figures"
        assert not [t for t, box in texts if t in near and box.x0 < x + reach and box.x1 > x - reach]


def test_rows_are_those_of_the_documents_table_with_both_figures() -> None:
    table = "| claim | article | here | interval | verdict | details |\n|---|---|---|---|---|---|\n"
    table += (
        "| a launch costs | 5-10 us | 6.54 us | 6.30-6.88 us | holds | CPU |\n| b | | 1.09x | | holds | c |\n"
    )
    assert claims_chart.read_rows(table) == [("a launch costs", "5-10 us", "6.54 us")]
    assert len(claims_chart.read_rows(claims_chart.PAGE.read_text())) > 5
