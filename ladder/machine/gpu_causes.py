"""Signs of an NVIDIA GPU that no library lists, and causes for which torch cannot use it, with what helps.

Nothing here asks torch or CUDA: `ladder.machine.system` hands over their answers.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TypedDict

from ladder.base.errors import one_line
from ladder.machine.probe import Probe

PROC = Path("/proc/driver/nvidia/gpus")
DEVICES = Path("/dev")
PCI = Path("/sys/bus/pci/devices")
NVIDIA, DISPLAY = "0x10de", "0x03"  # vendor; the class of display controllers, compute-only GPUs among them
VARIABLE = "CUDA_VISIBLE_DEVICES"
CPU = "or run with --device cpu"
# Messages of NVML and nvidia-smi where the software is installed but there may be no GPU, as on a cluster's CPU nodes.
_NO_GPU = re.compile(
    r"not found|no devices|not loaded|couldn't communicate|no module|no such file|cannot open shared", re.I
)
_MISMATCH = re.compile(r"Error 803\b|version mismatch|unsupported display driver")
# (the cause's words in a message of NVML, nvidia-smi, CUDA or torch; the advice)
CAUSES = (
    (
        _MISMATCH,
        "the driver's module and its libraries are of two versions, as after an update: reboot, or reload it"
        " (sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia)",
    ),
    (
        re.compile(r"Error 804\b|forward compatibility"),
        "the container's cuda-compat libraries do not fit this GPU's driver: take them out of LD_LIBRARY_PATH, or"
        " update the driver",
    ),
    (
        re.compile(r"Error 802\b|not yet initialized"),
        "its NVLink fabric is not set up: sudo systemctl start nvidia-fabricmanager, then try again",
    ),
    (
        re.compile(r"busy or unavailable|exclusive|Error 46\b"),
        "another process holds it alone: nvidia-smi shows which and the compute mode (sudo nvidia-smi -c DEFAULT allows"
        " several); try again when it has ended",
    ),
    (
        re.compile(r"out of memory|ALLOC_FAILED", re.I),
        "its memory is taken: nvidia-smi shows by which process; try again when that has ended",
    ),
    (
        re.compile(r"is lost|fallen off|\bXid\b|uncorrectable|ECC error", re.I),
        "the GPU has stopped answering: reboot; if that does not help it may be broken",
    ),
    (
        re.compile(r"[Ii]nsufficient [Pp]ermissions|[Pp]ermission denied|operating system|Error 304\b"),
        "this user may not open its device: ls -l /dev/nvidia* shows who may (a container: docker run --gpus all)",
    ),
    (
        re.compile(r"[Uu]nknown [Ee]rror|Error 999\b"),
        "the driver is in a bad state, as after a suspend: reload it (sudo modprobe -r nvidia_uvm; sudo modprobe"
        " nvidia_uvm) or start the container anew; else reboot",
    ),
    (
        re.compile(r"did not answer"),
        "the GPU or its driver hangs: nvidia-smi shows whether it answers; if not, reboot",
    ),
    (
        re.compile(r"Found no NVIDIA driver|driver initialization failed|not loaded|couldn't communicate"),
        "no driver answers: install NVIDIA's or load it (sudo modprobe nvidia); a container is started with"
        " docker run --gpus all",
    ),
)
_NO_DEVICE = re.compile(
    r"No CUDA GPUs|no CUDA-capable device|invalid device ordinal|[Ii]nvalid device|device count"
)
_NO_IMAGE = re.compile(r"no kernel image|not compatible with the current PyTorch|Error 209\b")
_OLD_DRIVER = re.compile(r"too old|insufficient for CUDA|Error 35\b", re.I)


def find_sign() -> str | None:
    """Return the sign of an NVIDIA GPU that neither NVML nor nvidia-smi lists; None without a sign."""
    if message := find_refusal():
        return f"the driver says: {message}"
    if any(PROC.glob("*")):
        return "/proc/driver/nvidia knows it"
    if any(DEVICES.glob("nvidia[0-9]*")):
        return "/dev/nvidia0 is there"
    for device in sorted(PCI.glob("*")):
        if _read(device / "vendor") == NVIDIA and _read(device / "class").startswith(DISPLAY):
            return f"PCI device {device.name}"
    return None


def find_refusal() -> str | None:
    """Return the line with which NVML or nvidia-smi refuses to answer for a GPU; None if there is no GPU."""
    message = _nvml_refusal() or _smi_refusal()
    return None if message is None or _NO_GPU.search(message) else message


def _nvml_refusal() -> str | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        message = one_line(str(error))
        return None if _NO_GPU.search(message) else message or None
    try:
        pynvml.nvmlDeviceGetCount()
    except Exception as error:
        return one_line(str(error)) or None
    finally:
        pynvml.nvmlShutdown()
    return None


def _smi_refusal() -> str | None:
    try:
        run = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    message = one_line(f"{run.stdout}\n{run.stderr}")
    about = re.search(r"NVML|driver|GPU", message)  # else the program itself is broken
    return message if run.returncode and about else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return ""


def is_about_gpu(error: str) -> bool:
    """Return whether torch's message is about a trouble with a GPU, not about its absence."""
    return any(cause.search(error) for cause, _ in CAUSES[:-1]) or bool(_NO_IMAGE.search(error))


