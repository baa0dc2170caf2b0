"""The first screen of the site: a card for each workload, with its GPUs side by side."""

import re

import pytest

from ladder.publish import gallery
from ladder.publish.site import collection
from ladder.publish.site.building import Content, render_front
from ladder.results import loading
from tests.publish.site.test_site import point
from tests.support import two_clocks
from tests.support.typed import typed, write_run


def test_a_card_has_baseline_and_tops_of_each_gpu_by_both_clocks(tmp_path):
    whole, longer = two_clocks.run(), two_clocks.selected("baseline", "fused_act", two_clocks.TOP)
    longer["protocol"] |= {"quick": True}
    longer["rungs"] = [rung | {"title": f"<b>{rung['title']}</b>"} for rung in longer["rungs"]]
    other = two_clocks.run() | {"machine": whole["machine"] | {"name": "nvidia-a100", "gpu": "NVIDIA A100"}}
    for rung in other["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))
    found = [(tmp_path / f"{name}.json", made) for name, made in (("a", whole), ("b", longer), ("c", other))]
    groups = collection.collect_groups(typed(found), [], tmp_path)
    (card,) = collection.collect_cards(groups)
    assert [gpu.name for gpu in card.gpus] == ["NVIDIA A100", "NVIDIA H200", "the article"]
    assert "not to be quoted" in card.gpus[1].marks[0] and not card.gpus[0].marks
    baseline, article, full = (line.answers for line in card.lines)
    assert (baseline[1].step, baseline[1].gpu, article[1].step, article[1].gpu) == (
        "160",
        "GPU 105 ms",
        "61.3",
        "GPU 61.2 ms",
    )
    assert (article[1].total, article[1].gpu_total, article[2].total) == ("2.61x", "1.72x", "3.00x")
    assert article[0].gpu == "" and full[0] is None and full[2] is None and full[1].step == "40.0"
    text = render_front(Content(groups))
    assert "GPU 61.2 ms, 1.72x" in text and "<b>fused" not in text
    assert text.index('class="card"') < text.index('<details class="group" id="group-1">')


def test_the_top_is_that_of_the_run_which_holds_it_and_no_lower_rung_s(tmp_path):
    more = two_clocks.selected("baseline", "bf16", "fused_norm", "cuda_graphs")
    ends = two_clocks.selected("baseline", two_clocks.TOP) | {"started": "2026-11-20T10:15:00+00:00"}
    found = [(tmp_path / "a.json", more), (tmp_path / "b.json", ends)]
    (group,) = collection.collect_groups(typed(found), [], tmp_path)
    assert [len(panel.shown.rows) for panel in group.panels] == [4]
    (card,) = collection.collect_cards([group])
    assert {line.title: line.answers[0].step for line in card.lines} == {
        "baseline": "160",
        "the top of full": "40.0",
    }
    (card,) = collection.collect_cards(collection.collect_groups(typed(found[:1]), [], tmp_path))
    assert [line.title for line in card.lines] == ["baseline", "the highest rung of full that ran"]
    assert card.lines[1].answers[0].title == more["rungs"][-1]["title"]


@pytest.mark.parametrize("norm", ["demod", "instance"])
def test_a_run_of_the_ends_of_full_says_the_article_s_top_and_the_top_that_its_workload_can_have(
    tmp_path, norm
):
    ends = two_clocks.selected("baseline", "fused_act", two_clocks.TOP)
    ends["workload"] |= {"norm": norm}
    if norm == "instance":  # it has no weights to demodulate, so its top lacks that rung
        ends["rungs"][-1]["recipe"] |= {"demodulation": "modules"}
    (card,) = collection.collect_cards(
        collection.collect_groups(typed([(tmp_path / "a.json", ends)]), [], tmp_path)
    )
    said = {line.title: (line.answers[0].step, line.answers[0].total) for line in card.lines}
    assert said == {
        "baseline": ("160", "1.00x"),
        "the article's top": ("61.3", "2.61x"),
        "the top of full": ("40.0", "4.00x"),
    }
    ends["workload"] |= {"norm": "demod"}
    ends["rungs"][-1]["recipe"] |= {"demodulation": "modules"}
    (card,) = collection.collect_cards(
        collection.collect_groups(typed([(tmp_path / "a.json", ends)]), [], tmp_path)
    )
    titles = ["baseline", "the article's top", "the highest rung of full that ran"]
    assert [line.title for line in card.lines if line.answers[0]] == titles


def test_a_card_has_the_notes_days_and_report_of_the_runs_whose_numbers_it_shows(tmp_path):
    """An older, longer run that was stopped is in the list of every rung, and says nothing on the card."""
    longer = two_clocks.selected("baseline", "bf16", "fused_norm", "cuda_graphs")
    longer["started"] = "2026-11-01T10:15:00+00:00"
    longer = two_clocks.interrupt(longer)
    ends = two_clocks.selected("baseline", two_clocks.TOP) | {"started": "2026-11-20T10:15:00+00:00"}
    for name, made in (("a", longer), ("b", ends)):
        write_run(tmp_path / f"results/ladder/nvidia-h200/article-full-{name}.json", made)
    found = [(path, loading.load_run(path)) for path in sorted(tmp_path.rglob("*.json"))]
    (group,) = collection.collect_groups(found, [], tmp_path)
    (card,) = collection.collect_cards(
        [group], {group.panels[0].path: "long.html", group.tops[0].path: "top.html"}
    )
    assert group.panels[0].shown.marks and group.panels[0] is not group.tops[0]
    assert card.gpus == [collection.Gpu("NVIDIA H200", "2026-11-20", (), (("full", "top.html"),))]
    assert [line.answers[0].step for line in card.lines] == ["160", "40.0"]


def test_a_run_that_a_card_alone_shows_has_a_report_of_its_own(tmp_path):
    longer = two_clocks.selected("baseline", "bf16", "fused_norm", "cuda_graphs")
    ends = two_clocks.selected("baseline", two_clocks.TOP) | {"started": "2026-11-20T10:15:00+00:00"}
    found = typed([(tmp_path / f"{name}.json", made) for name, made in (("a", longer), ("b", ends))])
    groups = collection.collect_groups(found, [], tmp_path)
    reports = collection.name_reports(groups)
    assert reports == {
        "a.json": "reports/nvidia-h200-article-full.html",
        "b.json": "reports/nvidia-h200-article-full-top.html",
    }
    links = re.findall(r'href="(reports/[^"]*)"', render_front(Content(groups, reports=reports)))
    assert links == [reports["b.json"], reports["a.json"]]  # on the card, in the list of every rung


@pytest.mark.parametrize("last", ["fused_adam", "rung_that_went"])
def test_a_run_that_ended_at_an_older_top_is_told_by_the_name_of_its_last_rung(tmp_path, last):
    older, newer = (two_clocks.selected("baseline", "fused_act", "fused_adam") for _ in range(2))
    older["started"], newer["started"] = "2026-11-01T10:15:00+00:00", "2026-11-20T10:15:00+00:00"
    lower = two_clocks.selected("baseline", "fused_act") | {"started": "2026-11-22T10:15:00+00:00"}
    newer["rungs"][-1] |= {"name": last, "title": "the top of then", "step_ms": 39.0}
    runs = [older, newer] + [lower] * (last == "fused_adam")
    if last == "rung_that_went":
        runs.remove(older)
    found = [(tmp_path / f"{place}.json", made) for place, made in enumerate(runs)]
    groups = collection.collect_groups(typed(found), [], tmp_path)
    (card,) = collection.collect_cards(groups)
    said = {line.title: line.answers[0] for line in card.lines if line.answers[0]}
    assert list(said) == ["baseline", "the article's top", "the highest rung of full that ran"]
    told = said["the highest rung of full that ran"]
    assert (told.title, told.step) == ("the top of then", "39.0") and card.gpus[0].measured == "2026-11-20"
    text = render_front(Content(groups))
    assert '<span class="under">the top of then</span>' in text and "the top of full" not in text


def test_the_article_s_rungs_of_a_run_of_full_go_before_an_older_run_without_gpu_times(tmp_path):
    older = two_clocks.run() | {"started": "2026-11-20T10:15:00+00:00"}
    for rung in older["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms")) | {
            "step_ms": rung["step_ms"] + 9
        }
    names = [rung["name"] for rung in older["rungs"]]
    full = two_clocks.selected(*names, two_clocks.TOP)
    found = [(tmp_path / "a.json", older), (tmp_path / "b.json", full)]
    groups = collection.collect_groups(typed(found), [], tmp_path)
    (card,) = collection.collect_cards(groups)
    assert [(line.answers[0].step, bool(line.answers[0].gpu)) for line in card.lines] == [
        ("160", True),
        ("61.3", True),
        ("40.0", True),
    ]
    part, whole = (group.panels[0] for group in groups)  # the list of every rung shows them, too
    assert [row.step_ms for row in part.shown.rows] == list(two_clocks.WALL_MS.values())
    assert (part.path, part.is_part, whole.is_part) == ("b.json", True, False)
    assert part.shown.title == groups[0].title == "The article's eight rungs"
    assert "these are rungs of a run of full" in render_front(Content(groups))
    reports = collection.name_reports(groups)
    assert reports == {"b.json": "reports/nvidia-h200-article-full.html"}
    (card,) = collection.collect_cards(groups, reports)
    assert card.gpus[0].reports == (("full", reports["b.json"]),)
    found[0] = (
        found[0][0],
        two_clocks.run() | {"started": older["started"]},
    )  # as good: the article's own goes first
    (card,) = collection.collect_cards(collection.collect_groups(typed(found), [], tmp_path))
    assert card.gpus[0].measured == "2026-11-20 and 2026-11-21"


