"""Fuse BatchNorm in training with the ReLU or leaky ReLU behind it.

Change. Each `nn.BatchNorm1d`, `2d` or `3d` in training mode is computed by Triton kernels, forward and backward
(`kernels/norm/batch_norm_act.py`). Where its result is read by one ReLU, leaky ReLU or SiLU and by nothing else, as a
function or a module, the same pass computes the activation. That is looked up in a run of each loss before anything is
measured. Running statistics move as PyTorch moves them. Your code stays: the activation then returns what it is given.

Why it should help. BatchNorm writes its result and the activation reads and writes it once more; backward likewise. In
one pass the activation costs nothing.

When it does not. cuDNN's BatchNorm is good, so without an activation behind it there is little to gain. Small maps are
launches, with either kernel. An eager step that waits for the CPU gets slower: the call is Python, and activations are
looked for among all functions. A graph has none of this. Gradients that are differentiated again are composed of
PyTorch's operators.
"""

from ladder.receipts import Receipt, gone, judge, launched, pair_of

title = "fused BatchNorm and activation"
change = {"fused_batch_norm": True}
needs = ("cuda", "triton")

NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, forward and backward, and no module in training runs PyTorch's BatchNorm."""
    norms = pair_of(seen).get("norms", {})
    modules, acts = (sum(norms.get(name, (0, 0))[k] for name in NORMS) for k in (0, 1))
    return judge(
        *launched(seen, "norm_act_kernel"),
        (modules > 0, f"modules: {modules}, {acts} of them with the activation behind it"),
        gone(seen, "batch norm", "normalize", NORMS),
        (
            None,
            f"gradients: {seen['kernels'].get('norm_act_grad_kernel', {}).get('calls', 0)}x by our kernels",
        ),
    )
