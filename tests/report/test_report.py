"""Table, Markdown and CSV of a run: what a reader must find, and what a stranger's text must not do."""

import csv
import functools
import io
import itertools
import json

import msgspec
import pytest

from ladder.core.errors import UserError
from ladder.core.protocol import AMBIGUOUS, FASTER, LESS_THAN, SLOWER, TOO_FEW
from ladder.core.text import fine_factor
from ladder.plan import catalog, needs
from ladder.report import tables as reporting
from ladder.report import view as viewing
from ladder.results import loading, publishable
from ladder.results.combine import series as combined
from ladder.results.words import Seen, whole
from ladder.show.table import render_text
from ladder.studies.host import attach_host
from tests.cli.test_cli import call
from tests.support import committed, made_up, two_clocks, typed
from tests.support.typed import Reading, write_run

publishable = Reading(publishable)
report, series = Reading(reporting), Reading(combined)
view = Reading(viewing).view

HOSTILE = "=HYPERLINK(1)|<script>x</script> \x1b[31m`a`\n![i](http://e.x) \u202e"
NO_GPU = dict.fromkeys(("gpu_ms", "gpu_gain", "gpu_verdict", "waiting_ms"))


def rows_of(result):
    return {row.name: row for row in view(result).rows}


def read_csv(*many):
    return list(csv.DictReader(io.StringIO(report.csv_text(list(many)))))


@pytest.fixture
def printed(capsys, monkeypatch):
    """The lines that `ladder report` prints in some width."""

    def of(made, width=120):
        monkeypatch.setenv("COLUMNS", str(width))
        report.print_table(made)
        return capsys.readouterr().out.splitlines()

    return of


# --- the table --------------------------------------------------------------------------------------------------------


def test_both_clocks_are_in_the_table_and_the_article_s_numbers_beside_ours(printed):
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
    assert any(line.endswith("columns left out for the width") for line in lines)
    lines = printed(made_up.gpu_run(), 400)
    line = next(line for line in lines if line.startswith("cuda_graphs"))
    for cell in ("31.20", "30.73-31.70", "2.80x", "3.09x", "1%", "256", "14.2", "119", "2.62x"):
        assert cell in line
    assert not any("\x1b" in line or "None" in line for line in lines)


@pytest.mark.parametrize("make", [made_up.judged_run, two_clocks.run, made_up.checked_run])
@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_narrow_table_has_fewer_columns_and_never_loses_the_total(make, width):
    table = reporting.tabulate(viewing.view(typed.typed(make())))
    lines = render_text(table, width).splitlines()[: -len(table.notes)]
    assert max(map(len, lines)) <= width and not any(line.endswith("...") for line in lines)
    headings = [column.heading for column in table.fit_width(width).columns]
    assert {"rung", "ms/step", "total"} <= {*headings}
    assert {"verdict", "vs previous (step)"} & {*headings}
    wide = [column.heading for column in table.fit_width(400).columns]
    assert len(headings) < len(wide) == len(table.columns)


def test_what_has_no_number_is_visible_with_its_reason(printed):
    page, words = report.markdown(made_up.faulty_run()), (
        "quick: not to be quoted", "incomplete", "speedups refer to channels_last",
        "baseline: oom: CUDA out of memory", "fused_norm: failed: round 2: RuntimeError",
    )  # fmt: skip
    for text in ("\n".join(printed(made_up.faulty_run())), page.replace("\\", "")):
        assert all(line in text for line in words)
    assert view(made_up.gpu_run()).marks == ()


def test_the_article_s_speedups_refer_to_the_same_rung_as_ours():
    assert rows_of(made_up.gpu_run())["bf16"].article_total == pytest.approx(312 / 158)
    assert rows_of(made_up.faulty_run())["bf16"].article_total == pytest.approx(265 / 158)


