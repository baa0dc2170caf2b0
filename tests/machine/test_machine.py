"""Facts of machines that this one is not, and advice where torch cannot use a GPU. NVML and torch are faked."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ladder.core import text
from ladder.core.errors import UserError
from ladder.machine import probe, system

H200 = {
    "error": None, "torch": "2.13.0", "cuda": "13.0", "name": "NVIDIA H200", "memory": 150_000_000_000,
    "capability": [9, 0], "cudnn": 91900, "bf16": True, "uuid": "GPU-5f1e", "triton_error": None,
}  # fmt: skip
BUILT = "torch 2.13.0 is built without CUDA"
GPUS_SEEN, PROBE_GPU = system.gpus_seen.__wrapped__, system.probe_gpu.__wrapped__  # `bare` replaces both
NO_DEVICE = "RuntimeError: No CUDA GPUs are available"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine on which nothing tells of a GPU, whatever this one has."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("PROC", "DEVICES", "PCI"):
        monkeypatch.setattr(system, name, tmp_path / name)
    pretend(monkeypatch, [], {"error": BUILT, "torch": "2.13.0"})
    refuse_nvml(monkeypatch, "NVML Shared Library Not Found")
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, names: list[str], torch: Any, cuda: str | None = "13.0") -> None:
    """Set what the driver (a list of names) and torch (what `ladder.machine.probe` prints) say."""
    gpus = [{"name": name, "driver": "580.65.06", "driver_cuda": cuda} for name in names]
    monkeypatch.setattr(system, "gpus_seen", lambda: gpus)
    monkeypatch.setattr(system, "probe_gpu", lambda: torch)
    monkeypatch.setattr(system, "_driver_library", lambda: bool(names))


def refuse_nvml(monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    def refuse() -> None:
        raise RuntimeError(refusal)

    fake = ModuleType("pynvml")
    fake.nvmlInit = refuse
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def refused(requested: str | None = None) -> str:
    with pytest.raises(UserError) as error:
        system.choose_device(requested)
    line = str(error.value)
    assert "\n" not in line and "\x1b" not in line and "--device cpu" in line
    return line


def test_a_machine_without_gpu_is_a_cpu() -> None:
    assert system.choose_device() == system.choose_device("cpu") == "cpu"
    assert "no NVIDIA GPU was found" in refused("cuda")
    facts = system.describe_machine("cpu")
    assert facts["gpu"] is facts["cuda"] is facts["driver"] is None
    assert facts["name"] == text.make_slug(facts["cpu"]) and facts["cores"] >= 1 and facts["ram_gb"] > 0
    missing = [name for name, why in system.list_capabilities("cpu").items() if why]
    assert missing == ["cuda", "triton", "cuda_graphs", "nvcc", "nvjpeg", "fp8", "dependent_launch"]


def test_a_gpu_is_used_and_named_by_its_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ["NVIDIA H200"], H200)
    assert system.choose_device() == "cuda" and system.choose_device("cpu") == "cpu"
    facts = system.describe_machine("cuda")
    assert facts["name"] == "nvidia-h200" and facts["gpu_memory_gb"] == 139.7
    assert (facts["driver"], facts["cuda"], facts["cudnn"]) == ("580.65.06", "13.0", "9.19.0")
    assert "5f1e" not in str(facts)
    assert set(system.list_capabilities("cuda").values()) == {None}


def test_what_a_gpu_cannot_do_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    older = {"bf16": False, "capability": [7, 5], "triton_error": "no C compiler"}
    pretend(monkeypatch, ["Tesla T4"], H200 | older)
    capabilities = system.list_capabilities("cuda")
    assert "compute capability 8.0" in capabilities["bf16"] and "7.5" in capabilities["bf16"]
    assert capabilities["triton"] == "no C compiler" and capabilities["cuda_graphs"] is None


# --- a GPU that torch cannot use --------------------------------------------------------------------------------------


def test_a_cpu_node_with_the_driver_installed_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's nodes share an image: libraries are there, and say that no driver runs."""
    refuse_nvml(monkeypatch, "Driver Not Loaded")
    assert system.choose_device() == "cpu"


def test_a_driver_that_does_not_match_its_library_stops_every_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_nvml(monkeypatch, "Driver/library version mismatch")
    line = refused()
    assert "version mismatch" in line and "reboot" in line and "pip install" not in line
    assert system.choose_device("cpu") == "cpu"


