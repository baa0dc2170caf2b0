"""Result files: names, atomic writing, what is refused when read."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from ladder.base import locks
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.report import tables
from ladder.report.view import view
from ladder.results import check, record, types, words
from ladder.results import store as results
from tests.support import made_up, two_clocks, typed

GIB = 2**30


def make(*samples: list[float]) -> dict[str, Any]:
    """A whole result with one rung for each list of round times (empty: n/a)."""
    rungs = []
    for index, times in enumerate(samples):
        rung = record.new_rung(f"rung{index}", "A rung", {}, None, None if times else "needs a CUDA GPU")
        rung["rounds"] = [a_round(number, time) for number, time in enumerate(times)]
        rung["status"] = "ok" if times else "n/a"
        rungs.append(rung)
    made = {
        "schema": 1,
        "machine": made_up.result([])["machine"],
        "workload": {"name": "article", "resolution": 256, "batch": 8, "data": None},
        "ladder": {"name": "article", "title": "Article", "rungs": [rung["name"] for rung in rungs]},
        "protocol": record.protocol(5, 2, 0, False),
        "commit": None,
        "dirty": None,
        "complete": True,
        "started": "2026-11-21T10:15:00+00:00",
        "seconds": 1.0,
        "baseline": None,
        "rungs": rungs,
    }
    typed.derived(made)
    return made


def a_round(number: int, time: float) -> dict[str, Any]:
    peaks = {"peak_reserved_bytes": (10 + number) * GIB, "peak_allocated_bytes": 9 * GIB}
    seen = {"samples_s": [time / 1000] * 2, "event_s": [time / 1000] * 2, "main_s": time / 2000} | peaks
    return record.new_round(number, {"prepare_s": 3.0}, seen | {"lead_in_cycles": 1, "settled": True})


def test_names_are_made_from_the_hardware() -> None:
    assert texts.slug("NVIDIA H200") == "nvidia-h200"
    assert texts.slug("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert texts.slug("Intel(R) Xeon(R) CPU @ 2.20GHz") == "intel-xeon-cpu-2.20ghz"
    assert texts.slug("../..") == "unknown"
    path = results.path_for(Path("out"), make([1.0]))
    assert path == Path("out/nvidia-h200/article-article-20261121T101500Z.json")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    result = make([10.0, 11.0], [], [5.0, 5.0])
    results.write(path, result)
    assert types.plain(results.load(path)) == result


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    results.write(path, make([10.0]))
    before = path.read_bytes()
    with pytest.raises(ValueError):
        results.write(path, {"time": math.nan})

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        results.write(path, make([20.0]))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_derived_numbers() -> None:
    result = make([10.0, 12.0, 11.0], [], [5.0, 6.0, 5.5])
    first, missing, last = result["rungs"]
    assert result["baseline"] == "rung0" and first["speedup_total"] == 1 and first["speedup_previous"] is None
    assert (
        first["step_ms"] == 11
        and first["main_ms"] == 5.5
        and first["images_per_s"] == pytest.approx(8000 / 11)
    )
    assert last["speedup_total"] == pytest.approx(2) and last["speedup_previous"] == pytest.approx(2)
    assert last["interval_ms"][0] < 5.5 < last["interval_ms"][1]
    assert last["peak_reserved_bytes"] == 12 * GIB and last["prepare_s"] == 3
    assert last["samples_ms"] == [5.0, 5.0, 6.0, 6.0, 5.5, 5.5]
    assert missing["step_ms"] is None and missing["reason"] == "needs a CUDA GPU"


def test_speedups_are_against_the_first_rung_with_a_number() -> None:
    result = make([10.0], [8.0], [4.0])
    result["rungs"][0] |= {"status": "oom", "failed_at": {"round": 1, "peak_reserved_bytes": 140 * GIB}}
    assert typed.derived(result) == "rung1"
    first, second, third = result["rungs"]
    assert first["step_ms"] is first["speedup_total"] is None and first["peak_reserved_bytes"] == 140 * GIB
    assert second["speedup_total"] == 1 and second["speedup_previous"] is None
    assert third["speedup_total"] == third["speedup_previous"] == pytest.approx(2)


def test_host_bound_is_what_the_gpu_was_idle() -> None:
    made = make([10.0], [10.0], [10.0])
    rungs = made["rungs"]
    rungs[0]["inspection"] = {"gpu_busy_ms": 4.0, "error": None}
    rungs[1]["inspection"] = {"gpu_busy_ms": 10.1, "error": None}  # a profiled cycle can be the slower one
    rungs[2]["inspection"] = {"gpu_busy_ms": 10.3, "error": None}
    typed.derived(made)
    assert rungs[0]["host_bound"] == pytest.approx(0.6) and rungs[0]["gpu_busy_ms"] == 4
    assert rungs[1]["host_bound"] == 0 and rungs[1]["notes"] == []
    assert rungs[2]["host_bound"] is None and rungs[2]["gpu_busy_ms"] == 10.3
    assert rungs[2]["notes"] == [
        "host-bound share unknown: GPU busy for 10.30 ms in the profiled step, of 10.00 ms timed"
    ]
    typed.derived(made)
    assert len(rungs[2]["notes"]) == 1 and texts.TEXT.fullmatch(rungs[2]["notes"][0])


def test_notes_tell_what_was_wrong_with_the_rounds() -> None:
    made = make([10.0, 10.0])
    (rung,) = made["rungs"]
    assert rung["notes"] == []
    rung["rounds"][0] |= {"settled": False, "event_ms": [5.0, 10.0]}
    rung["rounds"][1]["alloc_retries"] = 2
    rung["inspection"] = {"error": "the profiler saw no kernels"}
    for _ in range(2):  # derived anew, not added to
        typed.derived(made)
    assert [note.split(":")[0].split(" in ")[0] for note in rung["notes"]] == [
        "host-bound share unknown",
        "unsettled",
        "wall clock beyond CUDA events",
        "the allocator retried while timing",
    ]


def broken(change: Any) -> str:
    result = copy.deepcopy(make([10.0, 11.0]))
    change(result)
    return json.dumps(result)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a result file"),
        ("[1]", "not a result file"),
        ("null", "not a result file"),
        ("3", "not a result file"),
        ('"kind"', "not a result file"),
        ('{"schema": 1, "rungs": NaN}', "NaN is not allowed"),
        ("[" * 100_000, "nested too deep"),
        (broken(lambda r: r.update(schema=2)), "schema 2 is not known"),
        (broken(lambda r: r.pop("protocol")), "the key 'protocol' is missing"),
        (broken(lambda r: r.update(rungs={})), "rungs: an object is not a list"),
        (
            broken(lambda r: r["rungs"][0].update(step_ms=0)),
            "rungs[0].step_ms: 0 is not from 0.0001 to 1e+08",
        ),
        (
            broken(lambda r: r["rungs"][0].update(samples_ms=[1, -1])),
            "rungs[0].samples_ms[1]: -1 is not from",
        ),
        (broken(lambda r: r["rungs"][0].update(status="fine")), "rungs[0].status: 'fine' is none of"),
        (broken(lambda r: r["rungs"][0].update(step_ms=None)), 'status "ok" without "step_ms"'),
        (
            broken(lambda r: r["rungs"][0].update(interval_ms=[1])),
            "rungs[0].interval_ms: 1 entries, expected 2 to 2",
        ),
        (broken(lambda r: r["rungs"][0].update(host_bound=2)), "rungs[0].host_bound: 2 is not from 0 to 1"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        results.load(path)
    assert says in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["kind", "what"])
def test_a_file_of_another_command_is_told_by_its_kind_and_its_page(tmp_path: Path, key: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"schema": results.SCHEMA, key: "selftest"}))
    path.with_suffix(".md").touch()
    with pytest.raises(UserError) as caught:
        results.load(path)
    assert (
        str(caught.value)
        == f"{path}: a result of the kind 'selftest', no run of rungs; r.md beside it shows it"
    )


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        results.load(tmp_path / "none.json")


def test_two_runs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    with locks.folder_lock(tmp_path / "machine"):
        with pytest.raises(UserError, match="another run is writing here"):
            with locks.folder_lock(tmp_path / "machine"):
                pass
    with locks.folder_lock(tmp_path / "machine"):
        pass
    assert list((tmp_path / "machine").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written here"):
        with locks.folder_lock(tmp_path / "file" / "machine"):
            pass


@pytest.mark.parametrize("below, word", [(0.6, "less than 83%"), (1.58, "ambiguous")])
def test_a_stored_word_that_decides_nothing_is_read_as_todays_rule_has_it(below: float, word: str) -> None:
    made = two_clocks.run()
    made["rungs"] = [rung | {"q25_ms": rung["step_ms"], "q75_ms": rung["step_ms"]} for rung in made["rungs"]]
    for verdict, gain in (("verdict", "gain"), ("gpu_verdict", "gpu_gain")):
        made["rungs"][1] |= {verdict: "less than", gain: made["rungs"][1][gain] | {"below": below}}
    assert check.problem_of(made) is None
    read = results.of_data(made)
    for seen in (view(read).rows[1].seen, view(read).rows[1].gpu.seen):
        assert words.word(seen) == word and (seen.below is None) is (word == "ambiguous")
    assert f"{word} |" in tables.markdown(read) and "390%" not in tables.markdown(read)
    assert (types.plain(read) == made) is (word != "ambiguous")
