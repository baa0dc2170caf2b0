"""Rounds of several runs as one result: what merges, what is refused, and what a merged file must not do twice."""

import copy
import json

import numpy as np
import pytest

from ladder.core import locks
from ladder.core import text as texts
from ladder.publish.validation import validate
from ladder.report import view
from ladder.results import judging, loading, sources
from ladder.results.combine import merging, series
from ladder.stats import estimates
from tests.cli.test_cli import call, refused
from tests.support import made_up, typed
from tests.support.typed import Reading, untyped, write_run

judging = Reading(judging)
merging = Reading(merging)
series = Reading(series)
sources = Reading(sources)

WHEN = "2026-11-2{}T10:15:00+00:00"


def run(seed, **times):
    """A run that `ladder validate` accepts, one a day."""
    made = made_up.judged_run(seed=seed, **times)
    made["workload"]["data"] = None
    return made | {"started": WHEN.format(seed)}


def write(folder, *made, name="run"):
    paths = [folder / f"{name}-{index}.json" for index in range(len(made))]
    for path, each in zip(paths, made, strict=True):
        write_run(path, each)
    return paths


def records(result):
    """Rungs and twins of a result."""
    return [*result["rungs"], *result.get("twins", [])]


def rung(result, name):
    return next(each for each in records(result) if each["name"] == name)


def cut(result, rounds):
    """The run as it was when it was interrupted after so many rounds."""
    made = copy.deepcopy(result)
    for each in records(made):
        each["rounds"] = each["rounds"][:rounds]
    made["protocol"]["notes"] = ["interrupted: what was finished is kept"]
    return typed.fill(made)


# --- what merges ----------------------------------------------------------------------------------------------------


def test_ratios_and_floors_are_those_of_the_rounds_of_both(tmp_path):
    first, second = run(1), run(2)
    paths = write(tmp_path, second, first)  # the order on the command line does not matter
    merged = merging.merge(paths)
    assert merged == merging.merge(paths[::-1])
    for name, against in (("fused_act", "data_loading"), ("channels_last", "baseline")):
        by_hand = [
            value
            for each in (first, second)
            for value in estimates.log_ratios(
                typed.round_medians(rung(each, against)), typed.round_medians(rung(each, name))
            )
        ]
        gain = rung(merged, name)["gain"]
        assert gain["rounds"] == 10 and gain["ratio"] == pytest.approx(np.exp(np.mean(by_hand)))
    assert {kind: each["rounds"] for kind, each in merged["noise"].items()} == {"eager": 10, "captured": 10}
    assert merged["noise"]["captured"]["floor"] < first["noise"]["captured"]["floor"]
    assert merged["seconds"] == first["seconds"] + second["seconds"] and merged["complete"]


def test_rounds_are_numbered_by_the_start_of_their_run_and_nothing_else_in_them_changes(tmp_path):
    runs = [run(3), run(1), run(2)]
    merged = merging.merge(write(tmp_path, *runs))
    in_order = [visit for each in (runs[1], runs[2], runs[0]) for visit in rung(each, "bf16")["rounds"]]
    assert rung(merged, "bf16")["rounds"] == [{**visit, "round": i} for i, visit in enumerate(in_order)]
    last = [rung(each, "fused_act.twin")["rounds"][-1]["samples_ms"] for each in (merged, runs[0])]
    assert last[0] == last[1]
    assert [(each["started"][:10], each["rounds"]) for each in merged["merged"]] == [
        (WHEN.format(day)[:10], 5) for day in (1, 2, 3)
    ]
    assert merged["started"] == WHEN.format(3)
    note = f"merged: 15 rounds of 3 runs at {merged['commit']}"
    assert note in merged["protocol"]["notes"] and merged["protocol"]["rounds"] == 15