def test_a_difference_inside_the_noise_reads_less_than_whatever_its_sign(printed):
    for ms in (31.19, 31.21):
        made = made_up.judged_run(data_loading=ms)
        row = rows_of(made)["data_loading"]
        assert row.seen.verdict == "less than" and row.seen.ratio == pytest.approx(31.2 / ms, abs=0.001)
        line = next(line for line in printed(made) if line.startswith("data_loading"))
        assert "less than" in line and "1.00x" not in line  # the interval says how much it could be
    assert rows_of(made_up.judged_run(data_loading=29.0))["data_loading"].seen.verdict == "faster"
    assert rows_of(made_up.judged_run(data_loading=33.0))["data_loading"].seen.verdict == "slower"


def test_why_there_are_no_verdicts_is_what_became_of_the_twins(printed):
    made = made_up.judged_run()
    lowest, highest = made["twins"]
    reason = "round 3: the worker ended with signal 9"
    lowest.update(status="failed", reason=reason, rounds=lowest["rounds"][:2])
    for each in [highest, *made["rungs"]]:
        each["rounds"] = each["rounds"][:2]
    text = "\n".join(printed(typed.fill(made)))
    assert f"no verdicts: the twin of baseline has no number ({reason})" in text
    assert "too few generations" in text


def test_rungs_that_were_not_measured_and_are_in_the_step_are_named():
    """In a run with `--rungs` the next rung shown is no single change: a reader of its speedup must know."""
    able = dict.fromkeys(needs.NEEDS)
    recipes = {rung.name: rung.recipe for rung in catalog.plan_climb(catalog.load_ladder("article"), able)}
    names = ("baseline", "bf16", "fused_norm", "fused_act")
    made = made_up.result([made_up.rung(name, 90.0) for name in names])
    for rung in made["rungs"]:
        rung["recipe"] = recipes[rung["name"]]
    assert [remark for remark in view(made).remarks if remark.startswith("part of ")] == [
        "part of bf16 and not measured here: channels_last",
        "part of fused_act and not measured here: set_to_none, cuda_graphs, data_loading",
    ]
    made["protocol"]["mode"] = "solo"
    assert not any(remark.startswith("part of ") for remark in view(made).remarks)


def test_a_rung_that_was_timed_before_its_inspection_ended_is_marked(printed):
    made = two_clocks.run()
    assert "not yet proved" not in "\n".join(printed(made))
    made["rungs"][7]["inspection"] = None
    assert "fused_act: not yet proved: timed before its inspection ended" in printed(made)
    assert view(made).rows[7].receipts == "not yet proved"
    made["rungs"][7]["receipts"] = {"fused_act": {"engaged": True, "lines": []}}
    assert view(made).rows[7].receipts == "ok"


def test_the_advice_comes_from_leaving_the_rung_out_at_the_top(tmp_path, printed):
    staircase = made_up.judged_run()
    times = {"bf16": 20.0, "fused_norm": 25.3, "cuda_graphs": 85.0}
    left_out = made_up.judged_run("leave-one-out", **times)
    write_run(tmp_path / "a.json", staircase)
    write_run(tmp_path / "b.json", left_out)
    old = {**left_out, "started": "2020-01-01T00:00:00+00:00", "rungs": left_out["rungs"][:1]}
    old["ladder"] = {**left_out["ladder"], "rungs": ["all"]}
    write_run(tmp_path / "c.json", old)
    results, refused = series.collect([tmp_path])
    assert len(results) == 2 and not refused
    joined = next(r for r in results if r["protocol"]["mode"] == "cumulative")
    for rows in (rows_of(joined), rows_of(left_out)):
        assert rows["bf16"].advice == "SKIP" and rows["fused_norm"].advice == "NO DIFFERENCE"
        assert rows["cuda_graphs"].advice == "ADOPT" and rows["cuda_graphs"].top_gain > 3
    assert rows_of(joined)["bf16"].seen.verdict == "slower" and rows_of(staircase)["bf16"].advice == ""
    lines = {line.split()[0]: line for line in printed(joined) if line.strip()}
    assert "NO DIFFERENCE" in lines["fused_norm"] and "SKIP: step 0." in lines["bf16"]
    top = fine_factor(rows_of(joined)["cuda_graphs"].top_gain)
    assert f"ADOPT: step {top} at top" in lines["cuda_graphs"]
    assert {row["advice"] for row in read_csv(joined)} >= {"ADOPT", "SKIP", "NO DIFFERENCE"}


