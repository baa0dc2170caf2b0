"""GPU time over commits: by GPU and software whatever the host, with marks where the driver or cuDNN changed."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ladder.publish.history import screening, series
from ladder.publish.history.screening import CANDIDATE, CONFIRMED, CUDNN, DRIVER, KNOWN, REFUTED
from ladder.publish.site import list_sections, render_front, show_histories
from ladder.results.file import ProfiledCycle
from ladder.studies import frame
from ladder.studies.commits.record import HEAD, SIDES
from ladder.studies.commits.study import STUDY
from tests.publish.history.test_accepted_steps import entry
from tests.support import made_up_asv
from tests.support.asv_steps import ENVIRONMENT, MACHINE, RUNGS, STEP, Toy, toy
from tests.support.made_up_comparison import with_side

__all__ = ["toy"]  # a fixture

COMMITS = {letter * 40: number for number, letter in enumerate("abcdef")}
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


def steps(folder: Path, benchmark: str = series.GPU_STEP) -> dict[tuple[str, str], list[series.Step]]:
    return series.history(series.points(folder, benchmark), COMMITS)


def test_hosts_with_one_gpu_and_one_software_share_a_line(tmp_path: Path) -> None:
    measured(tmp_path, 0, "a", 0.10)
    measured(tmp_path, 1, "a", 0.12)
    measured(tmp_path, 1, "b", 0.08, driver="580.90.01")  # a minor version
    ((key, found),) = steps(tmp_path).items()
    software = ("torch 2.13.0", "cuda 13.0", "cudnn 9.19.0", "driver 580")
    assert key == ("nvidia-some-gpu", "article") and {step.software for step in found} == {software}
    assert {step.rung for step in found} == {"bf16"}
    assert [step.ms for step in found] == pytest.approx([110.0, 80.0], rel=0.01)
    assert found[1].marks == ("driver 580.65.06 -> 580.90.01",)


@pytest.mark.parametrize("change", [{"driver": "590.10"}, {"cudnn": "9.20.1"}])
def test_another_cudnn_or_major_driver_begins_a_line_of_gpu_time(
    tmp_path: Path, change: dict[str, str]
) -> None:
    measured(tmp_path, 0, "a", 0.10)
    measured(tmp_path, 0, "b", 0.08, **change)
    (found,) = steps(tmp_path).values()
    assert len({step.software for step in found}) == 2 and not any(step.marks for step in found)


def test_wall_time_stays_by_machine_and_a_change_is_a_marked_step(tmp_path: Path) -> None:
    for host, commit, cudnn in (
        (0, "a", "9.19.0"),
        (1, "a", "9.19.0"),
        (0, "b", "9.20.1"),
        (0, "c", "9.20.1"),
    ):
        conditions(made_up_asv.write(tmp_path, HOSTS[host], commit=commit * 40), cudnn=cudnn)
    found = steps(tmp_path, series.STEP)
    assert {key[0] for key in found} == {host["machine"] for host in HOSTS}
    line = found["nvidia-some-gpu", "article"]
    assert [step.marks for step in line] == [(), ("cuDNN 9.19.0 -> 9.20.1",), ()]
    assert len({step.software for step in line}) == 1
    page = render_front(list_sections([], [], show_histories(series.points(tmp_path), COMMITS), [], tmp_path))
    for host, _ in found:  # two cards of one name would leave it open whose host is whose
        assert f"Some GPU ({host}), workload article" in page
    assert "cuDNN 9.19.0 -&gt; 9.20.1" in page


def test_the_front_page_shows_gpu_time_beside_wall_time(tmp_path: Path) -> None:
    for commit, seconds in (("a", 0.1), ("b", 0.08)):
        measured(tmp_path, 0, commit, seconds)
    histories = show_histories(series.points(tmp_path, series.GPU_STEP), COMMITS, series.GPU_STEP)
    page = render_front(list_sections([], [], histories, [], tmp_path))
    assert "NVIDIA Some GPU, workload article, GPU time" in page
    assert "100 ms (bf16) to 80.2 ms (bf16)" in page and f"#{series.GPU_STEP}?" in page


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