def test_a_merged_file_merges_again_as_if_all_had_merged_at_once(tmp_path):
    paths = write(tmp_path, run(1), run(2), run(3))
    (between,) = write(tmp_path, merging.merge([paths[0], paths[2]]), name="merged")
    again, at_once = merging.merge([between, paths[1]]), merging.merge(paths)
    for key in ("rungs", "twins", "noise", "merged", "seconds"):
        assert again[key] == at_once[key], key
    assert [note for note in again["protocol"]["notes"] if "runs" in note] == [
        f"merged: 15 rounds of 3 runs at {again['commit']}"
    ]


def test_a_merged_file_is_valid_without_its_sources_and_is_resumed(tmp_path):
    paths = write(tmp_path, run(1), run(2))
    out = tmp_path / "whole.json"
    said = call("merge", *paths, "--out", out)
    assert said.exit_code == 0 and "2 runs" in said.stdout
    assert all(path.exists() for path in paths)
    for path in paths:
        path.unlink()
    assert validate.problem_of(out) is None
    assert "2 runs" in call("report", out).stdout
    merged = untyped(loading.load_run(out))
    taken = typed.take_up(out, merged)
    assert sources.end(taken) == 10 and taken["merged"] == merged["merged"]
    for each in records(taken):  # one round more, of the run that was taken up
        each["rounds"].append({**run(3)["rungs"][0]["rounds"][0], "round": 10})
    more = merging.merge(write(tmp_path, typed.fill(taken), run(4)))
    assert [each["rounds"] for each in more["merged"]] == [5, 6, 5] and sources.end(more) == 16


def test_half_runs_are_complete_together_once_every_rung_has_three_generations(tmp_path):
    a, b, c = cut(run(1), 1), cut(run(2), 1), cut(run(3), 2)
    assert not merging.merge(write(tmp_path, a, b))["complete"]
    whole = merging.merge(write(tmp_path, a, c))
    assert whole["complete"] and not any("interrupted" in note for note in whole["protocol"]["notes"])
    rung(c, "bf16").update(status="n/a", reason="not measured: the run ended before", rounds=[])
    assert not merging.merge(write(tmp_path, a, typed.fill(c)))["complete"]
    rung(a, "bf16").update(status="n/a", reason="not measured: the run ended before", rounds=[])
    d = cut(run(4), 5)
    rung(d, "bf16").update(status="n/a", reason="not measured: the run ended before", rounds=[])
    never = merging.merge(write(tmp_path, typed.fill(a), typed.fill(d)))
    assert rung(never, "bf16")["status"] == "n/a" and not never["complete"]


def test_a_stopped_run_stays_stopped_beside_a_whole_one_that_is_as_short(tmp_path):
    short, stopped = cut(run(1), 1), cut(run(2), 1)
    short["protocol"].update(rounds=1, fixed=True, notes=[])
    assert not merging.merge(write(tmp_path, typed.fill(short), stopped))["complete"]
    both = [typed.fill(short), typed.fill(copy.deepcopy(short) | {"started": WHEN.format(3)})]
    for each in records(both[1]):
        each["rounds"] = cut(run(3), 1)["rungs"][0]["rounds"]
    assert merging.merge(write(tmp_path, *both))["complete"]


def test_checks_are_the_newest_there_are_and_company_stays(tmp_path):
    a, b = run(1), run(2)
    quiet = {"state": "known", "tenancy": "alone", "rejected_visits": 2, "notes": []}
    a["gpu"] = {**quiet, "tenancy": "shared", "notes": ["noisy: not publishable: 1 foreign compute process"]}
    b["gpu"] = quiet
    for each, share in ((a, 0.2), (b, 0.4)):
        rung(each, "bf16").update(parity=made_up.parity(share), receipts=made_up.receipts())
    rung(a, "fused_norm")["parity"] = made_up.parity(0.3)
    merged = merging.merge(write(tmp_path, a, b))
    assert view.parity_share(typed.typed(rung(merged, "bf16")).parity) == 0.4
    assert rung(merged, "fused_norm")["parity"] == made_up.parity(0.3)
    assert merged["gpu"] == {**a["gpu"], "rejected_visits": 4}


