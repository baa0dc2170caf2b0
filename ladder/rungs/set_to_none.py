"""Drop gradients instead of filling them with zeros.

Change. The optimizer calls `zero_grad(set_to_none=True)`. The next backward pass then writes each gradient; before,
it read it, added to it and wrote it back. Code: `stylegan_lite/step/phases.py`.

Why it should help. One fill and one accumulation less for each parameter tensor. The two networks of the article's
workload have 49 million parameters, 195 MB in FP32. That is small beside the activations, and a few multi-tensor
kernels do the fills. So the saving is mostly launches, one addition for each parameter in each phase.

When it does not. This has been the default since PyTorch 2.0, so most code already has it. The baseline here asks for
the old behaviour to show the difference. At the article's place in the ladder it saves 1% of the GPU's work. The
fills and additions stay what they are while the rest shrinks, so at the top of `full` it saves 3 to 5%.
"""

from ladder.receipts import Receipt, judge

title = "set_to_none"
change = {"set_to_none": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that gradients are None after zero_grad: nothing is filled with zeros or added to an old gradient."""
    found, parts = (
        seen["gradients"],
        seen["recipe"].get("micro_batches", 1),
    )  # parts of a batch add up by design
    return judge(
        (found["none"] > 0 and not found["kept"], f"gradients None {found['none']}, kept {found['kept']}"),
        (not found["filled"], f"gradients filled with zeros: {found['filled']}"),
        (not found["accumulated"] or parts > 1, f"gradients added to an old one: {found['accumulated']}"),
        (
            None if found["zero_kernels"] is None else found["zero_kernels"] < 0.9 * found["tensors"],
            "fills in a timed step: "
            + ("not profiled" if found["zero_kernels"] is None else f"{found['zero_kernels']:.2f}")
            + f", tensors with gradients: {found['tensors']:.2f}",
        ),
    )
