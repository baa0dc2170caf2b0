"""asv's results from strangers: what asv writes is accepted, everything else is left out in one line."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import json5
import pytest

from benches import kernels
from ladder.core.errors import UserError
from ladder.publish.history import series as asvseries
from ladder.publish.validation import asv_files, validate
from ladder.results import loading
from tests.support import committed, hostile_asv, made_up_asv
from tests.support.judging_files import CPUS, GPUS
from tests.support.repositories import commit_all, git

ROOT = Path(__file__).resolve().parents[3]
BESIDE = made_up_asv.facts("NVIDIA Another GPU")


def judged(source: Path, tmp_path: Path) -> dict[str, validate.Judged]:
    """Verdicts by path; what was left is in tmp_path/"into"."""
    return {row.path: row for row in validate.accept_asv(source, tmp_path / "into", root=tmp_path)}


def discovered(folder: Path) -> str:
    """benchmarks.json as asv discovers it in this checkout."""
    conf = json5.loads((ROOT / "asv.conf.json").read_text(encoding="utf-8"))
    conf |= {"repo": str(ROOT), "benchmark_dir": str(ROOT / conf["benchmark_dir"])}
    conf |= {f"{name}_dir": str(folder / name) for name in ("results", "env", "html")}
    (folder / "asv.conf.json").write_text(json.dumps(conf))
    command = [sys.executable, "-m", "asv", "run", "--config", str(folder / "asv.conf.json")]
    options = ["--bench", "just-discover", "--python=same"]
    subprocess.run([*command, *options], cwd=ROOT, check=True, stdin=subprocess.DEVNULL, capture_output=True)
    return (folder / "results" / "benchmarks.json").read_text(encoding="utf-8")


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- genuine ------------------------------------------------------------------------------------------------------


def test_every_result_of_this_repository_is_accepted_and_nothing_else_is_copied(tmp_path: Path) -> None:
    rows = validate.accept_asv(committed.folder("results/asv"), tmp_path / "into")
    assert rows and [row for row in rows if row.problem] == []
    assert files(tmp_path / "into") == {row.path for row in rows} - {"benchmarks.json"}


@pytest.mark.parametrize("name", [*CPUS[::4], *GPUS[::4]])
def test_the_names_of_real_machines_pass(tmp_path: Path, name: str) -> None:
    """Under such a name asv's own classes write what is accepted."""
    gpu = name in GPUS
    machine = made_up_asv.facts(name) if gpu else made_up_asv.facts("none", name)
    seconds = None if gpu else {"baseline": 0.1, "bf16": None, "fused_act": math.nan}
    path = made_up_asv.write(tmp_path / "asv", machine, seconds, "article" if gpu else "tiny")
    rows = judged(tmp_path / "asv", tmp_path)
    assert len(rows) == 3 and not [row for row in rows.values() if row.problem]
    assert made_up_asv.read(tmp_path / "into" / machine["machine"] / "machine.json") == machine | {
        "version": 1
    }
    copied = tmp_path / "into" / path.relative_to(tmp_path / "asv")
    assert repr(made_up_asv.read(copied)) == repr(made_up_asv.read(path))  # NaN is not equal to itself


@pytest.mark.parametrize("samples", [1, 2, 6])
def test_however_few_samples_asv_took_they_pass_and_no_infinity_is_published(
    tmp_path: Path, samples: int
) -> None:
    path = made_up_asv.write(tmp_path / "asv", samples=samples, record=True)
    params = [[repr(case) for case in kernels.CASES], ["'forward'", "'backward'"]]
    seconds = {str(k): 1e-5 * (k + 1) for k in range(2 * len(kernels.CASES))}
    options = {"seconds": seconds, "params": params, "name": "kernels.Kernel.samples_cold"}
    made_up_asv.write(tmp_path / "asv", BESIDE, **options)
    assert ("Infinity" in path.read_text()) == (samples == 1)
    assert not [row for row in judged(tmp_path / "asv", tmp_path).values() if row.problem]
    assert not [
        name for name in files(tmp_path / "into") if "Infinity" in (tmp_path / "into" / name).read_text()
    ]


