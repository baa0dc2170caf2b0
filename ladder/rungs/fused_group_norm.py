"""Fuse GroupNorm with the SiLU or ReLU behind it, in any memory format.

Change. Each `nn.GroupNorm` of your networks is computed by Triton kernels (`kernels/norm/group_norm_act.py`), forward
and backward. Where its result is read by one SiLU, ReLU or leaky ReLU and by nothing else, as a function or a module,
the same pass computes the activation. That is looked up in a run of each loss before anything is measured. Your code
stays: the activation then returns what it is given.

Why it should help. PyTorch's GroupNorm takes NCHW only. With `channels_last` its operands are copied, and the next
convolution copies once more. Under autocast it runs in float32, and so does the activation behind it, which moves twice
the bytes. Here x is read twice and y written once, in x's layout and 16 bits; statistics and sums are float32.

When it does not. Small maps are launches, with either kernel. An eager step that waits for the CPU gets slower: the
call is Python, and activations are looked for among all functions. A graph has none of this. Gradients that are
differentiated again are composed of PyTorch's operators, so a penalty's phase gains little.
"""

from ladder.receipts import Receipt, gone, judge, launched, pair_of

title = "fused GroupNorm and activation"
change = {"fused_group_norm": True}
needs = ("cuda", "triton")


def receipt(seen: dict) -> Receipt:
    """Check that our kernels are launched, forward and backward, and no module runs PyTorch's GroupNorm."""
    modules, acts = pair_of(seen).get("norms", {}).get("GroupNorm", (0, 0))
    return judge(
        *launched(seen, "norm_act_kernel"),
        (modules > 0, f"modules: {modules}, {acts} of them with the activation behind it"),
        gone(seen, "group norm", "normalize", ("GroupNorm",)),
        (
            None,
            f"gradients: {seen['kernels'].get('norm_act_grad_kernel', {}).get('calls', 0)}x by our kernels",
        ),
    )