class SeenGpu(TypedDict):
    """An NVIDIA GPU that the driver knows."""

    name: str
    driver: str
    driver_cuda: str | None  # the newest CUDA of this driver, as "13.0"


def advise(answer: Probe, gpus: list[SeenGpu], sign: str | None = None) -> str:
    """Return what to do when torch cannot use the GPU, in one sentence with the command that helps.

    Args:
        answer: that of `ladder.machine.probe`: its error, torch's version, the GPU's capability if it was read.
        gpus: the GPUs that the driver lists.
        sign: that of `find_sign` if it lists none.
    """
    message = _advice(answer, gpus, sign)
    return message[:1].upper() + message[1:] if not message.startswith(VARIABLE) else message


def _advice(answer: Probe, gpus: list[SeenGpu], sign: str | None) -> str:
    error = answer["error"]
    if sign and _MISMATCH.search(sign):
        return f"{CAUSES[0][1]}; {CPU}"
    if hidden := explain_hiding(error, len(gpus)):
        return f"{hidden}, {CPU}"
    for cause, helps in CAUSES:
        if cause.search(error) or (sign and cause.search(sign)):
            return f"{helps}; {CPU}"
    if "+rocm" in (answer.get("torch") or ""):
        return f"this torch is for AMD's GPUs. {_install(answer, gpus)}"
    return _install(answer, gpus)


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
    known = re.match(r"(GPU|MIG)-", first)
    if first == "NoDevFiles":
        return f"{hides}: Slurm gave this job no GPU; ask for one (--gres=gpu:1)"
    if first.isdigit() and int(first) >= count > 0:
        exist = "only GPU 0 exists" if count == 1 else f"GPUs 0 to {count - 1} exist"
        return f"{hides}: {exist}; name one that does, unset it"
    if not (first.isdigit() or known):
        return f"{hides}: unset it"
    if _NO_DEVICE.search(error) or (known and _is_nobodys(first)):
        return f"{hides}: nvidia-smi -L lists those that exist; name one of them, unset it"
    return None


def _is_nobodys(uuid: str) -> bool:
    """Return whether NVML knows every GPU and its MIG parts, and no UUID among them begins so."""
    try:
        import pynvml

        pynvml.nvmlInit()
        uuids = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuids.append(pynvml.nvmlDeviceGetUUID(gpu))
            if pynvml.nvmlDeviceGetMigMode(gpu)[0]:
                return False  # CUDA alone knows the parts
        return not any(str(each).startswith(uuid) for each in uuids)
    except Exception:  # older GPUs and libraries lack some of it
        return False


def _install(answer: Probe, gpus: list[SeenGpu]) -> str:
    """Return the command that installs a torch for this driver and this GPU."""
    version = re.match(r"[\d.]+", answer.get("torch") or "")
    torch = f"torch=={version[0]}" if version else "torch"
    known = gpus[0]["driver_cuda"] if gpus else None
    supported = tuple(int(part) for part in known.split(".")) if known else None
    old = tuple(answer.get("capability") or (9, 0)) < (7, 5)  # CUDA 13 has dropped these GPUs
    index = "cu130" if not old and (supported is None or supported >= (13, 0)) else "cu126"
    command = f"pip install --force-reinstall {torch} --index-url https://download.pytorch.org/whl/{index}"
    if _OLD_DRIVER.search(answer["error"]) and supported is None:
        return f"Try: update the driver, which is older than this torch's CUDA; {CPU}"
    if supported and supported < (12, 6):
        command = f"update the driver (it knows CUDA {known}), then {command}"
    return f"Try: {command}; {CPU}"
