"""The categories of a step's work: the table that joins the families of kernels to a few words of a reader.

A kernel of ours with one operation lies in the category of that operation. A kernel that joins several operations has
a category of its own, which names them. Plain PyTorch runs activation and bias as elementwise kernels. Names of those
kernels do not tell their purpose, so they stay elementwise.
"""

from __future__ import annotations

from ladder.receipts import kernel_families as families

CONVOLUTION, MATMUL, RESAMPLING = "convolution", "matmul", "resampling"
NORMALIZATION = "normalization and modulation"
LAYOUT, ELEMENTWISE, REDUCTIONS = "layout and dtype conversion", "elementwise", "reductions"
OPTIMIZER, COPIES, RANDOM = "optimizer", "copies", "random numbers"
COMMUNICATION = "communication between GPUs"
FUSED, COMPILED, OTHER = "fused: ", "fused by torch.compile", "other"
BOOKKEEPING = "views and allocation"  # on a CPU alone

OF_FAMILY = {
    **dict.fromkeys(families.CONVOLUTIONS, CONVOLUTION),
    families.DEPTHWISE: RESAMPLING,  # the model's only depthwise convolutions are its filters
    families.MATMUL: MATMUL,
    families.NORM: NORMALIZATION,
    families.RANDOM: RANDOM,
    families.OPTIMIZER: OPTIMIZER,
    families.REDUCTION: REDUCTIONS,
    families.COPY: LAYOUT,
    families.ELEMENTWISE: ELEMENTWISE,
    families.TRANSFER: COPIES,
    families.INDUCTOR: COMPILED,
    families.BOOKKEEPING: BOOKKEEPING,
    families.COMMUNICATION: COMMUNICATION,
    families.OTHER: OTHER,
}

# The beginning of a kernel's name in `kernels/`. The first match counts, so a longer beginning stands first.
OF_OURS = (
    ("bias_act_modulate", f"{FUSED}activation, bias and modulation"),
    ("bias_act_residual", f"{FUSED}activation, bias and residual sum"),
    ("bias_act_skip", f"{FUSED}activation, bias and residual sum"),
    ("bias_act", f"{FUSED}activation and bias"),
    ("filter_act_modulate", f"{FUSED}resampling, activation and modulation"),
    ("filter_act", f"{FUSED}resampling and activation"),
    ("act_filter", f"{FUSED}resampling and activation"),
    ("instance_norm_act", f"{FUSED}normalization, activation and bias"),
    ("norm_act", f"{FUSED}normalization, activation and bias"),
    ("join_groups", f"{FUSED}normalization, activation and bias"),
    ("join_sums", f"{FUSED}normalization, activation and bias"),
    ("moments", f"{FUSED}normalization, activation and bias"),
    ("join_moments", f"{FUSED}normalization, activation and bias"),
    ("planes", f"{FUSED}normalization, activation and bias"),
    ("pixels", f"{FUSED}normalization, activation and bias"),
    ("dense", f"{FUSED}matmul, bias and activation"),
    ("rgb", f"{FUSED}convolutions from and to RGB"),
    ("styled", f"{FUSED}convolutions from and to RGB"),
    ("minibatch_std", f"{FUSED}minibatch deviation"),
    ("logistic_loss", f"{FUSED}loss"),
    ("sum_partials", f"{FUSED}sums of gradients"),
    ("modulate", NORMALIZATION),
    ("demodulate", NORMALIZATION),
    ("weight_energies", NORMALIZATION),
    ("weight_norm", NORMALIZATION),
    ("spectral", NORMALIZATION),
    ("upfirdn2d", RESAMPLING),
    ("grouped", CONVOLUTION),
    ("adam", OPTIMIZER),
    ("fill_words", COPIES),
)


def name_category(family: str) -> str:
    """Return the category of a family of kernels, as a profile names it.

    A kernel of ours without a line in the table is "fused: " and its name. Another unknown family is "other".
    """
    ours = next((each for each in (families.OURS, families.OURS_CPP) if family.startswith(each)), None)
    if ours is None:
        return OF_FAMILY.get(family, OTHER)
    name = family.removeprefix(ours)
    own = next((title for beginning, title in OF_OURS if name.startswith(beginning)), None)
    return own or FUSED + name.removesuffix("_kernel").replace("_", " ")
