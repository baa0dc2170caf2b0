"""Run Adam in one kernel, and the moving average in a few.

Change. `Adam(fused=True)` does both moments, the bias correction and the weight's update in one pass over memory, one
launch for many parameter tensors. The generator's average is moved by `torch._foreach_lerp_` over all tensors at
once; before, a loop launched one kernel for each. Code: `stylegan_lite/step/phases.py`.

Why it should help. PyTorch's default, `foreach`, walks through the same tensors a dozen times, once for each
operation of the formula. The article's two networks have 49 million parameters, so 195 MB are read and written again
and again. Fused, weights, gradients and both moments are read once, and all but the gradients written once: 7 passes
of 195 MB. The average of the generator is one more pass, and a launch for each tensor becomes a handful.

When it does not. The optimizer's work does not depend on the batch or on the resolution: the larger these are, the
smaller its share of the step. An eager step that waits for its launches gains more than bandwidth says; a CUDA graph
gains by bandwidth alone. Rounding differs from `foreach` in the last bits. So a run continued from a checkpoint of
the other kind takes slightly other values.
"""

from ladder.receipts import Receipt, judge, pair_of

title = "fused Adam and EMA"
change = {"fused_adam": True, "ema": "foreach"}
needs: tuple[str, ...] = ()


LEFT = 2  # lerp_ calls of single tensors: the running mean of w, once in G_main


def receipt(seen: dict) -> Receipt:
    """Check that each phase calls `_fused_adam_` or our kernel, and that the moving average is one foreach call."""
    adam, pair = seen["adam"], pair_of(seen)
    calls = adam["calls"]
    ours = (
        seen["kernels"].get("adam_kernel", {}).get("calls", 0)
    )  # the kernel of the rung fused_update, which replaces this one
    return judge(
        (bool(adam["fused"]), f"Adam fused: {adam['fused']}"),
        (
            calls.get("fused", 0) + ours >= len(pair["phases"]),
            f"_fused_adam_ called {calls.get('fused', 0)}x in one run of each phase, our kernel {ours}x",
        ),
        (not calls.get("foreach"), f"foreach Adam kernels called {calls.get('foreach', 0)}x"),
        (
            calls.get("foreach_lerp", 0) == len(pair["averages"]),
            f"moving average by _foreach_lerp_: {calls.get('foreach_lerp', 0)}x",
        ),
        (
            calls.get("lerp", 0) <= LEFT if pair["own"] else None,
            f"lerp_ of single tensors: {calls.get('lerp', 0)}x",
        ),
    )
