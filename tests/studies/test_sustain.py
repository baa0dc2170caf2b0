"""Whether a rung's speed lasts, and the energy of a step: from NVML's counter, else from power, else unknown."""

from __future__ import annotations

import itertools
import json
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from ladder.cli import main as cli
from ladder.core.errors import UserError
from ladder.engine import visit
from ladder.engine.pool import Pool
from ladder.machine.nvml import Gpu
from ladder.studies import frame, sustain
from ladder.studies.sustain import STUDY, derive_energy, make_window
from tests.studies.test_contract import HERE, read
from tests.support.commands import FAKE
from tests.support.fake_nvml import UUID, FakeNvml
from tests.support.small import LEAST

STATE = {"sm_mhz": 1980.0, "power_w": 690.0, "temperature_c": 55, "reasons": ["power_cap"], "polls": 3}


def rung(seconds, watts=None, joules_a_second=None, ms=20.0):
    """Return a followed rung with a row every two seconds: six cycles of 20 ms a step, and a pause of 80 ms."""
    rows = []
    for at in [2.0 * k for k in range(int(seconds / 2) + 1)]:
        used_j = None if joules_a_second is None else at * joules_a_second
        rows.append(make_window(at, 5 * [ms / 1000], STATE | {"power_w": watts}, used_j, lead_in=1))
    return with_rows(rows)


def with_rows(rows):
    return sustain.Observed(windows=rows)


def test_the_first_row_stands_against_the_later_half():
    steps = (12.0, 14.0, 12.5, 13.0, 13.2)
    found = with_rows([make_window(2.0 * k, [ms / 1000] * 3, STATE) for k, ms in enumerate(steps)])
    assert (found.first_ms, found.sustained_ms) == (12.0, 13.0)
    assert found.factor == pytest.approx(13 / 12)


def test_the_counter_gives_the_joules_of_a_step():
    """All joules over all steps: a pause's low power is no power of a step."""
    rows = rung(40.0, watts=700.0, joules_a_second=500.0).windows
    assert derive_energy(rows) == (pytest.approx(1000.0 / 96), False)


def test_without_the_counter_power_is_integrated_and_an_upper_bound():
    assert derive_energy(rung(40.0, watts=700.0).windows) == (pytest.approx(14.0), True)
    rows = [msgspec.structs.replace(row, power_w=10.0 * row.at_s) for row in rung(20.0, watts=0.0).windows]
    assert derive_energy(rows)[0] == pytest.approx(150.0 * 0.020), "mean power from 10 s to 20 s"


def test_less_than_ten_seconds_or_unknown_power_is_no_energy():
    assert derive_energy(rung(8.0, watts=700.0, joules_a_second=500.0).windows) is None
    assert derive_energy(rung(40.0).windows) is None
    rows = [msgspec.structs.replace(row, power_w=100.0 * row.at_s) for row in rung(12.0, watts=0.0).windows]
    assert derive_energy(rows)[0] == pytest.approx(700.0 * 0.020), "of the last ten seconds, not of six"


def test_nvml_counts_joules_and_an_older_gpu_does_not():
    class Counting(FakeNvml):
        def nvmlDeviceGetTotalEnergyConsumption(self, handle: object) -> int:
            return 1_234_567

    assert Gpu(UUID, Counting()).energy_j() == pytest.approx(1234.567)
    assert Gpu(UUID, FakeNvml()).energy_j() is None
    assert Gpu(UUID, Counting(refuse={"nvmlDeviceGetTotalEnergyConsumption"})).energy_j() is None


def test_a_step_beyond_the_gpu_or_no_row_at_all_is_refused():
    _, file = read("sustained")
    name = next(iter(file.observed))
    rows = [msgspec.structs.replace(row, step_ms=row.step_ms / 1000) for row in file.observed[name].windows]
    for observed, words in ((rows, "faster than this machine"), ([], "contradicts its windows")):
        each = msgspec.structs.replace(file.observed[name], windows=observed)
        assert words in frame.find_problem(STUDY, msgspec.structs.replace(file, observed={name: each}))


def test_a_rung_is_followed_by_real_workers(tmp_path, monkeypatch):
    """A clock of a quarter of a second a look: how many rows a second holds does not depend on this machine's load."""
    looks = itertools.count()
    monkeypatch.setattr(sustain, "time", SimpleNamespace(monotonic=lambda: next(looks) / 4))
    monkeypatch.setattr(visit, "Pool", partial(Pool, code=FAKE, torch=False))
    workload = tmp_path / "least.yaml"
    workload.write_text(yaml.safe_dump(LEAST))
    common = ["-w", str(workload), "--device", "cpu", "--out", str(tmp_path), "--seconds", "1"]
    result = CliRunner().invoke(cli.main, ["sustain", "baseline", "channels_last", *common])
    assert result.exit_code == 0, result.output
    assert "parity and receipts of baseline, channels_last were not seen here" in result.output
    (path,) = tmp_path.glob("*.json")
    data = json.loads(path.read_text())
    for observed in data["observed"].values():
        assert [row["at_s"] for row in observed["windows"]] == [0.25, 0.5, 0.75]


@pytest.mark.parametrize(
    ("arguments", "words"), [(["nonsense"], "has no rung 'nonsense'"), (["cuda_graphs"], "cannot run here")]
)
def test_a_rung_that_cannot_run_is_one_line(arguments, words, tmp_path):
    workload = tmp_path / "least.yaml"
    workload.write_text(yaml.safe_dump(LEAST))
    arguments = ["sustain", "-w", str(workload), "--device", "cpu", "--out", str(tmp_path), *arguments]
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2 and words in result.output and "Traceback" not in result.output


def test_a_wrong_option_in_a_file_is_refused_with_its_place():
    data = json.loads((HERE / "sustained.json").read_text())
    data["options"]["seconds"] = -1
    with pytest.raises(UserError, match=r"options\.seconds: -1"):
        frame.decode_file(STUDY, data)
