"""The generations of `ladder scale`: which groups are alive together, what a stopped run keeps, and its resuming."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from ladder.base.records import build
from ladder.cli import main as cli
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.plan import needs
from ladder.studies.scale import chart, measure, record, resume, ways
from tests.support.repositories import commit_all, git
from tests.support.small import LITTLE
from tests.support.typed import problem_of

ABLE = needs.possible(dict.fromkeys(needs.NEEDS), {"norm": "demod"})
DID: list[
    tuple[str, int]
] = []  # what the groups were asked, and which; a server that was started is group -1


class FakePool:
    ended = False

    def __init__(self) -> None:
        DID.append(("server", -1))

    def __enter__(self) -> FakePool:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def kill(self) -> None:
        self.ended = True


class FakeGroup:
    """A group whose cycles take longer from group to group. `stop` ends the run at a call, by its number."""

    made = itertools.count()
    stop: dict[str, int] = {}

    def __init__(self, pool: Any, ranks: int, device: str) -> None:
        self.number, self.ranks, self.pids = next(FakeGroup.made), ranks, {0}

    def build(self, *_: Any) -> None:
        if FakeGroup.stop.get("oom") == self.number:
            raise WorkerFailure("oom", "out of memory in build")

    def call(self, do: str, part: str = "", **_: Any) -> list[dict[str, Any]]:
        DID.append((part or do, self.number))
        if (left := FakeGroup.stop.get(part or do)) is not None:
            FakeGroup.stop[part or do] = left - 1
            if not left:
                raise KeyboardInterrupt
        return [{"peak_rss_bytes": 1, "cycles": None}]

    def cycle(self) -> float:
        DID.append(("cycle", self.number))
        return (10.0 + self.number) / self.ranks

    def close(self) -> None:
        DID.append(("close", self.number))

    kill = close


@pytest.fixture(scope="module", autouse=True)
def fakes() -> Iterator[None]:
    facts = system.facts("cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "facts", lambda _: facts | {"cores": 2})
        patch.setattr(measure, "Group", FakeGroup)
        patch.setattr(measure, "Pool", FakePool)
        patch.setattr(chart, "render", lambda *_: b"a picture")
        yield


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    DID.clear()
    monkeypatch.setattr(FakeGroup, "made", itertools.count())
    monkeypatch.setattr(FakeGroup, "stop", {})


OPTIONS = (*"--gpus 1,2 --scaling weak --no-proof --device cpu --visits 2".split(),)
ASKED = ("ddp", "flat", *OPTIONS)


def run(folder: Path, *arguments: Any) -> Result:
    path = folder / "little.yaml"
    path.write_text(yaml.safe_dump(LITTLE))
    asked = ["scale", *map(str, arguments), "-w", str(path), "--out", str(folder / "out")]
    return CliRunner().invoke(cli.main, asked, prog_name="ladder")


def files(folder: Path) -> list[str]:
    return sorted(path.name.partition("little")[2] for path in (folder / "out").glob("*.json"))


def read(folder: Path) -> tuple[Path, dict[str, Any]]:
    (path,) = (folder / "out").glob("*.json")
    data = json.loads(path.read_text())
    assert problem_of(data) is None
    return path, data


def generations(data: dict[str, Any]) -> dict[tuple[str, int], list[int]]:
    return {(p["way"], p["gpus"]): [run["generation"] for run in p["runs"]] for p in data["points"]}


# Which groups are alive together


def test_all_ways_of_a_scaling_are_alive_together_as_far_as_the_cores_go():
    points = ways.points(
        ways.load(("top", "ddp", "flat"), ABLE), LITTLE | {"norm": "demod"}, [1, 2], ("weak", "strong"), 8
    )
    everything = list(range(len(points)))

    def named(cores: int) -> list[set[tuple[str, str]]]:
        found = ways.shifts(everything, points, cores, random.Random(0))
        assert sorted(k for each in found for k in each) == everything
        return [{points[k].series for k in each} for each in found]

    assert sorted(len(each) for each in named(9)) == [3, 3]  # three processes of a way
    assert all(len({scaling for _, scaling in each}) == 1 for each in named(99))
    assert sorted(len(each) for each in named(8)) == [1, 1, 2, 2]
    assert [len(each) for each in named(1)] == [1] * 6  # a way is always allowed
    orders = {str(ways.shifts(everything, points, 99, random.Random(k))) for k in range(9)}
    assert len(orders) > 1


def test_nothing_is_timed_after_a_profiler_or_beside_a_server_that_imports(tmp_path):
    said = run(tmp_path, *ASKED, "--generations", 2)
    assert said.exit_code == 0, said.output
    shifts = "".join(
        {"server": "S", "cycle": "c", "finish": "f", "load": "l", "record": "r"}.get(do, "") for do, _ in DID
    )
    # Two cores: a way at a time. Two visits and two untimed cycles of two groups, then both finish.
    assert shifts == "S" + "ccccccccffllrr" + "ccccccccffSllrr" + "ccccccccffllrr" * 2
    assert [number for do, number in DID if do == "server"] == [-1, -1]


@pytest.mark.parametrize(
    ("named", "last", "said"),
    [
        (("ddp", "flat"), 3, "way by way"),
        (("flat",), 1, "one by one"),
    ],
)
def test_groups_without_room_together_are_measured_apart_from_then_on(
    named, last, said, tmp_path, monkeypatch
):
    facts = system.facts("cpu")
    monkeypatch.setattr(system, "facts", lambda _: facts | {"cores": 64})
    FakeGroup.stop["oom"] = last  # of the first generation
    done = run(tmp_path, *named, *OPTIONS, "--generations", 2)
    assert done.exit_code == 0 and done.output.count(f"not enough memory for all of them: {said}") == 1
    assert generations(read(tmp_path)[1]) == {(way, gpus): [0, 1] for way in named for gpus in (1, 2)}
    together = [number for do, number in DID if do == "close"][: last + 1]
    assert sorted(together) == [*range(last + 1)]  # all have ended before any is made again


# A stopped run, and going on with it


def test_a_rank_that_dies_in_a_later_generation_is_told_and_measured_again(tmp_path, monkeypatch):
    """The point keeps the number of the generations before, so only a line says that one is missing."""
    real = FakeGroup.cycle

    def cycle(group: FakeGroup) -> float:
        if group.number == 2:  # the first of the second generation
            raise WorkerFailure("failed", "visit: worker killed by SIGKILL")
        return real(group)

    monkeypatch.setattr(FakeGroup, "cycle", cycle)
    said = run(tmp_path, "flat", *OPTIONS, "--generations", 2)
    assert said.exit_code == 1 and ": 1 of 2 generations, a later one failed" in said.output
    assert ": failed: visit: worker killed by SIGKILL" in said.output
    path, found = read(tmp_path)
    assert "go on: " in said.output and [p["status"] for p in found["points"]] == ["ok", "ok"]
    again = run(tmp_path, "--resume", path, "--generations", 2, "--no-proof")
    assert again.exit_code == 0 and min(map(len, generations(read(tmp_path)[1]).values())) == 2


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ways that was ended while the second profiled its second generation."""
    folder = tmp_path_factory.mktemp("ended")
    FakeGroup.stop = {"record": 7}
    said = run(folder, *ASKED)
    assert said.exit_code == 130 and files(folder) == ["-ddp-flat-weak-partial.json"]
    return read(folder)[0]


