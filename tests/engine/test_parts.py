"""Phases and loading alone: what is timed, of which code, and how failures are told. The clock is the tests'."""

import numpy as np
import pytest
from PIL import Image

import stylegan_lite
from ladder.engine import parts
from ladder.engine.pool import WorkerFailure
from stylegan_lite.losses import PHASES
from stylegan_lite.step import TrainingStep, data
from tests.support.small import SMALL

SECONDS = dict(zip(PHASES, (1.0, 2.0, 4.0, 8.0), strict=True))


class Clock:
    """Stands for the module `time`: it moves where a test moves it."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(parts, "time", Clock())
    return parts.time


@pytest.fixture
def folder(tmp_path):
    for index in range(8):
        Image.fromarray(np.full((16, 16, 3), 20 * index, np.uint8)).save(tmp_path / f"{index}.png")
    return str(tmp_path)


def slow_phases(monkeypatch, clock):
    """Each phase takes its seconds by the clock, and twice that when it was another one's turn before."""
    ran = []

    def run_phase(self, phase):
        clock.now += SECONDS[phase] * (1 if ran[-1:] == [phase] else 2)
        ran.append(phase)

    monkeypatch.setattr(TrainingStep, "run_phase", run_phase)
    return ran


def test_each_phase_is_timed_alone_in_windows_after_a_run_that_is_not(monkeypatch, clock):
    ran = slow_phases(monkeypatch, clock)
    found = parts.time_phases(SMALL, {"set_to_none": True}, "cpu", samples=2, window=3)
    assert found["samples_s"] == {phase: [seconds] * 2 for phase, seconds in SECONDS.items()}
    assert ran == 2 * [phase for phase in parts.PHASES for _ in range(1 + 3)]  # they take turns
    assert found["recipe"]["set_to_none"] is True and found["choices"] is not None
    assert set(parts.PHASES) == set(PHASES)


def test_a_phase_that_computes_nan_has_no_time(monkeypatch, clock):
    slow_phases(monkeypatch, clock)
    monkeypatch.setattr(TrainingStep, "check_finite", lambda self: "loss of G_pl is NaN")
    with pytest.raises(WorkerFailure, match="loss of G_pl") as failure:
        parts.time_phases(SMALL, {}, "cpu", samples=1, window=1)
    assert failure.value.status == "invalid"


def test_a_commit_without_phases_or_contract_is_not_applicable(monkeypatch):
    class Step:
        recipe = None

        def settings(self):
            return {}

        def close(self):
            pass

    monkeypatch.setattr(stylegan_lite, "make_step", lambda *_, **__: Step())
    with pytest.raises(WorkerFailure, match="a phase alone") as failure:
        parts.time_phases(SMALL, {}, "cpu")
    assert failure.value.status == "n/a"
    monkeypatch.setattr(stylegan_lite, "CONTRACT", 2)
    for measure in (parts.time_phases, parts.time_loading):
        with pytest.raises(WorkerFailure, match="CONTRACT") as failure:
            measure(SMALL, {}, "cpu")
        assert failure.value.status == "n/a"


@pytest.mark.parametrize("recipe", [{}, {"uint8_input": True}], ids=str)
def test_loading_is_seconds_for_an_image_over_whole_epochs(monkeypatch, clock, folder, recipe):
    """The dataset's rate is what comes out, and what idle workers had ready is not in it."""
    decode = data.ImageFolder.decode

    def slowly(self, index):
        clock.now += 0.5
        return decode(self, index)

    monkeypatch.setattr(data.ImageFolder, "decode", slowly)
    found = parts.time_loading(SMALL | {"data": folder}, recipe, "cpu", epochs=3)
    assert found["samples_s"] == [0.5, 0.5, 0.5]
    assert found["recipe"]["uint8_input"] == bool(recipe)
