"""Facts of machines that this one is not: the GPU library and torch's answer are faked."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ladder.core import bounds, text
from ladder.core.errors import UserError
from ladder.machine import system

H200 = {
    "error": None, "torch": "2.13.0", "cuda": "13.0", "name": "NVIDIA H200", "memory": 150_000_000_000,
    "capability": [9, 0], "cudnn": 91900, "bf16": True, "uuid": "GPU-5f1e", "triton_error": None,
}  # fmt: skip


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what the driver (a list of names) and torch (what `ladder.machine.probe` prints) say."""

    def fake(names: list[str], torch: dict[str, Any], driver_cuda: str | None = "13.0") -> None:
        seen = [{"name": name, "driver": "580.65.06", "driver_cuda": driver_cuda} for name in names]
        monkeypatch.setattr(system, "gpus_seen", lambda: seen)
        monkeypatch.setattr(system, "probe_gpu", lambda: torch)
        monkeypatch.setattr(system, "_driver_library", lambda: bool(names))

    return fake


def test_a_machine_without_gpu_is_a_cpu(pretend: Any) -> None:
    pretend([], {"error": "not asked"})
    assert system.choose_device() == system.choose_device("cpu") == "cpu"
    with pytest.raises(UserError, match="no NVIDIA GPU was found"):
        system.choose_device("cuda")
    facts = system.describe_machine("cpu")
    assert facts["gpu"] is facts["cuda"] is facts["driver"] is None
    assert facts["name"] == text.make_slug(facts["cpu"]) and facts["cores"] >= 1 and facts["ram_gb"] > 0
    missing = [name for name, why in system.list_capabilities("cpu").items() if why]
    assert missing == ["cuda", "triton", "cuda_graphs", "nvcc", "nvjpeg", "fp8", "dependent_launch"]


def test_a_gpu_is_used_and_named_by_its_hardware(pretend: Any) -> None:
    pretend(["NVIDIA H200"], H200)
    assert system.choose_device() == "cuda" and system.choose_device("cpu") == "cpu"
    facts = system.describe_machine("cuda")
    assert facts["name"] == "nvidia-h200" and facts["gpu_memory_gb"] == 139.7
    assert (facts["driver"], facts["cuda"], facts["cudnn"]) == ("580.65.06", "13.0", "9.19.0")
    assert "5f1e" not in str(facts)
    assert set(system.list_capabilities("cuda").values()) == {None}


def test_what_a_gpu_cannot_do_is_said(pretend: Any) -> None:
    pretend(["Tesla T4"], H200 | {"bf16": False, "capability": [7, 5], "triton_error": "no C compiler"})
    capabilities = system.list_capabilities("cuda")
    assert "compute capability 8.0" in capabilities["bf16"] and "7.5" in capabilities["bf16"]
    assert capabilities["triton"] == "no C compiler" and capabilities["cuda_graphs"] is None


@pytest.mark.parametrize(
    ("driver_cuda", "helps"),
    [("13.0", "whl/cu130"), ("12.8", "whl/cu126"), ("11.4", "update the driver"), (None, "whl/cu130")],
)
def test_a_gpu_that_torch_cannot_use_stops_with_what_helps(
    pretend: Any, monkeypatch: pytest.MonkeyPatch, driver_cuda: str | None, helps: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    pretend(["NVIDIA H200"], {"error": "torch is built without CUDA", "torch": "2.13.0+cpu"}, driver_cuda)
    for requested in (None, "cuda"):
        with pytest.raises(UserError) as error:
            system.choose_device(requested)
        said = str(error.value)
        assert "built without CUDA" in said and "pip install" in said and "torch==2.13.0 " in said
        assert helps in said and "--device cpu" in said and "\n" not in said
    assert system.choose_device("cpu") == "cpu"


def test_a_hidden_gpu_is_called_hidden(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(["NVIDIA H200"], {"error": "no CUDA-capable device is detected"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UserError, match="CUDA_VISIBLE_DEVICES hides it"):
        system.choose_device()


def fake_nvml(monkeypatch: pytest.MonkeyPatch, init: Any) -> None:
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = init
    nvml.nvmlShutdown = lambda: None
    nvml.nvmlSystemGetCudaDriverVersion = lambda: 13000
    nvml.nvmlSystemGetDriverVersion = lambda: b"580.65.06"
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetName = lambda index: f"GPU {index}"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


def refuse() -> None:
    raise RuntimeError("refused")


def test_gpus_are_asked_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, lambda: None)
    first = {"name": "GPU 0", "driver": "580.65.06", "driver_cuda": "13.0"}
    assert system.gpus_seen.__wrapped__() == [first, first | {"name": "GPU 1"}]
    fake_nvml(monkeypatch, refuse)
    assert system.gpus_seen.__wrapped__() == []


def test_an_old_torch_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, warned in (("2.10.1+cu128", True), ("2.11.0", False), ("2.13.0+cpu", False), (None, False)):
        monkeypatch.setattr(bounds, "find_version", lambda _, version=version: version)
        assert bool(system.torch_warning()) == warned


def test_a_probe_that_dies_is_an_error_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'ImportError: libcudart.so' >&2\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(system.sys, "executable", str(fake))
    assert system.probe_gpu.__wrapped__() == {"error": "torch ended with status 3: ImportError: libcudart.so"}


@pytest.mark.gpu
def test_this_gpu_can_run_everything_it_should() -> None:
    assert system.choose_device() == "cuda"
    assert system.list_capabilities("cuda")["triton"] is None and system.describe_machine("cuda")["gpu"]
