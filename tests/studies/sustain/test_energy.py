"""The energy of a sustained step: from NVML's counter, else from power, else unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ladder.base.records import ABSENT
from ladder.machine.nvml import Gpu
from ladder.studies.sustain import measure, record, report
from tests.support.fake_nvml import UUID, FakeNvml

FOUND = {"sm_mhz": 1980.0, "temperature_c": 55, "reasons": []}


def rung(
    seconds: float, watts: float | None = None, joules_a_second: float | None = None, ms: float = 20.0
) -> record.Rung:
    """Return a followed rung with a row every two seconds: six cycles of 20 ms a step, and a pause of 80 ms."""
    rows = [
        measure.window(
            at,
            5 * [ms / 1000],
            {**FOUND, "power_w": watts},
            None if joules_a_second is None else at * joules_a_second,
            lead_in=1,
        )
        for at in (2.0 * k for k in range(int(seconds / 2) + 1))
    ]
    empty = dict.fromkeys(record.DERIVED)
    return record.Rung(
        name="bf16", recipe={}, status="ok", reason=None, inspected=True, windows=rows, **empty
    )


def test_the_counter_gives_the_joules_of_a_step() -> None:
    """All joules over all steps: a pause's low power is no power of a step."""
    found = record.energy(rung(40.0, watts=700.0, joules_a_second=500.0))
    assert found is not None and found.step_j == pytest.approx(1000.0 / 96)
    assert found.source == record.COUNTER and found.seconds == 20.0 and report.joules(found) == "10.4"


def test_a_file_without_numbers_of_steps_has_the_mean_power() -> None:
    followed = rung(40.0, watts=700.0, joules_a_second=500.0)
    older = [replace(row, steps=ABSENT) for row in followed.windows]
    found = record.energy(replace(followed, windows=older))
    assert found is not None and found.step_j == pytest.approx(500.0 * 0.020)
    assert found.source == record.COUNTER and found.seconds == 20.0 and report.joules(found) == "10"


def test_without_the_counter_power_is_integrated_and_said_to_be_an_upper_bound() -> None:
    found = record.energy(rung(40.0, watts=700.0))
    assert found is not None and found.step_j == pytest.approx(14.0) and report.joules(found) == "at most 14"
    rising = rung(20.0, watts=0.0)
    rows = [replace(row, power_w=10.0 * row.at_s) for row in rising.windows]
    found = record.energy(replace(rising, windows=rows))
    assert found is not None and found.step_j == pytest.approx(150.0 * 0.020), "mean power from 10 s to 20 s"


def test_less_than_ten_seconds_or_unknown_power_is_no_energy() -> None:
    assert record.energy(rung(8.0, watts=700.0, joules_a_second=500.0)) is None
    assert record.energy(rung(40.0)) is None and report.joules(None) == ""
    short = record.energy(rung(12.0, watts=700.0))
    assert short is not None and short.seconds >= record.LEAST_S, "half of it would be six seconds"
    assert record.energy(replace(rung(40.0, watts=700.0), status="failed")) is None


def test_nvml_tells_joules_and_an_older_gpu_none() -> None:
    class Counting(FakeNvml):
        def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
            return 1_234_567

    gpu = Gpu(UUID, Counting())
    assert gpu.energy_j() == pytest.approx(1234.567)
    assert Gpu(UUID, FakeNvml()).energy_j() is None
    assert Gpu(UUID, Counting(refuse={"nvmlDeviceGetTotalEnergyConsumption"})).energy_j() is None
