"""Charts do not hang on the user's settings of matplotlib, and a chart that fails costs nothing else."""

import os
import subprocess
import sys
from pathlib import Path

from ladder.cli import stored as cli
from ladder.core.errors import UserError
from ladder.publish import gallery
from ladder.report import chart
from tests.cli.test_cli import call, fakes
from tests.support import committed, made_up, two_clocks
from tests.support.typed import write_run

__all__ = ["fakes"]  # a fixture
ROOT = Path(__file__).resolve().parents[2]
DRAW = """
import hashlib, sys
from tests.support.typed import write_run
from ladder.report import drawing
def make():
    from matplotlib.figure import Figure
    figure = Figure(figsize=(2, 2))
    figure.add_axes((0.1, 0.1, 0.8, 0.8)).plot([1, 2])
    figure.text(0.1, 0.1, "a$b")
    return figure
print(hashlib.sha256(drawing.save(make, "png")).hexdigest())
"""
RC = b"backend: nonsense\ntext.usetex: True\nsavefig.bbox: tight\nfigure.dpi: 7\nno.such.key: 1\n"


def drawn(folder, **environment):
    run = subprocess.run(
        [sys.executable, "-c", DRAW], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0 and run.stderr == "", run.stderr
    return run.stdout


def test_the_same_picture_under_whatever_settings(tmp_path):
    """A notebook's MPLBACKEND, which every command that it starts inherits, names a package that is not here."""
    (tmp_path / "rc").mkdir()
    (tmp_path / "rc" / "matplotlibrc").write_bytes(RC)
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    plain = drawn(tmp_path)
    nowhere = {"HOME": "/nonexistent", "MPLCONFIGDIR": "/proc/nowhere", "MATPLOTLIBRC": str(tmp_path / "bad")}
    assert drawn(tmp_path, MPLBACKEND="module://matplotlib_inline.backend_inline", **nowhere) == plain
    assert drawn(tmp_path / "rc", PYTHONWARNINGS="error", LC_ALL="C") == plain


def test_a_chart_that_fails_loses_neither_run_nor_table(tmp_path, fakes, monkeypatch):
    def broken(result, kind):
        raise UserError("a chart cannot be drawn: RuntimeError: no fonts")

    monkeypatch.setattr(chart, "render", broken)
    arguments = ("--workload", "tiny", "--rungs", "baseline", "--rounds", 1, "--cycles", 1, "--quick")
    seen = call("run", *arguments, "--out", tmp_path)
    assert seen.exit_code == 0 and "baseline" in seen.stdout
    assert seen.stderr.splitlines()[-1] == "ladder: a chart cannot be drawn: RuntimeError: no fonts"
    assert sorted(path.suffix for path in tmp_path.glob("*/*")) == [".csv", ".json", ".md"]


def git(folder, *command):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


def test_the_gallery_is_of_committed_results_alone_and_of_the_best(tmp_path, monkeypatch):
    folder = tmp_path / "results" / "ladder" / "nvidia-h200"
    whole = made_up.judged_run()
    start = made_up.result([made_up.rung("fused_act", 11.6)], started="2026-11-22T00:00:00+00:00")
    mine = made_up.judged_run(fused_act=9.9) | {"started": "2026-11-23T00:00:00+00:00"}
    for name, result in (("a", whole), ("b", start), ("c", mine)):
        write_run(folder / f"{name}.json", result)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "results/ladder/nvidia-h200/a.json", "results/ladder/nvidia-h200/b.json")
    monkeypatch.setattr(chart, "render", lambda result, kind: kind.encode())
    written = gallery.publish(tmp_path)
    stem = "nvidia-h200-article-article"
    assert [path.name for path in written] == [f"{stem}.{kind}" for kind in ("md", "csv", "png", "svg")]
    text = written[0].read_text()
    assert "FP32 baseline" in text and " 9.90 " not in text  # the staircase, and not the run of this user
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    assert call("report", "--publish").stdout.splitlines() == [
        path.relative_to(tmp_path).as_posix() for path in written
    ]
    assert "leave out every other option" in call("report", "--publish", "--all").stderr
    assert "git was not found" in call("report", "--publish", env={"PATH": str(tmp_path)}).stderr


def test_a_chart_goes_with_the_last_result_that_stood_behind_it(tmp_path, monkeypatch):
    """A newer run has another name: of more rungs than the ladder had, of fewer generations, of another workload."""
    folder, charts = tmp_path / "results/ladder/nvidia-h200", tmp_path / "results/charts"
    monkeypatch.setattr(chart, "render", lambda result, kind: kind.encode())
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    stopped = two_clocks.selected("baseline", "bf16")
    stopped["protocol"]["rounds"] += 1
    write_run(folder / "a.json", stopped)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "results")
    assert call("report", "--publish").exit_code == 0
    git(tmp_path, "add", "results")
    stem = "nvidia-h200-article-full-partial"
    assert {path.stem for path in charts.iterdir()} == {stem}
    (charts / "note.txt").write_text("mine")
    (charts / "mine.png").write_bytes(b"")
    write_run(folder / "a.json", made_up.judged_run())
    seen = call("report", "--publish")
    assert seen.exit_code == 0
    why = "no committed result stands behind it"
    assert seen.stdout.splitlines()[-5:] == [
        *(f"results/charts/{stem}.{kind}: {why}: removed" for kind in ("csv", "md", "png", "svg")),
        f"results/charts/mine.png: {why}: stays, git lacks it",
    ]
    assert {path.stem for path in charts.iterdir()} == {"nvidia-h200-article-article", "mine", "note"}


def test_no_chart_goes_while_a_result_of_git_is_missing_here(tmp_path, monkeypatch):
    """A sparse checkout, or a folder that was cleared, has no results and all charts."""
    path, charts = tmp_path / "results/ladder/nvidia-h200/a.json", tmp_path / "results/charts"
    monkeypatch.setattr(chart, "render", lambda result, kind: kind.encode())
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    write_run(path, made_up.judged_run())
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "results")
    assert call("report", "--publish").exit_code == 0
    git(tmp_path, "add", "results")
    path.unlink()
    seen = call("report", "--publish")
    assert seen.exit_code == 2 and len(list(charts.iterdir())) == 4 and seen.stdout == ""
    assert "a.json is in git and not here: `git restore results/ladder/nvidia-h200/a.json`" in seen.stderr
    git(tmp_path, "rm", "-q", "--cached", "results/ladder/nvidia-h200/a.json")
    assert call("report", "--publish").exit_code == 0 and not list(charts.iterdir())


def test_every_committed_chart_is_one_that_a_committed_result_stands_behind():
    def files_of(name):
        return sorted(committed.folder(name).rglob("*.json"))

    found = {path.stem for path in committed.folder(gallery.CHARTS).iterdir()}
    assert found == set(gallery.list_drawings(files_of)), "run make docs"
