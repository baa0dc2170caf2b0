"""GPU time beside wall time, in the terminal, in Markdown and in CSV."""

import csv
import io

import pytest
import rich.console

from ladder.plan import modes
from ladder.report import tables
from ladder.report import view as viewing
from ladder.results import ranking
from tests.support import two_clocks
from tests.support.typed import Reading, fill

report = Reading(tables)
view = Reading(viewing).view


@pytest.fixture
def printed(monkeypatch, capsys):
    """The lines of a table as a terminal of some width shows them, without colours."""
    make = rich.console.Console

    def of(made, width=110):
        monkeypatch.setattr(
            rich.console,
            "Console",
            lambda **_: make(width=width, no_color=True, force_terminal=False, highlight=False),
        )
        report.print_table(made)
        return capsys.readouterr().out.splitlines()

    return of


def test_a_terminal_of_110_columns_shows_both_clocks(printed):
    lines = printed(two_clocks.run())
    row = next(line for line in lines if line.startswith("channels_last "))
    for cell in (
        "158.0",
        "93.00",
        "65.00",
        "1.13x faster",
        "1.122-1.136",
        "less than 8.9%",
        "0.942-1.088",
        "1.01x",
    ):
        assert cell in row
    start = lines.index(next(line for line in lines if line.startswith("rung ")))
    assert max(len(line.rstrip()) for line in lines[start - 1 : start + 9]) <= 110


def test_a_pipe_has_120_columns_and_tells_of_those_left_out(capsys, monkeypatch):
    """`| less` and `| tee log` are read by people; COLUMNS gets the rest."""
    monkeypatch.delenv("COLUMNS", raising=False)
    made = two_clocks.run()
    report.print_table(made)
    said = capsys.readouterr().out
    lines = said.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("rung"))
    assert max(map(len, lines[start : start + 9])) <= 120 and "95% interval" not in said
    assert "columns left out for the width; a wider terminal, COLUMNS=400 in a pipe, or Markdown" in said
    assert lines[1].endswith("2026-11-21") and len(lines[1]) > 120  # text is not broken
    assert not any(
        line.startswith("article: one A100") for line in lines
    )  # explains a column that is not there
    monkeypatch.setenv("COLUMNS", "400")
    report.print_table(made)
    said = capsys.readouterr().out
    assert "95% interval" in said and "\narticle: one A100" in said and "left out" not in said
    monkeypatch.setenv("COLUMNS", "20")  # nothing is cut in a pipe
    report.print_table(made)
    said = capsys.readouterr().out
    assert "…" not in said and "channels_last" in said


def test_a_narrow_terminal_keeps_both_words(printed):
    row = next(line for line in printed(two_clocks.run(), 80) if line.startswith("channels_last "))
    assert "1.13x faster" in row and "less than 8.9%" in row


def test_each_rung_has_a_sentence_on_both(printed):
    lines = printed(two_clocks.run(), 200)
    assert (
        "channels_last: the GPU's work is 1.13x faster; the step shows less than 8.9% difference, "
        "the CPU sets the pace"
    ) in lines
    assert (
        "cuda_graphs: the GPU's work shows less than 1.2% difference; the step is 1.84x faster, "
        "because the GPU waits less"
    ) in lines


def test_floors_of_both_quantities_have_a_line_each(printed):
    found = [line for line in printed(two_clocks.run(), 200) if "noise floor" in line]
    assert [line.partition(":")[0] for line in found] == ["GPU time", "step time"]
    for line, floors in zip(found, (("0.3%", "0.4%"), ("0.4%", "8.3%")), strict=True):
        captured, eager = floors
        assert f"{captured} (captured rungs" in line and f"{eager} (eager rungs" in line
    assert "no measurable gain" not in "".join(found)


@pytest.mark.parametrize("generations", [1, 2])
def test_before_the_third_generation_there_is_no_verdict_and_no_interval(printed, generations):
    made = two_clocks.run(generations)
    text = "\n".join(printed(made, 200))
    assert f"median of {generations} generation" in text
    assert "too few generations" in text and "any" not in text.split()
    rows = view(made).rows
    assert {(row.verdict, row.gpu.verdict) for row in rows[1:]} == {("too few generations",) * 2}
    assert not any(row.gain or row.gpu.gain for row in rows)


def test_a_wide_interval_has_its_ends_and_never_any():
    made = two_clocks.run()
    made["rungs"][1]["gain"]["interval"] = [0.2, 30.0]
    page = report.markdown(made)
    assert "0.200-30.000" in page and "| any |" not in page


