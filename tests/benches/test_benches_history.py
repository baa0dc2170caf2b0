"""asv over toy commits: rungs come, go, move and change names, and old commits bring wrong timers. asv itself runs.

The working tree of each commit is what measures there. Its toy of a model says in a
table what each recipe takes: every number names its series and its commit.
"""

import itertools
import json
import math
import shutil
from pathlib import Path

import pytest

from benches import ROOT, _frozen
from ladder.machine import system
from ladder.publish.history import notes as asvnotes
from tests.support import asv_clone
from tests.support.asv_clone import run_asv, step_times
from tests.support.repositories import commit_all

clone = asv_clone.clone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(system.gpus_seen()), reason="on a GPU, `tiny` is n/a"),
]
STEP = "rungs.Rung.samples_step_time"
CONTENT = {
    "baseline": 1,
    "a": 2,
    "b": 3,
    "c": 4,
    "b on c": 5,
}  # what a toy recipe is, and its place in the table
ROW = {"op": "act", "direction": "forward", "tile": 64, "columns": 8, "warps": 4, "per_sm": 0, "stages": 1}


def series_file(rungs: dict[str, str], retired: tuple[str, ...] = ()) -> str:
    """benches/series.py with these values, in this order, each with the recipe that it is frozen to."""
    lines = [
        "from benches._frozen import Series, default, fingerprint",
        'WORKLOADS = ["article", "tiny"]',
        f"RUNGS = {list(rungs)}",
        f"RETIRED = frozenset({[('tiny', name) for name in retired]})",
        "DEFAULT = default(RETIRED)",
        "SERIES = {",
    ]
    for rung, content in rungs.items():
        mark = _frozen.fingerprint({"resolution": 32, "batch": 4}, {"is": content})
        what = '("tiny", %r): Series("cpu", (), {"resolution": 32, "batch": 4}, {"is": %r}, %r),'
        lines.append("    " + what % (rung, content, mark))
    return "\n".join([*lines, "}", ""])


# The five commits' working trees: values in asv's order, those retired, and the order of the ladder itself.
COMMITS = [
    ({"baseline": "baseline", "a": "a", "b": "b"}, (), ["baseline", "a", "b"]),
    # c is inserted before b, which it changes: b's new meaning is a new value at the end
    (
        {"baseline": "baseline", "a": "a", "b": "b", "c": "c", "b-2": "b on c"},
        ("b",),
        ["baseline", "a", "c", "b-2"],
    ),
    # the ladder is reordered, without a change of what its rungs are
    (
        {"baseline": "baseline", "a": "a", "b": "b", "c": "c", "b-2": "b on c"},
        ("b",),
        ["baseline", "c", "b-2", "a"],
    ),
    # a is called alpha from now on
    (
        {"baseline": "baseline", "a": "a", "b": "b", "c": "c", "b-2": "b on c", "alpha": "a"},
        ("b", "a"),
        ["baseline", "c", "b-2", "alpha"],
    ),
    # c is removed
    (
        {"baseline": "baseline", "a": "a", "b": "b", "c": "c", "b-2": "b on c", "alpha": "a"},
        ("b", "a", "c"),
        ["baseline", "b-2", "alpha"],
    ),
]
ONCE = """
import json

class open_pool:  # starts nothing
    def __init__(self, device, code): pass
    def __enter__(self): return self
    def __exit__(self, *_): pass

def measure_once(workload, recipe, device, cycles, code=None, workers=None):
    table = json.loads((code / "stylegan_lite" / "table.json").read_text())
    row = {row} | {{"warps": 8 if table["a"] > 3 else 4}}
    seconds = table[recipe["is"]]
    return {{"samples_s": [seconds] * cycles, "peak_rss_bytes": 7, "recipe": recipe, "choices": [row]}}
"""


def value(content: str, commit: int) -> float:
    return CONTENT[content] + commit / 10


@pytest.fixture
def toys(clone):
    """The clone with a stub for what starts workers: no torch, no clock, and what it says is exact."""
    for path in (clone / "benches").glob("[a-z]*.py"):
        if path.stem not in ("rungs", "series"):
            path.unlink()
    (clone / "ladder" / "engine" / "once.py").write_text(ONCE.format(row=ROW))
    (clone / "ladder" / "images" / "prepare.py").write_text(
        "from types import SimpleNamespace\n"
        "def prepare_images(*_, **__): return SimpleNamespace(path='unused')\n"
    )
    return clone


