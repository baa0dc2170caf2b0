"""Documents: their tables are those of the committed results, and what they name is there."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ladder.base.errors import UserError
from ladder.publish.pages import __main__ as command
from ladder.publish.pages import filling, ladders, machines, targets
from ladder.publish.pages.committed import Committed
from ladder.results.combine import gains as across
from tests.support import committed, made_up, two_clocks
from tests.support.two_clocks import stored_runs
from tests.support.typed import write_run

ROOT = committed.ROOT
PAGE = "<!-- table: rungs nvidia-h200/article/article -->\nold\n<!-- end -->\n"
RESULT = "results/ladder/nvidia-h200/a.json"


@pytest.fixture(scope="module")
def stored() -> Committed:
    return Committed(committed.folder("results").parent)


@pytest.mark.parametrize("path", filling.list_documents(ROOT), ids=lambda path: path.stem)
def test_a_document_holds_what_the_committed_results_say(stored: Committed, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert filling.fill_text(text, path.relative_to(ROOT), stored) == text, "run make docs"


def test_each_gpu_with_a_whole_run_has_its_page(stored: Committed) -> None:
    wanted = machines.render_pages(stored)
    assert {name: (ROOT / name).read_text(encoding="utf-8") for name in wanted} == wanted, "run make docs"
    assert machines.list_stale(ROOT, wanted) == []


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small repository with one staged result and a document of it; the command works there."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# A\n")
    (tmp_path / "docs" / "a.md").write_text("Before.\n" + PAGE + "After.\n")
    write_run(tmp_path / RESULT, made_up.judged_run())
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", RESULT)
    monkeypatch.setattr(command, "ROOT", tmp_path)
    return tmp_path


def test_only_the_regions_change_and_only_git_s_results_count(checkout: Path, capsys) -> None:
    page = checkout / "docs" / "a.md"
    mine = made_up.judged_run(fused_act=9.9) | {"started": "2026-11-26T00:00:00+00:00"}
    write_run(checkout / "results/ladder/nvidia-h200/mine.json", mine)
    assert command.main([]) == 0 and capsys.readouterr().out.splitlines()[0] == "docs/a.md"
    text = page.read_text()
    assert text.startswith("Before.\n<!-- table: ") and text.endswith("<!-- end -->\nAfter.\n")
    assert "| FP32 baseline | " in text and "old" not in text and "9.90" not in text
    assert f"(../{RESULT})" in text
    (checkout / RESULT).unlink()
    assert command.main([]) == 0 and page.read_text() == text


def test_a_result_that_must_not_be_quoted_says_so(checkout: Path) -> None:
    write_run(checkout / RESULT, made_up.judged_run() | {"dirty": True})
    git(checkout, "add", RESULT)
    assert command.main([]) == 0
    assert "dirty: not publishable" in (checkout / "docs" / "a.md").read_text()


def few_rounds(run: dict[str, Any]) -> dict[str, Any]:
    """The run with two of its rounds."""
    return run | {"rungs": [rung | {"rounds": rung["rounds"][:2]} for rung in run["rungs"]]}


@pytest.mark.parametrize("spoil", [two_clocks.interrupt, few_rounds], ids=["stopped", "few"])
def test_no_document_quotes_a_stopped_run_or_one_of_few_rounds(checkout: Path, capsys, spoil: Any) -> None:
    """Its region is refused, and its machine has no page; a page that was there goes."""
    pages = checkout / "docs" / "results-nvidia-h200.md"
    assert command.main([]) == 0 and "| FP32 baseline | " in pages.read_text()
    write_run(checkout / RESULT, spoil(made_up.judged_run()))
    git(checkout, "add", RESULT)
    assert command.main([]) == 2 and "no committed result" in capsys.readouterr().err
    (checkout / "docs" / "a.md").write_text("No region.\n")
    assert command.main([]) == 0 and not pages.exists()


@pytest.mark.parametrize(
    "data, reason",
    [
        ({"complete": False}, "was stopped"),
        ({"complete": True, "protocol": {"rounds": 2}}, "fewer than 3 generations"),
        (
            {"complete": True, "programs": [{"rounds": [{}] * 3}, {"rounds": [{}]}]},
            "fewer than 3 generations",
        ),
        ({"complete": True, "questions": [{"rounds": 2}]}, "fewer than 3 generations"),
        ({"complete": True, "protocol": {"rounds": 3}}, None),
        ({"light_ms": 7.9}, None),
    ],
)
def test_results_of_other_commands_are_quoted_from_three_generations_on(
    tmp_path: Path, data: Any, reason: str
) -> None:
    write_run(tmp_path / "results" / "upstream" / "a.json", data)
    stored = Committed(tmp_path)
    assert stored.names("upstream/*.json") == ([] if reason else ["upstream/a.json"])
    if reason:
        with pytest.raises(UserError, match=reason):
            stored.read("upstream/a.json")


@pytest.mark.parametrize(
    "region, says",
    [
        ("<!-- table: rungz a -->\n<!-- end -->\n", "docs/b.md:2: no table 'rungz'; did you mean 'rungs'?"),
        ("<!-- table: rungs -->\n<!-- end -->\n", "docs/b.md:2: table 'rungs' takes NAME"),
        ("<!-- table: rungs a/b/c -->\n<!-- end -->\n", "docs/b.md:2: no committed result of a/b/c"),
        ("<!-- table: rungs x.json -->\n<!-- end -->\n", "results/x.json is not among the committed results"),
        ("<!-- table: precision none -->\n<!-- end -->\n", "results/precision/none.json is not among"),
        ("<!-- table: rungs a/b/c -->\n", "docs/b.md:2: the region has no line `<!-- end -->`"),
        ("<!-- table: targets -->\n" + PAGE, "docs/b.md:2: the region has no line `<!-- end -->`"),
    ],
)
def test_a_bad_region_is_one_line_and_no_document_changes(
    checkout: Path, capsys, region: str, says: str
) -> None:
    (checkout / "docs" / "b.md").write_text("# B\n" + region)
    before = (checkout / "docs" / "a.md").read_text()
    assert command.main([]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and said[0].startswith("docs: ") and says in said[0]
    assert (checkout / "docs" / "a.md").read_text() == before


def test_arguments_and_folders_that_are_no_repository_are_refused(
    checkout: Path, tmp_path_factory, monkeypatch, capsys
):
    assert command.main(["x"]) == 2
    elsewhere = tmp_path_factory.mktemp("none")
    (elsewhere / "README.md").write_text("# A\n")
    monkeypatch.setattr(command, "ROOT", elsewhere)
    assert command.main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_broken_committed_file_is_named(checkout: Path) -> None:
    (checkout / RESULT).write_text("{")
    git(checkout, "add", RESULT)
    with pytest.raises(UserError, match=r"a\.json"):
        filling.fill_documents(checkout)


# ---- the top of a ladder ---------------------------------------------------------------------------------------------


def test_the_row_of_full_is_of_the_run_that_has_the_top(tmp_path: Path) -> None:
    ends = two_clocks.selected("baseline", "fused_act", two_clocks.TOP)
    ends["started"] = "2026-11-22T10:15:00+00:00"
    more = two_clocks.selected("baseline", "bf16", "fused_norm", "fused_act")
    more["started"] = "2026-11-23T10:15:00+00:00"
    stored = stored_runs(tmp_path, article=two_clocks.run(), more=more)
    assert "of `full`" not in ladders.render_gpus(stored)
    stored = stored_runs(tmp_path, ends=ends)
    (row,) = [line for line in ladders.render_gpus(stored).splitlines() if "of `full`" in line]
    assert row.startswith(f"| all {two_clocks.RUNGS} rungs of `full` at once ([run of 3 rungs](")
    assert "| 40.00 | 39.90 |" in row and "| 4.00x |" in row
    assert "ladder/nvidia-h200/ends.json)" in row  # results/charts shows the run of more rungs


def test_a_gpu_with_a_run_of_full_alone_is_shown_by_the_article_s_rungs_of_it(tmp_path: Path) -> None:
    names = [rung["name"] for rung in two_clocks.run()["rungs"]]
    few = stored_runs(tmp_path / "few", ends=two_clocks.selected("baseline", "fused_act", two_clocks.TOP))
    assert ladders.render_gpus(few) == ""
    stored = stored_runs(tmp_path, full=two_clocks.selected(*names, two_clocks.TOP))
    shown = ladders.render_gpus(stored).splitlines()
    assert (
        sum(line.startswith("| ") for line in shown) == 1 + len(names) + 1 and "run of 9 rungs" in shown[-3]
    )
    older = two_clocks.run() | {"started": "2026-11-01T10:15:00+00:00"}
    for rung in older["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms")) | {"step_ms": 199.0}
    assert "| 199.0 |" not in ladders.render_gpus(stored_runs(tmp_path, older=older))


def test_a_gpu_time_of_too_few_generations_is_no_number_of_a_document(tmp_path: Path) -> None:
    made = two_clocks.run()
    for visit in made["rungs"][-1]["rounds"][1:]:
        visit["profiled"] = None
    stored = stored_runs(tmp_path, a=made)
    for shown in (ladders.render_gpus(stored), ladders.render_rungs(stored, "nvidia-h200/article/article")):
        assert "| 68.20 | " in shown and "| too few generations | " in shown and "61.77" not in shown


def test_what_lazy_phases_add_is_told_as_of_one_generation(tmp_path: Path) -> None:
    made = two_clocks.selected("baseline", two_clocks.TOP)
    for rung in made["rungs"]:
        rung["rounds"][1]["lazy_ms"] = {"D_r1": 4.75, "G_pl": 4.14}
    stored = stored_runs(tmp_path, a=made)
    shown = ladders.render_lazy(stored, "nvidia-h200", "full")
    assert shown.splitlines()[2].endswith("| FP32 baseline | 4.75 | 4.14 |")
    assert shown.endswith("*of one generation of each run*\n")
    assert targets.judge_lazy(stored)[1:] == (
        "4.75 ms and 4.14 ms",
        "[file](@/results/ladder/nvidia-h200/a.json), generations: 3; R1 and path length from one of them",
    )


def test_the_target_of_light_stands_beside_the_floor_of_the_rung_that_it_tells(tmp_path: Path) -> None:
    """The floor of an earlier rung is another: the page of the roofline would tell another factor."""
    stored = stored_runs(tmp_path, a=two_clocks.selected("baseline", two_clocks.TOP))
    assert targets.judge_light(stored)[1:] == (
        "no complete run",
        f"`ladder doctor --roofline --rung {two_clocks.TOP}`",
    )
    for rung, name in (("fused_modulation", "graph_fills"), (two_clocks.TOP, "fused_modulation")):
        data = committed.file(f"results/roofline/nvidia-h200-article-full-{name}.json").read_text()
        two_clocks.kept(tmp_path, f"roofline/nvidia-h200-article-full-{rung}.json", json.loads(data))
    assert targets.judge_light(Committed(tmp_path))[1].endswith("and a floor of 7.93")


def test_a_run_of_all_rungs_is_called_by_its_ladder() -> None:
    assert ladders.name_all_rungs(24, 24, "a.md") == "all 24 rungs of [`full`](@/results/a.md)"


def test_the_gains_of_two_gpus_stand_beside_each_other_and_a_third_makes_three_tables(tmp_path: Path) -> None:
    runs = {}
    for letter in "abc":
        made = two_clocks.run()
        runs[letter] = made | {
            "machine": made["machine"] | {"name": f"nvidia-{letter}", "gpu": f"NVIDIA {letter}"}
        }
    assert ladders.render_agreement(stored_runs(tmp_path / "one", a=runs["a"])) == ""
    pair = ladders.render_agreement(stored_runs(tmp_path / "two", a=runs["a"], b=runs["b"])).splitlines()
    assert pair[0] == "| rung | gain of GPU time, NVIDIA a | NVIDIA b | verdict | where it lies |"
    assert pair[-1].startswith("*all 7 gains agree within ") and "channels\\_last" in pair[2]
    assert ladders.render_agreement(stored_runs(tmp_path / "three", **runs)).count("gain of GPU time") == 3


def test_gains_of_two_gpus_are_compared_as_the_command_compares_their_files(tmp_path: Path) -> None:
    """The article's rungs of a run of `full` have the noise of the whole run; other code is told."""
    names = [rung["name"] for rung in two_clocks.run()["rungs"]]
    made = two_clocks.selected(*names, "conv_double_backward", two_clocks.TOP) | {"commit": "b" * 40}
    for place, rung in enumerate(made["rungs"]):
        apart = (-1) ** place * (0.001 if rung["name"] in names else 0.002)
        for number, each in enumerate(rung["rounds"]):
            each["profiled"] = [
                cycle | {"gpu_ms": cycle["gpu_ms"] * (1 + number * apart)} for cycle in each["profiled"]
            ]
    made["machine"] |= {"name": "nvidia-b", "gpu": "NVIDIA B"}
    stored = stored_runs(tmp_path, a=two_clocks.run(), b=made)
    first, second = (stored.ladder(f"ladder/nvidia-h200/{name}.json") for name in "ab")
    rows = across.compare(first, second, {})
    shown = ladders.render_agreement(stored).splitlines()
    assert shown[1] == "|---|---:|---:|---|---|"  # words at the left, as everywhere
    assert [line.split(" | ")[3] for line in shown[2:9]] == [across.told(row.gpu) for row in rows]
    assert shown[-1].endswith(f" · {across.OTHER_CODE}*")
    made |= {"commit": two_clocks.run()["commit"]}
    assert across.OTHER_CODE not in ladders.render_agreement(stored_runs(tmp_path, b=made))


