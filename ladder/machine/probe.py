"""Facts that torch knows about the GPU, as one JSON object: `python -m ladder.machine.probe`.

A process of its own, because the answers create a CUDA context, which the measuring process must not hold. A run that
measures on that GPU would see it as company. So the GPU's lock is shared meanwhile, and while a run holds it the answer
is torch's earlier one.
"""

import contextlib
import ctypes
import hashlib
import importlib.metadata
import json
import re
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from ladder.core import files
from ladder.core.errors import UserError, format_error, one_line
from ladder.core.locks import device_lock

_COUNTING = re.compile(r"Unexpected error from cudaGetDeviceCount\(\).*?(?=Error \d+)", re.DOTALL)


class Probe(TypedDict, total=False):
    """Facts of the current CUDA device. After an error the facts behind it are missing."""

    error: str | None  # one line why torch cannot use the device
    torch: str
    cuda: str | None  # that torch was built with
    capability: list[int]  # major, minor
    name: str
    memory: int  # bytes
    cudnn: int | None
    bf16: bool
    uuid: str
    uuids: list[str]  # of all devices that this process can see
    triton_error: str | None
    nvcc_error: str | None
    nvjpeg_error: str | None


class Held(TypedDict):
    """The answer if a run measures on the GPU, and torch was not asked before."""

    held: str  # UUID of that GPU


class _Busy(Exception):
    """A run holds the lock of the GPU."""


def probe_unless_held() -> Probe | Held:
    """Return the facts without a CUDA context on a GPU that a run measures on."""
    driver, gpus = list_visible()
    if not gpus:  # no lock is known
        return probe_torch()
    path = _locate_stored(gpus[0], driver)
    try:
        with device_lock(f"cuda {gpus[0]}", _raise_busy, shared=True):
            facts = probe_torch()
            if facts["error"] is None and facts["uuid"] == gpus[0]:
                with contextlib.suppress(UserError):
                    files.write_file(path, json.dumps(facts))
            return facts
    except _Busy:
        early = check_import()
        if early["error"]:
            return early
        try:
            return {**json.loads(path.read_text()), "uuids": gpus}
        except (OSError, ValueError, TypeError):
            return {"held": gpus[0]}


def _raise_busy() -> NoReturn:
    raise _Busy


def list_visible() -> tuple[int, list[str]]:
    """Return the driver's CUDA and the UUIDs of the GPUs that CUDA shows here, as torch orders and spells them.

    The driver's library creates no context for that. It is (0, []) where the driver does not tell.
    """
    number, count, index, raw = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    uuids = []
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        failed = cuda.cuInit(0) or cuda.cuDriverGetVersion(ctypes.byref(number))
        if failed or cuda.cuDeviceGetCount(ctypes.byref(count)):
            return 0, []
        for k in range(count.value):
            if cuda.cuDeviceGet(ctypes.byref(index), k) or cuda.cuDeviceGetUuid_v2(raw, index):
                return 0, []
            uuids.append(str(uuid.UUID(bytes=bytes(raw))))
    except (OSError, AttributeError):  # no driver, or one before CUDA 11.4
        return 0, []
    return number.value, uuids


def _locate_stored(gpu: str, driver: int) -> Path:
    """Return the file for answers about a GPU by this Python, with what it has installed."""
    versions = []
    for package in ("torch", "triton", "torchvision"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(importlib.metadata.version(package))
    key = json.dumps([gpu, driver, sys.prefix, versions, sorted(Probe.__annotations__)])
    return files.cache_folder("probe") / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def check_import() -> Probe:
    """Return torch's version and CUDA, or why it can use no GPU at all."""
    try:
        import torch
    except Exception as error:
        return {"error": f"torch cannot be imported: {format_error(error)}"}
    facts: Probe = {"error": None, "torch": torch.__version__, "cuda": torch.version.cuda}
    if torch.version.cuda is None:
        facts["error"] = f"torch {torch.__version__} is built without CUDA"
    return facts


def probe_torch() -> Probe:
    """Return the facts, as far as torch can tell them."""
    facts = check_import()
    if facts["error"]:
        return facts
    import torch

    try:
        torch.cuda.init()
        gpus = [torch.cuda.get_device_properties(k) for k in range(torch.cuda.device_count())]
        facts["capability"] = [gpus[0].major, gpus[0].minor]
        torch.zeros(1, device="cuda").add_(1).item()
    except Exception as error:
        return {**facts, "error": shorten_error(error)}
    uuids = [str(getattr(gpu, "uuid", "")) for gpu in gpus]
    return {
        **facts,
        "name": gpus[0].name,
        "memory": gpus[0].total_memory,
        "cudnn": torch.backends.cudnn.version(),
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "uuid": uuids[0],
        "uuids": uuids,
        "triton_error": _find_error(_try_triton, torch),
        "nvcc_error": _find_error(_try_nvcc, torch),
        "nvjpeg_error": _find_error(_try_nvjpeg, torch),
    }


def shorten_error(error: Exception) -> str:
    """Return an error in one line, without torch's words before those of CUDA."""
    return one_line(f"{type(error).__name__}: {_COUNTING.sub('', str(error))}")


def _find_error(attempt: Callable[[Any], str | None], torch: Any) -> str | None:
    """Return why something cannot be done here, or None."""
    try:
        return attempt(torch)
    except Exception as error:
        return format_error(error)


def _try_nvjpeg(torch: Any) -> str | None:
    """Decode a JPEG file on the GPU."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return "needs torchvision: pip install torchvision (from the index that torch came from)"
    import io

    from PIL import Image

    from stylegan_lite.step.gpudecode import Decoder

    file = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 100, 50)).save(file, "JPEG")
    data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    image = Decoder(torch.device("cuda"), 16)([(data, False, "a test image")])
    red = float(image[0, 0].float().mean())
    return None if abs(red - 200) < 8 else "nvJPEG decoded a test image wrongly"


def _try_triton(torch: Any) -> str | None:
    """Compile and run a kernel, which needs a C compiler and a recent GPU."""
    from ladder.machine import probe_kernel

    x = torch.zeros(8, device="cuda")
    probe_kernel.add_one[(1,)](x, n=8)
    return None if float(x.sum()) == 8 else "a Triton test kernel gave a wrong result"


def _try_nvcc(torch: Any) -> str | None:
    """See whether CUDA C++ can be built. No build is tried, as it takes a while."""
    from kernels import cuda

    return cuda.available()


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(probe_unless_held()) + "\n")