def test_tile_choices_of_all_runs_are_kept_once(tmp_path):
    a, b = run(1), run(2)
    a["choices"], b["choices"] = made_up.choices("fused_norm", "fused_act"), made_up.choices("fused_norm")[:1]
    merged = merging.merge(write(tmp_path, a, b))
    assert [set(row["rungs"]) for row in merged["choices"]] == [{"fused_norm", "fused_act"}] * 2


def test_what_failed_in_one_run_has_the_rounds_there_are_and_a_note_that_stays(tmp_path):
    a, b = run(1), run(2)
    out = {"status": "oom", "reason": "CUDA out of memory", "failed_at": {"round": 2}}
    rung(b, "fused_act").update(out, rounds=rung(b, "fused_act")["rounds"][:2])
    merged = merging.merge(write(tmp_path, a, typed.fill(b)))
    top = rung(merged, "fused_act")
    assert (top["status"], top["reason"], top["failed_at"]) == ("ok", None, None)
    assert top["gain"]["rounds"] == 7
    assert "oom in the run of 2026-11-22T10:15: CUDA out of memory" in top["notes"]
    assert rung(merging.merge(write(tmp_path, merged, name="merged")), "fused_act")["notes"] == top["notes"]
    rung(a, "fused_act").update(status="failed", reason="an error")
    both = rung(merging.merge(write(tmp_path, typed.fill(a), typed.fill(b))), "fused_act")
    assert (both["status"], both["gain"], both["step_ms"]) == ("failed", None, None)


# --- what is refused ------------------------------------------------------------------------------------------------

PLANTED = {
    "machine": {
        "gpu_memory_gb": 79.6, "torch": "2.12.0", "cuda": "13.1", "cudnn": "9.20.0", "triton": "3.7.0",
        "driver": "590.1", "python": "3.12.3", "cpu": "AMD EPYC 9654 96-Core Processor", "cores": 32,
    },
    "workload": {"batch": 16, "data": "user-images"},
    "ladder": {"name": "other"},
    "protocol": {"cycles": 1, "quick": True, "mode": "solo"},
    None: {"commit": "f" * 40, "dirty": True},
}  # fmt: skip
CASES = [(part, key, value) for part, fields in PLANTED.items() for key, value in fields.items()]


@pytest.mark.parametrize("part, key, value", CASES, ids=[key for _, key, _ in CASES])
def test_what_does_not_belong_together_is_refused_with_both_values(tmp_path, part, key, value):
    a, b = run(1), run(2)
    was = (a if part is None else a[part])[key]
    (b if part is None else b[part])[key] = value
    if key == "batch":  # another batch under a preset's name is refused for that
        a["workload"]["name"] = b["workload"]["name"] = "mine"
    line = refused("merge", *write(tmp_path, a, b), "--out", tmp_path / "out.json")
    assert f"{key}: {'missing' if was is None else was} and {value}" in line
    assert not (tmp_path / "out.json").exists()
    hosts = key in ("cpu", "cores", "dirty")
    assert ("--anyway" in line) == hosts
    assert (call("merge", *tmp_path.glob("*.json"), "--anyway").exit_code == 0) == hosts


def test_another_recipe_is_refused(tmp_path):
    a, b = run(1), run(2)
    rung(a, "bf16")["recipe"], rung(b, "bf16")["recipe"] = {"precision": "bf16"}, {"precision": "fp16"}
    assert "rung bf16.recipe.precision: bf16 and fp16" in refused("merge", *write(tmp_path, a, b))


def test_rounds_of_two_hosts_are_marked_and_on_a_cpu_never_merged(tmp_path):
    a, b = run(1), run(2)
    b["machine"]["cores"] = 32
    paths = write(tmp_path, a, b)
    merged = json.loads(call("merge", *paths, "--anyway", "--json").stdout)
    assert {each["cores"] for each in merged["merged"]} == {16, 32}
    assert any(note.startswith("merged: 32 cores of") for note in merged["protocol"]["notes"])
    (out,) = write(tmp_path, merged, name="merged")
    assert "several hosts" in call("validate", out).stdout
    for each in (a, b):
        cpu = each["machine"]["cpu"]
        each["machine"] |= {"device": "cpu", "gpu": None, "name": texts.make_slug(cpu)}
    assert "cores: 16 and 32" in refused("merge", *write(tmp_path, a, b), "--anyway")


