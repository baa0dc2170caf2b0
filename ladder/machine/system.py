"""This machine and its abilities.

Nothing here creates a CUDA context in the calling process: torch is asked once, in a short process of its own. Host
and user names, serial numbers, UUIDs and paths never enter `facts`.
"""

import contextlib
import ctypes
import functools
import importlib.util
import json
import math
import os
import platform
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict, cast

from ladder.core import bounds, starting
from ladder.core.errors import UserError, one_line
from ladder.core.locks import device_lock
from ladder.core.paths import ROOT
from ladder.core.plain import Plain
from ladder.core.text import last_line, make_slug
from ladder.machine.nvml import open_nvml
from ladder.machine.probe import Held, Probe

SLOW_S = 3.0  # seconds of silence before a line says what the command waits for
CAPABILITIES = ("cuda", "triton", "bf16", "cuda_graphs", "nvcc", "nvjpeg", "fp8", "dependent_launch")

# --- a GPU that torch cannot use --------------------------------------------------------------------------------------

PROC, DEVICES, PCI = Path("/proc/driver/nvidia/gpus"), Path("/dev"), Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"  # vendor; the class of display controllers, compute-only GPUs among them
VARIABLE = "CUDA_VISIBLE_DEVICES"
# Messages of NVML where the software is installed but there may be no GPU, as on a cluster's CPU nodes.
_NO_GPU = re.compile(r"not found|no devices|not loaded|no module|no such file|cannot open shared", re.I)
_NO_DEVICE = re.compile(r"No CUDA GPUs|no CUDA-capable device|invalid device|device count", re.I)
_NO_IMAGE = r"no kernel image|not compatible with the current PyTorch|Error 209\b"
# A message of NVML, CUDA or torch, and what helps. The last is about a GPU's absence.
CAUSES = {
    r"Error 803\b|version mismatch|unsupported display driver": "the driver's module and its libraries are of two"
    " versions: reboot, or reload the module",
    r"Error 804\b|forward compatibility": "take the container's cuda-compat libraries out of LD_LIBRARY_PATH, or update"
    " the driver",
    r"Error 802\b|not yet initialized": "start its NVLink fabric: sudo systemctl start nvidia-fabricmanager",
    r"busy or unavailable|exclusive|Error 46\b": "another process holds it alone: nvidia-smi shows which",
    r"(?i)out of memory|ALLOC_FAILED": "its memory is taken: nvidia-smi shows by which process",
    r"(?i)is lost|fallen off|\bXid\b|uncorrectable|ECC error": "the GPU has stopped answering: reboot",
    r"(?i)insufficient permissions|permission denied|operating system|Error 304\b": "this user may not open its device:"
    " see ls -l /dev/nvidia* (a container: docker run --gpus all)",
    r"(?i)unknown error|Error 999\b|did not answer": "the driver hangs: reload it (sudo modprobe -r nvidia_uvm; sudo"
    " modprobe nvidia_uvm), start the container anew, or reboot",
    r"Found no NVIDIA driver": "no driver answers: install or load it (sudo modprobe nvidia; a container: docker run"
    " --gpus all)",
}


class SeenGpu(TypedDict):
    """An NVIDIA GPU that the driver knows."""

    name: str
    driver: str
    driver_cuda: str | None  # the newest CUDA of this driver, as "13.0"


def find_sign() -> str | None:
    """Return the sign of an NVIDIA GPU that NVML does not list; None without a sign."""
    try:
        nvml = open_nvml()
        nvml.nvmlDeviceGetCount()
        nvml.nvmlShutdown()
    except Exception as error:
        message = one_line(str(error))
        if message and not _NO_GPU.search(message):
            return f"the driver says: {message}"
    for path in (*PROC.glob("*"), *DEVICES.glob("nvidia[0-9]*")):
        return f"{path} is there"
    for device in sorted(PCI.glob("*")):
        vendor, kind = ((device / name).read_text().strip().lower() for name in ("vendor", "class"))
        if vendor == NVIDIA and kind.startswith(DISPLAY):
            return f"PCI device {device.name}"
    return None


