"""Results of strangers: what a genuine run writes is accepted, everything else is refused in one line."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core import text
from ladder.machine import gpu_state
from ladder.publish.validation import validate
from ladder.results import record
from tests.machine import test_gpustate
from tests.support import fake_runs, typed
from tests.support.fake_nvml import FakeNvml
from tests.support.judging_files import CPUS, GENUINE, GPUS, genuine, judge
from tests.support.typed import write_run


def call(*arguments: Any) -> Any:
    return CliRunner().invoke(cli.main, ["validate", *map(str, arguments)], prog_name="ladder")


def test_what_a_run_writes_is_accepted_with_its_faults_and_their_messages(tmp_path: Path) -> None:
    """The fakes' recipes and settings are no genuine ones; everything else is as `ladder run` writes it."""
    rungs = {"baseline": {"fault": "raise", "at": "build"}, "fine": {}, "none": None, "nan": {"fault": "nan"}}
    result = fake_runs.run(tmp_path / "out", rungs | {"late": {"fault": "long"}}, rounds=2)
    for rung in [*result["rungs"], *result["twins"]]:
        rung["recipe"] = rung["settings"] = None
    result["workload"] |= {"resolution": 32}
    result["ladder"]["name"] = "fakes"
    reading = test_gpustate.visit(FakeNvml(bits=0x4, compute={1: 1, 100: 2}, display={3: None}))
    for visit in result["rungs"][1]["rounds"]:
        visit |= {"gpu": reading, "canary_s": 1e-4, "rejected": ["SM clock 1500 MHz, usually 1980"]}
    result["gpu"] = gpu_state.summarize_run([reading] * 2, rejected=2)
    result["rungs"][-1]["reason"] = 'Triton Error [CUDA]: "x" is 5% <b>; ' + "long " * 40
    path = record.name_file(tmp_path, typed.run_of(result))
    write_run(path, result)
    assert validate.problem_of(path) is None, validate.problem_of(path)


def test_the_names_of_real_machines_pass(tmp_path: Path) -> None:
    for name in (*CPUS, *GPUS):
        result = genuine()
        result["machine"] |= {"gpu": name} if name in GPUS else {"cpu": name, "gpu": None, "device": "cpu"}
        result["machine"]["name"] = text.make_slug(name)
        assert judge(tmp_path, result) is None, name
        result["machine"]["name"] = "somebody-elses"
        assert "not made from its hardware" in judge(tmp_path, result)


def put(*keys: Any) -> Callable[[dict[str, Any]], None]:
    """A change that stores the last of `keys` under the path of the others."""

    def change(data: Any) -> None:
        *way, last, value = keys
        for key in way:
            data = data[key]
        data[last] = value

    change.said = f"{'.'.join(map(str, keys[:-1]))} = {ascii(keys[-1])[:40]}"
    return change


REFUSED = {
    "unknown key": put("extra", 1),
    "rungs[0]: unknown key 'html'": put("rungs", 0, "html", "x"),
    "rung baseline.settings: unknown key '__class__'": put("rungs", 0, "settings", "__class__", "x"),
    "machine: unknown key 'hostname'": put("machine", "hostname", "x"),
    "machine.gpu: '<script>": put("machine", "gpu", "<script>alert(1)</script>"),
    "machine.cpu: '/home/x\\n": put("machine", "cpu", "/home/x\nrm"),
    "machine.cpu: 'a|b": put("machine", "cpu", "a|b"),
    "machine.cpu: '$x^2$": put("machine", "cpu", "$x^2$"),
    "machine.os: '\\u202e": put("machine", "os", "\u202ecod"),
    "machine.os: '\\ud800' is not plain": put("machine", "os", "\ud800"),
    "rungs[0].title": put("rungs", 0, "title", "n" * 97),
    "machine.name: '../../etc'": put("machine", "name", "../../etc"),
    "workload.name": put("workload", "name", "a/b"),
    "ladder.name: '.hidden'": put("ladder", "name", ".hidden"),
    "workload.data": put("workload", "data", "/home/someone/pictures"),
    "machine.ram_gb: True": put("machine", "ram_gb", True),
    "machine.cores: 0 is not a number from 1": put("machine", "cores", 0),
    "rungs[0]: unknown key 'step_ms'": put("rungs", 0, "step_ms", 1.0),
    "rungs[0].rounds[1].samples_ms[0]: 0 is not": put("rungs", 0, "rounds", 1, "samples_ms", 0, 0),
    "rungs[0].rounds[1].main_ms: 1e+300 is not": put("rungs", 0, "rounds", 1, "main_ms", 1e300),
    "rungs[0].rounds[0].samples_ms[1]: 'x' is not": put("rungs", 0, "rounds", 0, "samples_ms", 1, "x"),
    "rung baseline: passes or events": put("rungs", 0, "rounds", 0, "passes", [0]),
    'rung baseline: status "ok" without a round': put("rungs", 0, "rounds", []),
    "rung baseline: a round is there twice": put("rungs", 0, "rounds", 1, "round", 0),
    "rungs[0].status: 'fine' is none of": put("rungs", 0, "status", "fine"),
    "rungs: not those of ladder.rungs": put("ladder", "rungs", ["baseline"]),
    "unknown key 'baseline'": put("baseline", "nothing"),
    "commit": put("commit", "main"),
    "started": put("started", "yesterday"),
    "protocol.seed: 1.5 is not": put("protocol", "seed", 1.5),
    "schema": put("schema", 1),
    "rungs: a list of 0 is not": put("rungs", []),
}


