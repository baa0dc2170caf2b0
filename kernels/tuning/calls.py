"""Calls of the elementwise ops and of instance norm, for the tuners: functions to time, and the
bytes that they must move.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import bias_act, instance_norm_act, modulate


def make_call(op: str, direction: str, x: torch.Tensor) -> tuple[Callable[[], object], int]:
    """Return a call on x that returns its results, and the bytes that it must move."""
    n, c, h, w = x.shape
    x = x.detach().requires_grad_(direction != "forward")
    bias, scale, shift = (torch.randn(s, device=x.device, requires_grad=True) for s in ((c,), (n, c), (n, c)))
    strength = torch.tensor(0.1, device=x.device, requires_grad=True)
    noise = torch.randn(n, 1, h, w, device=x.device)
    function, inputs = {
        "bias_act": (lambda: bias_act(x, bias), (x, bias)),
        "scaled_bias_act": (
            lambda: bias_act(x, bias, noise=noise, strength=strength, scale=scale),
            (x, bias, strength, scale),
        ),
        "modulate": (lambda: modulate(x, scale), (x, scale)),
        "instance_norm_act": (
            lambda: instance_norm_act(x, scale, shift, noise=noise, strength=strength),
            (x, scale, shift, strength),
        ),
        "instance_norm_act without noise": (
            lambda: instance_norm_act(x, scale, shift),
            (x, scale, shift),
        ),
    }[op]
    extra = noise.nbytes if op in ("scaled_bias_act", "instance_norm_act") else 0
    if direction == "forward":

        def forward():
            with torch.no_grad():
                return function()

        return forward, 2 * x.nbytes + extra
    y = function()
    g = torch.randn_like(y).requires_grad_()
    if direction == "backward":
        return lambda: torch.autograd.grad(y, inputs, g, retain_graph=True), 3 * x.nbytes + extra
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    directions = [torch.randn_like(d) for d in first]
    wanted = [t for t in (g, *inputs) if t is not bias]  # No second gradient depends on the bias.
    moved = 3 if op == "bias_act" else 5  # direction and mask in, dg out; with products also g in and dx out
    return (
        lambda: torch.autograd.grad(first, wanted, directions, retain_graph=True, allow_unused=True),
        moved * x.nbytes + extra,
    )
