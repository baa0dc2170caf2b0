"""The picture that compares GPUs: a bar a GPU in each rung, the article's beside them, and a whole training's hours."""

import copy
from dataclasses import replace

import pytest

from ladder.core.plain import Fields
from ladder.publish import gallery
from ladder.report import gpus
from ladder.show.themes import LIGHT
from tests.report.test_chart import check_layout, full, lay_out
from tests.report.test_drawing import git
from tests.support import made_up, two_clocks
from tests.support.typed import typed, write_run


def on(gpu: str, made: Fields, faster: float = 1.0) -> Fields:
    """Return a result as if of another GPU, ``faster`` times as fast by both clocks."""
    made = copy.deepcopy(made)
    made["machine"] |= {"gpu": gpu, "name": gpu.lower().replace(" ", "-")}
    for rung in made["rungs"]:
        rung |= {key: rung[key] / faster for key in ("step_ms", "gpu_ms", "waiting_ms") if rung.get(key)}
    return made


def longer(gpu: str = "NVIDIA H200", faster: float = 1.0) -> Fields:
    made = on(gpu, full(), faster)
    made["ladder"] |= {"name": "full", "rungs": [rung["name"] for rung in made["rungs"]]}
    return made


def one():
    return [(typed(two_clocks.run()), None)]


def two():
    h100 = "NVIDIA H100 80GB HBM3"
    slow = on(h100, two_clocks.run(), 0.8)
    slow["rungs"][3] = made_up.rung(
        "fused_norm", status="failed: parity", reason="error 0.0041, budget 0.002 " * 20
    )
    slow["rungs"][6] |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms", "host_bound"))
    return [(typed(slow), None), (typed(two_clocks.run()), typed(longer()))]


def three():
    odd = on("NVIDIA RTX 6000 Ada Generation", two_clocks.run(1), 0.5)
    return [*two(), (typed(odd), typed(longer("x", 0.5)))]


def drawn(pairs):
    """Return (figure, its texts with their boxes in pixels)."""
    return lay_out(lambda: gpus.draw_figure(pairs))


@pytest.mark.parametrize("make", [one, two, three])
def test_no_text_overlaps_another_or_leaves_the_picture(make):
    figure, texts = drawn(make())
    assert figure.bbox.width * 160 / figure.dpi <= 1600
    check_layout(figure, texts)


def test_the_staircase_of_one_gpu_has_figures_that_no_line_crosses():
    pair = one()[0]
    machine = gpus.read_machine(
        *pair
    )  # and the article's steps a little shorter: an outline ends inside its bar
    rows = [replace(row, article_ms=0.93 * row.step_ms) for row in machine.shown.rows]
    machine = replace(machine, shown=replace(machine.shown, rows=rows))
    figure, texts = lay_out(lambda: gpus.draw_hero(machine, 203.0, LIGHT))
    check_layout(figure, texts)
    bars = [bar.get_window_extent() for bar in figure.axes[0].patches]
    for edge, y0, y1 in ((x, bar.y0, bar.y1) for bar in bars for x in (bar.x0, bar.x1)):
        assert not [t for t, box in texts if box.x0 < edge < box.x1 and box.y0 < y1 and box.y1 > y0]


def test_each_rung_has_a_bar_for_each_gpu_and_one_for_the_article():
    figure, texts = drawn(two())
    said = [text for text, _ in texts]
    assert said.count("H100 80GB") == 8 + 1 and said.count("H200") == 8 + 1 + 1  # rungs, top of full, table
    assert said.count("the article") == 8 + 1
    assert (
        f"all {two_clocks.RUNGS} rungs of the" in said
        and "What each optimization gains on H100 80GB and H200" in said
    )
    widths = {}
    for bar in figure.axes[0].patches:
        widths.setdefault(round(bar.get_y() + bar.get_height() / 2, 2), []).append(bar.get_width())
    lines = [sum(widths[y]) for y in sorted(widths)][1:]  # without the legend
    h100, h200, article = lines[:3]
    assert h200 / h100 == pytest.approx(0.8) and article / h200 == pytest.approx(312 / 160)
    assert len(lines) == 8 * 3 - 1 + 1  # a rung failed on a GPU; one GPU has the longer ladder


def test_a_line_says_what_a_rung_gains_by_each_clock_and_the_totals():
    said = [text for text, _ in drawn(one())[1]]
    for text in ("1.13x", "< 8.9%", "1.84x", "2.61x", "1.72x", "3.00x", "312", "160", "61.2"):
        assert text in said, text
    assert any("A100 80GB" in text and "not a target" in text for text in said)
    assert any(text.startswith("vs previous: bold if") for text in said)  # totals are bold whatever they say