def test_a_run_that_goes_on_shows_times_alone_until_there_are_verdicts_then_who_lacks_one():
    made = two_clocks.run()
    (line,) = report.describe_interim(made)
    assert line.endswith("; more generations narrow the intervals")
    made["rungs"][2] |= {"verdict": AMBIGUOUS, "gpu_verdict": AMBIGUOUS}
    (line,) = report.describe_interim(made)
    assert line.endswith("6 of 7 verdicts; undecided: bf16")
    for rung in made["rungs"][1:]:
        rung |= {"verdict": TOO_FEW, "gpu_verdict": TOO_FEW}
    first, heading, *times = report.describe_interim(made)
    assert "times alone" in first and heading.split() == ["rung", "ms/step", "GPU", "ms"]
    assert [line.split()[0] for line in times] == [rung["name"] for rung in made["rungs"]]


# --- the sentence on a rung -------------------------------------------------------------------------------------------

ANSWERS = {
    "faster": Seen(FASTER, 1.3), "slower": Seen(SLOWER, 0.9), "less": Seen(LESS_THAN, 1.001, 0.004),
    "open": Seen(AMBIGUOUS, 1.1, 0.3), "few": Seen(TOO_FEW, 1.2), "none": Seen(),
}  # fmt: skip
WHY = {
    **dict.fromkeys([("slower", "faster"), ("less", "faster")], "because the GPU waits less"),
    **dict.fromkeys([("faster", "slower"), ("less", "slower")], "because the GPU waits longer"),
}


@pytest.mark.parametrize(("gpu", "step"), [*itertools.product(ANSWERS, repeat=2)])
def test_a_sentence_has_both_answers_and_blames_the_cpu_only_where_the_gpu_waits(gpu, step):
    calm, waiting = (viewing.describe_gain(ANSWERS[gpu], ANSWERS[step], waits) for waits in (False, True))
    assert ("the GPU's work" in calm, "the step" in calm) == (gpu != "none", step != "none")
    why = WHY.get((gpu, step))
    assert calm.partition(", ")[2] == (why or "")
    assert waiting.partition(", ")[2] == (why or ("the CPU sets the pace" if calm else ""))


@pytest.mark.parametrize(
    "before, after, total, interval, expected",
    [
        (148.2, 115.4, 0.92, (0.31, 2.7), "not decided"),  # medians and pairs of a noisy host point apart
        (148.2, 115.4, 1.3, (0.9, 1.9), "not decided"),
        (148.2, 115.4, 0.92, None, "not decided"),
        (148.2, 115.4, 1.28, (1.2, 1.37), "1.28x"),
        (115.4, 148.2, 0.78, (0.7, 0.9), "0.78x"),
        (None, 115.4, 1.28, None, ""),
    ],
)
def test_a_factor_stands_beside_two_times_only_if_decided(before, after, total, interval, expected):
    assert whole(before, after, total, interval) == expected


# --- Markdown and CSV -------------------------------------------------------------------------------------------------


def test_markdown_leaves_a_strangers_text_as_text():
    result, replace = typed.typed(made_up.gpu_run()), msgspec.structs.replace
    hostile = replace(
        result,
        machine=replace(result.machine, gpu=HOSTILE),
        ladder=replace(result.ladder, title=HOSTILE),
        rungs=[replace(result.rungs[0], title=HOSTILE), *result.rungs[1:]],
    )
    page = reporting.markdown(hostile)
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "http:" not in page and "![" not in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(result.rungs)
    assert (
        len({line.replace("\\|", "").count("|") for line in table}) == 1
    )  # no cell breaks out of its column