def checked_in(toys: Path, number: int) -> str:
    rungs, retired, order = COMMITS[number]
    (toys / "benches" / "series.py").write_text(series_file(rungs, retired))
    (toys / "ladder" / "ladders" / "full.yaml").write_text(json.dumps({"title": "toys", "rungs": order}))
    table = {content: value(content, number) for content in CONTENT}
    (toys / "stylegan_lite" / "table.json").write_text(json.dumps(table))
    # A benchmark that reads its parameters from the measured commit would take these for them.
    (toys / "stylegan_lite" / "__init__.py").write_text(f"CONTRACT = 1\nRUNGS = {order}\n")
    return commit_all(toys, f"commit {number}")


def stored(toys: Path) -> dict[str, dict[str, float | None]]:
    """Commit -> rung -> seconds, NaN where it is n/a, by the parameters that each result itself names."""
    found = {}
    for path in (toys / "results" / "asv").glob("*/*-checkout-*.json"):
        data = json.loads(path.read_text())
        values, params, *_ = data["results"][STEP]
        pairs = [tuple(word.strip("'") for word in pair) for pair in itertools.product(*params)]
        named = dict(zip(pairs, values, strict=True))
        found[data["commit_hash"]] = {rung: number for (w, rung), number in named.items() if w == "tiny"}
    return found


def run(toys: Path, *args: str) -> None:
    done = run_asv(toys, "run", *args)
    assert done.returncode == 0, done.stdout + done.stderr


def choice_changes(*results):
    series = asvnotes.name_series(STEP, ["tiny", "baseline"])
    return asvnotes.list_choice_changes(*map(asvnotes.read_note, results), series)


def test_no_value_moves_to_another_series_over_five_commits(toys):
    commits = []
    for number, (rungs, retired, _) in enumerate(COMMITS):
        commits.append(checked_in(toys, number))
        run(toys)
        found = stored(toys)[commits[-1]]
        measured = {rung: seconds for rung, seconds in found.items() if not math.isnan(seconds)}
        assert measured == {
            rung: value(content, number) for rung, content in rungs.items() if rung not in retired
        }

    # The newest tree measures all of them in one run: asv hands its parameters to each commit by position.
    run(toys, "ALL")
    for number, commit in enumerate(commits):
        found = stored(toys)[commit]
        kept = {
            rung: seconds for rung, seconds in found.items() if seconds == seconds and seconds is not None
        }
        known = {*COMMITS[number][0]} - {*COMMITS[number][1]} | {"baseline", "b-2", "alpha"}
        assert kept == {rung: value(COMMITS[-1][0][rung], number) for rung in known}

    # On the page every name that ever was has its own history, retired ones where they ended.
    shutil.copy(ROOT / "ladder/ladders/full.yaml", toys / "ladder/ladders")  # the front page knows real rungs
    done = run_asv(toys, "publish")
    assert done.returncode == 0, done.stdout + done.stderr
    html = toys / ".asv" / "html" / "asv"
    index = json.loads((html / "index.json").read_text())
    params = index["benchmarks"][STEP]["params"]
    assert params[1] == [f"'{rung}'" for rung in COMMITS[-1][0]]
    revisions = {str(number): commit for number, commit in index["revision_to_hash"].items()}
    (graph,) = (path for path in html.glob(f"graphs/**/{STEP}.json") if "summary" not in path.parts)
    shown: dict[str, dict[str, float]] = {}
    for revision, values in json.loads(graph.read_text()):
        for (_, rung), seconds in zip(itertools.product(*params), values, strict=True):
            if seconds is not None:
                shown.setdefault(rung.strip("'"), {})[revisions[str(revision)]] = seconds
    assert set(shown) == set(COMMITS[-1][0])
    for rung, history in shown.items():
        content = COMMITS[-1][0][rung]
        for commit, seconds in history.items():
            assert seconds == pytest.approx(value(content, commits.index(commit))), rung
    assert set(shown["b"]) == {commits[0]} and set(shown["a"]) == set(commits[:3])
    assert set(shown["c"]) == set(commits[1:4]) and set(shown["alpha"]) == set(commits)

    # The tuning choices lie beside each result, and what changed of them is named.
    files = {commit: next((toys / "results" / "asv").glob(f"*/{commit[:8]}-*.json")) for commit in commits}
    assert choice_changes(files[commits[1]], files[commits[4]]) == []
    (toys / "ladder" / "engine" / "once.py").write_text(ONCE.format(row=ROW).replace("> 3", "> 0"))
    run(toys, f"{commits[4]}^!")
    assert choice_changes(files[commits[1]], files[commits[4]]) == ["act forward: warps 4 -> 8"]
    done = run_asv(toys, "show", commits[4])  # and asv does not take them for results
    assert done.returncode == 0 and "choices" not in done.stdout + done.stderr


