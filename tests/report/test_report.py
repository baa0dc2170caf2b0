"""Table, Markdown and CSV: what a reader must find, and what a stranger's text must not do."""

import csv
import functools
import io
import json

import pytest

from ladder.base import files
from ladder.base.errors import UserError
from ladder.plan import catalog, needs
from ladder.publish import gallery
from ladder.report import tables as reporting
from ladder.report import view as viewing
from ladder.results import loading, publishable
from ladder.studies.host import attach_host
from tests.support import committed, made_up, typed
from tests.support.typed import Reading, write_run

publishable = Reading(publishable)
report = Reading(reporting)
view = Reading(viewing).view

HOSTILE = "=HYPERLINK(1)|<script>x</script> \x1b[31m`a`\n![i](http://e.x) \u202e"


def rows_of(result):
    return {row.name: row for row in view(result).rows}


def read_csv(*many):
    return list(csv.DictReader(io.StringIO(report.csv_text(list(many)))))


@pytest.fixture
def folder(tmp_path):
    for index, (made, started) in enumerate(
        [
            (made_up.gpu_run(), "2026-11-20T09:00:00+00:00"),
            (made_up.gpu_run(), "2026-11-21T09:00:00+00:00"),
            (made_up.cpu_run(), "2026-11-19T09:00:00+00:00"),
        ]
    ):
        write_run(tmp_path / "results" / f"{index}.json", {**made, "started": started})
    return tmp_path / "results"


def test_the_table_shows_our_numbers_beside_the_article_s(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    report.print_table(made_up.gpu_run())
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith("cuda_graphs"))
    for cell in ("31.20", "30.73-31.70", "2.80x", "3.09x", "1%", "256", "14.2", "119", "2.62x"):
        assert cell in line
    assert not any("\x1b" in line for line in lines)  # piped: no colours


def test_what_lazy_phases_add_is_told_of_the_first_and_the_last_rung(capsys):
    rungs = [
        made_up.rung(name, ms) for name, ms in (("baseline", 300.0), ("bf16", 200.0), ("cuda_graphs", 100.0))
    ]
    for number, each in enumerate(rungs):
        each["rounds"] = [
            {
                "round": r,
                "samples_ms": [1.0],
                "settled": True,
                "event_ms": None,
                "lazy_ms": {"G_pl": number + r / 10},
            }
            for r in range(3)
        ]
    report.print_table(made_up.result(rungs))
    seen = capsys.readouterr().out
    assert "baseline: what path length adds is within the noise" in seen
    assert "cuda_graphs: path length adds 2.10 ms" in seen and "bf16: path" not in seen


def test_what_has_no_number_is_visible_with_its_reason(capsys):
    report.print_table(made_up.faulty_run())
    table = capsys.readouterr().out
    page = report.markdown(made_up.faulty_run())
    for text in (table, page.replace("\\", "")):
        assert "quick: not to be quoted" in text
        assert "incomplete" in text
        assert "speedups refer to channels_last" in text
        assert "baseline: oom: CUDA out of memory" in text
        assert "fused_norm: failed: round 2: RuntimeError" in text


def test_the_article_s_speedups_refer_to_the_same_rung_as_ours():
    assert rows_of(made_up.gpu_run())["bf16"].article_total == pytest.approx(312 / 158)
    assert rows_of(made_up.faulty_run())["bf16"].article_total == pytest.approx(265 / 158)


def test_a_whole_run_has_no_marks():
    assert view(made_up.gpu_run()).marks == ()


def test_numbers_that_are_none_are_shown_as_missing(capsys):
    made = made_up.gpu_run()
    made["rungs"][2] |= dict.fromkeys(("host_bound", "article_ms", "interval_ms", "peak_reserved_bytes"))
    row = rows_of(made)["bf16"]
    assert (row.host_bound, row.article_ms, row.interval, row.memory) == (None, None, None, None)
    report.print_table(made)
    assert "None" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "junk"),
    [
        ("recipe", "of a stranger"),
        ("receipts", {"a": {"lines": "x"}}),
        ("receipts", {HOSTILE: {"engaged": True, "lines": []}}),
        ("parity", {"verdict": "ok", "phases": {HOSTILE: {}}}),
    ],
)
def test_a_value_that_is_none_is_refused_before_it_is_shown(key, junk, tmp_path):
    made = made_up.judged_run()
    made["rungs"][3][key] = junk
    write_run(tmp_path / "a.json", made)
    with pytest.raises(UserError, match=r"rungs\[3\]\." + key) as refusal:
        report.collect([tmp_path / "a.json"])
    assert str(refusal.value).isprintable() and str(refusal.value).isascii()


