"""The launches of `kernels.bias_act_skip` that are compiled for GPUs that are not there. Run it: all candidates."""

import json
import re
import subprocess
import sys
import tempfile

CANDIDATES = (
    (64, 128, 64, 4, 2),
    (64, 128, 64, 4, 3),
    (128, 128, 64, 8, 2),
    (64, 256, 64, 8, 2),
    (128, 64, 64, 4, 2),
    (64, 64, 64, 4, 4),
    (32, 64, 64, 4, 4),
)
SHAPES = ((64, 128, 16), (256, 512, 8))  # I, O and pixels a side: one block of input channels, several


def launch(how, x, low, weight) -> None:
    """Launch the kernel in this configuration."""
    import torch

    from kernels.pointwise.residual import ResidualCall

    skip = sys.modules["kernels.linear.skip"]
    skip._forced[:] = [skip.Config(*how)]
    skip.forward(x, torch.zeros(x.shape[1]), low, weight, ResidualCall(0.2, 1.0, None, True, x.dtype))
    skip._forced.clear()


def run_skip(x) -> None:
    """Launch it with every row of its table for the GPU, on whole and on partial blocks."""
    import torch

    from kernels.common import tiles

    skip, layout = sys.modules["kernels.linear.skip"], torch.channels_last
    here, _ = tiles.processor(x.device)
    low = x.contiguous(memory_format=layout)
    for (gpu, _), row in skip.CONFIGS.items():
        if gpu not in (None, divmod(here, 10)) or x.dtype.itemsize > 2:
            continue
        for outputs in (row.block_n, 72):
            y = x.new_zeros((len(x), outputs, *x.shape[2:])).contiguous(memory_format=layout)
            launch(row, y, low, x.new_zeros(outputs, x.shape[1], 1, 1))


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
    """Compile every candidate for an H100. Say what came of it."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    from tests.support import compiling

    launches, found = compiling.record_launches(), []
    for inputs, outputs, side in SHAPES:
        images = [torch.zeros(8, c, side, side, dtype=torch.bfloat16) for c in (outputs, inputs)]
        x, low = (t.contiguous(memory_format=torch.channels_last) for t in images)
        for how in CANDIDATES:
            launches.clear()
            launch(how, x, low, torch.zeros(outputs, inputs, 1, 1, dtype=torch.bfloat16))
            ((source, options),) = compiling.sources(launches).values()
            code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
            products = code.asm["ptx"].count("wgmma.mma_async") + code.asm["ptx"].count("mma.sync")
            found.append((how, *resources(code.asm["cubin"]), code.metadata.shared, products))
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
