"""`make sanitize` as a whole, with a compute-sanitizer that says what a test planted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ladder.base.errors import UserError
from ladder.selfcheck.sanitize import __main__ as sanitize
from ladder.selfcheck.sanitize import parts as sanitizeparts
from ladder.studies.kernelbench.cases import small_calls

ROOT = Path(__file__).parents[2]
FAKE = """#!{python}
import json, os, subprocess, sys, time
from pathlib import Path
if "--help" in sys.argv:
    sys.exit(print("  --port arg\\n  --max-connections arg"))
here = Path(__file__).parent
tool, names = sys.argv[sys.argv.index("--tool") + 1], sys.argv[-1].split(",")
with open(here / "asked", "a") as file:
    file.write(json.dumps([os.getpid(), tool, names, os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")]) + "\\n")
plan = {{}}
for name, each in json.loads((here / "plan.json").read_text()).get(tool, {{}}).items():
    plan |= each if name in names or name == "all" else {{}}
print("began:", names[0] + ", 2x5", flush=True)
if "sleep" in plan:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(200)"])
    (here / f"{{child.pid}}").write_text(str(child.pid))
    (here / f"{{child.pid}}").rename(here / f"child-{{tool}}")
    time.sleep(plan["sleep"])
if "refuse" in plan:
    sys.exit(print("========= Error: Device not supported") or 1)
if "raise" in plan:
    print("RuntimeError: planted")
else:
    print("launched:", *(name + "_kernel" for name in names))
count = plan.get("errors", 0)
hazards = "RACECHECK SUMMARY: %d hazards displayed (%d errors, 0 warnings)"
zero = {{"memcheck": "ERROR SUMMARY: %d errors", "racecheck": hazards}}
if "mute" not in plan:
    print("=========", zero[tool] % ((count,) * zero[tool].count("%d")))
sys.stdout.flush()
if "kill" in plan:
    os.kill(os.getpid(), 9)
sys.exit(1 if "raise" in plan else 0)
"""
FACTS = {"name": "made-up-gpu", "cores": 8, "ram_gb": 64, "gpu_memory_gb": 80.0}
PREPARED = {
    "compiled": {"missing": 3, "compiled": 3, "seconds": 1.0, "problem": None},
    "cuda": None,
    "left_out": dict.fromkeys(small_calls.CUDA, "no nvcc"),
    "seconds": {},
}


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """fake({tool: {call: what goes wrong in its part}}) -> the program's folder."""

    def make(plan):
        program = tmp_path / "compute-sanitizer"
        program.write_text(FAKE.format(python=sys.executable))
        program.chmod(0o755)
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        return tmp_path

    monkeypatch.setattr(
        sanitize, "preparation", lambda folder, stopped: (FACTS, json.loads(json.dumps(PREPARED)))
    )
    monkeypatch.setattr(sanitize.system, "untimed", lambda _: contextlib.nullcontext())
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return make


def run(folder, capsys):
    """(exit status, what was written by its name, stdout, stderr)."""
    status = sanitize.main(["--out", str(folder / "out")])
    said = capsys.readouterr()
    written = {path.name: path.read_text() for path in (folder / "out").glob("*")}
    return status, written, said.out, said.err


def asked(folder):
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]


def test_every_call_runs_under_every_tool_and_clean_is_written(fake, capsys):
    folder = fake({})
    status, written, out, err = run(folder, capsys)
    assert status == 0 and not err and set(written) == {"made-up-gpu.txt", "made-up-gpu.json"}
    found = json.loads(written["made-up-gpu.json"])
    wanted = sorted(set(small_calls.NAMES) - set(small_calls.CUDA))
    assert found["complete"] and not found["interrupted"]
    assert {"commit", "dirty"} <= found.keys()
    assert found["prepared"]["left_out"] == dict.fromkeys(small_calls.CUDA, "no nvcc")
    for tool in sanitizeparts.TOOLS:
        assert found["tools"][tool]["status"] == "clean" and found["tools"][tool]["errors"] == 0
        assert found["tools"][tool]["kernels"] == sorted(f"{name}_kernel" for name in wanted)
        assert len(found["tools"][tool]["parts"]) == 4  # 8 cores, two tools
        told = [names for _, each, names, _ in asked(folder) if each == tool]
        assert sorted(name for names in told for name in names) == wanted
        assert f"== {tool}, part 4" in written["made-up-gpu.txt"] and f"{tool}: clean: 0 " in out
    assert {caching for *_, caching in asked(folder)} == {"1"}
    assert "cuda_pairs is left out: no nvcc" in out and "3 of 3 kernels compiled" in out


def test_findings_of_all_parts_are_added_up(fake, capsys):
    plan = {"memcheck": {"adam": {"errors": 2}, "bias_act": {"errors": 3}}}
    status, written, out, _ = run(fake(plan), capsys)
    found = json.loads(written["made-up-gpu.json"])["tools"]
    assert status == 1 and found["memcheck"]["status"] == "errors" and found["racecheck"]["status"] == "clean"
    assert found["memcheck"]["errors"] in (3, 5)  # 3 where both are in one part
    assert f"memcheck: errors: {found['memcheck']['errors']} errors in 4 of 4 parts" in out


@pytest.mark.parametrize("wrong", ["raise", "mute", "kill", "sleep"])
def test_a_part_that_does_not_finish_is_named_and_nothing_is_clean(fake, capsys, monkeypatch, wrong):
    folder = fake({"racecheck": {"to_rgb": {wrong: 200}}})
    hangs = folder / "child-racecheck"

    def seconds(part):  # no part but the one that hangs is slow, however busy the machine is
        late = part.tool == "racecheck" and "to_rgb" in part.names and hangs.exists()
        return 60 * sanitizeparts.MINUTES + 1 if late else 0.0

    monkeypatch.setattr(sanitizeparts.Running, "seconds", property(seconds))
    status, written, _, err = run(folder, capsys)
    assert status == 2 and set(written) == {"made-up-gpu-partial.txt", "made-up-gpu-partial.json"}
    found = json.loads(written["made-up-gpu-partial.json"])
    result = found["tools"]["racecheck"]
    assert not found["complete"] and found["tools"]["memcheck"]["status"] == "clean"
    (number,) = result["unfinished"]
    assert result["status"] == "did not finish" and "to_rgb" in result["parts"][number - 1]["calls"]
    assert len(err.splitlines()) == 1 and "to_rgb" in err and "racecheck: part" in err
    if wrong == "raise":
        assert "RuntimeError: planted" in err
    if wrong == "sleep":
        gone(int((folder / "child-racecheck").read_text()))


def test_findings_beside_a_part_that_did_not_finish_are_findings(fake, capsys):
    status, written, out, _ = run(fake({"memcheck": {"to_rgb": {"mute": 1}, "all": {"errors": 1}}}), capsys)
    assert status == 1 and "made-up-gpu-partial.json" in written
    assert "memcheck: errors: " in out


def test_where_the_device_is_refused_it_is_one_line_and_nothing_is_written(fake, capsys):
    refused = {"all": {"refuse": 1}}
    status, written, _, err = run(fake({"memcheck": refused, "racecheck": refused}), capsys)
    assert status == 2 and not written
    assert err.startswith("sanitize: no tool could run here: Error: Device not supported")
    assert len(err.splitlines()) == 1


def test_a_part_that_was_never_run_is_not_clean(fake, capsys, monkeypatch):
    """The planted bug: what runs the parts forgets one."""
    usual = sanitizeparts.run
    monkeypatch.setattr(sanitizeparts, "run", lambda *how: {t: f[1:] for t, f in usual(*how).items()})
    status, written, _, err = run(fake({}), capsys)
    assert status == 2 and "was not run" in err and "made-up-gpu-partial.json" in written


def test_what_cannot_be_prepared_is_told_and_the_parts_go_on(fake, capsys, monkeypatch):
    monkeypatch.setattr(sanitize, "preparation", lambda *_: (FACTS, {"problem": "planted"}))
    status, written, out, _ = run(fake({}), capsys)
    assert status == 0 and "not all is compiled, the parts go on: planted" in out
    kernels = json.loads(written["made-up-gpu.json"])["tools"]["memcheck"]["kernels"]
    assert kernels == sorted(f"{name}_kernel" for name in small_calls.NAMES)


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("print('a warning'); print('prepared: ' + json.dumps({'seconds': {}}))", {"seconds": {}}),
        ("print('sanitize: no CUDA GPU'); sys.exit(2)", "no CUDA GPU"),
        ("sys.exit('RuntimeError: planted')", {"problem": "RuntimeError: planted"}),
        ("time.sleep(60)", {"problem": "not done after 1 s"}),
    ],
)
def test_what_the_program_that_compiles_says(tmp_path, monkeypatch, program, wanted):
    from ladder.machine import system

    usual = sanitizeparts.spawn
    script = [sys.executable, "-c", f"import json, sys, time\n{program}"]
    monkeypatch.setattr(sanitizeparts, "spawn", lambda command, said, more: usual(script, said, more))
    monkeypatch.setattr(sanitize, "PREPARING_S", 1 if "60" in program else 60)
    monkeypatch.setattr(system, "facts", lambda device: FACTS)
    if isinstance(wanted, str):
        with pytest.raises(UserError, match=wanted):
            sanitize.preparation(tmp_path, lambda: False)
    else:
        assert sanitize.preparation(tmp_path, lambda: False) == (FACTS, wanted)


