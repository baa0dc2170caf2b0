"""Every kernel is watched by `make sanitize`, and the words of a part become the right verdict."""

import json
from pathlib import Path

import pytest

from ladder.selfcheck.sanitize import launches as sanitizelaunches
from ladder.selfcheck.sanitize import parts as sanitizeparts
from ladder.selfcheck.sanitize.parts import CLEAN, ERRORS, UNFINISHED
from ladder.studies.kernelbench.cases import small_calls
from tests.support import programs

ROOT = Path(__file__).parents[2]
SAID = "========= COMPUTE-SANITIZER\nlaunched: a_kernel\n========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("text", "status", "verdict"),
    [
        (SAID, 0, CLEAN),
        (SAID.replace("0 errors", "3 errors"), 0, ERRORS),
        (SAID.replace("0 errors", "3 errors"), 1, ERRORS),
        (SAID.replace("ERROR SUMMARY: 0", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0"), 0, CLEAN),
        (SAID.replace("ERROR SUMMARY: 0", "RACECHECK SUMMARY: 2 hazards displayed (1 error, 1"), 0, ERRORS),
        (SAID, 1, UNFINISHED),  # the program under it failed
        (SAID, -9, UNFINISHED),
        (SAID.replace("launched: a_kernel\n", ""), 0, UNFINISHED),  # nothing was watched
        (SAID.replace(" a_kernel", ""), 0, UNFINISHED),
        (SAID.replace("ERROR SUMMARY", "NOTHING"), 0, UNFINISHED),
        ("========= Error: Device not supported", 1, UNFINISHED),
        ("", 0, UNFINISHED),
    ],
)
def test_only_a_part_that_launched_kernels_and_found_nothing_is_clean(text, status, verdict):
    assert sanitizeparts.judge(text, status)["status"] == verdict


def test_a_part_without_a_verdict_says_why_and_where():
    text = (
        "began: modulate, 2x5\nbegan: to_rgb, 2x5\nRuntimeError: planted\n========= ERROR SUMMARY: 0 errors\n"
    )
    assert sanitizeparts.judge(text, 1)["summary"] == "RuntimeError: planted (at to_rgb, 2x5)"
    assert sanitizeparts.judge("========= Error: Device not supported\n", 1)["summary"].startswith(
        "Error: Device"
    )


def test_what_is_published_names_no_folder_of_this_machine():
    for text, status in ((SAID, 0), ("", 1)):
        found = sanitizeparts.judge("Error at /home/someone/secret/kernel.py:3\n" + text, status)
        assert "someone" not in json.dumps(found)


def test_one_part_that_did_not_finish_is_named_and_the_tool_is_not_clean():
    parts = [["to_rgb"], ["dense", "adam"]]
    good = {"part": 1, "calls": parts[0], "seconds": 1.0} | sanitizeparts.judge(SAID, 0)
    bad = {"part": 2, "calls": parts[1], "seconds": 1.0} | sanitizeparts.judge("", 1)
    for found in ([good, bad], [good]):  # the second was not even run
        whole = sanitizeparts.together("memcheck", parts, found)
        assert whole["status"] == UNFINISHED and whole["unfinished"] == [2]
        assert "part 2 (dense, adam) did not finish" in whole["summary"]
    worse = bad | {"status": ERRORS, "errors": 2}
    whole = sanitizeparts.together("memcheck", parts, [good, worse | {"part": 1}, worse])
    assert whole["status"] == ERRORS and whole["errors"] == 4 and not whole["unfinished"]
    assert sanitizeparts.together("memcheck", [], [])["status"] == UNFINISHED


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 12, 100])
def test_parts_hold_every_call_once_and_take_about_as_long(count):
    names = small_calls.NAMES
    seconds = {name: 1.0 + i % 7 for i, name in enumerate(names) if i % 5}  # of some nothing is known
    parts = sanitizeparts.deal(names, seconds, count)
    assert sorted(name for part in parts for name in part) == sorted(names) and all(parts)
    assert len(parts) == max(1, min(count, len(names)))
    loads = [sum(seconds.get(name, 4.0) for name in part) for part in parts]
    assert max(loads) - min(loads) <= 7 and loads == sorted(loads, reverse=True)