LIES = {
    "ladder/engine/timed_rung.py": (
        "wall = (time.perf_counter() - begin)",
        "wall = 1000 * (time.perf_counter() - begin)",
    ),
    "ladder/engine/once.py": (
        "return strip_protocol(reply)",
        "return strip_protocol(reply | {'samples_s': [7.0]})",
    ),
    "benches/_measure.py": ("CYCLES = 6", "CYCLES = 1"),
    "benches/rungs.py": ('["samples_s"]', '["samples_s"] and [7.0] * 6'),
}


def test_an_old_commit_with_a_wrong_timer_changes_no_number(clone):
    """A thousandfold wrong, in every place that a commit has for a timer; the model is the same in all commits."""
    honest = {name: (clone / name).read_text() for name in LIES}
    commits = {}
    for name, (true, lie) in LIES.items():
        assert honest[name].count(true) == 1, f"{name} has changed: plant it anew"
        (clone / name).write_text(honest[name].replace(true, lie))
        commits[commit_all(clone, f"{name} lies")] = name
        (clone / name).write_text(honest[name])
    # A clock of the commit's own, where a module of ours might find it first
    for module in ("timing.py", "benches/time.py", "ladder/time.py"):
        (clone / module).write_text("def perf_counter(): return 7.0\n")
    commits[commit_all(clone, "decoys")] = "decoys"
    for module in ("timing.py", "benches/time.py", "ladder/time.py"):
        (clone / module).unlink()
    commits[commit_all(clone, "honest")] = "honest"
    done = run_asv(clone, "run", "ALL", "--record-samples", "--bench", r"samples.*\('tiny', 'baseline'\)")
    assert done.returncode == 0, done.stdout + done.stderr
    times = step_times(clone)
    assert set(times) == set(commits)
    for (
        commit,
        seconds,
    ) in times.items():  # a cycle of the toy sleeps for 10 ms; machines are late, not by a second
        assert 0.01 / 16 <= seconds < 1 / 16, commits[commit]
    for path in (clone / "results" / "asv").glob("*/*-checkout-*.json"):
        data = json.loads(path.read_text())
        kept = dict(zip(data["result_columns"], data["results"][STEP], strict=False))["samples"]
        assert [len(samples) for samples in kept if samples] == [6]


def test_what_an_old_commit_says_of_its_preparing_changes_no_number(clone):
    """`prepare` is the measured code: what it returns is its own word."""
    step = clone / "stylegan_lite" / "__init__.py"
    honest, lie = step.read_text(), "{'prepare_s': 1000.0, 'capture_s': -1000.0, 'cache_s': -1000.0}"
    assert honest.count("return {}\n    def cycle") == 1
    step.write_text(honest.replace("return {}\n    def cycle", f"return {lie}\n    def cycle"))
    commits = {commit_all(clone, "prepare lies")}
    step.write_text(honest)
    commits.add(commit_all(clone, "honest"))
    done = run_asv(clone, "run", "ALL", "--record-samples", "--bench", r"preparing.*\('tiny', 'baseline'")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for path in (clone / "results" / "asv").glob("*/*-checkout-*.json"):
        data = json.loads(path.read_text())
        row = dict(
            zip(data["result_columns"], data["results"]["preparing.Compiling.samples_seconds"], strict=False)
        )
        found[data["commit_hash"]] = [samples for samples in row["samples"] if samples]
    assert set(found) == commits
    for cold, warm in found.values():  # the toy prepares nothing
        assert len(cold) == 1 and len(warm) == 3 and all(0 <= seconds < 100 for seconds in cold + warm)


@pytest.mark.slow
@pytest.mark.skipif(bool(system.gpus_seen()), reason="on a GPU, `tiny` is n/a")
def test_a_broken_commit_fails_the_run(clone):
    (clone / "stylegan_lite" / "__init__.py").write_text(
        "CONTRACT = 1\n\ndef make_step(*a, **k): raise ValueError('no')\n"
    )
    commit_all(clone, "broken")
    run = run_asv(clone, "run", "--show-stderr", *asv_clone.BASELINE_ONLY)
    assert run.returncode == 2
    assert "failed: build: ValueError: no" in run.stdout
