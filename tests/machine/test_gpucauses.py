"""A GPU that torch cannot use: what tells of it, and that the advice fits the cause."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ladder.core.errors import UserError
from ladder.machine import gpu_causes, probe, system

GPUS = [{"name": f"GPU {number}", "driver": "580", "driver_cuda": "13.0"} for number in range(2)]
NO_DEVICE = "RuntimeError: No CUDA GPUs are available"


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing tells of a GPU, whatever this one has."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("PROC", "DEVICES", "PCI"):
        monkeypatch.setattr(gpu_causes, name, tmp_path / name)
    monkeypatch.setattr(system, "gpus_seen", lambda: [])
    monkeypatch.setattr(system, "_driver_library", lambda: False)
    monkeypatch.setattr(
        system, "probe_gpu", lambda: {"error": "torch 2.13.0 is built without CUDA", "torch": "2.13.0"}
    )
    nvml(monkeypatch, "NVML Shared Library Not Found")
    return tmp_path


def nvml(monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    """NVML that refuses with these words."""
    fake = ModuleType("pynvml")

    def refuse() -> None:
        raise RuntimeError(refusal)

    fake.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def refused(requested: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        system.choose_device(requested)
    said = str(error.value)
    assert "\n" not in said and "--device cpu" in said
    return said


def test_nothing_tells_of_a_gpu_on_a_cpu_node_with_the_driver_installed(bare: Path, monkeypatch) -> None:
    """A cluster's nodes share an image: libraries are there, and say that no driver runs."""
    assert system.choose_device() == "cpu"
    nvml(monkeypatch, "Driver Not Loaded")
    assert system.choose_device() == "cpu"


def test_a_driver_that_does_not_match_its_library_stops_every_command(bare: Path, monkeypatch) -> None:
    nvml(monkeypatch, "Driver/library version mismatch")
    said = refused()
    assert "version mismatch" in said and "reboot" in said and "pip install" not in said
    assert system.choose_device("cpu") == "cpu"


@pytest.mark.parametrize("sign", ["proc", "device", "pci"])
def test_a_gpu_without_a_working_driver_is_seen(sign: str, bare: Path) -> None:
    if sign == "proc":
        (bare / "PROC" / "0000:01:00.0").mkdir(parents=True)
    elif sign == "device":
        (bare / "DEVICES").mkdir()
        (bare / "DEVICES" / "nvidia0").write_text("")
    else:
        card = bare / "PCI" / "0000:01:00.0"
        card.mkdir(parents=True)
        (card / "vendor").write_text("0x10de\n")
        (card / "class").write_text("0x020000\n")  # a network card of NVIDIA's
        assert system.choose_device() == "cpu"
        (card / "class").write_text("0x030200\n")
    assert "an NVIDIA GPU (" in refused()


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("NoDevFiles", "Slurm gave this job no GPU"),
        ("", "CUDA_VISIBLE_DEVICES hides it, as it is empty: unset it"),
        ("-1", "CUDA_VISIBLE_DEVICES=-1 hides it"),
        ("none", "unset it"),
        ("2,0", "GPUs 0 to 1 exist"),
        (" 7 ", "GPUs 0 to 1 exist"),
        ("GPU-dead", "nvidia-smi -L"),
        ("MIG-dead", "nvidia-smi -L"),
        ("\x1b[2J", "hides it"),
    ],
)
def test_the_variable_that_hides_a_gpu_is_named(value: str, says: str, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    said = gpu_causes.suggest_fix({"error": NO_DEVICE, "torch": "2.13.0"}, GPUS)
    assert (
        says in said and "CUDA_VISIBLE_DEVICES" in said and "pip install" not in said and "\x1b" not in said
    )


@pytest.mark.parametrize("value", [None, "0", "1,0", "GPU-5f1e"])
def test_a_variable_that_hides_nothing_is_not_blamed(value: str | None, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "-1")  # of AMD's GPUs
    said = gpu_causes.suggest_fix({"error": "torch 2.13.0 is built without CUDA", "torch": "2.13.0"}, GPUS)
    assert "pip install" in said and "VISIBLE" not in said


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        ("Error 803: system has unsupported display driver / cuda driver combination", "reboot"),
        ("Error 804: forward compatibility was attempted on non supported HW", "cuda-compat"),
        ("Error 802: system not yet initialized", "nvidia-fabricmanager"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "another process"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB", "its memory is taken"),
        ("CUDA error: out of memory", "its memory is taken"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "modprobe"),
        ("Found no NVIDIA driver on your system.", "no driver answers"),
        ("Error 304: OS call failed or operation not supported on this OS", "may not open"),
        ("torch did not answer within 300 s", "hangs"),
        ("CUDA error: uncorrectable ECC error encountered", "stopped answering"),
    ],
)
def test_the_advice_fits_the_cause(error: str, helps: str, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said = gpu_causes.suggest_fix({"error": error, "torch": "2.13.0"}, GPUS)
    assert helps in said.lower() or helps in said
    assert "pip install" not in said and "--device cpu" in said


@pytest.mark.parametrize(
    ("found", "helps"),
    [
        ({"error": "no kernel image is available", "capability": [6, 1]}, "whl/cu126"),
        ({"error": "no kernel image is available", "capability": [12, 0]}, "whl/cu130"),
        ({"error": "torch 2.13.0+rocm6 is built without CUDA", "torch": "2.13.0+rocm6"}, "AMD"),
    ],
)
def test_another_torch_is_advised_where_that_helps(found: dict[str, Any], helps: str, monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    said = gpu_causes.suggest_fix(found, GPUS)
    assert helps in said and "pip install" in said


def test_an_old_driver_is_to_be_updated(monkeypatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    error = "The NVIDIA driver on your system is too old (found version 11040)."
    assert (
        "update the driver"
        in gpu_causes.suggest_fix({"error": error}, [GPUS[0] | {"driver_cuda": "11.4"}]).lower()
    )
    assert "update the driver" in gpu_causes.suggest_fix({"error": error}, [], "/dev/nvidia0 is there")


def test_torchs_own_words_do_not_push_cudas_out_of_the_line() -> None:
    said = (
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices()"
        " that might have already set an error? Error 803: system has unsupported display driver"
    )
    assert (
        probe.shorten_error(RuntimeError(said))
        == "RuntimeError: Error 803: system has unsupported display driver"
    )