@pytest.fixture
def stopped(ended: Path, tmp_path: Path, forgotten: None) -> tuple[Path, dict[str, Any]]:
    (tmp_path / "out").mkdir()
    FakeGroup.stop.clear()
    DID.clear()
    shutil.copy(ended, tmp_path / "out")
    return read(tmp_path)


def test_a_stopped_run_keeps_whole_generations_and_says_how_to_go_on(stopped):
    _, data = stopped
    counts = sorted((way, gpus, len(each)) for (way, gpus), each in generations(data).items())
    assert sorted(count for *_, count in counts) == [1, 1, 2, 2]  # both numbers of GPUs of a way, or neither
    assert len({(way, count) for way, _, count in counts}) == 2
    assert (
        not data["complete"]
        and "fewer than 3 generations of ddp, flat: not to be quoted" in data["protocol"]["notes"]
    )


def test_resuming_measures_what_is_missing_and_nothing_twice(stopped, tmp_path):
    path, before = stopped
    said = run(tmp_path, "--resume", path, "--no-proof")
    assert said.exit_code == 0, said.output
    assert files(tmp_path) == ["-ddp-flat-weak.json"]  # the partial file has become the whole one
    _, data = read(tmp_path)
    assert [each for do, each in DID if do == "finish"] == list(
        dict.fromkeys(each for do, each in DID if do == "finish")
    )
    assert sum(do == "finish" for do, _ in DID) == 2 + 2 * 2  # one way lacks one generation, the other two
    for point, was in zip(data["points"], before["points"], strict=True):
        assert point["runs"][: len(was["runs"])] == was["runs"] and len(point["runs"]) == 3
    found = generations(data)
    assert found["ddp", 1] == found["ddp", 2] and found["flat", 1] == found["flat", 2]
    assert data["complete"] and data["started"] == before["started"] and data["seconds"] >= before["seconds"]
    DID.clear()
    again = run(tmp_path, "--resume", read(tmp_path)[0], "--generations", 4, "--no-proof")
    assert again.exit_code == 0 and sum(do == "finish" for do, _ in DID) == 4
    assert all(len(each) == 4 for each in generations(read(tmp_path)[1]).values())
    DID.clear()
    fewer = run(tmp_path, "--resume", read(tmp_path)[0], "--generations", 1, "--no-proof")
    path, data = read(tmp_path)
    assert fewer.exit_code == 0 and "finish" not in dict(DID) and data["protocol"]["generations"] == 4
    assert all(len(each) == 4 for each in generations(data).values())