def suggest_fix(answer: Probe, gpus: list[SeenGpu], sign: str | None = None) -> str:
    """Return what to do when torch cannot use the GPU, in one sentence with the command that helps.

    Args:
        answer: that of `ladder.machine.probe`: its error, torch's version, the GPU's capability if it was read.
        gpus: the GPUs that the driver lists.
        sign: that of `find_sign` if it lists none.
    """
    error, value = answer["error"], os.environ.get(VARIABLE)
    if value is not None and _NO_DEVICE.search(error):
        return (
            f"{VARIABLE}={ascii(value)[1:-1][:60]} hides it: unset it, or name a GPU that nvidia-smi -L lists"
        )
    for cause, helps in CAUSES.items():
        if re.search(cause, f"{error}\n{sign or ''}"):
            return helps
    known = gpus[0]["driver_cuda"] if gpus else None
    supported = tuple(int(part) for part in known.split(".")) if known else (13, 0)
    if supported < (12, 6) or re.search(r"(?i)too old|insufficient for CUDA|Error 35\b", error):
        return "update the driver, which is older than this torch's CUDA"
    version = re.match(r"[\d.]+", answer.get("torch") or "")
    old = tuple(answer.get("capability") or (9, 0)) < (7, 5)  # CUDA 13 has dropped these GPUs
    index = "cu126" if old or supported < (13, 0) else "cu130"
    torch = f"torch=={version[0]}" if version else "torch"
    return f"pip install --force-reinstall {torch} --index-url https://download.pytorch.org/whl/{index}"


def choose_device(requested: str | None = None) -> str:
    """Return "cuda" if torch can use a GPU, else "cpu". Raises `UserError` rather than ignore a GPU that is there."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(starting.describe_lacking("torch").removeprefix("ladder: "))
    if requested == "cpu":
        return "cpu"
    gpus = gpus_seen()
    sign = None if gpus else find_sign()
    if not gpus and sign is None and not _driver_library():
        if requested == "cuda":
            raise UserError("no NVIDIA GPU was found on this machine; run with --device cpu")
        return "cpu"
    answer = probe_gpu()
    if (error := answer["error"]) is None:
        return "cuda"
    is_about_gpu = any(re.search(cause, error) for cause in (*list(CAUSES)[:-1], _NO_IMAGE))
    if requested is None and not (gpus or sign or is_about_gpu):
        return "cpu"
    name = gpus[0]["name"] if gpus else f"an NVIDIA GPU ({sign})" if sign else "a GPU driver"
    fix = suggest_fix(answer, gpus, sign)
    raise UserError(f"{name} is here but torch cannot use it: {error}. Try: {fix}; or run with --device cpu")


# --- what the machine is, and what it can do --------------------------------------------------------------------------


def describe_machine(device: str) -> Plain:
    """Return the machine as stored with a result: display strings and numbers (GB = 2**30 bytes), or None."""
    cpu = cpu_name()
    known: Plain = {
        "name": make_slug(cpu), "gpu": None, "gpu_memory_gb": None, "driver": None, "cuda": None, "cudnn": None,
        "torch": bounds.find_version("torch"), "triton": bounds.find_version("triton"),
        "python": platform.python_version(), "cpu": cpu, "cores": usable_cores(), "ram_gb": ram_gb(),
        "os": f"{platform.system()} {platform.machine()}", "device": device,
    }  # fmt: skip
    if device == "cpu":
        return known
    answer, gpus = probe_gpu(), gpus_seen()
    if answer["error"]:
        raise UserError(f"torch cannot use the GPU: {answer['error']}")
    return known | {
        "name": make_slug(answer["name"]),
        "gpu": answer["name"],
        "gpu_memory_gb": round(answer["memory"] / 2**30, 1),
        "driver": gpus[0]["driver"] if gpus else None,
        "cuda": answer["cuda"],
        "cudnn": dotted_cudnn(answer["cudnn"]),
        "torch": answer["torch"],
    }


def list_capabilities(device: str) -> dict[str, str | None]:
    """Return {capability: None if this device has it, else one line why not}."""
    if device == "cpu":
        return {name: None if name == "bf16" else "needs a CUDA GPU" for name in CAPABILITIES}
    answer = probe_gpu()
    error, triton = answer["error"], answer["error"] or answer["triton_error"]
    capability = tuple(answer.get("capability", (0, 0)))
    major, minor = capability

    def needs(what: str, least: str) -> str:
        return f"needs {what} (compute capability {least}), this GPU has {major}.{minor}"

    return {
        "cuda": error,
        "triton": triton,
        "bf16": None if answer.get("bf16") else needs("BF16 arithmetic", "8.0"),
        "cuda_graphs": error,
        "nvcc": error or answer.get("nvcc_error"),
        "nvjpeg": error or answer.get("nvjpeg_error"),
        "fp8": None if capability >= (8, 9) else needs("FP8 arithmetic", "8.9"),
        "dependent_launch": triton
        or (None if capability >= (9, 0) else needs("programmatic dependent launch", "9.0")),
    }


def device_key(device: str) -> str | None:
    """Return a name of one GPU of this host, for locks only and never stored. The CPU's is None: it needs no lock."""
    return f"cuda {probe_gpu().get('uuid', '')}" if device == "cuda" else None


