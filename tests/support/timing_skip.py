"""Time every candidate of `kernels.bias_act_skip` beside the product and the sum apart, on a GPU: run it.

It prints microseconds for each call of a step at 256x256, with a cold L2 cache. It takes a minute or two.
"""

import sys

import torch

import kernels
from kernels.pointwise.residual import ResidualCall
from kernels.tuning.timing import buffers, refused, seconds
from tests.support.compiling_skip import CANDIDATES

# I, O and pixels a side of the six skips; batch 8, and 16 where D judges fakes and reals together.
LAYERS = ((64, 128, 128), (128, 256, 64), (256, 512, 32), (512, 512, 16), (512, 512, 8), (512, 512, 4))
BATCHES = (8, 16)


def new(*sizes: int) -> torch.Tensor:
    made = torch.randn(sizes, device="cuda", dtype=torch.bfloat16)
    return made.contiguous(memory_format=torch.channels_last)


def timed(batch: int, inputs: int, outputs: int, side: int) -> dict[str, str]:
    """Return microseconds by configuration, those of two passes first."""
    skip, device = sys.modules["kernels.linear.skip"], torch.device("cuda", torch.cuda.current_device())
    weight, bias = new(outputs, inputs, 1, 1), torch.randn(outputs, device=device)
    large, small = (batch, outputs, side, side), (batch, inputs, side, side)
    pairs = [(new(*large), new(*small)) for _ in range(buffers(large, torch.bfloat16, device))]
    call = ResidualCall(0.2, 1.0, None, True, torch.bfloat16)

    def apart(x, low):
        return kernels.bias_act_residual(x, bias, kernels.conv2d(low, weight), gain=1.0)

    found = {"apart": f"{1e6 * seconds([lambda p=p: apart(*p) for p in pairs]):.1f}"}
    for how in CANDIDATES:
        skip._forced[:] = [skip.Config(*how)]
        try:
            each = [lambda p=p: skip.forward(p[0], bias, p[1], weight, call) for p in pairs]
            found["-".join(map(str, how))] = f"{1e6 * seconds(each):.1f}"
        except Exception as error:  # out of shared memory or registers
            found["-".join(map(str, how))] = type(error).__name__
        finally:
            skip._forced.clear()
    return found


@torch.no_grad()
def main() -> int:
    if refused("tests.support.timing_skip"):
        return 2
    torch.backends.cudnn.benchmark = True  # as the step has it
    with torch.cuda.stream(torch.cuda.Stream()):  # a capture needs a stream of its own
        for batch in BATCHES:
            for layer in LAYERS:
                found = timed(batch, *layer)
                print(batch, *layer, *(f"{how} {time}" for how, time in found.items()), sep="  ", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
