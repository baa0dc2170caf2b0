"""What is seen while a command works: on a terminal, on a dumb one, in a log, and how long it may take."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ladder.cli import climb
from ladder.core import progress
from ladder.core.paths import ROOT
from tests.support import made_up
from tests.support.typed import write_run

EVENTS = """
import sys
from ladder.core import progress
progress.MOMENT_S = 0.0
first = progress.First("tiny on cpu: 4 rungs, 3 generations, about 3 minutes", False)
with progress.show_bar("images", False, first) as images:
    for done in range(4): images(done, 3)
first()
progress.RUN_EVERY_S = 0.0
with progress.ladder_progress("tiny on cpu", False, 160.0) as tell:
    common = {"event": "phase", "rung": "bf16", "done": 1, "total": 8, "elapsed_s": 10.0, "rounds": 3}
    tell({**common, "phase": "parity", "round": None, "left_s": None})
    tell({**common, "phase": "build", "round": 0, "left_s": None, "elapsed_s": 40.0})
    tell({**common, "phase": "measure", "round": 0, "elapsed_s": 60.0, "left_s": 120.0})
    tell({**common, "phase": "measure", "round": 3, "rounds": None, "rung": "bf16.twin", "left_s": 600.0})
    tell({"event": "waiting", "done": 0, "total": 9, "elapsed_s": 0.0, "left_s": None})
    tell({**common, "phase": "prove", "round": 2, "elapsed_s": 900.0, "left_s": 0.0})
    tell({"event": "failed", "rung": "bf16", "status": "failed", "reason": "it is [bold]wrong[/bold]"})
"""


def on_a_terminal(columns: int = 100, **env: str) -> str:
    """Return what the program writes to a terminal of so many columns."""
    terminal, end = pty.openpty()
    given = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    given |= {"COLUMNS": str(columns), **env}
    with subprocess.Popen([sys.executable, "-c", EVENTS], cwd=ROOT, env=given, stderr=end) as process:
        os.close(end)
        said = b""
        while True:
            try:
                part = os.read(terminal, 65536)
            except OSError:  # Linux: the program has ended
                break
            if not part:
                break
            said += part
    os.close(terminal)
    assert process.returncode == 0
    return said.decode()


LINES = [
    "tiny on cpu: 4 rungs, 3 generations, about 3 minutes",
    "images: 0/3",
    "tiny on cpu: 12%  first checks: comparing a step of bf16 with FP64",
    "tiny on cpu: 25%  generation 1 of 3: building the model of bf16",
    "tiny on cpu: 33%  generation 1 of 3: timing bf16  2 min left",
    "tiny on cpu: 33%  generation 4: timing bf16 once more  10 min left",
    "tiny on cpu: 33%  waiting until another run on this device has ended",
    "tiny on cpu: 99%  generation 3 of 3: comparing the timed step of bf16 with FP64  0 s left",
    "bf16: failed: it is [bold]wrong[/bold]",
]


def test_a_log_gets_a_first_line_and_now_and_then_what_goes_on_with_a_share_that_only_grows() -> None:
    """Added generations and a wait take nothing of the share back. Images get a line in ten seconds: one, here."""
    run = subprocess.run([sys.executable, "-c", EVENTS], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stderr.splitlines() == LINES


@pytest.mark.parametrize("columns", [100, 40])
def test_a_terminal_gets_a_bar_of_one_line_and_the_first_line(columns: int) -> None:
    """A bar that wraps cannot be redrawn: each update would leave a line behind."""
    said = on_a_terminal(columns, TERM="xterm-256color")
    assert said.startswith(LINES[0]) and "\x1b" in said
    assert "it is [bold]wrong[/bold]" in said
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.removeprefix(LINES[0]))
    assert "99%" in plain and max(map(len, re.split(r"[\r\n]+", plain))) <= columns
    assert "\x1b[1A\x1b[2K\x1b[1A" not in said  # two lines up: the mark of a bar of two


def test_every_phase_of_the_engine_has_words() -> None:
    sources = [
        (ROOT / "ladder" / "engine" / name).read_text() for name in ("rounds.py", "run.py", "inspection.py")
    ]
    used = set(re.findall(r"""(?:on_phase\(.*|phase=|tell\()"(\w+)\"""", "\n".join(sources)))
    assert used == {*progress.PHASES}


# --- how long it takes ---


def test_the_time_comes_from_this_machines_newest_result(tmp_path: Path) -> None:
    assert climb.read_visit_seconds(tmp_path, "tiny") is None
    result = made_up.cpu_run()
    name, count = (
        result["workload"]["name"],
        sum(len(each["rounds"]) for each in result["rungs"] + result.get("twins", [])),
    )
    old, new = result | {"seconds": 1.0 * count}, result | {"seconds": 6.0 * count}
    write_run(tmp_path / f"{name}-article-20250101T000000Z.json", old)
    write_run(tmp_path / f"{name}-article-20250201T000000Z.json", new)
    (tmp_path / f"{name}-article-20250301T000000Z.json").write_text("{}")  # no result
    assert climb.read_visit_seconds(tmp_path, name) == pytest.approx(6.0)
    assert climb.estimate_minutes(tmp_path, name, "cpu", 1, 3) == pytest.approx(6 * (1 + 3 * 2) / 60)


def test_a_budget_holds_between_three_rounds_and_twelve(monkeypatch: pytest.MonkeyPatch) -> None:
    def about(seconds: float, budget: float) -> float:
        monkeypatch.setattr(climb, "read_visit_seconds", lambda *_: seconds)
        return climb.estimate_minutes(Path(), "tiny", "cpu", 4, None, budget)

    assert about(10.0, 10) == 10 and about(10.0, 5) == 5
    assert about(1.0, 10) == pytest.approx((4 + 12 * 6) / 60)  # all rounds that are made take less
    assert about(600.0, 2) == pytest.approx(10 * (4 + 3 * 6))
