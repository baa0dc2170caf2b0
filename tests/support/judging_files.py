"""A genuine result of a GPU, the names of real machines, and files to judge."""

import json
from pathlib import Path
from typing import Any

from ladder.publish.validation import validate
from tests.support import committed

GENUINE = committed.RUN
CPUS = """
Intel(R) Xeon(R) CPU @ 2.20GHz
Intel(R) Xeon(R) Processor
Intel(R) Xeon(R) Platinum 8480C
Intel(R) Xeon(R) Gold 6338 CPU @ 2.00GHz
Intel(R) Xeon(R) CPU E5-2686 v4 @ 2.30GHz
Intel(R) Core(TM) i9-14900K
Intel(R) Core(TM) i7-8650U CPU @ 1.90GHz
Intel(R) Core(TM) Ultra 9 285K
13th Gen Intel(R) Core(TM) i5-13600K
Intel(R) N100
AMD EPYC 9654 96-Core Processor
AMD EPYC 7R32
AMD EPYC-Milan Processor
AMD Ryzen 9 7950X3D 16-Core Processor
AMD Ryzen Threadripper PRO 5995WX 64-Cores
AMD Ryzen 7 5800H with Radeon Graphics
AMD Ryzen 7 PRO 4750U w/ Radeon Graphics
Neoverse-V2
Apple M3 Max
ARMv8 Processor rev 0 (v8l)
aarch64
""".strip().splitlines()
GPUS = """
NVIDIA H200
NVIDIA H100 80GB HBM3
NVIDIA H100 NVL
NVIDIA A100-SXM4-80GB
NVIDIA A100-PCIE-40GB
NVIDIA GeForce RTX 4090
NVIDIA GeForce RTX 3080 Ti
NVIDIA GeForce RTX 4060 Laptop GPU
NVIDIA GeForce GTX 1660 SUPER
NVIDIA RTX 6000 Ada Generation
NVIDIA RTX PRO 6000 Blackwell Workstation Edition
NVIDIA L4
NVIDIA L40S
Tesla T4
Tesla V100-SXM2-16GB
NVIDIA Graphics Device
NVIDIA GH200 480GB
NVIDIA B200
NVIDIA TITAN RTX
Quadro RTX 8000
""".strip().splitlines()


def genuine() -> dict[str, Any]:
    return json.loads(GENUINE.read_text())


def judge(folder: Path, content: bytes | str | dict[str, Any], name: str = "a.json") -> str | None:
    """Return what is wrong with a file of that content, or None."""
    content = json.dumps(content) if isinstance(content, dict) else content
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return validate.problem_of(folder / name)
