"""Several runs of `ladder scale` as one result: what joins, what is refused, and which numbers documents show."""

from __future__ import annotations

import copy
import json
import statistics
from pathlib import Path

import pytest

from ladder.core import locks
from ladder.core.errors import UserError
from ladder.core.records import write_record
from ladder.publish.pages.committed import find_shortfall
from ladder.publish.validation import validate
from ladder.results import publishable, store
from ladder.studies import frame, scale
from ladder.studies.scale import STUDY, TOO_FEW, describe_generations, make_table
from ladder.studies.scale.record import derive_points
from tests.support import committed, made_up_scaled
from tests.support.commands import call, refused

MACHINE = json.loads(committed.file("results/ablation/nvidia-h200-article-full.json").read_text())["machine"]
WHEN = "2026-01-0{}T00:00:00+00:00"


@pytest.fixture(scope="module")
def whole():
    return made_up_scaled.of_scaled(MACHINE, gpus=(1, 4))


def part(whole, day, factor, generations=1, ways=("top", "ddp")):
    """The weak points of a run, as they were after some generations on a host that is slower by a factor."""
    data = copy.deepcopy(whole) | {"started": WHEN.format(day)}
    cases = data["cases"].items()
    data["cases"] = {k: case for k, case in cases if case.get("scaling") != "strong" and case["way"] in ways}
    data["observed"] = {key: data["observed"][key] for key in data["cases"]}
    for key, each in list(data["observed"].items()):
        if data["cases"][key]["kind"] == "proof":
            continue
        each["runs"] = each["runs"][:generations]
        if generations < 3:
            each["stopped"] = True
        if not generations:
            del data["observed"][key]
        for run in each["runs"]:
            drift = factor * (1 + 0.1 * run["generation"])  # of which no ratio inside a generation knows
            run["samples_ms"] = [drift * ms for ms in run["samples_ms"]]
    return data


def read(data):
    return frame.decode_file(STUDY, data)


def join(*files, anyway=False):
    return scale.join([(Path(f"{k}.json"), read(each)) for k, each in enumerate(files)], anyway)


def point(file, way, gpus):
    return next(each for each in derive_points(file) if (each.way, each.gpus) == (way, gpus))


def test_points_are_compared_inside_the_generations_of_their_run(whole):
    a, b, c = part(whole, 1, 1.0), part(whole, 2, 2.0, 2), part(whole, 3, 3.0, 2, ("top",))
    b["observed"]["top, weak, 1"]["runs"].pop(0)  # its first generation was void
    merged = join(c, b, a)  # the order of the files does not matter
    top, ddp = point(merged, "top", 4), point(merged, "ddp", 4)
    assert [run.generation for run in top.runs] == [0, 1, 2, 3, 4]
    assert [run.generation for run in point(merged, "top", 1).runs] == [0, 2, 3, 4]
    assert [run.generation for run in ddp.runs] == [0, 1, 2]
    exposed = made_up_scaled.COMMUNICATION_MS * 2 * 3 / 4
    assert top.efficiency == pytest.approx(50 / (50 + exposed)) and top.high - top.low < 0.001
    samples = [run["samples_ms"] for each in (a, b) for run in each["observed"]["ddp, weak, 4"]["runs"]]
    assert sorted(run.samples_ms for run in ddp.runs) == sorted(samples)
    assert ddp.step_ms == statistics.median(statistics.median(run.samples_ms) for run in ddp.runs)
    assert merged.is_complete and merged.started == WHEN.format(3) and merged.seconds == 600.0
    assert [(each.started, each.rounds) for each in merged.merged] == [
        (WHEN.format(1), 1), (WHEN.format(2), 2), (WHEN.format(3), 2),
    ]  # fmt: skip
    proofs = [(proof["way"], proof["status"]) for proof in STUDY.derive(merged)["proofs"]]
    assert proofs == [("top", "ok"), ("ddp", "ok")] and frame.list_cautions(STUDY, merged) == []
    points = (derive_points(each) for each in (join(write_record(join(a, c)), b), merged))
    again, once = ([each.efficiency for each in those] for those in points)
    assert again == once


