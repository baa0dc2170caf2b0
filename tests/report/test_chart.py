"""The staircase: what it says, for every kind of result, and that its text neither overlaps nor leaves the picture."""

import json
import warnings
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from ladder.base.errors import UserError
from ladder.report import chart, drawing, panels, tables
from ladder.report import view as viewing
from tests.support import made_up, two_clocks
from tests.support.typed import Reading

chart = Reading(chart)
tables = Reading(tables)
view = Reading(viewing).view

RUNS = {
    "checked": made_up.checked_run,
    "gpu": made_up.gpu_run,
    "cpu": made_up.cpu_run,
    "faulty": made_up.faulty_run,
}


def judged():
    made = made_up.judged_run()
    return tables.with_top(made, [made, made_up.judged_run("leave-one-out", set_to_none=25.29)])


def left_out():
    return made_up.judged_run("leave-one-out")


def nothing_measured():
    return made_up.result([made_up.rung(name) for name in made_up.H200])


def two_rungs():
    return made_up.result([made_up.rung("baseline", 90.0), made_up.rung("cuda_graphs", 30.0)])


DRAWN = {}  # drawing takes seconds, and tests only look at a picture


def drawn(result):
    """(figure, its visible texts with their boxes in pixels)."""
    key = json.dumps(result, sort_keys=True)
    if key not in DRAWN:
        DRAWN[key] = draw(result)
    return DRAWN[key]


def draw(result):
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    with matplotlib.rc_context(drawing.STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters the font lacks
        figure = chart._figure(view(result))
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        texts = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
        return figure, [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]


def words(result):
    return "\n".join(text for text, _ in drawn(result)[1])


@pytest.mark.parametrize(
    "make",
    [
        *RUNS.values(),
        nothing_measured,
        two_rungs,
        judged,
        left_out,
        lambda: held_up(),
        two_clocks.run,
        lambda: two_clocks.run(1),
    ],
)
def test_no_text_overlaps_another_or_leaves_the_picture(make):
    figure, texts = drawn(make())
    for text, box in texts:
        assert box.x0 >= 0 and box.y0 >= 0, text
        assert box.x1 <= figure.bbox.width and box.y1 <= figure.bbox.height, text
    for (one, a), (other, b) in combinations(texts, 2):
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        high = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert wide <= 1 or high <= 3, f"{one!r} overlaps {other!r}"  # boxes have some air around the letters


def near_one():
    """Speedups around 1x, with and without the article's beside them."""
    times = {
        "channels_last": 95.0,
        "bf16": 96.3,
        "fused_norm": 97.5,
        "set_to_none": 75.0,  # a label under the point, as the article's is higher: it would lie on the line
        "cuda_graphs": 65.0,
        "data_loading": 93.0,
    }
    return made_up.judged_run(**times)


def solo_near_one():
    return made_up.judged_run("solo", channels_last=95.0, bf16=97.5, fused_norm=101.0, set_to_none=99.0)


@pytest.mark.parametrize("make", [near_one, solo_near_one, judged, left_out, made_up.gpu_run])
def test_no_speedup_touches_the_line_at_1x(make):
    figure, texts = drawn(make())
    axes = figure.axes[1]
    line = axes.transData.transform((0, 1))[1]
    top, bottom = axes.get_window_extent().y1, axes.get_window_extent().y0
    said = [(text, box) for text, box in texts if text.endswith("x") and bottom < (box.y0 + box.y1) / 2 < top]
    labels = [(text, box) for text, box in said if box.x0 > axes.get_window_extent().x0]  # not the scale's
    assert labels
    for text, box in labels:
        assert box.y0 >= line or box.y1 <= line, f"{text} lies on the 1x line"


def test_it_says_what_was_measured_where_and_beside_what():
    said = words(made_up.gpu_run())
    for text in (
        "NVIDIA H200: 96.4 to 25.3 ms a step, 3.81x", "article: 256x256, batch 8", "A100", "2.62x", "3.09x",
        "images/s", "reserved GiB", "316", "14.2", "312", "95% interval", "GPU waiting for the CPU", "CUDA graphs",
    ):  # fmt: skip
        assert text in said


def test_a_bar_shows_what_the_gpu_works_and_what_it_waits():
    figure, texts = drawn(two_clocks.run())
    bars = {round(bar.get_x() + bar.get_width() / 2): [] for bar in figure.axes[3].patches}
    for bar in figure.axes[3].patches:
        bars[round(bar.get_x() + bar.get_width() / 2)].append(bar.get_height())
    assert bars[1] == pytest.approx([93.0, 65.0]) and bars[7] == pytest.approx([61.2, 0.1])
    said = [text for text, _ in texts]
    assert "93.0 ms\n1.13x faster" in said and "waits 65.0" in said and "158 ms" in said
    assert "less than 8.9%" in said and "1.122-1.136x" in said
    assert any("GPU time: noise floor 0.3%" in text for text in said)


def test_a_rung_without_gpu_time_is_not_drawn_as_work_of_the_gpu():
    made = two_clocks.run()
    made["rungs"][6] |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms", "host_bound"))
    figure, texts = drawn(made)
    colours = {
        round(bar.get_x() + bar.get_width() / 2): bar.get_facecolor() for bar in figure.axes[3].patches[::2]
    }
    assert colours[6] != colours[5] == colours[7]
    assert "GPU time unknown" in [text for text, _ in texts]


def test_gaps_say_why_and_doubtful_runs_say_so():
    said = words(made_up.faulty_run())
    for text in (
        "oom",
        "failed",
        "CUDA out of memory",
        "not to be quoted",
        "interrupted",
        "Speedups refer to channels_last",
    ):
        assert text in said
    assert "needs a CUDA GPU" in words(made_up.cpu_run())
    assert "no rung has a number" in words(nothing_measured())


def test_the_same_result_gives_the_same_bytes_whatever_the_users_settings():
    import matplotlib

    for kind in ("svg", "png"):
        first = chart.render(made_up.gpu_run(), kind)
        with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "svg.hashsalt": "other"}):
            assert chart.render(made_up.gpu_run(), kind) == first
    assert first != chart.render(made_up.cpu_run(), kind)