def test_the_table_has_seconds_and_hours_of_a_whole_training():
    said = [text for text, _ in drawn(two())[1]]
    assert "39.0 s/kimg, 271 h" in said  # 312 ms for 8 images
    assert "20.0 s/kimg, 139 h" in said and "25.0 s/kimg, 174 h" in said  # the baselines, 160 and 200 ms
    top = two()[1][1].rungs[-1].step_ms / 8
    assert f"{top:.2f} s/kimg, {top * 25000 / 3600:.1f} h" in said
    assert "V100" in said and "12.5 s/kimg, 87.0 h" in said


# --- which results are compared -------------------------------------------------------------------------------------


def test_only_whole_quotable_generations_are_compared():
    good, top = typed(two_clocks.run()), typed(longer())
    other = typed(on("NVIDIA A100", two_clocks.run()))
    assert gallery.pair_gpus([good, top, other]) == [(other, None), (good, top)]
    assert gallery.pair_gpus([top]) == []  # the article's ladder was not run
    run = two_clocks.run()
    for change in (
        {"complete": False},
        {"dirty": True, "started": "2026-11-26T00:00:00+00:00"},
        {"protocol": run["protocol"] | {"quick": True}},
        {"workload": run["workload"] | {"name": "article-b32"}},
        {"rungs": run["rungs"][:4]},
    ):
        assert gallery.pair_gpus([typed(two_clocks.run() | change)]) == [], change
        assert gallery.pair_gpus([typed(two_clocks.run() | change), good]) == [(good, None)], change
    assert gallery.pair_gpus([typed(two_clocks.run(2))]) == []
    assert gallery.pair_gpus([typed(made_up.judged_run())]) == []  # rounds of visits, without GPU times


ENDS = ("baseline", "fused_act", two_clocks.TOP)


def test_a_run_of_selected_rungs_with_both_ends_is_a_source_of_the_top():
    good, ends = typed(two_clocks.run()), typed(two_clocks.selected(*ENDS))
    assert gallery.pair_gpus([good, ends]) == [(good, ends)] and gallery.has_top(ends)
    said = [text for text, _ in drawn([(good, ends)])[1]]
    assert f"all {two_clocks.RUNGS} rungs of the" in said and "5.00 s/kimg, 34.7 h" in said
    assert gallery.pair_gpus([ends]) == []  # and none of the article's staircase
    whole = typed(longer() | {"started": "2026-01-01T00:00:00+00:00"})
    assert gallery.pair_gpus([good, ends, whole]) == [(good, whole)]
    dirty = typed(longer() | {"dirty": True})
    assert gallery.pair_gpus([good, ends, dirty]) == [(good, ends)]
    more = typed(two_clocks.selected("baseline", "bf16", "fused_norm", "cuda_graphs", "fused_act"))
    assert gallery.pair_gpus([good, ends, more]) == [(good, ends)]  # more rungs, and not the top


def spoiled(rung: int = -1, **changes) -> Fields:
    made = two_clocks.selected(*ENDS)
    made["rungs"][rung] |= changes
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: two_clocks.selected("baseline", "fused_act", "cached_uint8"),
        lambda: two_clocks.selected("fused_act", two_clocks.TOP),  # its totals are over no baseline
        lambda: spoiled(status="oom", reason="out of memory", step_ms=None, gpu_ms=None),
        lambda: spoiled(receipts={}),
        lambda: spoiled(receipts=made_up.receipts(engaged=False)),
        lambda: spoiled(parity=None),
        lambda: spoiled(0, parity=None),
        lambda: spoiled(recipe={}),  # of a day when the ladder had fewer rungs
        lambda: spoiled() | {"complete": False},
        lambda: spoiled() | {"commit": None},
    ],
)
def test_selected_rungs_that_do_not_prove_the_top_are_no_source_of_it(make):
    good = typed(two_clocks.run())
    assert gallery.pair_gpus([good, typed(make())]) == [(good, None)]


def test_the_gallery_draws_it_from_committed_results_on_both_grounds(tmp_path):
    folder = tmp_path / "results" / "ladder" / "nvidia-h200"
    folder.mkdir(parents=True)
    write_run(folder / "a.json", two_clocks.run(2))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    assert not [path for path in gallery.publish(tmp_path) if path.name.startswith("gpus")]
    write_run(folder / "a.json", two_clocks.run())
    written = [path.name for path in gallery.publish(tmp_path) if path.name.startswith("gpus")]
    assert written == [f"gpus-article{end}" for end in (".png", ".svg", "-dark.png", "-dark.svg")]


def test_a_decided_run_is_shown_before_a_newer_one_that_is_not():
    older = two_clocks.run() | {"started": "2026-11-26T00:00:00+00:00"}
    for rung in older["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))
    newer, good = typed(older), typed(two_clocks.run())
    assert gallery.choose_best([newer, good]) == [good] and gallery.choose_best([newer]) == [newer]
    ends = typed(two_clocks.selected("baseline", two_clocks.TOP))
    assert [gallery.name_files(each) for each in (good, ends)] == [
        "nvidia-h200-article-article", "nvidia-h200-article-full-some-rungs"
    ]  # fmt: skip