def test_a_budget_ends_after_a_whole_generation_and_is_gone_on_with(tmp_path):
    said = run(tmp_path, *ASKED, "--budget", 1e-9)
    assert said.exit_code == 130 and "the budget allows 1 of 3 generations" in said.output
    assert "go on:  ladder scale --resume" in said.output.replace("\n", " ")
    assert files(tmp_path) == ["-ddp-flat-weak-partial.json"]
    for left in (2, 3):
        assert len(generations(read(tmp_path)[1])["flat", 2]) == left - 1
        again = run(tmp_path, *ASKED, "--budget", 1e-9, "--resume", read(tmp_path)[0])
        assert again.exit_code == (0 if left == 3 else 130)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["top"], "that run has other ways, ddp, flat; leave yours out"),
        (["--gpus", "1"], "that run has another --gpus; leave it out"),
        (["--scaling", "both"], "that run has another --scaling; leave it out"),
        (["--visits", "5"], "that run has another --visits; leave it out"),
        (["--seed", "5"], "that run has another --seed; leave it out"),
    ],
)
def test_another_request_is_refused(arguments, words, stopped, tmp_path):
    path, before = stopped
    said = run(tmp_path, *arguments, "--resume", path)
    assert said.exit_code == 2 and words in said.output and not DID and read(tmp_path)[1] == before
    assert len(said.stderr.splitlines()) == 1


def renamed(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result whose way `ddp` has a name that no version knows."""
    said = json.dumps(data).replace('"way": "ddp"', '"way": "away"').replace("of ddp, flat", "of away, flat")
    return dict(json.loads(said))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["machine"].update(driver="1.0"), "--resume: driver was 1.0 and is"),
        (lambda data: data["measured_code"].update(engine="0" * 16), "other code is measured here"),
        (lambda data: data["workload"].update(z_dim=9), "another workload: z_dim was 9 and is "),
        (lambda data: data["points"][0]["recipe"].update(workers=9), "another recipe of ddp on 1 GPUs"),
        (lambda data: data.update(renamed(data)), "--resume: no way 'away' is known here"),
        (lambda data: data.update(kind="sustained"), "not a result of the kind scaled"),
    ],
)
def test_another_machine_code_or_workload_is_refused(change, words, stopped, tmp_path):
    path, data = stopped
    change(data)
    path.write_text(json.dumps(data))
    said = run(tmp_path, "--resume", path)
    assert said.exit_code == 2 and words in said.output and ("finish", 0) not in DID


def test_a_workload_of_the_users_must_be_named(stopped, tmp_path):
    said = CliRunner().invoke(cli.main, ["scale", "--resume", str(stopped[0])])
    assert said.exit_code == 2 and "name it with --workload" in said.output


def test_a_generation_that_not_all_gpus_have_is_measured_anew(stopped):
    data = stopped[1]
    made = build(record.Result, data)
    longest = max(made.points, key=lambda point: len(point.runs))
    longest.runs.pop()
    kept = {(p.way, p.gpus): len(p.runs) for p in resume.whole(made.points)}
    assert set(kept.values()) == {1}
    missing = [p for p in data["points"] if p["gpus"] == 2]
    for point in missing:
        point |= {"runs": [], "status": "n/a", "reason": "not measured"}
    assert not any(p.runs for p in resume.whole(build(record.Result, data).points))
    for point in missing:  # it failed: what the others have stays
        point |= {"status": "failed", "reason": "a rank died"}
    assert sum(len(p.runs) for p in resume.whole(build(record.Result, data).points)) > 0


def test_make_scale_goes_on_with_files_of_this_checkout_alone_and_tells_that_a_part_failed(
    tmp_path: Path,
) -> None:
    """A stopped run that was committed is another machine's: `ladder scale` would refuse it in every checkout."""
    if not shutil.which("make"):
        pytest.skip("make is not installed")
    shutil.copy(Path(__file__).parents[3] / "Makefile", tmp_path)
    scaled, python = tmp_path / "results" / "scaled", tmp_path / "python"
    scaled.mkdir(parents=True)
    (scaled / "theirs-stylegan2-1024-top-flat-weak-partial.json").write_text("{}")
    python.write_text('#!/bin/sh\necho "$@" >> said\ncase "$*" in *strong*) exit 2; esac\n')
    python.chmod(0o755)
    git(tmp_path, "init", "-q")
    commit_all(tmp_path, "theirs")
    (scaled / "ours-article-b32-top-ddp-weak-partial.json").write_text("{}")
    command = ["make", "scale", "NO_VENV=1", f"PYTHON={python}", "GPUS=1,4,8"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    weak, strong, large = (tmp_path / "said").read_text().splitlines()
    assert weak.endswith("--resume results/scaled/ours-article-b32-top-ddp-weak-partial.json")
    assert "--gpus 8 " in large and "--resume" not in strong + large
    assert ended.returncode == 2, ended.stderr