def test_a_rung_that_was_timed_before_its_inspection_ended_is_marked(printed):
    made = two_clocks.run()
    assert "not yet proved" not in "\n".join(printed(made, 300))
    made["rungs"][7]["inspection"] = None
    assert "fused_act: not yet proved: timed before its inspection ended" in printed(made, 300)
    assert view(made).rows[7].receipts == "not yet proved"
    made["rungs"][7]["receipts"] = {"fused_act": {"engaged": True, "lines": []}}
    assert view(made).rows[7].receipts == "ok"


def test_a_rung_without_gpu_time_says_so_beside_others(printed):
    made = two_clocks.run()
    made["rungs"][6] |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))
    assert "data_loading: the GPU's time is unknown; the step is 1.10x faster" in printed(made, 200)


def test_csv_has_the_new_columns_behind_the_old_ones():
    made = two_clocks.run()
    header, *rows = csv.reader(io.StringIO(report.csv_text([made])))
    assert header.index("gpu_ms") == header.index("not_publishable") + 1
    row = dict(zip(header, rows[1], strict=True))
    assert float(row["gpu_ms"]) == 93.0 and float(row["waiting_ms"]) == 65.0
    assert float(row["gpu_speedup_previous"]) == pytest.approx(105 / 93)
    assert row["gpu_verdict"] == "faster" and row["verdict"] == "less than"
    assert float(row["less_than"]) == pytest.approx(made["rungs"][1]["gain"]["below"])
    assert row["gpu_less_than"] == ""
    assert float(row["gpu_noise_floor"]) == two_clocks.FLOORS["eager"][0]


def test_a_result_without_gpu_time_has_the_columns_empty():
    made = two_clocks.run()
    for rung in made["rungs"]:
        rung |= dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))
    header, *rows = csv.reader(io.StringIO(report.csv_text([made])))
    assert {len(row) for row in rows} == {len(header)}
    assert not any(dict(zip(header, row, strict=True))["gpu_ms"] for row in rows)
    assert "GPU's work" not in report.markdown(made)


def test_the_advice_counts_a_sure_step_first_then_gpu_time():
    assert modes.advice("slower", "faster") == "ADOPT"  # graphs cost GPU time and halve the step
    assert modes.advice("faster", "slower") == "SKIP"
    assert modes.advice("faster", "ambiguous") == "ADOPT"
    assert modes.advice("slower", "less than") == "SKIP"
    assert modes.advice("less than", "less than") == "NO DIFFERENCE"
    assert modes.advice("less than", "ambiguous") == "ambiguous"
    assert modes.advice("too few generations", "too few generations") == "too few generations"
    assert modes.advice("", "faster") == "ADOPT" and modes.advice("", "") == ""
    assert modes.advice("", "no measurable gain") == "NO DIFFERENCE"  # older files


def test_leaving_out_shows_both_gains_and_one_advice(printed):
    made = fill(two_clocks.run(mode="leave-one-out"))
    gains = Reading(ranking).top_gains(made)
    assert gains["channels_last"]["advice"] == "ADOPT"
    assert gains["channels_last"]["gpu_gain"] == pytest.approx(68.2 / 61.2)
    row = next(line for line in printed(made) if line.startswith("channels_last "))
    assert "1.11x faster" in row and "1.12x faster" in row and row.rstrip().endswith("ADOPT")
    assert any(line.startswith("channels_last: with it, the GPU's work") for line in printed(made))


def test_a_run_says_how_long_it_took_and_in_which_share_of_it_cycles_ran(printed):
    made = two_clocks.run()
    rounds = [each for rung in [*made["rungs"], *made.get("twins", ())] for each in rung["rounds"]]
    for (
        each
    ) in rounds:  # 16 steps of 125 ms are 2 s: two cycles under the profiler and one without lazy phases
        each |= {
            "visit_s": 4.0,
            "main_ms": 125.0,
            "profiled": [cycle | {"wall_ms": 125.0} for cycle in each["profiled"]],
        }
    made["seconds"] = 20.0 * len(rounds)
    (line,) = [each for each in printed(made, 300) if each.startswith("the run took")]
    assert f"{made['seconds'] / 60:.1f} minutes; " in line and line.endswith("in 50% of them")
    assert any("its first table 1.5;" in each for each in printed(made | {"first_table_s": 90.0}, 300))
