"""Several runs of `ladder scale` as one result: what joins, what is refused, and which numbers documents show."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ladder.base import locks
from ladder.base.errors import UserError
from ladder.base.records import build, plain
from ladder.publish.pages import studies
from ladder.publish.pages.committed import Committed, shortfall
from ladder.publish.validation import validate
from ladder.results import publishable
from ladder.studies.scale import joining, record, report
from tests.support import committed, made_up_scaled
from tests.support.commands import call, refused
from tests.support.typed import problem_of, write_run

H200_MACHINE = json.loads(committed.file("results/precision/nvidia-h200.json").read_text())["machine"]
Change = Callable[[dict[str, Any]], object]
WHEN = "2026-01-0{}T00:00:00+00:00"


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    return made_up_scaled.of_scaled(H200_MACHINE, gpus=(1, 4))


def part(
    whole: dict[str, Any],
    day: int,
    factor: float,
    generations: int = 1,
    ways: tuple[str, ...] = ("top", "ddp"),
) -> dict[str, Any]:
    """The weak points of a run, as they were after some generations on a host that is slower by a factor."""
    made = copy.deepcopy(whole) | {"started": WHEN.format(day), "complete": False}
    made["points"] = [p for p in made["points"] if p["scaling"] == "weak" and p["way"] in ways]
    made["proofs"] = [each for each in made["proofs"] if each["way"] in ways]
    for point in made["points"]:
        point["runs"] = point["runs"][:generations]
        for run in point["runs"]:
            drift = factor * (1 + 0.1 * run["generation"])  # of which no ratio inside a generation knows
            run["samples_ms"] = [drift * ms for ms in run["samples_ms"]]
    return plain(record.derive(build(record.Result, made)))


def join(*made: dict[str, Any], anyway: bool = False) -> record.Result:
    found = [(Path(f"{k}.json"), build(record.Result, each)) for k, each in enumerate(made)]
    return joining.join(found, anyway)


def point(result: record.Result, way: str, gpus: int) -> record.Point:
    return next(each for each in result.points if (each.way, each.gpus) == (way, gpus))


def test_points_are_compared_inside_the_generations_of_their_run(whole):
    a, b, c = part(whole, 1, 1.0), part(whole, 2, 2.0, 2), part(whole, 3, 3.0, 2, ("top",))
    alone = next(p for p in b["points"] if (p["way"], p["gpus"]) == ("top", 1))
    alone["runs"] = alone["runs"][1:]  # its first generation was void
    b = plain(record.derive(build(record.Result, b)))
    merged = join(c, b, a)  # the order of the files does not matter
    top, ddp = point(merged, "top", 4), point(merged, "ddp", 4)
    assert [run.generation for run in top.runs] == [0, 1, 2, 3, 4]
    assert [run.generation for run in point(merged, "top", 1).runs] == [0, 2, 3, 4]
    assert [run.generation for run in ddp.runs] == [0, 1, 2]
    exposed = made_up_scaled.COMMUNICATION_MS * 2 * 3 / 4
    assert top.efficiency == pytest.approx(50 / (50 + exposed)) and (top.high or 0) - (top.low or 0) < 0.001
    samples = [
        run["samples_ms"] for each in (a, b) for p in each["points"] if p["way"] == "ddp" for run in p["runs"]
    ]
    assert sorted(run.samples_ms for n in (1, 4) for run in point(merged, "ddp", n).runs) == sorted(samples)
    assert ddp.step_ms == statistics.median(statistics.median(run.samples_ms) for run in ddp.runs)
    assert merged.complete and merged.started == WHEN.format(3) and merged.seconds == 600.0
    assert [(each.started, each.rounds) for each in merged.merged or []] == [
        (WHEN.format(1), 1), (WHEN.format(2), 2), (WHEN.format(3), 2),
    ]  # fmt: skip
    assert [(proof.way, proof.status) for proof in merged.proofs] == [("top", "ok"), ("ddp", "ok")]
    assert problem_of(plain(merged)) is None and merged.protocol.notes == [made_up_scaled.NOTE]
    again = join(plain(join(a, c)), b)
    assert {key: p.efficiency for p in again.points for key in [joining.key_of(p)]} == {
        key: p.efficiency for p in merged.points for key in [joining.key_of(p)]
    }


def test_a_way_of_too_few_generations_is_named_and_the_others_are_quoted(whole, tmp_path):
    a, b, c = part(whole, 1, 1.0), part(whole, 2, 2.0), part(whole, 3, 3.0, 1, ("top",))
    merged = join(a, b, c)
    assert not merged.complete and merged.protocol.notes == [
        made_up_scaled.NOTE, "fewer than 3 generations of ddp: not to be quoted"
    ]  # fmt: skip
    rows = {row[:3]: row for row in report.cells(merged)}
    assert rows["ddp", "weak", "4"][7] == report.TOO_FEW and point(merged, "ddp", 4).low is None
    assert "%" in rows["top", "weak", "4"][7] and "2 to 3 generations in 3 runs" in report.markdown(merged)
    (tmp_path / "results" / "scaled").mkdir(parents=True)
    sources = {f"nvidia-h200-a{k}": each for k, each in enumerate((a, b, part(whole, 4, 1.0, 3)))}
    for name, data in {**sources, "nvidia-h200-b": plain(merged)}.items():
        write_run(tmp_path / "results" / "scaled" / f"{name}.json", data)
    shown = studies.scaled(Committed(tmp_path), "nvidia-h200").splitlines()
    mine = [line for line in shown if "nvidia-h200-b.md" in line]
    ddp = [[cell.strip() for cell in line.split("|")[2:-1]] for line in mine if "| ddp |" in line]
    assert [row[4:] for row in ddp] == [[report.TOO_FEW, *[""] * 6]] * 2
    # Sources of a merged file are not shown beside it, nor is a file without one point to quote.
    assert len(mine) == 4 and not any("nvidia-h200-a0" in line or "-a1." in line for line in shown)
    assert sum("nvidia-h200-a2.md" in line for line in shown) == 4  # stopped, with enough of every point
    assert shortfall(a) == "has fewer than 3 generations of each point"


def test_a_way_of_too_few_generations_needs_its_note(whole):
    made = part(whole, 1, 1.0, 2)
    assert "fewer than 3 generations of top, ddp: not to be quoted" in made["protocol"]["notes"]
    assert problem_of(made) is None
    made["protocol"]["notes"] = [made_up_scaled.NOTE]
    assert "lack 'fewer than 3 generations" in (problem_of(made) or "")


def test_one_point_of_too_few_generations_is_named_with_its_gpus(whole):
    made = part(whole, 1, 1.0, 3)
    made["points"][1]["runs"].pop()
    found = record.derive(build(record.Result, made))
    assert record.short(found.points) == ["top on 4"]
    assert found.points[1].efficiency is not None and found.points[1].low is None


def set_in(*keys: Any) -> Change:
    *path, last, value = keys

    def change(data: dict[str, Any]) -> None:
        for key in path:
            data = data[key]
        data[last] = value

    return change


REFUSED: dict[str, tuple[Change, str]] = {
    "another GPU": (set_in("machine", "gpu", "NVIDIA H100"), "machine.gpu: NVIDIA H200 and NVIDIA H100"),
    "another driver": (set_in("machine", "driver", "1.0"), "machine.driver: "),
    "other code": (set_in("measured_code", "kernels", "1" * 16), "measured_code.kernels: "),
    "another workload": (set_in("workload", "batch", 16), "workload.batch: 32 and 16"),
    "other images": (set_in("workload", "data", None), "workload.data: sample-photographs and None"),
    "another backend": (set_in("protocol", "backend", "gloo"), "protocol.backend: nccl and gloo"),
    "other visits": (set_in("protocol", "visits", 9), "protocol.visits: 2 and 9"),
    "another recipe": (set_in("points", 1, "recipe", {"ranks": 4}), "recipe of top on 4 GPUs: "),
    "failed": (
        lambda data: data["proofs"][0].update(status="failed: parity", reason="G_main"),
        "top: failed: parity and timed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_of_anything_else_is_refused_in_one_line(name, whole):
    change, words = REFUSED[name]
    other = part(whole, 2, 2.0)
    change(other)
    with pytest.raises(UserError) as error:
        join(part(whole, 1, 1.0), other)
    said = str(error.value)
    assert (
        said.startswith("0.json and 1.json do not belong together: ") and words in said and "\n" not in said
    )


def test_what_the_command_never_writes_is_refused_although_its_figures_follow(whole):
    edited: dict[str, tuple[Change, str]] = {
        "a weak batch": (set_in("points", 1, "batch", 256), "top, weak, 4 GPUs: batch 256, expected 128"),
        "two totals": (set_in("points", 2, "batch", 64), "strong scaling: total batches 32 and 64, expected one"),
        "a point twice": (lambda data: data["points"].append(data["points"][0]), "top, weak, 1 GPUs: there twice"),
        "failed": (set_in("points", 1, "status", "failed"), "top, weak, 4 GPUs: failed with a run"),
        "no sample": (set_in("points", 1, "runs", 0, "samples_ms", []), "points[1].runs[0].samples_ms: 0 entries"),
        "no point": (set_in("points", []), "points: 0 entries"),
        "generations": (set_in("protocol", "generations", 10**9), "protocol.generations: 1000000000 is not"),
        "visits": (set_in("protocol", "visits", 10**9), "protocol.visits: 1000000000 is not"),
        "a number": (set_in("points", 0, "runs", 0, "generation", 10**9), "points[0].runs[0].generation: 1000000000"),
    }  # fmt: skip
    for change, words in edited.values():
        data = copy.deepcopy(whole)
        change(data)
        assert words in (problem_of(plain(record.derive(build(record.Result, data)))) or "")


def test_two_total_batches_the_same_run_and_an_empty_one_are_refused(whole):
    strong = copy.deepcopy(whole)
    strong["points"] = [each for each in strong["points"] if each["scaling"] == "strong"]
    other = copy.deepcopy(strong) | {"started": WHEN.format(2)}
    for each in other["points"]:
        each["batch"] = 64
    with pytest.raises(UserError, match="total batch of strong scaling: 32 and 64"):
        join(strong, other)
    with pytest.raises(UserError, match=r"0.json and 1.json hold the same run of 2026-01-02"):
        join(part(whole, 1, 1.0), part(whole, 2, 1.0, 2))
    with pytest.raises(UserError, match=r"1.json: nothing was measured in it"):
        join(part(whole, 1, 1.0), part(whole, 2, 1.0, 0))


def test_more_than_a_result_holds_is_refused_before_it_is_written(whole):
    parts = []
    for k in range(2):
        made = part(whole, k + 1, 1.0 + k)
        for point in made["points"]:
            point["runs"] = [
                point["runs"][0] | {"generation": n, "samples_ms": [50.0 + k / 2 + n]} for n in range(501)
            ]
        parts.append(plain(record.derive(build(record.Result, made))))
    with pytest.raises(UserError, match=r"these cannot be one result: points\[0\].runs: 1002 entries"):
        join(*parts)


def test_another_host_joins_only_if_it_is_asked_for_and_is_marked(whole):
    other = part(whole, 2, 2.0)
    other["machine"] = other["machine"] | {"cores": 3}
    with pytest.raises(UserError, match=r"machine.cores: \d+ and 3; --anyway merges them"):
        join(part(whole, 1, 1.0), other)
    assert publishable.HOSTS in join(part(whole, 1, 1.0), other, anyway=True).protocol.notes


def test_the_command_merges_files_of_scale_and_of_nothing_else_with_them(whole, tmp_path):
    paths = [tmp_path / f"{k}.json" for k in range(2)]
    for k, path in enumerate(paths):
        write_run(path, part(whole, k + 1, 1.0 + k, 2))
    out = tmp_path / "nvidia-h200-whole.json"
    said = call("merge", *paths, "--out", out)
    assert said.exit_code == 0 and "95% interval" in said.stdout and said.stdout.count("\ntop  weak") == 2
    assert {path.suffix for path in tmp_path.glob("nvidia-h200-whole.*")} == {".json", ".md", ".png", ".svg"}
    assert validate.problem_of(out) is None and json.loads(out.read_text())["complete"]
    assert "not written" in call("merge", *paths).stdout
    assert "is there already" in refused("merge", *paths, "--out", out)
    assert "hold the same run" in refused("merge", paths[0], paths[0])
    (tmp_path / "link.json").symlink_to(paths[0])
    assert "link.json: cannot be read: a symbolic link" in refused("merge", paths[1], tmp_path / "link.json")
    with locks.folder_lock(tmp_path, "nvidia-h200"):  # as `ladder scale` holds its folder
        assert "another run is writing here" in refused("merge", paths[0], "--out", paths[0])
    other = tmp_path / "other.json"
    write_run(other, {"schema": 1})
    assert "is of ladder scale, and" in refused("merge", paths[0], other)
