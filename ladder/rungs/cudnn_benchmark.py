"""Let cuDNN time its algorithms and keep the fastest for each convolution.

What changes. `torch.backends.cudnn.benchmark = True` while a phase is warmed up and captured. At the first
call of each shape, dtype and memory format cuDNN runs its candidates (PyTorch tries 10 of them,
`cudnn.benchmark_limit`) and remembers the best. Without it a heuristic picks one unseen. The flag is global to a
process, so it is set around a phase and put back.

Why it should help. The heuristic is good on shapes that everyone uses. StyleGAN's are not: 64 channels at
256x256, 3 channels in toRGB, and in the backward pass weight gradients that sum over half a million
pixels. A timed choice cannot be slower but for the noise of one timing.

When it does not. Where shapes change from step to step every new one pays for a search. It costs seconds at
the start and the memory of the largest workspace that was tried. The choice may differ from process to
process, so rounding and speed scatter a little more, and a run is no longer bit for bit repeatable. Where
the heuristic was right already, nothing is gained.
"""

from ladder.receipts import Receipt, judge

title = "cuDNN autotuning"
change = {"cudnn_benchmark": True}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """The flag is read back where phases run; cuDNN's own choice happens below anything that PyTorch shows."""
    settings = seen["settings"]
    return judge(
        (settings["cudnn_benchmark"] is True, f"cuDNN autotuning: {settings['cudnn_benchmark']}"),
        (settings["cudnn_deterministic"] is False, f"deterministic only: {settings['cudnn_deterministic']}"),
    )
