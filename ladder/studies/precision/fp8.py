"""A probe of PyTorch's FP8: `python -m ladder.studies.precision.fp8 DEVICE` prints a JSON object on one line.

It runs in its own process, because the measuring process must not hold a CUDA context.
"""

from __future__ import annotations

import json
import subprocess
import sys

from ladder.base.errors import describe
from ladder.base.paths import ROOT


def ask(device: str) -> dict[str, str]:
    """Return PyTorch's answers as {"convolution": answer, "matmul": answer}."""
    try:
        run = subprocess.run(
            [sys.executable, "-m", "ladder.studies.precision.fp8", device],
            cwd=ROOT, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return json.loads(run.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        return {"probe": "torch did not answer"}


def convolution(device: str) -> str:
    import torch

    x, weight = (torch.ones(16, 16, 8, 8, device=device).to(torch.float8_e4m3fn) for _ in range(2))
    try:
        torch.nn.functional.conv2d(x, weight[:, :, :3, :3].contiguous())
    except Exception as error:
        return f"not offered: {describe(error)}"
    return "runs"


def matmul(device: str) -> str:
    import torch

    from stylegan_lite import fp8

    torch.manual_seed(0)
    x, weight = torch.randn(32, 512, device=device), torch.randn(512, 512, device=device)
    try:
        found, exact = fp8.linear(x, weight).double(), x.double() @ weight.double().t()
    except Exception as error:
        return f"not offered: {describe(error)}"
    return f"torch._scaled_mm runs, relative error {float((found - exact).norm() / exact.norm()):.3f} of a product"


if __name__ == "__main__":
    sys.stdout.write(
        "\n" + json.dumps({"convolution": convolution(sys.argv[1]), "matmul": matmul(sys.argv[1])}) + "\n"
    )
