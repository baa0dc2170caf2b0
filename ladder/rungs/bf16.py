"""Run the networks in BF16 under autocast; keep weights, losses, penalties and statistics in FP32.

What changes. `torch.autocast(dtype=torch.bfloat16)` around generator and discriminator. Parameters,
Adam's moments and the moving average stay FP32. From the input gradient on, the R1 and path-length
penalties are squared, summed and scaled in FP32, and so are the minibatch standard deviation and the
demodulation coefficients: sums of many squares are where eight bits of mantissa hurt.

Why it should help. Half the bytes for every activation, and Tensor Cores at twice the rate of TF32, which
is what cuDNN may use for FP32 convolutions. BF16 has the exponent range of FP32, so unlike FP16 it needs
no loss scaling; no step is skipped and nothing has to be synchronized to find out.

When it does not. Autocast casts weights in every forward pass, and each cast is a kernel to launch: 4,240
a step instead of 3,700. At batch 8 on one H200 the GPU's work fell from 88 to 72 ms a step while the step
grew, because the GPU now waits for the CPU half of the time: the gain arrives with `cuda_graphs`, under
another rung's name. PyTorch's double backward of a convolution is slower in BF16 too: R1 took 185 ms
against 117 (results/spellings). CPUs without BF16 instructions emulate it, slowly.
"""

title = "BF16 mixed precision"
change = {"precision": "bf16"}
needs = ("bf16",)