def test_a_ladder_that_is_gone_is_headed_by_the_title_of_its_result(tmp_path: Path) -> None:
    made = two_clocks.run()
    made["ladder"] |= {"name": "gone", "title": "All of it, and one more"}
    stored = stored_runs(tmp_path, a=made)
    assert "## All of it, and one more (`gone`)" in machines.render_page(stored, "nvidia-h200")


def test_the_ends_of_every_run_are_those_of_staircases_from_the_baseline_on(tmp_path: Path) -> None:
    runs = {
        "2a": two_clocks.selected("baseline", two_clocks.TOP),
        "2b": two_clocks.selected("baseline", "bf16", two_clocks.TOP),
        "2c": two_clocks.selected(two_clocks.TOP),
        "2d": two_clocks.selected("bf16", two_clocks.TOP),
    }
    stored = stored_runs(tmp_path, **{f"article-full-{name}": made for name, made in runs.items()})
    names = ladders.list_staircases(stored, "nvidia-h200", "article", "full")
    assert names == [f"ladder/nvidia-h200/article-full-{name}.json" for name in ("2b", "2a")]
    shown = ladders.render_hosts(stored, names)
    assert (
        "2b.json" in shown
        and shown.splitlines()[-1].startswith("| [")
        and "2a.json" in shown.splitlines()[-1]
    )
    assert "The lowest and the highest rung of every run" in machines.render_page(stored, "nvidia-h200")