def test_csv_gives_numbers_in_full_by_both_clocks_and_text_that_is_no_formula():
    made = two_clocks.run()
    made["rungs"][0]["title"] = HOSTILE
    made["rungs"][1]["title"] = ' leading, "quoted" -2+3'
    first, second = read_csv(made)[:2]
    assert first["title"].startswith("'=HYPERLINK") and "\n" not in first["title"]
    assert second["title"] == "leading, 'quoted' -2+3" and second["quick"] == "false"
    assert float(second["step_ms"]) == made["rungs"][1]["step_ms"] and float(second["gpu_ms"]) == 93.0
    assert float(second["gpu_speedup_previous"]) == pytest.approx(105 / 93)
    assert (second["gpu_verdict"], second["verdict"], second["gpu_less_than"]) == ("faster", "less than", "")
    assert float(second["less_than"]) == pytest.approx(made["rungs"][1]["gain"]["below"])
    assert read_csv(made_up.faulty_run())[0]["step_ms"] == ""
    rows = read_csv(made_up.gpu_run(), made_up.cpu_run())
    assert len(rows) == 16 and {row["workload"] for row in rows} == {"article", "tiny"}


def test_committed_tables_are_what_the_report_of_a_committed_result_says(monkeypatch):
    """Else `ladder report RESULT --markdown ... --csv ... --chart ...` writes them again."""
    cached = functools.cache(loading.load_run)  # each report looks at its neighbours
    monkeypatch.setattr(loading, "load_run", cached)
    tables = [path for path in committed.folder("results/charts").iterdir() if path.suffix in (".md", ".csv")]
    stored = sorted(committed.folder("results/ladder").glob("*/*.json"), key=lambda path: path.name)
    seen = set()
    for named in (True, False):  # most are of the newest result with their name
        for path in reversed(stored):
            begins = f"{path.parent.name}-{path.stem.rpartition('-')[0]}"
            names = {begins, begins.replace("-full", "-article")}
            left = [each for each in tables if not named or {each.stem, each.stem.rpartition("-")[0]} & names]
            if left and path not in seen:
                seen.add(path)
                result = attach_host(combined.collect([path])[0][0], committed.folder("results/host"))
                today = [reporting.markdown(result), reporting.csv_text([result])]
                tables = [table for table in tables if table.read_text(encoding="utf-8") not in today]
    assert not tables


# --- which results, and why not to publish them -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "junk"),
    [
        ("recipe", "of a stranger"),
        ("receipts", {HOSTILE: {"engaged": True, "lines": []}}),
        ("parity", {"verdict": "ok", "phases": {HOSTILE: {}}}),
    ],
)
def test_a_value_that_is_none_is_refused_before_it_is_shown(key, junk, tmp_path):
    made = made_up.judged_run()
    made["rungs"][3][key] = junk
    write_run(tmp_path / "a.json", made)
    with pytest.raises(UserError, match=r"rungs\[3\]\." + key) as refusal:
        series.collect([tmp_path / "a.json"])
    assert str(refusal.value).isprintable() and str(refusal.value).isascii()


def test_a_folder_gives_the_newest_of_each_and_skips_what_other_commands_wrote(tmp_path):
    runs = (made_up.gpu_run(), made_up.gpu_run(), made_up.cpu_run())
    for number, made in enumerate(runs):
        write_run(tmp_path / f"{number}.json", {**made, "started": f"2026-11-2{number}T09:00:00+00:00"})
    (tmp_path / "torn.json").write_text('{"schema": 1, "mach')
    map_, asv = tmp_path / "map" / "gpu.json", tmp_path / "asv"
    (asv / "machine").mkdir(parents=True)
    map_.parent.mkdir()
    map_.write_text(json.dumps({"schema": 1, "what": "map"}))
    (asv / "benchmarks.json").write_text("{}")
    (asv / "machine" / "0a1b.json").write_text('{"results": NaN}')
    results, refused = series.collect([tmp_path])
    shown = sorted((each["workload"]["name"], each["started"][:10]) for each in results)
    assert shown == [("article", "2026-11-21"), ("tiny", "2026-11-22")]
    assert len(refused) == 1 and "torn.json" in refused[0]
    with pytest.raises(UserError, match="of the kind 'map', no run of rungs"):
        series.collect([map_.parent])
    with pytest.raises(UserError, match="no results here"):
        series.collect([asv])


