"""Signs of an NVIDIA GPU that no library lists, and causes for which torch cannot use it, with what helps.

Nothing here asks torch or CUDA: `ladder.machine.system` hands over their answers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TypedDict

from ladder.core.errors import one_line
from ladder.machine.nvml import open_nvml
from ladder.machine.probe import Probe

PROC = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")
PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"  # vendor; the class of display controllers, compute-only GPUs among them
VARIABLE = "CUDA_VISIBLE_DEVICES"
CPU = "or run with --device cpu"
# Messages of NVML where the software is installed but there may be no GPU, as on a cluster's CPU nodes.
_NO_GPU = re.compile(r"not found|no devices|not loaded|no module|no such file|cannot open shared", re.I)
_MISMATCH = r"Error 803\b|version mismatch|unsupported display driver"
# A message of NVML, CUDA or torch, and the advice. The last is about a GPU's absence.
CAUSES = {
    _MISMATCH: "the driver's module and its libraries are of two versions, as after an update: reboot, or reload it"
    " (sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia)",
    r"Error 804\b|forward compatibility": "the container's cuda-compat libraries do not fit this GPU's driver: take"
    " them out of LD_LIBRARY_PATH, or update the driver",
    r"Error 802\b|not yet initialized": "its NVLink fabric is not set up: sudo systemctl start nvidia-fabricmanager",
    r"busy or unavailable|exclusive|Error 46\b": "another process holds it alone: nvidia-smi shows which, and the"
    " compute mode (sudo nvidia-smi -c DEFAULT allows several)",
    r"(?i)out of memory|ALLOC_FAILED": "its memory is taken: nvidia-smi shows by which process",
    r"(?i)is lost|fallen off|\bXid\b|uncorrectable|ECC error": "the GPU has stopped answering: reboot",
    r"(?i)insufficient permissions|permission denied|operating system|Error 304\b": "this user may not open its device:"
    " ls -l /dev/nvidia* shows who may (a container: docker run --gpus all)",
    r"(?i)unknown error|Error 999\b": "the driver is in a bad state, as after a suspend: reload it (sudo modprobe -r"
    " nvidia_uvm; sudo modprobe nvidia_uvm), start the container anew, or reboot",
    r"did not answer": "the GPU or its driver hangs: nvidia-smi shows whether it answers; if not, reboot",
    r"Found no NVIDIA driver|driver initialization failed|not loaded": "no driver answers: install NVIDIA's or load it"
    " (sudo modprobe nvidia); a container is started with docker run --gpus all",
}
_NO_DEVICE = re.compile(r"(?i)No CUDA GPUs|no CUDA-capable device|invalid device|device count")
_NO_IMAGE = r"no kernel image|not compatible with the current PyTorch|Error 209\b"
_OLD_DRIVER = re.compile(r"too old|insufficient for CUDA|Error 35\b", re.I)


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
    if any(PROC.glob("*")):
        return "/proc/driver/nvidia knows it"
    if any(DEVICES.glob("nvidia[0-9]*")):
        return "/dev/nvidia0 is there"
    for device in sorted(PCI.glob("*")):
        vendor, kind = ((device / name).read_text().strip().lower() for name in ("vendor", "class"))
        if vendor == NVIDIA and kind.startswith(DISPLAY):
            return f"PCI device {device.name}"
    return None


def is_about_gpu(error: str) -> bool:
    """Return whether torch's message is about a trouble with a GPU, not about its absence."""
    return any(re.search(cause, error) for cause in (*list(CAUSES)[:-1], _NO_IMAGE))


def suggest_fix(answer: Probe, gpus: list[SeenGpu], sign: str | None = None) -> str:
    """Return what to do when torch cannot use the GPU, in one sentence with the command that helps.

    Args:
        answer: that of `ladder.machine.probe`: its error, torch's version, the GPU's capability if it was read.
        gpus: the GPUs that the driver lists.
        sign: that of `find_sign` if it lists none.
    """
    error = answer["error"]
    if sign and re.search(_MISMATCH, sign):
        helps = CAUSES[_MISMATCH]
    elif hidden := explain_hiding(error, len(gpus)):
        return f"{hidden}, {CPU}"
    else:
        texts = f"{error}\n{sign or ''}"
        helps = next((helps for cause, helps in CAUSES.items() if re.search(cause, texts)), "")
    if helps:
        return f"{helps[0].upper()}{helps[1:]}; {CPU}"
    amd = "This torch is for AMD's GPUs. " if "+rocm" in (answer.get("torch") or "") else ""
    return f"{amd}Try: {_advise_install(answer, gpus)}; {CPU}"


def explain_hiding(error: str, count: int) -> str | None:
    """Return one clause if CUDA_VISIBLE_DEVICES hides every GPU: its value, and what helps. Else None.

    CUDA takes the entries up to the first that names no GPU, so the first decides whether there is any.
    """
    value = os.environ.get(VARIABLE)
    if value is None:
        return None
    first = value.split(",")[0].strip()
    hides = (
        f"{VARIABLE}={ascii(value)[1:-1][:60]} hides it" if value else f"{VARIABLE} hides it, as it is empty"
    )
    if first == "NoDevFiles":
        return f"{hides}: Slurm gave this job no GPU; ask for one (--gres=gpu:1)"
    if first.isdigit() and int(first) >= count > 0:
        return f"{hides}: GPUs 0 to {count - 1} exist; name one that does, unset it"
    if not (first.isdigit() or first.startswith(("GPU-", "MIG-"))):
        return f"{hides}: unset it"
    if _NO_DEVICE.search(error):
        return f"{hides}: nvidia-smi -L lists those that exist; name one of them, unset it"
    return None


def _advise_install(answer: Probe, gpus: list[SeenGpu]) -> str:
    """Return the command that installs a torch for this driver and this GPU."""
    version = re.match(r"[\d.]+", answer.get("torch") or "")
    torch = f"torch=={version[0]}" if version else "torch"
    known = gpus[0]["driver_cuda"] if gpus else None
    supported = tuple(int(part) for part in known.split(".")) if known else None
    old = tuple(answer.get("capability") or (9, 0)) < (7, 5)  # CUDA 13 has dropped these GPUs
    index = "cu130" if not old and (supported is None or supported >= (13, 0)) else "cu126"
    command = f"pip install --force-reinstall {torch} --index-url https://download.pytorch.org/whl/{index}"
    if _OLD_DRIVER.search(answer["error"]) and supported is None:
        return "update the driver, which is older than this torch's CUDA"
    if supported and supported < (12, 6):
        return f"update the driver (it knows CUDA {known}), then {command}"
    return command