@pytest.mark.parametrize("says", REFUSED)
def test_a_result_that_no_run_writes_is_refused(
    tmp_path: Path, says: str, hostile_file: Callable[..., None]
) -> None:
    result = genuine()
    REFUSED[says](result)
    problem = judge(tmp_path, result)
    assert problem is not None and says in problem
    hostile_file(file="a result of ladder run", planted=REFUSED[says].said, line=problem)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not a result file"),
        (b"[]", "expected an object"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b'{"schema": NaN}', "NaN is not allowed"),
        (b'{"schema": -Infinity}', "-Infinity is not allowed"),
        (b'{"schema": 1e999}', "too large"),
        (b'{"schema": 1' + b"0" * 5000 + b"}", "a number of 5001 characters"),
        (b'{"schema": 1, "schema": 1}', "'schema' is given twice"),
        (b"[" * 9 + b"]" * 9, "nested too deep"),
        (b"[" * 500_000, "nested too deep"),
        (b'{"schema": "' + b"x" * 2**22 + b'"}', "more than 4194304 bytes"),
    ],
)
def test_what_is_not_a_result_is_refused(
    tmp_path: Path, raw: bytes, says: str, hostile_file: Callable[..., None]
) -> None:
    problem = judge(tmp_path, raw)
    assert says in problem
    hostile_file(file="a result of ladder run", planted=f"{len(raw)} bytes, {raw[:40]!a}", line=problem)


def test_truncated_files_are_refused_wherever_they_end(tmp_path: Path) -> None:
    raw = GENUINE.read_bytes().rstrip()
    for end in range(0, len(raw), 401):
        assert judge(tmp_path, raw[:end]) is not None


def test_a_folder_is_judged_to_the_last_file(tmp_path: Path) -> None:
    machine = tmp_path / "r" / genuine()["machine"]["name"]
    deep = machine / "more"
    for folder in (deep, machine / "archive"):
        folder.mkdir(parents=True)
        (folder / "notes.txt").write_text("no result, passed over")
    (machine / GENUINE.name).write_bytes(GENUINE.read_bytes())
    (deep / "again.json").write_text(json.dumps(genuine() | {"started": "2026-11-22T00:00:00+00:00"}))
    for name in ("Bad Name.json", "new\n\x1b[2Jline.json", "../archive/old.json"):
        (deep / name).write_text("{}")
    (deep / "link.json").symlink_to("/etc/passwd")
    (deep / "folder").symlink_to("/etc")
    os.mkfifo(deep / "pipe.json")
    shown = call(tmp_path / "r", machine / GENUINE.name, tmp_path / "none.json")
    assert shown.exit_code == 1 and shown.stdout.endswith("1 accepted, 7 refused\n")
    by_name = {line.split(": ")[0].rsplit("/", 1)[-1]: line for line in shown.stdout.splitlines()[:-1]}
    for name, words in {
        GENUINE.name: "accepted",
        "link.json": "a symbolic link",
        "folder": "a symbolic link",
        "pipe.json": "not a regular file",
        "Bad Name.json": "the file's name",
        "new\\n\\x1b[2Jline.json": "the file's name",
        "again.json": "the same measurement as",  # another time and place, the same samples
        "none.json": "No such file",
    }.items():
        assert words in by_name.pop(name)
    assert not by_name


def test_a_copy_in_another_folder_does_not_take_the_place_of_a_result(tmp_path: Path) -> None:
    changed = genuine() | {"started": "2000-01-01T00:00:00+00:00"}
    for folder, content in (("nvidia-a", changed), (genuine()["machine"]["name"], genuine())):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / GENUINE.name).write_text(json.dumps(content))
    copy, kept = validate.validate([tmp_path])
    assert kept.problem is None and copy.problem == f"the same measurement as {kept.path}"


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.json").symlink_to(GENUINE)
    assert "cannot be read" in validate.problem_of(tmp_path / "a.json")


def test_a_path_without_a_result_is_refused_in_one_line(tmp_path: Path) -> None:
    """A page, an empty folder, what is not there, and folders without end."""
    (page := tmp_path / "README.md").write_text("# Results\n")
    (tmp_path / "deep" / "/".join(["f"] * 500)).mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for path, words in (
        (page, "refused: not a result: its name does not end in .json"),
        (tmp_path / "empty", "no result in this folder: no name in it ends in .json"),
        (tmp_path / "nothing", "cannot be read: No such file or directory"),
        (tmp_path / "deep", "more than 20 folders in each other"),
    ):
        shown = call(path)
        assert shown.exit_code == 1 and words in shown.stdout and "1 refused" in shown.stdout


def test_an_accepted_result_that_must_not_be_quoted_says_so(tmp_path: Path) -> None:
    result = genuine() | {"dirty": True}
    result["protocol"]["quick"] = True
    (tmp_path / "a.json").write_text(json.dumps(result))
    seen = call(tmp_path)
    assert seen.exit_code == 0 and "accepted; quick: not to be quoted; dirty: not publishable" in seen.stdout
    (found,) = json.loads(call("--json", tmp_path).stdout)
    assert found["problem"] is None and len(found["marks"]) == 2