@pytest.mark.parametrize("sign", ["PROC/0000:01:00.0", "DEVICES/nvidia0", "PCI"])
def test_a_gpu_without_a_working_driver_is_seen(sign: str, bare: Path) -> None:
    if sign == "PCI":
        card = bare / "PCI" / "0000:01:00.0"
        card.mkdir(parents=True)
        (card / "vendor").write_text("0x10de\n")
        (card / "class").write_text("0x020000\n")  # a network card of NVIDIA's
        assert system.choose_device() == "cpu"
        (card / "class").write_text("0x030200\n")
    else:
        (bare / sign).mkdir(parents=True)
    assert "an NVIDIA GPU (" in refused()


@pytest.mark.parametrize("value", ["", "-1", "2,0", "GPU-dead", "\x1b[2J"])
def test_the_variable_that_hides_a_gpu_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    pretend(monkeypatch, ["NVIDIA H200"], {"error": NO_DEVICE, "torch": "2.13.0"})
    assert "CUDA_VISIBLE_DEVICES=" in refused()
    pretend(monkeypatch, ["NVIDIA H200"], {"error": BUILT, "torch": "2.13.0"})
    assert "pip install" in refused() and "VISIBLE" not in refused()


@pytest.mark.parametrize(
    ("error", "helps"),
    [
        ("Error 803: system has unsupported display driver / cuda driver combination", "reboot"),
        ("Error 804: forward compatibility was attempted on non supported HW", "cuda-compat"),
        ("Error 802: system not yet initialized", "nvidia-fabricmanager"),
        ("CUDA error: all CUDA-capable devices are busy or unavailable", "another process"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB", "its memory is taken"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "modprobe"),
        ("Found no NVIDIA driver on your system.", "no driver answers"),
        ("Error 304: OS call failed or operation not supported on this OS", "may not open"),
        ("torch did not answer within 300 s", "hangs"),
        ("CUDA error: uncorrectable ECC error encountered", "stopped answering"),
        ("The NVIDIA driver on your system is too old (found version 11040).", "update the driver"),
    ],
)
def test_the_advice_fits_the_cause(error: str, helps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, ["NVIDIA H200"], {"error": error, "torch": "2.13.0"})
    line = refused()
    assert helps in line and "pip install" not in line


@pytest.mark.parametrize(
    ("cuda", "capability", "helps"),
    [
        ("13.0", None, "torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130"),
        ("13.0", [6, 1], "whl/cu126"),
        ("12.8", None, "whl/cu126"),
        ("11.4", None, "update the driver"),
        (None, None, "whl/cu130"),
    ],
)
@pytest.mark.parametrize("requested", [None, "cuda"])
def test_another_torch_is_advised_where_that_helps(
    requested: str | None, cuda: str | None, capability: Any, helps: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = {"error": "no kernel image is available", "torch": "2.13.0+cpu", "capability": capability}
    pretend(monkeypatch, ["NVIDIA H200"], answer, cuda)
    assert helps in refused(requested) and system.choose_device("cpu") == "cpu"


def test_torchs_own_words_do_not_push_cudas_out_of_the_line() -> None:
    words = (
        "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices()"
        " that might have already set an error? Error 803: system has unsupported display driver"
    )
    line = "RuntimeError: Error 803: system has unsupported display driver"
    assert probe.shorten_error(RuntimeError(words)) == line


# --- NVML and the process that asks torch -----------------------------------------------------------------------------


def test_gpus_are_asked_of_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GPUS_SEEN() == []  # NVML refuses
    nvml = ModuleType("pynvml")
    nvml.nvmlInit = nvml.nvmlShutdown = lambda: None
    nvml.nvmlSystemGetCudaDriverVersion = lambda: 13000
    nvml.nvmlSystemGetDriverVersion = lambda: b"580.65.06"
    nvml.nvmlDeviceGetCount = lambda: 2
    nvml.nvmlDeviceGetHandleByIndex = lambda index: index
    nvml.nvmlDeviceGetName = lambda index: f"GPU {index}"
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    first = {"name": "GPU 0", "driver": "580.65.06", "driver_cuda": "13.0"}
    assert GPUS_SEEN() == [first, first | {"name": "GPU 1"}]


@pytest.mark.gpu
def test_this_gpu_can_run_everything_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert system.choose_device() == "cuda"
    assert system.list_capabilities("cuda")["triton"] is None and system.describe_machine("cuda")["gpu"]