# ---- signals -----------------------------------------------------------------------------------------------------


@pytest.mark.covering
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hanging", ["to_rgb", "all"])
def test_a_signal_keeps_what_is_finished(fake, sign, hanging):
    """More than one signal: `timeout` sends its own to make and to us, and make passes one on."""
    hang = {hanging: {"sleep": 200}}
    folder = fake({"memcheck": hang, "racecheck": hang if hanging == "all" else {}})
    out = folder / "out"
    program = f"""
import sys
from ladder.selfcheck.sanitize import __main__ as sanitize
sys.path.insert(0, {str(ROOT)!r})
from tests.selfcheck import test_sanitizeparts as made
sanitize.preparation = lambda *_: (made.FACTS, made.PREPARED)
sanitize.system.untimed = lambda _: made.contextlib.nullcontext()
sys.exit(sanitize.main(["--out", {str(out)!r}]))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if hanging == "all":
        wait_for((folder / "child-racecheck").exists, process)
    else:  # all others are done
        for _ in range(7):
            next(line for line in process.stdout if "clean after" in line)
    wait_for((folder / "child-memcheck").exists, process)
    for number in range(20):
        process.send_signal(sign)
        time.sleep(0.005 * (number % 2))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and len(err.splitlines()) == 1 and "interrupted" in err
    gone(int((folder / "child-memcheck").read_text()))
    if hanging == "all":
        assert not list(out.glob("*"))
        return
    found = json.loads((out / "made-up-gpu-partial.json").read_text())
    assert found["interrupted"] and not found["complete"]
    assert found["tools"]["racecheck"]["status"] == "clean"
    memcheck = found["tools"]["memcheck"]
    assert memcheck["status"] == "did not finish" and len(memcheck["unfinished"]) == 1
    assert "interrupted (at " in memcheck["summary"]


def wait_for(condition, process=None):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline and (process is None or process.poll() is None)
        time.sleep(0.02)


def gone(pid):
    """Return whether the process under the tool has ended with it."""

    def ended():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
        except OSError:
            return True

    wait_for(ended)