def test_a_fully_busy_gpu_is_0_percent_host_bound_and_not_unknown():
    made = made_up.gpu_run()
    made["rungs"][5]["host_bound"] = 0.0
    assert rows_of(made)["cuda_graphs"].host_bound == 0.0


def test_markdown_leaves_a_strangers_text_as_text():
    made = made_up.gpu_run()
    made["rungs"][0]["title"] = made["machine"]["gpu"] = made["ladder"]["title"] = HOSTILE
    page = report.markdown(made)
    assert "<script" not in page and "\x1b" not in page and "\u202e" not in page
    assert "http:" not in page and "![" not in page
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(made["rungs"])
    cells = {line.replace("\\|", "").count("|") for line in table}
    assert len(cells) == 1  # no cell breaks out of its column


def test_csv_gives_numbers_in_full_and_text_that_is_no_formula():
    made = made_up.gpu_run()
    made["rungs"][0]["title"] = HOSTILE
    made["rungs"][1]["title"] = ' leading, "quoted" -2+3'
    first, second = read_csv(made)[:2]
    assert first["title"].startswith("'=HYPERLINK") and "\n" not in first["title"]
    assert second["title"] == "leading, 'quoted' -2+3"
    assert float(second["step_ms"]) == made["rungs"][1]["step_ms"]
    assert second["article_ms"] == "265.0" and second["quick"] == "false"
    assert read_csv(made_up.faulty_run())[0]["step_ms"] == ""


def test_csv_of_several_results_tells_them_apart():
    rows = read_csv(made_up.gpu_run(), made_up.cpu_run())
    assert len(rows) == 16 and {row["workload"] for row in rows} == {"article", "tiny"}


def test_a_folder_gives_the_newest_of_each_and_names_what_is_no_result(folder):
    (folder / "torn.json").write_text('{"schema": 1, "mach')
    found, refused = report.collect([folder])
    assert sorted((r["workload"]["name"], r["started"][:10]) for r in found) == [
        ("article", "2026-11-21"),
        ("tiny", "2026-11-19"),
    ]
    assert len(refused) == 1 and "torn.json" in refused[0]


def test_what_other_commands_wrote_into_a_folder_is_no_fault_of_it(folder, tmp_path):
    (folder / "map").mkdir()
    (folder / "map" / "gpu.json").write_text(json.dumps({"schema": 1, "what": "map"}))
    asv = folder / "asv"
    (asv / "machine").mkdir(parents=True)
    (asv / "benchmarks.json").write_text("{}")
    (asv / "machine" / "0a1b.json").write_text('{"results": NaN}')
    found, refused = report.collect([folder])
    assert len(found) == 2 and refused == []
    with pytest.raises(UserError, match="of the kind 'map', no run of rungs"):
        report.collect([folder / "map"])
    with pytest.raises(UserError, match="a file of asv: `ladder history` tells"):
        report.collect([asv])


def test_nothing_to_report_is_said_in_one_line(tmp_path):
    with pytest.raises(UserError, match="no results here"):
        report.collect([tmp_path])
    (tmp_path / "x.json").write_text(json.dumps({"schema": 99}))
    with pytest.raises(UserError, match=r"x\.json"):
        report.collect([tmp_path / "x.json"])


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(UserError, match="cannot be written"):
        files.write(tmp_path / "file" / "t.md", "new")
    assert (tmp_path / "file").read_text() == "old"


