"""The launches of `kernels.upconv2d` that are compiled for GPUs that are not there. Run it: all candidates."""

import json
import re
import subprocess
import sys
import tempfile


def run_upconv(x) -> None:
    """The transposed convolution by parities, in every row of its table for the GPU, of whole and partial blocks."""
    import torch

    from kernels.common import tiles

    upconv, layout = sys.modules["kernels.linear.upconv2d"], torch.channels_last
    here, _ = tiles.processor(x.device)
    for (gpu, _), row in upconv.CONFIGS.items():
        if gpu not in (None, divmod(here, 10)) or x.dtype.itemsize > 2:
            continue
        for outputs in (row.block_n, 72):
            weight = torch.zeros(x.shape[1], outputs, 3, 3, dtype=x.dtype).contiguous(memory_format=layout)
            upconv._forced[:] = [row]
            upconv.forward(x.contiguous(memory_format=layout), weight)
            upconv._forced.clear()


def resources(cubin: bytes) -> list[int]:
    """Return the registers and the bytes on the stack (spills) of a thread."""
    import triton

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [int(re.search(rf"{name}:(\d+)", said)[1]) for name in ("REG", "STACK")]


def main() -> None:
    """Compile every candidate of the tuner for an H100. Say what came of it."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from kernels.tuning import upconv as tuning
    from tests.support import compiling

    launches, found = compiling.record_launches(), []
    x, weight = (torch.zeros(s, dtype=torch.bfloat16) for s in ((2, 128, 16, 16), (128, 256, 3, 3)))
    x, weight = (t.contiguous(memory_format=torch.channels_last) for t in (x, weight))
    for how in tuning.candidates():
        launches.clear()
        with tuning.taking(how):
            tuning.forward(x, weight)
        ((source, options),) = compiling.sources(launches).values()
        code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        ptx = code.asm["ptx"]
        found.append(
            (how, *resources(code.asm["cubin"]), ptx.count("wgmma.mma_async"), ptx.count("cp.async.cg"))
        )
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