def test_a_way_of_too_few_generations_is_named_and_the_others_are_quoted(whole):
    a, b, c = part(whole, 1, 1.0), part(whole, 2, 2.0), part(whole, 3, 3.0, 1, ("top",))
    merged = join(a, b, c)
    assert not merged.is_complete
    assert frame.list_cautions(STUDY, merged) == ["fewer than 3 generations of ddp weak: not to be quoted"]
    rows = {tuple(row[:3]): row for row in make_table(merged).rows}
    assert rows["ddp", "weak", 4][7] == TOO_FEW and point(merged, "ddp", 4).low is None
    assert len(rows["top", "weak", 4][7]) == 2
    assert describe_generations(merged) == "2 to 3 generations in 3 runs"
    assert find_shortfall(a) == "was stopped" and find_shortfall(write_record(merged)) is None


def set_in(*keys):
    *path, last, value = keys

    def change(data):
        for key in path:
            data = data[key]
        data[last] = value

    return change


REFUSED = {
    "another GPU": (set_in("machine", "gpu", "NVIDIA H200 "), "machine.gpu: NVIDIA H200 and NVIDIA H200 "),
    "other code": (set_in("measured_code", "kernels", "1" * 16), "measured_code.kernels: "),
    "another workload": (set_in("workload", "name", "mine"), "workload.name: article-b32 and mine"),
    "other visits": (set_in("options", "visits", 9), "visits: 2 and 9"),
    "another recipe": (set_in("cases", "top, weak, 4", "recipe", {"ranks": 4}), "recipe of top, weak, 4: "),
    "failed": (
        lambda data: data["observed"]["proof of top on 2"].update(status="failed: parity", reason="G_main"),
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
    assert str(error.value).startswith("0.json and 1.json do not belong together: ") and words in str(
        error.value
    )


def test_two_total_batches_the_same_run_and_an_empty_one_are_refused(whole):
    strong = copy.deepcopy(whole)
    strong["cases"] = {key: case for key, case in strong["cases"].items() if case.get("scaling") == "strong"}
    strong["observed"] = {key: strong["observed"][key] for key in strong["cases"]}
    other = copy.deepcopy(strong) | {"started": WHEN.format(2)}
    for case in other["cases"].values():
        case["batch"] = 64
    with pytest.raises(UserError, match="total batch of strong scaling: 32 and 64"):
        join(strong, other)
    with pytest.raises(UserError, match=r"0.json and 1.json hold the same run of 2026-01-02"):
        join(part(whole, 1, 1.0), part(whole, 2, 1.0, 2))
    with pytest.raises(UserError, match=r"1.json: nothing was measured in it"):
        join(part(whole, 1, 1.0), part(whole, 2, 1.0, 0))


def test_another_host_joins_only_if_it_is_asked_for_and_is_marked(whole):
    other = part(whole, 2, 2.0)
    other["machine"] = other["machine"] | {"cores": 3}
    with pytest.raises(UserError, match=r"machine.cores: \d+ and 3; --anyway merges them"):
        join(part(whole, 1, 1.0), other)
    assert publishable.HOSTS in frame.list_cautions(STUDY, join(part(whole, 1, 1.0), other, anyway=True))


def test_the_command_merges_files_of_scale_and_of_nothing_else_with_them(whole, tmp_path):
    paths = [tmp_path / f"{k}.json" for k in range(2)]
    for k, path in enumerate(paths):
        store.write(path, part(whole, k + 1, 1.0 + k, 2))
    out = tmp_path / "nvidia-h200-whole.json"
    result = call("merge", *paths, "--out", out)
    assert (
        result.exit_code == 0 and "95% interval" in result.stdout and result.stdout.count("\ntop  weak") == 2
    )
    assert {path.suffix for path in tmp_path.glob("nvidia-h200-whole.*")} == {".json", ".md", ".png", ".svg"}
    assert validate.problem_of(out) is None and frame.read_file(STUDY, out).is_complete
    assert "not written" in call("merge", *paths).stdout
    assert "is there already" in refused("merge", *paths, "--out", out)
    assert "hold the same run" in refused("merge", paths[0], paths[0])
    (tmp_path / "link.json").symlink_to(paths[0])
    assert "link.json: cannot be read: a symbolic link" in refused("merge", paths[1], tmp_path / "link.json")
    with locks.folder_lock(tmp_path, "nvidia-h200"):  # as `ladder scale` holds its folder
        assert "another run is writing here" in refused("merge", paths[0], "--out", paths[0])
    other = tmp_path / "other.json"
    store.write(other, {"schema": 1})
    assert "is of ladder scale, and" in refused("merge", paths[0], other)