def test_what_is_not_publishable_says_why_wherever_it_is_shown(printed):
    made = made_up.judged_run()
    assert publishable.publishable(made) == []
    noisy = ["noisy: not publishable: 1 foreign compute process"]
    gpu = {"state": "known", "tenancy": "shared", "rejected_visits": 0, "notes": noisy}
    made.update(dirty=True, complete=False, gpu=gpu)
    made["protocol"]["quick"] = True
    why = publishable.publishable(made)
    assert [line.split(":")[0] for line in why] == ["quick", "incomplete", "dirty", "noisy"]
    table, page = "\n".join(printed(made)), report.markdown(made)
    for line in why:
        assert line in table and line in page and line in read_csv(made)[0]["not_publishable"]
    of_no_commit = {**made_up.judged_run(), "commit": None, "dirty": None}
    assert [line.split(":")[0] for line in publishable.publishable(of_no_commit)] == ["no commit"]


# --- receipts, parity and memory --------------------------------------------------------------------------------------


def test_the_table_says_whether_each_rung_was_on_and_computed_the_same(printed):
    made = made_up.checked_run()
    rungs = {rung["name"]: rung for rung in made["rungs"]}
    off = made_up.receipts("not engaged: FLOPs in BF16 0 percent", engaged=False)
    rungs["bf16"].update(receipts=off, status="not engaged", reason="bf16: FLOPs in BF16 0 percent")
    rungs["fused_norm"].update(
        parity=made_up.parity(3.2, "failed: parity"), status="failed: parity", reason="G_main"
    )
    del rungs["set_to_none"]["receipts"], rungs["set_to_none"]["parity"]
    shown = {name: (row.receipts, row.parity) for name, row in rows_of(made).items()}
    assert shown["baseline"] == ("ok", "0.41 of budget") and shown["set_to_none"] == ("", "")
    assert (shown["bf16"][0], shown["fused_norm"][1]) == ("not engaged", "failed")
    lines = printed(made)
    assert "bf16: not engaged: bf16: FLOPs in BF16 0 percent" in lines
    assert "fused_norm: failed: parity: G_main" in lines
    by_name = {row["rung"]: row for row in read_csv(made)}
    assert by_name["baseline"]["parity_of_budget"].startswith("0.4")
    assert by_name["bf16"]["rejected_visits"] == "1"


def test_what_cannot_be_judged_is_no_error_of_the_rung():
    rung = made_up.rung("bf16", 1.0, parity=made_up.parity(0.2))  # a loss at 900 times its budget, unresolved
    assert rows_of(made_up.result([rung]))["bf16"].parity_share == pytest.approx(0.2)
    table = reporting.tabulate_checks(typed.typed(made_up.result([rung])))[0]
    assert ["not judged" in row for row in table.rows] == [False, False, True]


def test_every_receipt_and_parity_error_is_printed_and_in_the_markdown(tmp_path):
    made = made_up.checked_run()
    lines = ("islands in FP32 6 of 6", "not engaged: FLOPs 3 percent")
    made["rungs"][2]["receipts"] = made_up.receipts(*lines, engaged=False)
    write_run(tmp_path / "a.json", made)
    shown = call("report", tmp_path / "a.json", "--receipts", env={"COLUMNS": "200"}).stdout
    for text in (" ".join(shown.split()), report.markdown(made).replace("\\", "").replace(" |", "")):
        for words in (
            "bf16 not engaged islands in FP32 6 of 6",
            "not engaged: FLOPs 3 percent",
            "G.blocks.3.conv1.weight",
            "0.41",
            "reference: FP64 on cuda, batch 8",
            "modulate backward fused_norm, set_to_none tile 2048, columns 512, warps 4, per_sm 10, stages 1",
            "size large, itemsize 2, layout nhwc, architecture 90, tile 4096",
        ):
            assert words in text
    assert "islands" not in call("report", tmp_path / "a.json").stdout
    write_run(tmp_path / "b.json", made_up.judged_run())
    assert "no receipts and no parity check" in call("report", tmp_path / "b.json", "--receipts").stdout