def test_a_table_links_the_samples_where_the_charts_show_another_run(tmp_path: Path) -> None:
    ends = two_clocks.selected("baseline", two_clocks.TOP)
    stopped = two_clocks.interrupt(two_clocks.selected("baseline", "bf16", two_clocks.TOP))
    stopped["started"] = "2026-11-23T10:15:00+00:00"
    stored = stored_runs(tmp_path, ends=ends, stopped=stopped)
    (best,) = stored.best.values()
    assert stored.chart(best) == "ladder/nvidia-h200/ends.json" and not stored.is_best(best)
    alone = stored_runs(tmp_path / "alone", ends=ends)
    assert alone.chart(best) == "charts/nvidia-h200-article-full-some-rungs.md" and alone.is_best(best)


def unquotable(stored: Committed, text: str) -> list[str]:
    """Return the results and charts that a document links and may not quote, whatever their names say."""
    charts = {stored.chart(each).removesuffix(".md") for each in stored.best.values()}
    charts |= {f"charts/gpus-article{end}" for end in ("", "-dark")}
    for kind in ("kernels", "precision"):
        charts |= {f"charts/{Path(name).stem}-{kind}" for name in stored.names(f"{kind}/*.json")}
    found = []
    for name in sorted(set(re.findall(r"\bresults/([\w./-]+)\.(?:md|json|png|txt)\b", text))):
        if name.startswith("charts/"):
            found += [name] * (name not in charts)
        elif (stored.root / f"{name}.json").is_file():
            found += [name] * (f"{name}.json" not in stored.names(f"{name}.json"))
    return found