def test_as_many_processes_as_cores_and_memory_allow():
    assert sanitizeparts.at_once(16, 128, 139.8) == 16
    assert sanitizeparts.at_once(64, 32, 80.0) == 6
    assert sanitizeparts.at_once(64, 512, 8.0) == 4
    assert sanitizeparts.at_once(1, 2, None) == 1


def test_processes_side_by_side_have_ports_of_their_own():
    def ports(known):
        made = [sanitizeparts.command("it", known, "memcheck", i, ["adam"]) for i in range(24)]
        assert all(each[-2:] == ["--launch", "adam"] for each in made)
        return [
            set(range(p := int(each[each.index("--port") + 1]), p + 16)) for each in made if "--port" in each
        ]

    found = ports({"--port", "--max-connections"})
    assert len(set().union(*found)) == 24 * 16 and max(set().union(*found)) < 65536
    assert ports(set()) == []  # an option that this version does not have is not given


def test_where_it_cannot_run_it_says_so_in_one_line(tmp_path):
    nothing, there = tmp_path / "nothing", tmp_path / "there"
    there.mkdir()
    (there / "compute-sanitizer").write_text("#!/bin/sh\n")
    (there / "compute-sanitizer").chmod(0o755)
    asked = [["--out", str(tmp_path / "out")], ["--prepare"], ["--launch", "adam"]]
    commands = [[f"PATH={nothing}", "ladder.selfcheck.sanitize", *options] for options in asked]
    commands.append([f"PATH={there}", "ladder.selfcheck.sanitize", *asked[0]])  # and no GPU
    for end in programs.run(*commands, CUDA_HOME=str(nothing), CUDA_VISIBLE_DEVICES=""):
        said = [line for line in end.stderr.splitlines() if not line.startswith("asking torch")]  # if slow
        assert end.returncode == 2 and len(said) == 1 and said[0].startswith("sanitize: ")
        assert "Traceback" not in end.stdout
    assert not (tmp_path / "out").exists()


# ---- what is launched --------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    """Tiles of 16 elements: of a small map there are several, too."""
    pytest.importorskip("triton")
    from kernels.choices import Choice
    from kernels.common import tiles

    monkeypatch.setattr(tiles, "choose", lambda *key: Choice(tile=16, columns=4, warps=1, per_sm=1))
    tiles.tiling.cache_clear()
    yield
    tiles.tiling.cache_clear()


def test_all_parts_together_launch_every_kernel(small, capsys):
    """In the interpreter, on one shape: which kernels run does not depend on it."""
    import torch

    from tests.kernels.test_kernels_compile import jit_kernels

    device = "cuda" if torch.cuda.is_available() else "cpu"
    seen = set()
    for part in sanitizeparts.deal(small_calls.NAMES, {}, 8):
        setting = ((2, 5, 3, 7), "contiguous_format", "float32")
        seen |= set(sanitizelaunches.launch(device, part, [setting]))
        began = {line.split(": ")[1].split(",")[0] for line in capsys.readouterr().out.splitlines()}
        assert began <= set(part)
    assert seen >= jit_kernels()
    if device == "cpu":
        assert seen == jit_kernels()


def test_every_jit_function_that_is_launched_counts_as_a_kernel():
    """By the launches in the source, whatever a kernel is called."""
    import re

    from tests.kernels.test_kernels_compile import jit_kernels

    text = "\n".join(path.read_text() for path in (ROOT / "kernels").rglob("*.py"))
    jitted = set(re.findall(r"@triton\.jit.*\ndef (\w+)\(", text))
    by_name = set(re.findall(r"\b(\w+)\[[^\]\n]+\]\(", text))  # kernel[grid](...)
    handed_on = set(re.findall(r"[(:] ?(\w+_kernel)\b", text))  # to a function or a table that launches it
    assert jit_kernels() <= jitted
    assert jitted & (by_name | handed_on) == jit_kernels()


