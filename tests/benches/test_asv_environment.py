"""asv's commands with our environments, over a history whose every number is known; nothing is ever installed twice."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benches import ROOT
from ladder.publish.history import screening as screened
from tests.support import toyhistory
from tests.support.repositories import git
from tests.support.toyhistory import MEMORY, SECONDS, STEP, asv

CHECKOUT = "*/????????-checkout-*.json"


def ok(run: subprocess.CompletedProcess[str], status: int = 0) -> str:
    assert run.returncode == status, run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr and "Skipping results" not in run.stdout
    return run.stdout


def results(history: Path, pattern: str = CHECKOUT) -> dict[str, dict]:
    """Return what asv stored, by tag of the commit; several environments of one commit are an error here."""
    tags = {git(history, "rev-parse", f"v{k}"): f"v{k}" for k in range(1, len(SECONDS) + 1)}
    files = sorted((history / "results/asv").glob(pattern))
    found = {tags[data["commit_hash"]]: data for data in (json.loads(path.read_text()) for path in files)}
    assert len(found) == len(files)
    return dict(sorted(found.items()))


def values(history: Path, benchmark: str, pattern: str = CHECKOUT) -> dict[str, float]:
    """Return the number of `tiny`, by tag."""
    stored = results(history, pattern).items()
    return {tag: data["results"][benchmark][0][0] for tag, data in stored if benchmark in data["results"]}


def no_private_words(history: Path) -> None:
    words = (sys.prefix, sys.executable, str(history.parent), str(Path.home()) + "/", "/bin/", "/tmp/")
    files = [path for path in (history / "results").rglob("*") if path.is_file()]
    assert files
    for path in files:
        text = path.read_text() + path.name
        assert not [word for word in words if word in text], path.name


# --- asv's commands -------------------------------------------------------------------------------------------------


def test_ranges_new_commits_and_what_exists(history):
    said = ok(asv(history, "run", "v1..v3"))
    times, memory = values(history, STEP), values(history, MEMORY)
    assert list(times) == list(memory) == ["v2", "v3"] and memory == {"v2": 2, "v3": 3}
    assert all(abs(seconds - 0.10025) < 2e-6 for seconds in times.values())  # the commit's
    assert "nstalling" not in said

    git(history, "checkout", "-q", "v4")
    ok(asv(history, "run", "NEW"))
    assert list(values(history, STEP)) == ["v2", "v3", "v4"] and values(history, STEP)["v4"] > 0.3

    stored = {tag: data["results"][STEP] for tag, data in results(history).items()}
    said = ok(asv(history, "run", "v1..v5", "--skip-existing"))
    now = {tag: data["results"][STEP] for tag, data in results(history).items()}
    assert list(now) == ["v2", "v3", "v4", "v5"]
    assert {tag: now[tag] for tag in stored} == stored  # with the time at which each began
    assert said.count("Benchmarking") == 1

    # Nothing was built or installed: asv's folder holds the one checkout and what processes share.
    (environment,) = (history / ".asv/env").iterdir()
    assert {path.name for path in environment.iterdir()} <= {"project", "handover"}
    no_private_words(history)


def test_continuous_compare_and_interleaved_rounds(history):
    rounds = ("--interleave-rounds", "-a", "rounds=2")
    said = ok(asv(history, "continuous", "v3", "v4", *rounds), status=1)  # 1: asv's for "slower"
    assert "round 1/2" in said and "round 2/2" in said and "SOME BENCHMARKS HAVE CHANGED" in said
    assert values(history, MEMORY) == {"v3": 3, "v4": 4}  # neither was given what the other left
    for data in results(history).values():
        samples = dict(zip(data["result_columns"], data["results"][STEP], strict=False))["samples"]
        assert len(samples[0]) == 12  # both rounds'
    said = ok(asv(history, "compare", "v3", "v4"))
    assert re.search(r"^\| \+ .*\| +3 .*samples_step_time\('tiny'", said, re.MULTILINE), said

    ok(asv(history, "run", "v1..v2", *rounds, "--parallel", "2"))
    assert values(history, MEMORY) == {"v2": 2, "v3": 3, "v4": 4}
    assert not re.search(r"^\| [+-] .*step_time", ok(asv(history, "compare", "v2", "v3")), re.MULTILINE)
    no_private_words(history)


def test_check(history):
    assert "No problems found" in ok(asv(history, "check"))
    (history / "benches/wrong.py").write_text("class Suite:\n    def time_wrong(self, parameter): pass\n")
    assert "wrong.Suite.time_wrong" in ok(asv(history, "check"), status=1)


TWO_SERIES = """
class Rung:
    params = (["tiny"], ["baseline", "other"])
    param_names = ("workload", "rung")
    version = "1"

    def samples_step_time(self, workload, rung):
        import stylegan_lite
        later = 0.1 if stylegan_lite.BYTES < 5 else 10.0  # a larger step, two commits after that of the other
        seconds = stylegan_lite.SECONDS if rung == "baseline" else later
        return [seconds + i * 1e-6 for i in range(6)]