def gpu_uuids() -> list[str]:
    """Return the UUIDs of all GPUs that torch sees, in its order. On a machine without one there are none."""
    return list(probe_gpu().get("uuids", []))


def device_keys(device: str, count: int) -> list[str]:
    """Return names of the first GPUs of this host for locks, in an order that is the same for everybody."""
    return sorted(f"cuda {uuid}" for uuid in gpu_uuids()[:count]) if device == "cuda" else []


@contextlib.contextmanager
def hold_untimed(device: str, count: int = 1) -> Iterator[None]:
    """Use the first GPUs for work that nobody times: wait while a run measures on one, then keep runs away."""
    with contextlib.ExitStack() as held:
        for key in device_keys(device, count):
            held.enter_context(device_lock(key, shared=True))
        yield


@functools.cache
def probe_gpu() -> Probe:
    """Return what torch says about its first GPU (see `ladder.machine.probe`), asked once in another process.

    It waits for a run that measures on that GPU, if torch was never asked before: torch's context would disturb it.
    """
    answer = _ask_torch()
    if (gpu := answer.get("held")) is not None:
        with device_lock(f"cuda {gpu}", shared=True):
            answer = _ask_torch()
    return cast(Probe, answer)


def _ask_torch() -> Probe | Held:
    slow = threading.Timer(SLOW_S, lambda: print("asking torch what the GPU can do", file=sys.stderr))
    slow.daemon = True
    slow.start()
    command = [sys.executable, "-m", "ladder.machine.probe"]
    try:
        run = subprocess.run(
            command, timeout=300, cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        return json.loads(run.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": "torch did not answer within 300 s"}
    except (IndexError, ValueError):
        return {"error": one_line(f"torch ended with status {run.returncode}: {last_line(run.stderr)}")}
    finally:
        slow.cancel()


@functools.cache
def gpus_seen() -> list[SeenGpu]:
    """Return the NVIDIA GPUs that NVML knows, whatever torch says."""
    try:
        nvml = open_nvml()
        number, driver = nvml.nvmlSystemGetCudaDriverVersion(), _clean_text(nvml.nvmlSystemGetDriverVersion())
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [_clean_text(nvml.nvmlDeviceGetName(handle)) for handle in handles]
        nvml.nvmlShutdown()
    except Exception:
        return []
    return [{"name": name, "driver": driver, "driver_cuda": cuda} for name in names]


def _driver_library() -> bool:
    """Return whether the CUDA driver is there although NVML is not."""
    try:
        ctypes.CDLL("libcuda.so.1")
        return True
    except OSError:
        return False


def cpu_name() -> str:
    """Return the processor's marketing name, else its architecture."""
    for line in (_read_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip().lower() in ("model name", "cpu model", "hardware") and value.strip():
            return " ".join(value.split())
    return platform.machine() or "cpu"


def usable_cores() -> int:
    """Return the number of cores that this process may use, by its affinity and a container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = (_read_text("/sys/fs/cgroup/cpu.max") or "max").split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    return cores


def ram_gb() -> float:
    """Return the memory that this process may use, in whole 2**30 bytes."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = (_read_text("/sys/fs/cgroup/memory.max") or "max").strip()
    if limit.isdigit():
        total = min(total, int(limit))
    return round(total / 2**30)


def _read_text(path: str) -> str | None:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return None


def dotted_cudnn(number: int | None) -> str | None:
    """Return cuDNN's version with dots: 91900 -> "9.19.0" (cuDNN 9 counts in 10000s, cuDNN 8 in 1000s)."""
    if not number:
        return None
    unit = 10000 if number >= 90000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def _clean_text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


if __name__ == "__main__":  # `make ladder` asks: without a GPU the ladder is a quick one
    print("" if gpus_seen() or find_sign() else "--quick")