def test_a_strangers_text_is_drawn_as_it_stands():
    made = made_up.gpu_run()
    made["machine"]["gpu"] = "GPU $\\frac{$ <script>alert(1)</script> 日本 " * 6
    made["rungs"][3] = made_up.rung("fused_norm", status="failed", reason="$x_{ <b> & " * 60)
    svg = chart.render(made, "svg")
    root = ElementTree.fromstring(svg)
    assert not [node for node in root.iter() if node.tag.rsplit("}")[-1] == "script"]
    figure, texts = drawn(made)
    assert [text for text, box in texts if box.x1 > figure.bbox.width] == []


def test_it_is_written_whole_as_png_or_svg_and_nothing_else(tmp_path):
    chart.draw(made_up.gpu_run(), tmp_path / "deep" / "c.PNG")
    assert (tmp_path / "deep" / "c.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        chart.draw(made_up.gpu_run(), tmp_path / "c.pdf")
    assert [path.name for path in tmp_path.rglob("*.*")] == ["c.PNG"]


def test_colours_keep_their_contrast_on_white():
    def luminance(color):
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for color in (panels.BUSY, panels.ARTICLE, panels.BAD, panels.INK, panels.MUTED):
        assert 1.05 / (luminance(color) + 0.05) >= 4.5  # WCAG AA for text


def test_verdict_noise_floor_and_advice_are_in_the_picture():
    said = words(judged())
    for text in (
        "faster",
        "Step time: noise floor",
        "eager rungs",
        "captured rungs",
        "adopt",
        "gain at top",
        "noise floor",
    ):
        assert text in said
    assert "0.41 of budget" in words(made_up.checked_run())
    quiet = words(made_up.judged_run(data_loading=31.21))
    assert "less than" in quiet
    assert "all rungs but" in words(left_out()) and "oise floor" not in words(made_up.gpu_run())


def held_up():
    """One process of a rung waited for half a minute: its interval is fifty times its bar."""
    run = judged()
    run["rungs"][1]["interval_ms"] = [1.0, 50 * run["rungs"][1]["step_ms"]]
    run["rungs"][1]["total_interval"] = [0.02, 90.0]
    return run


def test_one_wide_interval_does_not_press_the_bars_flat():
    (calm, _), (wild, _) = drawn(judged()), drawn(held_up())
    for before, after in zip(calm.axes, wild.axes, strict=True):
        assert after.get_ylim()[1] <= 2 * before.get_ylim()[1]
    assert "goes on" in words(held_up()) and "goes on" not in words(judged())