def test_committed_tables_are_what_the_report_of_a_committed_result_says(monkeypatch):
    """Else `ladder report RESULT --markdown ... --csv ... --chart ...` writes them again."""
    monkeypatch.setattr(
        loading, "load_run", functools.cache(loading.load_run)
    )  # each report looks at its neighbours
    tables = [path for path in committed.folder("results/charts").iterdir() if path.suffix in (".md", ".csv")]
    stored = sorted(committed.folder("results/ladder").glob("*/*.json"), key=lambda path: path.name)
    seen = set()
    for named in (True, False):  # most are of the newest result with their name
        for path in reversed(stored):
            begins = f"{path.parent.name}-{path.stem.rpartition('-')[0]}"
            names = (begins, begins.replace("-full", "-article"))
            left = [
                each for each in tables if not named or {each.stem, each.stem.rpartition("-")[0]} & {*names}
            ]
            if left and path not in seen:
                seen.add(path)
                result = attach_host(reporting.collect([path])[0][0], committed.folder("results/host"))
                today = [reporting.markdown(result), reporting.csv_text([result])]
                if part := gallery.extract_article(loading.load_run(path)):
                    today += [reporting.markdown(part), reporting.csv_text([part])]
                tables = [table for table in tables if table.read_text(encoding="utf-8") not in today]
    assert not tables


def test_a_difference_inside_the_noise_reads_less_than_whatever_its_sign(capsys):
    for ms in (31.19, 31.21):
        made = made_up.judged_run(data_loading=ms)
        row = rows_of(made)["data_loading"]
        assert row.verdict == "less than" and row.previous == pytest.approx(31.2 / ms, abs=0.001)
        report.print_table(made)
        line = next(li for li in capsys.readouterr().out.splitlines() if li.startswith("data_loading"))
        assert "less than" in line and "1.00x" not in line  # the interval says how much it could be
    assert rows_of(made_up.judged_run(data_loading=29.0))["data_loading"].verdict == "faster"
    assert rows_of(made_up.judged_run(data_loading=33.0))["data_loading"].verdict == "slower"


def test_the_noise_floor_and_what_can_be_seen_are_said(capsys):
    report.print_table(made_up.judged_run())
    said = capsys.readouterr().out
    assert (
        "noise floor" in said
        and "eager rungs, smallest detectable difference" in said
        and "captured rungs" in said
    )
    report.print_table(made_up.gpu_run())  # made before there were twins
    said = capsys.readouterr().out
    assert "noise floor" not in said and "no verdicts: no twin was measured" in said


def test_why_there_are_no_verdicts_is_what_became_of_the_twins(capsys):
    made = made_up.judged_run()
    lowest, highest = made["twins"]
    reason = "round 3: the worker ended with signal 9"
    lowest.update(status="failed", reason=reason, rounds=lowest["rounds"][:2])
    for each in [highest, *made["rungs"]]:
        each["rounds"] = each["rounds"][:2]
    typed.fill(made)
    report.print_table(made)
    said = capsys.readouterr().out
    assert f"the twin of baseline is out (failed: {reason})" in said
    assert "too few generations" in said and "no twin was measured" not in said


def test_rungs_that_were_not_measured_and_are_in_the_step_are_named():
    """In a run with `--rungs` the next rung shown is no single change: a reader of its speedup must be told."""
    able = dict.fromkeys(needs.NEEDS)
    recipes = {rung.name: rung.recipe for rung in catalog.climb(catalog.load_ladder("article"), able)}
    made = made_up.result(
        [made_up.rung(name, 90.0) for name in ("baseline", "bf16", "fused_norm", "fused_act")]
    )
    for rung in made["rungs"]:
        rung["recipe"] = recipes[rung["name"]]
    found = [remark for remark in view(made).remarks if remark.startswith("part of ")]
    assert found == [
        "part of bf16 and not measured here: channels_last",
        "part of fused_act and not measured here: set_to_none, cuda_graphs, data_loading",
    ]
    assert "part of fused\\_act and not measured here: " in report.markdown(made)
    made["rungs"][1]["recipe"] = None
    assert not any("part of bf16" in remark for remark in view(made).remarks)
    made["protocol"]["mode"] = "solo"
    assert not any(remark.startswith("part of ") for remark in view(made).remarks)


