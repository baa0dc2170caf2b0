"""Result files: names, atomic writing, what is refused when read."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ladder.core import locks
from ladder.core import text as texts
from ladder.core.errors import UserError
from ladder.core.records import write_whole
from ladder.results import loading, record
from tests.support import made_up, typed
from tests.support.typed import write_run

GIB = 2**30


def make(*samples: list[float]) -> dict[str, Any]:
    """A whole result with one rung for each list of round times (empty: n/a)."""
    rungs = []
    for index, times in enumerate(samples):
        rung = {
            "name": f"rung{index}",
            "title": "A rung",
            "recipe": {"workers": index},
            "status": "ok" if times else "n/a",
        }
        rung |= {"reason": None if times else "needs a CUDA GPU"}
        rungs.append(rung | {"rounds": [a_round(number, time) for number, time in enumerate(times)]})
    made = made_up.result([])
    made["workload"] |= {"channel_base": 16384}
    made["protocol"]["rounds"] = max(map(len, samples))
    made["ladder"] = {"name": "mine", "title": "Mine", "rungs": [rung["name"] for rung in rungs]}
    return typed.fill(made | {"rungs": rungs, "commit": None, "dirty": None, "seconds": 1.0})


def a_round(number: int, time: float) -> dict[str, Any]:
    peaks = {"peak_reserved_bytes": (10 + number) * GIB, "peak_allocated_bytes": 9 * GIB}
    seen = {"samples_s": [time / 1000] * 2, "event_s": [time / 1000] * 2, "main_s": time / 2000} | peaks
    return record.new_round(number, {"prepare_s": 3.0}, seen | {"lead_in_cycles": 1, "settled": True})


def test_names_are_made_from_the_hardware() -> None:
    assert texts.make_slug("NVIDIA H200") == "nvidia-h200"
    assert texts.make_slug("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"
    assert texts.make_slug("Intel(R) Xeon(R) CPU @ 2.20GHz") == "intel-xeon-cpu-2.20ghz"
    assert texts.make_slug("../..") == "unknown"
    path = record.name_file(Path("out"), typed.run_of(make([1.0])))
    assert path == Path("out/nvidia-h200/article-mine-20261121T101500Z.json")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.json"
    result = make([10.0, 11.0], [], [5.0, 5.0])
    write_run(path, result)
    assert write_whole(loading.load_run(path)) == result | {"twins": [], "at_top": None}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_run(path, make([10.0]))
    before = path.read_bytes()
    with pytest.raises(ValueError):
        write_run(path, {"time": math.nan})

    def no_space(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        write_run(path, make([20.0]))
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_derived_numbers() -> None:
    result = make([10.0, 12.0, 11.0], [], [5.0, 6.0, 5.5])
    first, missing, last = result["rungs"]
    assert result["baseline"] == "rung0" and first["speedup_total"] == 1 and first["speedup_previous"] is None
    assert (first["step_ms"], first["main_ms"]) == (11, 5.5)
    assert first["images_per_s"] == pytest.approx(8000 / 11)
    assert last["speedup_total"] == pytest.approx(2) and last["speedup_previous"] == pytest.approx(2)
    assert last["interval_ms"][0] < 5.5 < last["interval_ms"][1]
    assert last["peak_reserved_bytes"] == 12 * GIB and last["prepare_s"] == 3
    assert last["samples_ms"] == [5.0, 5.0, 6.0, 6.0, 5.5, 5.5]
    assert missing["step_ms"] is None and missing["reason"] == "needs a CUDA GPU"


def test_speedups_are_against_the_first_rung_with_a_number() -> None:
    result = make([10.0], [8.0], [4.0])
    result["rungs"][0] |= {"status": "oom", "failed_at": {"round": 1, "peak_reserved_bytes": 140 * GIB}}
    assert typed.fill(result)["baseline"] == "rung1"
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
    typed.fill(made)
    assert rungs[0]["host_bound"] == pytest.approx(0.6) and rungs[0]["gpu_busy_ms"] == 4
    assert rungs[1]["host_bound"] == 0 and rungs[1]["notes"] == []
    assert rungs[2]["host_bound"] is None and rungs[2]["gpu_busy_ms"] == 10.3
    assert rungs[2]["notes"] == [
        "host-bound share unknown: GPU busy for 10.30 ms in the profiled step, of 10.00 ms timed"
    ]
    typed.fill(made)
    assert len(rungs[2]["notes"]) == 1 and texts.TEXT.fullmatch(rungs[2]["notes"][0])


def test_notes_tell_what_was_wrong_with_the_rounds() -> None:
    made = make([10.0, 10.0])
    (rung,) = made["rungs"]
    assert rung["notes"] == []
    rung["rounds"][0] |= {"settled": False, "event_ms": [5.0, 10.0]}
    rung["rounds"][1]["alloc_retries"] = 2
    rung["inspection"] = {"error": "the profiler saw no kernels"}
    for _ in range(2):  # derived anew, not added to
        typed.fill(made)
    assert [note.split(":")[0].split(" in ")[0] for note in rung["notes"]] == [
        "host-bound share unknown",
        "unsettled",
        "wall clock beyond CUDA events",
        "the allocator retried while timing",
    ]


def broken(change: Any) -> str:
    result = typed.raw(make([10.0, 11.0]))
    change(result)
    return json.dumps(result)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a result file"),
        ("[1]", "not a result file"),
        ("null", "not a result file"),
        ('{"schema": 2, "kind": "selftest"}', "a result of the kind 'selftest', no run of rungs"),
        ('{"schema": 2, "what": "selftest"}', "a result of the kind 'selftest', no run of rungs"),
        ('{"schema": 1, "rungs": NaN}', "NaN is not allowed"),
        ("[" * 100_000, "nested too deep"),
        (broken(lambda r: r.update(schema=1)), "schema 1 is not known"),
        (broken(lambda r: r.pop("protocol")), "the key 'protocol' is missing"),
        (broken(lambda r: r.update(rungs={})), "rungs: an object is not"),
        (broken(lambda r: r["rungs"][0].update(step_ms=5.0)), "rungs[0]: unknown key 'step_ms'"),
        (broken(lambda r: r["rungs"][0]["rounds"][0].update(samples_ms=[1, -1])), "samples_ms[1]: -1 is not"),
        (broken(lambda r: r["rungs"][0].update(status="fine")), "rungs[0].status: 'fine' is none of"),
        (
            broken(lambda r: r["rungs"][0]["rounds"].append(r["rungs"][0]["rounds"][0])),
            "a round is there twice",
        ),
        (broken(lambda r: r["machine"].update(name="nvidia-h100")), "is not made from its hardware"),
        (broken(lambda r: r.update(started="2099-01-01T00:00:00Z")), "lies in the future"),
        (
            broken(lambda r: r["rungs"][0]["rounds"][0].update(samples_ms=[0.01, 0.01])),
            "faster than this GPU can compute",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        loading.load_run(path)
    assert says in str(error.value) and str(path) in str(error.value) and "\n" not in str(error.value)


def test_two_runs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    with locks.folder_lock(tmp_path / "machine"):
        with pytest.raises(UserError, match="another run is writing here"):
            with locks.folder_lock(tmp_path / "machine"):
                pass
    with locks.folder_lock(tmp_path / "machine"):
        pass
    assert list((tmp_path / "machine").iterdir()) == []