def test_the_names_are_those_of_all_calls(monkeypatch):
    """A request for calls by name leaves none out."""

    from kernels import cuda

    monkeypatch.setattr(cuda, "available", lambda: None)
    found = set()
    for setting in sanitizelaunches.SETTINGS:
        x = sanitizelaunches.tensor("cpu", *setting)
        each = [call.name for call in small_calls.calls(x)]
        assert len(each) == len(set(each))
        found |= set(each)
    found |= {call.name for call in small_calls.cuda_calls(x)}
    assert found == set(small_calls.NAMES) and len(set(small_calls.NAMES)) == len(small_calls.NAMES)
    with pytest.raises(ValueError, match="no_such_op"):
        sanitizelaunches.launch("cpu", ["no_such_op"])


def test_every_kernel_in_cuda_is_launched(monkeypatch):
    """Every exported function but those that answer questions, in the emulation on a CPU."""
    import torch

    from kernels import cuda
    from kernels.cuda import calls
    from ladder.receipts.watch import launches
    from tests.support.cuda_on_cpu import emulated

    monkeypatch.setattr(cuda, "available", lambda: None)
    with emulated(monkeypatch), launches() as seen:
        for layout in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(2, 5, 3, 7).contiguous(memory_format=layout)
            for call in small_calls.cuda_calls(x):
                small_calls.differentiate_twice(call.function, call.inputs)
    asked = {name for name in calls.signatures() if name == "error_text" or name.endswith("_kernels")}
    assert set(calls.signatures()) - asked <= set(seen)


def test_programs_that_walk_are_launched():
    """Programs walk on large maps. Without `walking` each program has one tile of maps as small as these."""
    import torch

    from kernels.common import tiles

    def walks():
        shape, device = torch.Size(sanitizelaunches.SHAPES[-1]), torch.device("cpu")
        return {
            tiles.tiling(shape, nhwc, op, direction, torch.float32, device).options["WALK"]
            for nhwc in (True, False)
            for op in ("scaled_bias_act", "modulate", "instance_norm_act")
            for direction in ("forward", "backward", "double_backward")
        }

    assert walks() == {False}
    with small_calls.walking():
        assert walks() == {True}
    assert walks() == {False}


def test_everything_is_compiled_ahead_and_a_call_that_fails_stops_nothing(monkeypatch):
    """`prepare` runs every call at every setting; whether CUDA C++ can be built is asked beside it."""
    pytest.importorskip("triton")
    from kernels import cuda, precompile

    ran = []

    def compile_ahead(run):
        run()
        return precompile.Report(missing=7, compiled=6, problem="a/b: at /home/someone/x.py")

    def differentiate_twice(function, inputs):
        ran.append(function)
        if len(ran) == 3:
            raise RuntimeError("planted")

    monkeypatch.setattr(precompile, "compile_ahead", compile_ahead)
    monkeypatch.setattr(sanitizelaunches, "differentiate_twice", differentiate_twice)
    monkeypatch.setattr(cuda, "available", lambda: "no nvcc")
    found = sanitizelaunches.prepare("cpu")
    assert set(found["seconds"]) == set(small_calls.NAMES) - set(small_calls.CUDA)
    assert found["left_out"] == dict.fromkeys(small_calls.CUDA, "no nvcc")
    assert found["compiled"]["missing"] == 7 and "someone" not in json.dumps(found)
    walks = [f"walk_{name}" for name in ("bias_act_noise_scale", "modulate", "instance_norm_act")]
    few = dict.fromkeys(["dense_split", *walks], 4)
    assert len(ran) == sum(few.get(name, len(sanitizelaunches.SETTINGS)) for name in found["seconds"])
