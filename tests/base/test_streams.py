"""Standard output and standard error that take no words: nothing that was measured is lost, and one line says why."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.base import starting
from ladder.cli import climb as climbing
from ladder.report import tables

ROOT = Path(__file__).resolve().parents[2]
WORDS = "import sys\nfrom ladder.base import streams\n"


def run(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", WORDS + code], cwd=ROOT, text=True, **options)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_lines_about_progress_outlive_their_reader(encoding):
    """`ladder run 2>&1 | head -1` measures to the end; Python's own end would be status 120."""
    reading, writing = os.pipe()
    os.close(reading)
    code = """
import click
with streams.minded():
    for _ in range(3):
        click.echo("1/5 visits", err=True)
        print("a warning", file=sys.stderr)
print("measured")
"""
    env = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = run(code, stderr=writing, stdout=subprocess.PIPE, env=env)
    os.close(writing)
    assert (done.returncode, done.stdout) == (0, "measured\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("command", ["list", "show full", "--help", "--version"])
def test_a_full_disk_below_standard_output_is_one_line(command, encoding):
    env = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ladder", *command.split()],
            cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
    assert done.stderr == "ladder: standard output: cannot be written: No space left on device\n"
    assert done.returncode == 2


def test_a_reader_that_has_enough_sees_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ladder", "list"]
    done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.stderr == ""


def test_closed_streams_are_not_taken_by_the_next_file():
    """A job without a terminal may start with `<&- >&- 2>&-`: a result's file would get our words."""
    code = "from ladder.base import starting; starting.watch(); import os, sys; print(sys.stderr.isatty(), 'lost');"
    code += " os._exit(open('pyproject.toml').fileno())"
    line = f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", line], cwd=ROOT).returncode == 3


def test_open_streams_stay_as_they_are():
    before = sys.stdin, sys.stdout, sys.stderr
    hook = sys.excepthook
    try:
        starting.watch()
    finally:
        sys.excepthook = hook
    assert (sys.stdin, sys.stdout, sys.stderr) == before


def test_what_is_made_of_a_run_is_there_before_its_table_is_printed(monkeypatch, tmp_path):
    from ladder.publish import gallery

    made = []
    for name in ("write_tables", "write_charts"):
        monkeypatch.setattr(gallery, name, lambda *_: made.append(1) or [])

    def closed(_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(tables, "print_table", closed)
    with pytest.raises(BrokenPipeError):
        climbing.publish({}, tmp_path / "run.json", quiet=False)
    assert made == [1, 1]
