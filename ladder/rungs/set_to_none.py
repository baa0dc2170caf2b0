"""Drop gradients instead of filling them with zeros.

What changes. `optimizer.zero_grad(set_to_none=True)`. The next backward pass then writes each gradient,
where before it read it, added to it and wrote it back.

Why it should help. One fill and one accumulation less for each parameter tensor. The two networks of the
article's workload have 49 million parameters, 195 MB in FP32: small beside the activations, and the fills
are done by a few multi-tensor kernels. What it saves is mostly launches, one addition for each parameter
in each phase.

When it does not. This has been the default since PyTorch 2.0, so most code already has it; the baseline
here asks for the old behaviour to be able to show the difference. Inside a CUDA graph the launches cost
next to nothing, and what remains is the memory traffic. The article gained 3 % (131 to 127 ms); often
there is nothing that can be measured.
"""

from ladder.receipts import Receipt, judge

title = "set_to_none"
change = {"set_to_none": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """After zero_grad gradients are None; nothing is filled with zeros, nothing added to an old gradient."""
    found = seen["gradients"]
    return judge(
        (found["none"] > 0 and not found["kept"], f"gradients None {found['none']}, kept {found['kept']}"),
        (not found["filled"], f"gradients filled with zeros: {found['filled']}"),
        (not found["accumulated"], f"gradients added to an old one: {found['accumulated']}"),
        (
            None if found["zero_kernels"] is None else found["zero_kernels"] < 0.9 * found["tensors"],
            "fills in a timed step: "
            + ("not profiled" if found["zero_kernels"] is None else f"{found['zero_kernels']:.2f}")
            + f", tensors with gradients: {found['tensors']:.2f}",
        ),
    )
