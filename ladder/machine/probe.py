"""Facts that torch knows about the GPU, as one JSON object: `python -m ladder.machine.probe`.

A process of its own, because the answers create a CUDA context, which the measuring process must not hold.
"""

import json
import re
import sys
from typing import Any, TypedDict

from ladder.base.errors import describe, one_line

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


def probe() -> Probe:
    """Return the facts, as far as torch can tell them."""
    found: Probe = {"error": None}
    try:
        import torch
    except Exception as error:
        return {"error": f"torch cannot be imported: {describe(error)}"}
    found["torch"] = torch.__version__
    found["cuda"] = torch.version.cuda
    if torch.version.cuda is None:
        return {**found, "error": f"torch {torch.__version__} is built without CUDA"}
    try:
        torch.cuda.init()
        properties = torch.cuda.get_device_properties(0)
        found["capability"] = [properties.major, properties.minor]
        torch.zeros(1, device="cuda").add_(1).item()
    except Exception as error:
        return {**found, "error": shortened(error)}
    uuids = [_uuid(torch.cuda.get_device_properties(k)) for k in range(torch.cuda.device_count())]
    return {
        **found,
        "name": properties.name,
        "memory": properties.total_memory,
        "cudnn": torch.backends.cudnn.version(),
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
        "uuid": uuids[0],
        "uuids": uuids,
        "triton_error": _triton_error(torch),
        "nvcc_error": _nvcc_error(),
        "nvjpeg_error": _nvjpeg_error(torch),
    }


def _uuid(properties: Any) -> str:
    return str(getattr(properties, "uuid", ""))


def shortened(error: Exception) -> str:
    """Return an error in one line, without torch's words before those of CUDA."""
    return one_line(f"{type(error).__name__}: {_COUNTING.sub('', str(error))}")


def _nvjpeg_error(torch: Any) -> str | None:
    """Return why JPEG files cannot be decoded on the GPU, or None. The proof is to decode one."""
    try:
        import torchvision  # noqa: F401
    except ImportError:
        return "needs torchvision: pip install torchvision (from the index that torch came from)"
    except Exception as error:  # built for another torch
        return f"torchvision cannot be imported: {describe(error)}"
    try:
        import io

        from PIL import Image

        from stylegan_lite.gpudecode import Decoder

        file = io.BytesIO()
        Image.new("RGB", (16, 16), (200, 100, 50)).save(file, "JPEG")
        data = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        found = Decoder(torch.device("cuda"), 16)([(data, False)])
        return (
            None
            if abs(float(found[0, 0].float().mean()) - 200) < 8
            else "nvJPEG decoded a test image wrongly"
        )
    except Exception as error:
        return f"torchvision decodes no JPEG on this GPU: {describe(error)}"


def _triton_error(torch: Any) -> str | None:
    """Return why Triton kernels cannot run here, or None.

    The proof is to compile one, with a C compiler and a recent GPU.
    """
    try:
        import triton  # noqa: F401

        from ladder.machine import probe_kernel

        x = torch.zeros(8, device="cuda")
        probe_kernel.add_one[(1,)](x, n=8)
        return None if float(x.sum()) == 8 else "a Triton test kernel gave a wrong result"
    except Exception as error:
        return describe(error)


def _nvcc_error() -> str | None:
    """Return why CUDA C++ cannot be built here, or None. No build is tried, as it takes a while."""
    try:
        from kernels import cuda

        return cuda.available()
    except Exception as error:
        return describe(error)


if __name__ == "__main__":
    answer = json.dumps(probe())
    sys.stdout.write("\n" + answer + "\n")
