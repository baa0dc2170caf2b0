"""The frame of all studies with a study of two lines: saving, resuming, interrupts, budgets and exit statuses."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from click.testing import CliRunner
from msgspec import Meta

from ladder.cli.main import Group
from ladder.core import locks, text
from ladder.core.errors import EnvironmentFailure
from ladder.core.options import declare_option
from ladder.core.records import Ms
from ladder.engine.pool import WorkerFailure
from ladder.machine import system
from ladder.show.table import Column, Table
from ladder.studies import frame


class Options(frame.Options):
    cases: Annotated[int, Meta(ge=1, le=5), declare_option("How many.")] = 3


class Case(frame.Case):
    number: int


class Observed(frame.Observation, kw_only=True):
    ms: Ms | None = None


class Trial(frame.Study[Options, Case, Observed]):
    name, kind, folder, help, examples = "trial", "trial", "trial", "Try.", "ladder trial"
    uses_images = False

    def __init__(self):
        self.calls, self.broken, self.interrupted, self.full = [], (), (), ()

    def list_cases(self, job, file):
        return {f"case {k}": Case(number=k) for k in range(job.options.cases)}

    def observe(self, session, key, case):
        self.calls.append(case.number)
        if case.number in self.full:
            raise EnvironmentFailure("No space left on device")
        if case.number in self.broken:
            raise WorkerFailure("failed", "it broke")
        if case.number in self.interrupted:
            session.growing = Observed(ms=0.5)
            raise KeyboardInterrupt
        return Observed(ms=1.0 + case.number)

    def list_tables(self, file):
        yield Table(
            [Column("case"), Column("ms", "ms")], [[key, each.ms] for key, each in file.observed.items()]
        )


@pytest.fixture
def study(tmp_path):
    """Return a study whose `run(*arguments)` calls its command; `file()` is what it wrote last."""
    made = Trial()

    def run(*arguments):
        group = Group(name="ladder", commands={"trial": frame.study_command(made)})
        workload = () if "-w" in arguments else ("-w", "tiny")
        return CliRunner().invoke(group, ["trial", *workload, "--device", "cpu", *arguments])

    made.run = run
    made.out = tmp_path
    return made


def only(study, pattern):
    (path,) = study.out.glob(pattern)
    return path


def test_cases_are_observed_once_each_and_shown(study):
    result = study.run("--out", str(study.out))
    assert result.exit_code == 0, result.output
    assert study.calls == [0, 1, 2] and "case 2" in result.output and "not to be quoted" in result.output
    assert sorted(path.suffix for path in study.out.iterdir()) == [".json", ".md"]
    data = json.loads(only(study, "*.json").read_text())
    assert data["observed"]["case 1"] == {"ms": 2.0} and "complete" not in data


def test_an_interrupt_keeps_what_was_seen_and_resume_observes_the_rest(study):
    study.interrupted = (1,)
    assert study.run("--out", str(study.out)).exit_code == 130
    partial = only(study, "*-partial.json")
    assert json.loads(partial.read_text())["observed"]["case 1"] == {"ms": 0.5, "stopped": True}
    study.interrupted, study.calls = (), []
    result = study.run("--resume", str(partial))
    assert result.exit_code == 0, result.output
    assert study.calls == [1, 2] and not partial.exists()
    assert json.loads(only(study, "*.json").read_text())["observed"]["case 1"] == {"ms": 2.0}


def test_a_failed_case_has_a_reason_and_is_tried_again_on_resume(study):
    study.broken = (0,)
    result = study.run("--out", str(study.out))
    assert result.exit_code == 1 and "--resume" in result.output
    path = only(study, "*.json")
    assert json.loads(path.read_text())["observed"]["case 0"] == {"status": "failed", "reason": "it broke"}
    study.broken, study.calls = (), []
    assert study.run("--resume", str(path)).exit_code == 0 and study.calls == [0]


def test_a_case_at_which_the_system_fails_is_kept_and_comes_last(study):
    study.full = (1,)
    result = study.run("--out", str(study.out))
    assert result.exit_code != 0 and "No space left" in result.output and "-partial.json" in result.output
    study.full, study.calls = (), []
    assert study.run("--resume", str(only(study, "*-partial.json"))).exit_code == 0 and study.calls == [2, 1]


def test_nothing_begins_after_the_budget(study):
    result = study.run("--out", str(study.out), "--budget", "1e-9")
    assert result.exit_code == 130 and study.calls == [] and only(study, "*-partial.json")


def test_a_file_of_another_machine_or_code_is_not_continued(study):
    study.interrupted = (1,)
    study.run("--out", str(study.out))
    path = only(study, "*-partial.json")
    data = json.loads(path.read_text())
    for change in ({"machine": data["machine"] | {"cores": 999}}, {"measured_code": {"kernels": "0" * 16}}):
        path.write_text(json.dumps(data | change))
        result = study.run("--resume", str(path))
        assert result.exit_code == 2 and "start a new run" in result.output
    path.write_text(json.dumps(data))
    for arguments in (("--cases", "2"), ("-w", "article")):
        result = study.run(*arguments, "--resume", str(path))
        assert result.exit_code == 2 and "--resume" in result.output and study.calls == [0, 1]


def test_what_another_host_or_an_unfinished_run_left_stays(study):
    assert study.run("--out", str(study.out)).exit_code == 0
    path = only(study, "*.json")
    data = json.loads(path.read_text())
    data["machine"]["cores"] += 1
    path.write_text(json.dumps(data | {"started": "2026-01-01T00:00:00+00:00"}))
    study.interrupted = (1,)
    for _ in range(2):
        assert study.run("--out", str(study.out)).exit_code == 130
    study.interrupted = ()
    assert study.run("--out", str(study.out)).exit_code == 0
    assert json.loads(path.read_text())["machine"]["cores"] == data["machine"]["cores"]
    assert len(list(study.out.glob("*-partial*.json"))) >= 1 and len(list(study.out.glob("*.json"))) >= 3


def test_a_second_run_into_one_folder_is_refused_before_it_measures(study):
    with locks.folder_lock(study.out, text.make_slug(system.describe_machine("cpu")["name"])):
        result = study.run("--out", str(study.out))
    assert result.exit_code == 2 and study.calls == []
    assert f"ladder: {study.out}: another run is writing here" in result.output


@pytest.mark.parametrize(
    "arguments", [("--cases", "6"), ("--cases", "1_0"), ("--nonsense",), ("-w", "nowhere")]
)
def test_bad_input_is_refused_with_status_2(study, arguments):
    result = study.run(*arguments)
    assert result.exit_code == 2 and study.calls == [] and "Traceback" not in result.output


def test_json_is_the_result_and_nothing_else(study):
    result = CliRunner().invoke(
        frame.study_command(study), ["-w", "tiny", "--device", "cpu", "--json", "--out", str(study.out)]
    )
    assert json.loads(result.stdout)["complete"] is True
