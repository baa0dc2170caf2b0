"""`ladder submit` where asv is missing or breaks: the run of the ladder is named all the same."""

import importlib.util
from typing import Any

import pytest
from click.testing import CliRunner

from ladder.base import starting
from ladder.base.errors import UserError
from ladder.cli import main as cli
from ladder.cli import submission as submit
from tests.cli.test_submit import climbed, root, submission  # noqa: F401  fixtures


@pytest.fixture
def submitted(submission: submit.Submission, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """Return a function that calls the command; the ladder's run is a stored one."""
    monkeypatch.setattr(
        submit, "prepare", lambda budget, say: submission.__setattr__("say", say) or submission
    )
    monkeypatch.setattr(submit.paired, "__defaults__", (climbed(submission),))
    return lambda: CliRunner().invoke(cli.main, ["submit"], prog_name="ladder")


def test_without_asv_the_ladder_is_measured_and_sent_and_how_to_get_asv_is_said(
    submitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        submit.importlib.util, "find_spec", lambda name: None if name == "asv_runner" else find(name)
    )
    monkeypatch.setattr(submit, "_asv", lambda *given: 1 / 0)
    seen = submitted()
    assert seen.exit_code == 1
    assert seen.stderr.startswith("without asv's history: asv is not installed for ")  # before it measures
    assert "1 file to send, all accepted" in seen.stdout and "git add results/ladder/" in seen.stdout
    last = seen.stdout.splitlines()[-1]
    assert (
        "-m pip install -e" in last
        and "`ladder submit` adds its point; what is there can be sent all the same" in last
    )


def test_an_asv_that_breaks_does_not_hide_the_run_of_the_ladder(
    submitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(asked: submit.Submission) -> list[str]:
        raise UserError("`asv run` ended with status 1 at baseline; what it said stands above")

    monkeypatch.setattr(submit, "history", broken)
    seen = submitted()
    assert seen.exit_code == 1 and "git add results/ladder/" in seen.stdout
    assert seen.stdout.splitlines()[-1].startswith("`asv run` ended with status 1 at baseline")


@pytest.mark.parametrize("status", [0, 2])
def test_asv_is_heard_where_it_fails_without_the_rungs_that_were_not_asked_for(
    status: int,
    submission: submit.Submission,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = [
        "· Running 3 benchmarks\n",
        "  tiny  baseline   236ms\n",
        "  tiny  bf16   n/a    \n",
        "·· failed\n",
    ]

    class Asv:
        stdout = iter(said)

        def __init__(self, command: list[str], **more: Any) -> None:
            assert command[1:4] == ["-m", "asv", "run"]

        def __enter__(self) -> "Asv":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def wait(self) -> int:
            return status

    monkeypatch.setattr(submit.subprocess, "Popen", Asv)
    assert submit._asv(submission, "baseline") == status
    assert capsys.readouterr().out == ("".join(said[:2] + said[3:]) if status else "")


def test_a_pytorch_that_is_there_stays_and_without_one_the_lock_file_chooses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(starting.ROOT)
    assert starting.install("python3") == "python3 -m pip install -e ."
    monkeypatch.setattr(starting.importlib.util, "find_spec", lambda name: None)
    assert starting.install("python3") == "python3 -m pip install -r requirements.lock"
