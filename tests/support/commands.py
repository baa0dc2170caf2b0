"""The command called in this process, and fakes of what it would measure."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.engine import pool
from ladder.engine import run as measure
from ladder.images import prepare as images
from ladder.machine import stillness, system
from ladder.results import loading

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "support" / "fake_code"
SET = images.ImageSet("/pictures", 9, "sample-photographs", ["upscaled"])


def call(*arguments, **more):
    return CliRunner().invoke(cli.main, [str(a) for a in arguments], prog_name="ladder", **more)


def refused(*arguments):
    """The one line of a refusal."""
    seen = call(*arguments)
    assert seen.exit_code == 2 and seen.stdout == "", seen.output
    (line,) = seen.stderr.splitlines()
    return line


@pytest.fixture
def fakes(monkeypatch):
    """Real workers and files around fake steps. `faults` maps a rung to what goes wrong in it."""
    faults, real = {}, measure.run_ladder

    def run_ladder(job, *more):
        for rung in job.options.planned:
            if rung.recipe is not None:
                rung.recipe.update(faults.get(rung.name, {}))
        plan = replace(job.options, code=FAKE, torch=False, inspect=False)
        return real(replace(job, options=plan), *more)

    monkeypatch.setattr(measure, "run_ladder", run_ladder)
    monkeypatch.setattr(loading, "find_problem", lambda run: None)  # a fake step may be too fast
    monkeypatch.setattr(pool, "Pool", nullcontext)  # fake steps need no process that imports torch
    monkeypatch.setattr(stillness, "wait_until_still", lambda group: 0.0)  # nor quiet between visits
    monkeypatch.setattr(images, "prepare_images", lambda *_, **__: SET)
    monkeypatch.setattr(system, "choose_device", lambda requested: "cpu")
    return faults


def succeed(*arguments):
    seen = call(*arguments)
    assert seen.exit_code == 0, seen.output
    return seen


def load_commands() -> dict[str, click.Command]:
    """Return every command of `ladder` by its name, those of studies, which are imported late, included."""
    context = click.Context(cli.main)
    return {name: cli.main.get_command(context, name) for name in cli.main.list_commands(context)}
