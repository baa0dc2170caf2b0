"""A command checks everything before it says anything: a refusal is the first and the only output."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from ladder.base import locks, text
from ladder.cli import climb, doctor
from ladder.images import prepare as images
from ladder.machine import system
from ladder.publish.regressions import checkouts
from tests.support.commands import SET, call, refused
from tests.support.made_up import cpu_run, gpu_run
from tests.support.typed import write_run

MEASURES = (
    "run",
    "kernels",
    "precision",
    "scale flat",
    "sustain",
    "noise",
    "ablate",
    "map",
)
MEASURES += ("profile baseline", "train", "train --canary")


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sample photographs that are there already, with a note on them. The working folder is an empty one."""
    real = images.prepare_images
    monkeypatch.setattr(
        images, "prepare_images", lambda data, *how, **more: real(data, *how, **more) if data else SET
    )
    monkeypatch.setattr(climb, "Pool", nullcontext)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("asked", MEASURES)
def test_a_folder_that_another_run_holds_is_the_only_line(asked: str, tmp_path: Path) -> None:
    name, out = text.slug(system.facts("cpu")["name"]), tmp_path / "out"
    folder = out / name if asked == "run" else out
    with locks.folder_lock(folder, "" if folder != out or asked == "train" else name):
        line = refused(*asked.split(), "--device", "cpu", "--out", out)
    assert line == (
        f"ladder: {folder}: another run is writing here; wait for it or name another folder with --out"
    )


@pytest.mark.parametrize("asked", ["run", "kernels", "precision", "scale", "ablate", "map"])
@pytest.mark.parametrize("content", ["", "{}", '{"a": ', json.dumps(gpu_run())])
def test_a_file_that_cannot_be_gone_on_with_is_the_only_line(
    asked: str, content: str, tmp_path: Path
) -> None:
    """Another kind of result, or one of another machine, is among them."""
    path = tmp_path / "bad ü.json"
    path.write_text(content)
    out = [] if asked == "run" else ["--out", tmp_path / "out"]
    assert str(path) in refused(asked, "--device", "cpu", "--resume", path, *out)
    assert [*tmp_path.iterdir()] == [path]


def test_a_run_of_another_machine_is_the_only_line(tmp_path: Path) -> None:
    write_run(tmp_path / "r.json", cpu_run() | {"workload": {**cpu_run()["workload"], "name": "tiny"}})
    assert "start a new run" in refused("run", "--device", "cpu", "--resume", tmp_path / "r.json")


def test_a_comparison_without_a_folder_for_its_file_says_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkouts, "commit_of", lambda *_: "a" * 40)
    Path("file").touch()
    assert refused("bench-compare", "--device", "cpu", "--out", "file/x").startswith(
        "ladder: file/x: cannot be"
    )
    assert "file: cannot be written" in refused("bench-compare", "--device", "cpu", "--markdown", "file/x.md")


