"""Record each phase once as a CUDA graph, then replay it with a single launch.

What changes. D_main and G_main, with their optimizer steps and the moving average, are captured after a
warm-up, and so are the lazy phases (path length, R1). A replay runs the same kernels on the same
addresses, so latents, noise and images are refilled in place before each replay, in buffers that never
move; two replays see different numbers. Adam becomes `capturable`: its step count lives on the GPU.

Why it should help. An eager step launches 3,300 to 4,200 kernels, each from Python. At batch 8 a fast GPU
finishes them before the CPU has launched the next: it waits. A replay is one call, and the gaps between
kernels all but vanish. Here the rungs below are paid out: BF16, channels_last and fusing made the kernels
shorter, and only now does the step follow. On one H200 the share of the step in which the GPU waits fell
from 42 % to 3 %, and with it the scatter from process to process.

When it does not. Where the GPU is already the bottleneck (large batch, high resolution, a slower GPU)
there are few gaps to close: compare the host-bound column of the rung below. Capture needs static shapes,
no synchronization inside, and memory that the graph keeps for itself. A thread that pins memory while a
capture is under way breaks one in the default, global mode; ours watches its own thread only.
"""

title = "CUDA graphs"
change = {"cuda_graphs": True, "adam": "capturable"}
needs = ("cuda", "cuda_graphs")