def test_a_card_says_why_it_has_no_gpu_time(tmp_path):
    made = two_clocks.run()
    made["rungs"][-1] |= {"gpu_interval_ms": None, "gpu_verdict": "too few generations"}
    (card,) = collection.collect_cards(
        collection.collect_groups(typed([(tmp_path / "a.json", made)]), [], tmp_path)
    )
    assert [(line.answers[0].step, line.answers[0].gpu) for line in card.lines] == [
        ("160", "GPU 105 ms"),
        ("61.3", "GPU: too few generations"),
    ]


def test_a_top_that_is_not_decided_has_no_factor(tmp_path):
    """The factor is a mean over pairs, the times are medians: a noisy host's contradict each other."""
    made = two_clocks.run()
    made["rungs"][-1] |= {"speedup_total": 0.92, "total_interval": [0.31, 2.7]}
    groups = collection.collect_groups([(tmp_path / "a.json", typed(made))], [], tmp_path)
    (card,) = collection.collect_cards(groups)
    assert (card.lines[1].answers[0].step, card.lines[1].answers[0].total) == ("61.3", "not decided")
    text = render_front(Content(groups))
    assert "160 to 61.3 ms a step, <strong>not decided</strong>" in text


def test_the_list_has_the_verdict_in_gpu_time_before_that_of_the_step(tmp_path):
    made = two_clocks.run()
    groups = collection.collect_groups([(tmp_path / "a.json", typed(made))], [], tmp_path)
    (panel,) = groups[0].panels
    assert [heading.text for heading, _ in panel.columns] == ["ms/step", "GPU ms", "GPU work", "step"]
    # channels_last: the GPU's work is less, the host hides it
    ms, gpu_ms, work, step = (cells[1] for _, cells in panel.columns)
    assert (ms.text, gpu_ms.text, work.text, work.kind) == ("158.0", "93.00", "1.13x faster", "faster")
    assert step.text.startswith("less than") and step.kind == "" and work.under and step.under
    assert "GPU time: noise floor" in render_front(Content(groups))
    for rung in made["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))
    (group,) = collection.collect_groups([(tmp_path / "a.json", typed(made))], [], tmp_path)
    assert [heading.text for heading, _ in group.panels[0].columns] == ["ms/step", "step"]


def test_a_run_without_the_lowest_rung_has_no_total_for_a_card(tmp_path):
    """Its totals are over another rung, and would stand beside those of other GPUs."""
    upper = two_clocks.selected("bf16", "fused_act") | {"started": "2026-11-20T10:15:00+00:00"}
    lower = two_clocks.selected("baseline", "bf16") | {"started": "2026-11-01T10:15:00+00:00"}
    for runs, titles in (([upper], []), ([upper, lower], ["BF16 mixed precision"])):
        found = typed([(tmp_path / f"{place}.json", made) for place, made in enumerate(runs)])
        (card,) = collection.collect_cards(collection.collect_groups(found, [], tmp_path))
        lines = [line for line in card.lines if line.title == "the highest rung of full that ran"]
        assert [line.answers[0].title for line in lines] == titles


def test_the_page_has_the_picture_of_gpus_where_one_was_measured_whole(tmp_path):
    def page(made):
        found = [(tmp_path / "a.json", typed(made))]
        pairs = gallery.pair_gpus([result for _, result in found])
        return render_front(Content(collection.collect_groups(found, [], tmp_path), has_gpus=bool(pairs)))

    whole = page(two_clocks.run())
    assert whole.index('class="card"') < whole.index('<section id="gpus"') < whole.index('id="ladders"')
    assert 'href="#gpus"' in whole and "#gpus" not in page(two_clocks.run() | {"complete": False})


def test_a_workload_that_only_asv_measured_has_no_card(tmp_path):
    groups = collection.collect_groups([], [point("a", {"baseline": 90.0, "bf16": 40.0})], tmp_path)
    assert len(groups) == 1 and collection.collect_cards(groups) == []
    assert 'class="card"' not in render_front(Content(groups))
