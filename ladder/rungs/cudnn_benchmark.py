"""Let cuDNN time its algorithms and keep the fastest for each convolution.

Change. `torch.backends.cudnn.benchmark = True` holds while a phase is warmed up and captured. At the first call of
each shape, dtype and memory format cuDNN runs its candidates and remembers the best. PyTorch tries 10 of them
(`cudnn.benchmark_limit`). Without the flag a heuristic picks one unseen. The flag is global to a process, so it is
set around a phase and put back. Code: `stylegan_lite/step/settings.py`.

Why it should help. The heuristic is good on shapes that everyone uses. StyleGAN's are not: 64 channels at 256x256, 3
channels in toRGB, and weight gradients that sum over half a million pixels. A timed choice cannot be slower, except
for the noise of one timing.

When it does not. If shapes change from step to step, every new one pays for a search. The search costs seconds at the
start and the memory of the largest workspace that it tried. The choice may differ from process to process. So
rounding and speed scatter a little more, and a run is no longer repeatable bit for bit. If the heuristic was right
already, nothing is gained. On an H100 the top of `full` gains nothing (docs/results-nvidia-h100-80gb-hbm3.md).
"""

from ladder.receipts import Receipt, judge

title = "cuDNN autotuning"
change = {"cudnn_benchmark": True}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """Check the flag where phases run. PyTorch does not show cuDNN's own choice."""
    settings = seen["settings"]
    return judge(
        (settings["cudnn_benchmark"] is True, f"cuDNN autotuning: {settings['cudnn_benchmark']}"),
        (settings["cudnn_deterministic"] is False, f"deterministic only: {settings['cudnn_deterministic']}"),
    )
