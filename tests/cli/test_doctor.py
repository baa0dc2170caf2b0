"""`ladder doctor` on machines that are not this one."""

from types import SimpleNamespace

import msgspec
import pytest

from ladder.cli import doctor
from ladder.core import bounds
from ladder.core.errors import UserError
from ladder.core.records import read_record
from ladder.machine import system
from ladder.plan import catalog, needs
from ladder.results.file import Machine

GPU = {"name": "nvidia-h200", "gpu": "NVIDIA H200", "gpu_memory_gb": 139.8, "driver": "580"}


@pytest.fixture
def gpu(monkeypatch):
    facts = {**system.describe_machine("cpu"), **GPU}
    monkeypatch.setattr(system, "choose_device", lambda requested: "cuda")
    monkeypatch.setattr(system, "describe_machine", lambda device: facts)
    monkeypatch.setattr(system, "list_capabilities", lambda device: dict.fromkeys(needs.NEEDS))


def examine(device=None):
    return doctor.examine(device, catalog.load_ladder("article"))


def check(found, name):
    return next(check for check in found.checks if check.name == name)


def skipped(found):
    return {rung.name for rung in found.rungs if rung.skipped}


def test_on_a_cpu_it_says_which_rungs_can_run():
    found = examine("cpu")
    assert found.blocked is None and found.device == "cpu"
    assert skipped(found) == {"fused_norm", "cuda_graphs", "data_loading", "fused_act"}


def test_rungs_of_several_gpus_name_the_command_that_measures_them():
    rungs = {each.name: each for each in doctor.examine("cpu", catalog.load_ladder("distributed")).rungs}
    assert "ladder scale" in rungs["flat_reduce"].skipped


def test_with_a_gpu_everything_can_run(gpu, capsys):
    found = examine()
    assert found.blocked is None and not skipped(found)
    doctor.print_findings(found)
    said = capsys.readouterr().out
    assert "NVIDIA H200" in said and "can run   fused_act" in said and "\x1b" not in said


def test_a_gpu_that_torch_cannot_use_blocks_and_says_what_helps(monkeypatch):
    def refuse(requested):
        raise UserError(
            "NVIDIA H200 is here but torch cannot use it: built without CUDA. Try: pip install torch"
        )

    monkeypatch.setattr(system, "choose_device", refuse)
    found = examine()
    assert "pip install torch" in found.blocked
    assert len(skipped(found)) == 8


def test_an_old_torch_is_a_warning_and_no_refusal(monkeypatch):
    real = bounds.find_version
    monkeypatch.setattr(bounds, "find_version", lambda name: "2.8.0" if name == "torch" else real(name))
    found = examine("cpu")
    assert check(found, "packages").status == "warning" and found.blocked is None
    assert [each.detail for each in found.checks if "2.8.0" in each.detail] == [
        "torch 2.8.0 is older than 2.11, which this project needs"
    ]


def test_triton_without_a_compiler_says_which_package(gpu, monkeypatch):
    reasons = {"triton": "RuntimeError: Failed to find C compiler"}
    monkeypatch.setattr(system, "list_capabilities", lambda device: {**dict.fromkeys(needs.NEEDS), **reasons})
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = examine()
    assert "C compiler" in check(found, "triton").detail and "gcc" in check(found, "triton").remedy
    assert skipped(found) == {"fused_norm", "fused_act"}


def test_a_containers_small_shared_memory_is_a_warning(gpu, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: SimpleNamespace(total=64 * 2**20))
    found = examine()
    assert "--shm-size" in check(found, "shared memory").remedy and found.blocked is None


@pytest.mark.parametrize(("device", "command"), [("cpu", "ladder run --quick"), ("cuda", "ladder run")])
def test_it_ends_with_the_next_command_and_how_long_it_takes(device, command, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    facts = {**system.describe_machine("cpu"), **GPU} if device == "cuda" else system.describe_machine("cpu")
    found = doctor.choose_next(device, read_record(Machine, facts), 4)
    assert found.command == command and 2 <= found.minutes <= 10
    doctor.print_findings(msgspec.structs.replace(examine("cpu"), next=found))
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"next  `{command}`: about ")