"""


def test_the_command_that_the_history_prints_bisects_to_the_commit(history):
    """In a shell, as printed: the step is in the first commit after the good one.

    Another series has a larger step elsewhere, which asv would take for the answer.
    """
    (history / "benches/rungs.py").write_text(TWO_SERIES)
    ok(asv(history, "run", "ALL", "--bench", "other"))
    (history.parent / "some").write_text("\n".join(("v1", "v2", "v3", "v6")))
    ok(asv(history, "run", f"HASHFILE:{history.parent / 'some'}", "--bench", "baseline"))
    steps, _ = screened.screen(history / "results/asv", history / "none", [], "trunk", 0.01, history)
    (step,) = [step for step in steps if step.series.name == "tiny/baseline"]
    assert [git(history, "rev-parse", tag) for tag in ("v3", "v6")] == [step.good, step.bad]
    said = screened.render_text([step], [])
    line = next(line.strip() for line in said.splitlines() if line.startswith("  asv find"))
    arguments = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True
    )
    said = ok(asv(history, *arguments.stdout.splitlines()[1:]))
    assert f"Greatest regression found: {git(history, 'rev-parse', '--short=8', 'v4')}" in said, said


# --- which Python, which torch --------------------------------------------------------------------------------------


def test_torch_triton_and_cuda_are_parameters_and_begin_series(history):
    files = toyhistory.torch_files("2.12.0+cu129", "3.6.0", "12.9")
    other = toyhistory.interpreter(history.parent / "other", without=toyhistory.TORCH, files=files)
    ok(asv(history, "run", "v5..v6"))
    ok(asv(history, "run", "v5..v6", f"--python={other}"))
    ok(asv(history, "publish"))
    no_private_words(history)
    index = json.loads((history / ".asv/html/asv/index.json").read_text())
    here = importlib.metadata.version("torch").partition("+")[0]
    assert set(index["params"]["torch"]) == {"2.12.0", here}
    assert "3.6.0" in index["params"]["triton"] and "12.9" in index["params"]["cuda"]
    of_one = [p for p in index["graph_param_list"] if p["torch"] == "2.12.0"]
    assert len(index["graph_param_list"]) == 2 and (of_one[0]["triton"], of_one[0]["cuda"]) == (
        "3.6.0",
        "12.9",
    )


# --- environments that asv manages ----------------------------------------------------------------------------------

MANAGED = ("--config", "benches/asv.virtualenv.conf.json")


@pytest.fixture
def wheels(tmp_path) -> Path:
    """What the configuration installs: stand-ins for all of it but asv_runner, which is this environment's own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for torch, triton in (("2.12.0", "3.6.0"), ("2.13.0", "3.7.1")):
        files = toyhistory.torch_files(torch, triton)
        files = {name: text for name, text in files.items() if name.startswith("torch/")}
        toyhistory.wheel(folder, "torch", torch, files, requires=(f"triton=={triton}",))
        toyhistory.wheel(folder, "triton", triton, {})
    for name in _configured("dependencies"):
        toyhistory.wheel(folder, name.replace("-", "_"), "1.0", {})
    real = importlib.metadata.distribution("asv_runner")
    code = {str(f): f.locate().read_text() for f in real.files if f.suffix == ".py"}
    toyhistory.wheel(folder, "asv_runner", real.version, code)
    return folder


def _configured(key: str):
    text = (ROOT / "benches/asv.virtualenv.conf.json").read_text()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))[key]


@pytest.mark.exhaustive  # pip and two environments; the configuration is tested below
@pytest.mark.slow
def test_managed_environments_have_a_torch_each(history, wheels):
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    ok(asv(history, "run", *MANAGED, "v5..v6", **offline))
    for torch, triton in (("2.12.0", "3.6.0"), ("2.13.0", "3.7.1")):
        found = results(history, f"*/????????-managed-py*-torch{torch}-*.json")
        assert {tag: data["results"][MEMORY][0][0] for tag, data in found.items()} == {"v6": 6}
        versions = {"torch": torch, "triton": triton, "cuda": "13.0"}
        assert all(data["requirements"] == versions for data in found.values())
    # Kept, and no commit is built or installed: there is nothing to install from any more.
    said = ok(asv(history, "run", *MANAGED, "v4^!", "-b", "time"))
    assert "managed-py" in said and not re.search("nstalling|wheel", said)
    no_private_words(history)