def test_code_that_no_commit_names_is_not_known_to_be_the_same(tmp_path):
    for key, value in (("commit", None), ("dirty", True)):
        a, b = run(1) | {key: value}, run(2) | {key: value}
        paths = write(tmp_path, a, b)
        assert f"{key}: {value}" in refused("merge", *paths)
        assert "not publishable" in call("merge", *paths, "--anyway").stdout


def test_the_same_run_twice_is_refused_under_whatever_name(tmp_path):
    a, b, c = run(1), run(2), run(3)
    (path, _, third) = write(tmp_path, a, b, c)
    assert "hold the same run" in refused("merge", path, path)
    (half,) = write(tmp_path, cut(a, 3), name="half")  # as it was before it was taken up again
    assert "hold the same run" in refused("merge", path, half)
    (merged,) = write(tmp_path, merging.merge([path, third]), name="merged")
    assert "hold the same run" in refused("merge", merged, path)


def test_a_rung_that_one_run_did_not_let_pass_is_not_ok_for_another_having_timed_it(tmp_path):
    for status in ("not engaged", "failed: parity"):
        a, b = run(1), run(2)
        rung(b, "fused_act").update(status=status, reason="why", rounds=[])
        line = refused("merge", *write(tmp_path, a, typed.fill(b)))
        assert f"rung fused_act: ok and {status}" in line
        c = run(3)  # the first of all says nothing about it
        rung(c, "fused_act").update(status="n/a", reason="not measured: the run ended before", rounds=[])
        c["started"] = WHEN.format(0)
        three = write(tmp_path, *map(typed.fill, (a, b, c)))
        assert f"rung fused_act: ok and {status}" in refused("merge", *three)
    a, b = run(1), run(2)
    rung(b, "bf16")["receipts"] = made_up.receipts(engaged=False)
    assert "bf16: not engaged, but timed" in refused("merge", *write(tmp_path, a, b))


def test_files_are_not_written_over_but_a_single_one(tmp_path):
    a, b = write(tmp_path, run(1), run(2))
    before = b.read_bytes()
    for out in (b, a):
        assert "is there already" in refused("merge", a, b, "--out", out)
    assert "is there already" in refused("merge", a, "--out", b)
    assert b.read_bytes() == before
    assert "file's name" in refused("merge", a, b, "--out", tmp_path / "Whole.json")
    assert "not written" in call("merge", a, b).stdout and len(list(tmp_path.glob("*.json"))) == 2
    a.write_text('{"schema": 2, "kind": "ladder"}')
    assert "is missing" in refused("merge", a, b)


def test_a_run_that_is_still_writing_there_is_not_disturbed(tmp_path):
    (a,) = write(tmp_path, run(1))
    with locks.folder_lock(tmp_path):
        assert "another run is writing" in refused("merge", a, "--out", a)


# --- in a folder with its sources -----------------------------------------------------------------------------------


def test_a_folder_shows_the_merged_file_and_not_its_sources(tmp_path):
    a, b = run(1), run(2)
    paths = write(tmp_path, a, b)
    write_run(tmp_path / "zz.json", merging.merge(paths))  # after its newest source in the folder's order
    (shown,), _ = series.collect([tmp_path])
    assert len(shown["merged"]) == 2
    newer = write(tmp_path, run(4), name="newer")
    (shown,), _ = series.collect([tmp_path])
    assert shown["started"] == WHEN.format(4)
    newer[0].unlink()
    b = run(2)
    for each in records(b):  # the source went on after it was merged: it is more than the merged file knows
        each["rounds"].append(
            {**each["rounds"][0], "round": 5, "samples_ms": [each["rounds"][0]["samples_ms"][0]]}
        )
    assert len(sources.without_sources([b, shown, merging.merge(paths)])) == 3