@pytest.mark.parametrize(
    ("asked", "folder"),
    [
        ("--roofline", "roofline"),
    ],
)
def test_a_check_of_the_doctor_without_a_folder_for_its_file_says_only_that(
    asked: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes, and all would be lost."""
    Path("results").touch()
    monkeypatch.setattr(doctor, "ROOT", Path())
    assert f"results/{folder}: cannot be written: Not a directory" in refused("doctor", *asked.split())


@pytest.mark.parametrize(
    "asked", ["report r.json --markdown", "report r.json --csv", "explain a b r.json --markdown"]
)
@pytest.mark.parametrize("out", ["file/x.md", "/proc/x/y.md"])
def test_a_table_that_cannot_be_written_says_only_that(
    asked: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ladder.report import explain

    Path("file").touch()
    write_run(Path("r.json"), gpu_run())
    monkeypatch.setattr(explain, "find_sides", lambda *_: ())  # a made-up result has no profiles
    assert "cannot be written" in refused(*asked.split(), out)


@pytest.mark.parametrize(
    ("names", "words"),
    [("r.json --chart c.gif", "written as .png or .svg"), ("r.json s.json --chart c.png", "name one file")],
)
def test_a_chart_that_cannot_be_drawn_says_only_that(names: str, words: str) -> None:
    for name in ("r.json", "s.json"):
        write_run(Path(name), gpu_run())
    assert words in refused("report", *names.split())


# ---- somebody who mistypes -------------------------------------------------------------------------------------------

CPU = ("--device", "cpu", "--out", "out")
FILES = {
    "empty": "", "empty.json": "", "empty.yaml": "", "empty.pt": "", "empty.zip": "", "torn.json": '{"a": ',
    "list.json": "[1]", "text.yaml": "hello", "fp3.yaml": "precision: fp3\n", "ladder.yaml": "rungs: [turbo]\n",
    "nan.yaml": "resolution: 32\nchannel_base: .nan\nbatch: 4\n", "mit Leerzeichen/ä ö.json": "x",
    "mit Leerzeichen/ä ö.yaml": "resolution: 31\nchannel_base: 1024\nbatch: 4\n",
    "full/file": "", "text/a.txt": "", "broken/a.png": "",
}  # fmt: skip
WRONG = [
    *itertools.product(("run", "train", "precision", "noise", "map"), ("-w",), ("", " ", "tinny")),
    *itertools.product(("run", "scale"), ("-w",), ("text.yaml", "nan.yaml", "mit Leerzeichen/ä ö.yaml", "full")),
    *itertools.product(("run", "train", "map"), ("--ladder",), ("", "articel", "ladder.yaml", "empty.yaml")),
    *itertools.product(("run", "train"), ("--recipe",), ("", "bf61", "fp3.yaml", "empty.yaml", "missing.yaml")),
    *itertools.product(("run", "train", "noise", "scale flat"), ("--data",), ("", "missing", "text", "broken")),
    *itertools.product(("run", "train", "kernels", "map"), ("--out",), ("", "empty", "empty/x", "/proc/x")),
    *itertools.product(("run --budget", "sustain --seconds"), ("nan", "-1", "x", "1_0", "", "1e999")),
    *itertools.product(("run --rungs", "sustain", "noise", "profile", "map --rung"), ("bf61", "")),
    *itertools.product(("report", "recommend", "validate"), ("",)),
    *itertools.product(("report", "recommend", "merge"), ("missing.json", "empty.json", "torn.json", "list.json")),
    *itertools.product(("report", "recommend", "merge"), ("mit Leerzeichen/ä ö.json",)),
    *itertools.product(("sample --out out", "train --out out --from"), ("empty.pt", "full")),
    *itertools.product(("convert",), ("missing.pt o.pt", "empty.pt o.pt", "full o.pt", "empty.pt empty.json")),
    *itertools.product(("show",), ("", "turbo", "solo", "full/x.yaml")),
    *itertools.product(("history",), ("--compared missing", "--results missing", "--budget 3", "--threshold nan")),
    ("export", "full", "--ops", "conv2d", "--package", "p"), ("export", "out", "--ops", "conv", "--package", "p"),
    ("run", "--quick", "--budget", "3"), ("run", "--mode", "mistakes", "--ladder", "full"), ("run", "extra"),
    ("compare", "empty.json"), ("explain", "bf16", "bf16"), ("runn",),
    ("kernels", "--op", "nothing"), ("precision", "--only", "fp3"), ("scale", "flat", "--gpus", "0"), ("merge",),
    ("upstream", "full"),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=" ".join)
def test_a_wrong_call_is_one_clear_line_and_nothing_is_written(
    wrong: tuple[str, ...], tmp_path: Path
) -> None:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    command, *rest = wrong
    words = [*command.split(), *(part for each in rest for part in _parts(each))]
    out = (
        CPU
        if words[0] in ("run", "train", "precision", "noise", "sustain", "scale", "map", "profile")
        else ()
    )
    seen = call(*words, *([] if {"--out"} & {*words} else out))
    lines = seen.stderr.splitlines()
    assert seen.exit_code == 2 and not seen.stdout, seen.output
    assert len(lines) == 1 or (lines[0].startswith("Usage:") and lines[-1].startswith("Error:")), seen.output
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def _parts(text: str) -> list[str]:
    """Return the words of a part of a call. A name with a space, and an empty text, is one word."""
    return [text] if not text.strip() or "Leerzeichen" in text else text.split()