def test_a_result_of_changed_code_is_marked(tmp_path: Path) -> None:
    path = made_up_asv.write(tmp_path / "asv", note=False)
    text = path.read_text().replace(made_up_asv.ENVIRONMENT, made_up_asv.ENVIRONMENT + "-treedirty")
    text = text.replace('"cuda": "13.0"}', '"cuda": "13.0", "tree": "dirty"}')
    path.with_name(f"{path.stem}-treedirty.json").write_text(text)
    path.unlink()
    (row,) = [row for row in judged(tmp_path / "asv", tmp_path).values() if "machine.json" not in row.path]
    assert row.problem is None and "dirty: not publishable" in row.marks[0]


# --- hostile ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Results of two machines; the second one's must be published whatever the first one's are."""
    made_up_asv.write(tmp_path / "asv", BESIDE, {"baseline": 0.2, "cuda_graphs": 0.1})
    return tmp_path / "asv"


def plant(folder: Path, name: str, **genuine: Any) -> tuple[Path, str]:
    """Plant one of the hostile files in a genuine folder; where it is and words of the line that is expected."""
    path = made_up_asv.write(folder, **genuine)
    if name in hostile_asv.RESULT_FILES:
        how, words = hostile_asv.RESULT_FILES[name]
    else:
        which, how, words = hostile_asv.BESIDE_RESULTS[name]
        places = {
            "notes": path.parent / "notes" / path.name,
            "../benchmarks.json": folder / "benchmarks.json",
        }
        path = places.get(which, path.parent / which)
    made = how(path)
    return (made if isinstance(made, Path) else path), words


HOSTILE = [*hostile_asv.RESULT_FILES, *hostile_asv.BESIDE_RESULTS]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_left_out_in_one_line_and_the_others_stay(
    folder: Path, tmp_path: Path, name: str, hostile_file: Callable[..., None]
) -> None:
    path, words = plant(folder, name)
    problem = judged(folder, tmp_path)[loading.show_path(path.relative_to(folder))].problem
    assert problem is not None and words in problem, problem
    assert problem.isascii() and problem.isprintable() and len(problem) < 300
    into = tmp_path / "into"
    left = into / path.relative_to(folder)
    assert not left.exists() and not left.is_symlink()
    copied, other = files(into), BESIDE["machine"]
    assert not [each for each in copied if "benchmarks.json" in each]
    for machine in into.iterdir():  # a result without its machine is none, nor the other way round
        assert {"machine.json"} < {each.name for each in machine.glob("*.json")}
    assert len([each for each in copied if each.split("/")[0] == other]) == 3
    assert other in [one.machine for one in asvseries.read(into)]
    beside = name in hostile_asv.BESIDE_RESULTS
    file = "machine.json, notes and others" if beside else "COMMIT-ENVIRONMENT.json"
    hostile_file(file=file, planted=name, line=problem)


# --- the folder that is made --------------------------------------------------------------------------------------


def test_benchmarks_json_is_that_of_this_checkout_and_never_taken(tmp_path: Path) -> None:
    """A contributor's list, however well formed, does not reach the page.

    Ours is what asv finds here, else the first asv command leaves a fresh clone with changes:
    `asv run --bench just-discover --python=same`.
    """
    made_up_asv.write(tmp_path / "asv")
    ours = committed.folder("results/asv") / "benchmarks.json"
    theirs = json.loads(ours.read_text())
    theirs["evil.Evil.track_x"] = theirs[asvseries.STEP] | {"name": "evil.Evil.track_x"}
    (tmp_path / "asv" / "benchmarks.json").write_text(json.dumps(theirs))
    rows = judged(tmp_path / "asv", tmp_path)
    assert rows["benchmarks.json"].marks == [asv_files.NEVER_TAKEN]
    assert files(tmp_path / "into") == {*rows} - {"benchmarks.json"}  # nothing of this machine came with it
    assert discovered(tmp_path) == ours.read_text(encoding="utf-8")
    assert validate.problem_of(ours) is None