def test_the_rounds_that_are_named_are_those_that_there_are():
    """A run that was stopped has fewer than it planned; what does not count is not counted."""
    made = made_up.judged_run()
    assert view(made).protocol.startswith("median of 5 rounds of 2 timed cycles")
    for rung in made["rungs"]:
        rung["rounds"] = rung["rounds"][:3]
    made["rungs"][1]["rounds"][0]["alloc_retries"] = 1
    assert view(made).protocol.startswith("median of 2 to 3 rounds of 2 timed cycles")
    made["rungs"][1].update(status="failed")
    one = {"started": made["started"], "rounds": 3, "cpu": "a CPU", "cores": 16}
    made["merged"] = [one, one]
    assert view(made).protocol.startswith("median of 3 rounds (of 2 runs) of")
    for rung in made["rungs"]:
        rung.update(status="failed")
    assert view(made).protocol.startswith("5 rounds (of 2 runs) planned")


def test_the_advice_comes_from_leaving_the_rung_out_at_the_top(tmp_path, capsys):
    staircase = made_up.judged_run()
    times = {"bf16": 20.0, "fused_norm": 25.3, "cuda_graphs": 85.0}
    whole = made_up.judged_run("leave-one-out", **times)
    write_run(tmp_path / "a.json", staircase)
    write_run(tmp_path / "b.json", whole)
    old = {**whole, "started": "2020-01-01T00:00:00+00:00", "rungs": whole["rungs"][:1]}
    old["ladder"] = {**whole["ladder"], "rungs": ["all"]}
    write_run(tmp_path / "c.json", old)
    found, refused = report.collect([tmp_path])
    assert len(found) == 2 and not refused
    joined = next(r for r in found if r["protocol"]["mode"] == "cumulative")
    for rows in (rows_of(joined), rows_of(whole)):
        assert rows["bf16"].advice == "SKIP" and rows["fused_norm"].advice == "NO DIFFERENCE"
        assert rows["cuda_graphs"].advice == "ADOPT" and rows["cuda_graphs"].top_gain > 3
    assert rows_of(joined)["bf16"].verdict == "slower" and rows_of(staircase)["bf16"].advice == ""
    report.print_table(joined)
    assert "NO DIFFERENCE" in capsys.readouterr().out
    assert {row["advice"] for row in read_csv(joined)} >= {"ADOPT", "SKIP", "NO DIFFERENCE"}


def test_a_narrow_terminal_keeps_the_verdict():
    shown = view(made_up.judged_run())
    columns = report.columns_of(shown)
    for width in (240, 120, 90):
        kept = [heading for heading, _ in report._fitting(columns, shown, width)]
        assert {"ms/step", "vs previous", "verdict", "total"} <= set(kept)
    assert (
        len(report._fitting(columns, shown, 90)) < len(columns) == len(report._fitting(columns, shown, 240))
    )


# Why not to publish


def test_what_is_not_publishable_says_why_wherever_it_is_shown(capsys):
    made = made_up.judged_run()
    assert publishable.publishable(made) == []
    noisy = ["noisy: not publishable: 1 foreign compute process"]
    gpu = {"state": "known", "tenancy": "shared", "rejected_visits": 0, "notes": noisy}
    made.update(dirty=True, complete=False, gpu=gpu)
    made["protocol"]["quick"] = True
    why = publishable.publishable(made)
    assert [line.split(":")[0] for line in why] == ["quick", "incomplete", "dirty", "noisy"]
    report.print_table(made)
    table, page = capsys.readouterr().out, report.markdown(made)
    for line in why:
        assert line in table and line in page and line in read_csv(made)[0]["not_publishable"]


def test_a_result_of_no_commit_is_not_publishable():
    made = {**made_up.judged_run(), "commit": None, "dirty": None}
    assert [line.split(":")[0] for line in publishable.publishable(made)] == ["no commit"]


def test_the_gain_over_all_rungs_has_its_interval():
    row = rows_of(made_up.judged_run())["fused_act"]
    assert row.total_interval[0] < row.total < row.total_interval[1]
    assert read_csv(made_up.judged_run())[-1]["speedup_total_low"]
    whole = rows_of(made_up.judged_run("leave-one-out"))["fused_norm"]
    assert whole.total is None  # nothing there is measured against a baseline
