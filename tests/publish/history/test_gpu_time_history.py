"""GPU time over commits: by GPU and software whatever the host, with marks where the driver or cuDNN changed."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ladder.publish.history import screening, series
from ladder.publish.history.screening import CANDIDATE, CONFIRMED, CUDNN, DRIVER, KNOWN, REFUTED
from ladder.results.file import ProfiledCycle
from ladder.studies import frame
from ladder.studies.commits.record import HEAD, SIDES
from ladder.studies.commits.study import STUDY
from tests.publish.history.test_accepted_steps import entry
from tests.support import made_up_asv
from tests.support.asv_steps import ENVIRONMENT, MACHINE, RUNGS, STEP, Toy, toy
from tests.support.made_up_comparison import with_side

__all__ = ["toy"]  # a fixture

HOSTS = [made_up_asv.facts(), made_up_asv.facts(cpu="Another CPU") | {"machine": "nvidia-some-gpu-0a1b2c"}]


def conditions(path: Path, driver: str = "580.65.06", cudnn: str | None = "9.19.0") -> None:
    """Rewrite the note beside a result."""
    note = path.parent / "notes" / path.name
    data = json.loads(note.read_text())
    for seen in (data, *data["benchmarks"].values()):
        seen |= {"driver": driver, "cudnn": cudnn}
    note.write_text(json.dumps(data))


def measured(
    folder: Path, host: int, commit: str, seconds: float, driver: str = "580.65.06", cudnn: str = "9.19.0"
):
    rungs = {"baseline": 2 * seconds, "bf16": seconds}
    name = series.GPU_STEP
    conditions(made_up_asv.write(folder, HOSTS[host], rungs, commit=commit * 40, name=name), driver, cudnn)


def lines(folder: Path, benchmark: str = series.GPU_STEP) -> list[series.Series]:
    return [one for one in series.read(folder) if one.benchmark == benchmark and one.params[1] == "bf16"]


def test_hosts_with_one_gpu_and_one_software_share_a_line(tmp_path: Path) -> None:
    measured(tmp_path, 0, "a", 0.10)
    measured(tmp_path, 1, "a", 0.12)
    measured(tmp_path, 1, "b", 0.08, driver="580.90.01")  # a minor version
    (line,) = lines(tmp_path)
    assert line.machine == "nvidia-some-gpu"
    assert series.list_software(line) == ("torch 2.13.0", "cuda 13.0", "cudnn 9.19.0", "driver 580")
    assert [*line.values.values()] == pytest.approx([0.11, 0.08], rel=0.01)


@pytest.mark.parametrize("change", [{"driver": "590.10"}, {"cudnn": "9.20.1"}])
def test_another_cudnn_or_major_driver_begins_a_line_of_gpu_time(
    tmp_path: Path, change: dict[str, str]
) -> None:
    measured(tmp_path, 0, "a", 0.10)
    measured(tmp_path, 0, "b", 0.08, **change)
    found = lines(tmp_path)
    assert len({series.list_software(line) for line in found}) == 2 == len(found)


# --- steps ----------------------------------------------------------------------------------------------------------


def gpu_history(toy: Toy, first: int, *, cudnn_from: int = 99, driver_from: int = 99) -> None:
    """GPU time of bf16 takes 2% more from a commit on, measured in turn on two hosts that differ in wall time."""
    for number in range(len(toy.commits)):
        wobble = 1 + 1e-4 * ((number * 7) % 5 - 2)
        path = toy.record(
            number,
            {"baseline": 0.1, "bf16": 0.05 * wobble * (1 + 0.02 * (number >= first))},
            driver="590.10" if number >= driver_from else "580.65",
            cudnn="9.20.1" if number >= cudnn_from else "9.19.0",
        )
        host = toy.asv / f"{MACHINE}-{number % 2}"
        data = json.loads(path.read_text())
        data["params"] |= {"machine": host.name, "gpu": "Some GPU", "cuda": "13.0"}
        data["results"] = {series.GPU_STEP: data["results"][STEP]}
        for old, text in ((path, json.dumps(data)), (path.parent / "notes" / path.name, None)):
            new = host / old.relative_to(toy.asv / MACHINE)
            new.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(text or old.read_text())
            old.unlink()


def compared(toy: Toy, gpu: float) -> None:
    """A comparison whose wall time says nothing and whose GPU time takes `gpu` times as long on HEAD."""
    toy.compare(6, 7, 1.0, noise=0.05)
    path = sorted(toy.compared.iterdir())[-1]
    file = frame.read_file(STUDY, path)
    path.unlink()
    for side in SIDES:
        cycle = ProfiledCycle(50.0 * (gpu if side == HEAD else 1.0), 60.0, 9.0, 1980)
        file = with_side(
            file, side, lambda v, cycle=cycle: replace(v, round=replace(v.round, profiled=[cycle] * 2))
        )
    toy.write(replace(file, machine=replace(file.machine, device="cuda", gpu="Some GPU", cpu="Some CPU")))


def test_a_step_of_gpu_time_is_found_over_hosts_and_confirmed_by_gpu_time(toy: Toy) -> None:
    gpu_history(toy, 7)
    step = toy.only()
    shown = step.status, step.series.name, step.series.machine
    assert shown == (CANDIDATE, "article/bf16 GPU time", MACHINE)
    assert step.series.environment == "torch 2.13.0, cuda 13.0, cudnn 9.19.0, driver 580"
    assert step.series.rung == ("article", "bf16") and {len(step.series.values)} == {len(toy.commits)}
    compared(toy, 1.02)
    assert toy.only().status == CONFIRMED and "slower, +2.00%" in toy.only().why
    assert toy.only(entry(toy.commits[7], "article/bf16")).status == KNOWN
    compared(toy, 1.0)
    assert toy.only().status == REFUTED and "less than" in toy.only().why


def test_behind_a_step_of_wall_time_stands_what_its_gpu_time_did(toy: Toy) -> None:
    """A slow host makes an eager step slower, and no kernel."""
    toy.slower_from(7)
    for path in (toy.asv / MACHINE).glob(f"*-{ENVIRONMENT}.json"):
        data = json.loads(path.read_text())
        is_late = toy.commits.index(data["commit_hash"]) >= 7
        values = [0.09, 0.0398 if is_late else 0.04]
        data["results"][series.GPU_STEP] = [values, *data["results"][STEP][1:3], values, values]
        path.write_text(json.dumps(data))
    (step,) = (each for each in toy.screen()[0] if not each.series.is_gpu)
    assert f"  article/bf16 +2.0% (GPU time -0.5%) on {MACHINE}" in screening.render_text([step], [])
    assert screening.write_step(step)["gpu_share"] == pytest.approx(-0.005)


def test_new_software_begins_a_line_of_gpu_time_and_is_no_step(toy: Toy) -> None:
    gpu_history(toy, 7, cudnn_from=7)
    assert toy.screen()[0] == []
    gpu_history(toy, 7, driver_from=7)
    assert toy.screen()[0] == []


def test_a_step_of_wall_time_that_coincides_with_a_new_cudnn_is_marked(toy: Toy) -> None:
    for cudnn, driver, status in (("9.20.1", "580.65", CUDNN), ("9.20.1", "590.10", DRIVER)):
        for number in range(len(toy.commits)):
            new = number >= 7
            seconds = dict.fromkeys(RUNGS[1:], 0.05 * (1 + 0.02 * new) * (1 + 0.0001 * (number % 2)))
            toy.record(number, seconds, driver=driver if new else "580.65", cudnn=cudnn if new else "9.19.0")
        step = toy.only()
        assert step.status == status and "a cuDNN change: 9.19.0 -> 9.20.1" in step.why
        assert "cuDNN 9.19.0 -> 9.20.1" in screening.list_remarks([step])