@pytest.mark.parametrize(
    "path", [path for path in filling.list_documents(ROOT) if path.stem != "log"], ids=lambda path: path.stem
)
def test_no_document_but_the_log_links_a_stopped_run_or_one_of_few_generations(
    stored: Committed, path: Path
) -> None:
    assert unquotable(stored, path.read_text(encoding="utf-8")) == []


def test_links_of_stopped_runs_and_of_few_generations_are_seen(tmp_path: Path) -> None:
    write_run(tmp_path / "results/upstream/a.json", {"complete": True, "protocol": {"rounds": 2}})
    write_run(tmp_path / "results/upstream/b.json", {"complete": True, "protocol": {"rounds": 3}})
    full = two_clocks.selected("baseline", two_clocks.TOP)
    stored = stored_runs(tmp_path, whole=two_clocks.run(), stopped=two_clocks.interrupt(full))
    names = ["upstream/a.md", "upstream/b.json", "charts/nvidia-h200-article-article.png",
             "charts/nvidia-h200-article-full-partial.md", "ladder/nvidia-h200/stopped.json",
             "ladder/nvidia-h200/whole.json", "charts/nvidia-h200-kernels.png"]  # fmt: skip
    said = unquotable(stored, " ".join(f"[x](../results/{name})" for name in names))
    assert said == ["charts/nvidia-h200-article-full-partial", "charts/nvidia-h200-kernels",
                    "ladder/nvidia-h200/stopped", "upstream/a"]  # fmt: skip


# ---- what documents name ---------------------------------------------------------------------------------------------


def test_the_index_links_every_document_once() -> None:
    links = re.findall(r"\]\(([\w./-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    others = {path.name for path in (ROOT / "docs").glob("*.md") if not machines.is_made(path)} - {"index.md"}
    assert sorted(links) == sorted([*others, "../CONTRIBUTING.md"])


def test_the_glossary_says_each_word_once_in_one_sentence() -> None:
    rows = re.findall(
        r"^\| \*\*(.+?)\*\* \| (.+) \|$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE
    )
    words = [word for word, _ in rows]
    assert len(words) > 30 and len(set(words)) == len(words)
    assert [word for word, meaning in rows if not re.fullmatch(r"[A-Z\d`]([^.]|\.(?=\w))*\.", meaning)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= 9 * 1024


@pytest.mark.parametrize(
    "path", [*filling.list_documents(ROOT), ROOT / "CONTRIBUTING.md"], ids=lambda path: path.stem
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