def test_a_commit_that_git_knows_must_have_its_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """asv takes the dates of its x axis from the files."""
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "x", "--date", "1700000000 +0000")
    head = git(tmp_path, "rev-parse", "HEAD")
    path = made_up_asv.write(tmp_path / "asv", commit=head)
    other = made_up_asv.write(tmp_path / "asv", BESIDE, {"baseline": 0.2, "bf16": 0.1})
    name, unknown = (each.relative_to(tmp_path / "asv").as_posix() for each in (path, other))
    rows = judged(tmp_path / "asv", tmp_path)
    assert rows[name].problem == "date: not that of its commit"
    monkeypatch.setattr(validate, "ROOT", tmp_path)  # what a contributor is told before sending it
    told = {row.path: row.problem for row in validate.validate([tmp_path / "asv"])}
    assert told[str(path)] == "date: not that of its commit" and told[str(other)] is None
    assert rows[unknown].problem is None and rows[unknown].marks == [validate.UNKNOWN_COMMIT]
    hostile_asv.put("date", 1700000000000)(path)
    shutil.rmtree(tmp_path / "into")
    assert judged(tmp_path / "asv", tmp_path)[name].problem is None


def test_a_copy_takes_nobodys_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one in a folder that asv never made, nor one under a machine's name that sorts before the genuine."""
    monkeypatch.setattr(validate, "ROOT", tmp_path)
    git(tmp_path, "init", "-q")
    source = tmp_path / "asv"
    genuine = made_up_asv.write(source, made_up_asv.facts("NVIDIA Z9"))
    commit_all(tmp_path, "the genuine one")
    shutil.copytree(genuine.parent, source / "backup" / genuine.parent.name)
    copy = made_up_asv.write(source, made_up_asv.facts("NVIDIA A1"))  # the same seconds
    commit_all(tmp_path, "copies", GIT_COMMITTER_DATE="2001-01-01T00:00:00Z")
    rows = judged(source, tmp_path)
    name = genuine.relative_to(source).as_posix()
    assert rows[name].problem is None and name in files(tmp_path / "into")
    assert rows[f"backup/{name}"].problem.startswith("not where asv would write it")
    assert rows[copy.relative_to(source).as_posix()].problem == f"the same measurement as {name}"


def test_a_machine_without_an_accepted_result_is_not_drawn(tmp_path: Path) -> None:
    """asv lists every machine whose record it finds."""
    hostile_asv.put("commit_hash", None)(made_up_asv.write(tmp_path / "asv"))
    rows = judged(tmp_path / "asv", tmp_path)
    name = made_up_asv.facts()["machine"]
    assert rows[f"{name}/machine.json"].marks == [validate.NO_RESULTS]
    assert list((tmp_path / "into").iterdir()) == []


def test_only_a_fresh_folder_is_filled_and_only_of_one_that_is_there(tmp_path: Path) -> None:
    made_up_asv.write(tmp_path / "asv")
    with pytest.raises(UserError, match="no such folder"):
        validate.accept_asv(tmp_path / "none", tmp_path / "into")
    (tmp_path / "into").mkdir()
    (tmp_path / "into" / "old.json").touch()
    with pytest.raises(UserError, match="expected an empty folder"):
        validate.accept_asv(tmp_path / "asv", tmp_path / "into")
    (tmp_path / "empty").mkdir()
    assert validate.accept_asv(tmp_path / "empty", tmp_path / "new") == []
    (tmp_path / "empty" / "notes.txt").touch()
    (none,) = validate.accept_asv(tmp_path / "empty", tmp_path / "new")
    assert none.path.endswith("empty") and none.problem.startswith("no result in this folder")


# --- what the history reads ------------------------------------------------------------------------------------


def test_accepted_files_are_read_by_series(tmp_path: Path) -> None:
    seconds = {"cuda_graphs": 0.07, "baseline": 0.11, "bf16": None, "fused_norm": math.nan}
    made_up_asv.write(tmp_path / "asv", seconds=seconds)
    cpu = made_up_asv.facts("none", "Some CPU")
    made_up_asv.write(tmp_path / "asv", cpu, {"baseline": 0.2}, "tiny", samples=1)
    assert not [row for row in judged(tmp_path / "asv", tmp_path).values() if row.problem]
    every = asvseries.read(tmp_path / "into")
    times = {one.params: one for one in every if one.benchmark == asvseries.STEP}
    seconds = {params: round(*one.values.values(), 3) for params, one in times.items()}
    gpu = {("article", "baseline"): 0.11, ("article", "cuda_graphs"): 0.07}
    assert seconds == gpu | {("tiny", "baseline"): 0.2}
    gpu, other = times["article", "baseline"], times["tiny", "baseline"]
    assert gpu.card == "NVIDIA Some GPU" and other.card == "none" and [*gpu.values] == [made_up_asv.COMMIT]
    assert dict(other.facts).items() >= cpu.items()
