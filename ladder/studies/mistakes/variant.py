"""The patches: each makes one mistake in a built training step. A worker applies it by its name.

A mistake that is a change of the recipe alone has no patch. Nothing here is imported by the model's package.
"""

from __future__ import annotations

import time
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ladder.base.protocol import CYCLE_STEPS
from ladder.plan.variants import Examination
from stylegan_lite import losses

COMPILER = "inductor"  # tests, which have no time to compile, take "eager"
ENDLESS = 1_000_000  # compilations of one function: Dynamo gives up after eight


def apply(step: Any, name: str) -> None:
    """Make a mistake in a step that has just been built. Unknown names raise KeyError."""
    for patch in PATCHES[name]:
        patch(step)


def examine(step: Any, name: str) -> Examination:
    """Return the receipt of a mistake: whether it is in force, read from the running step."""
    from ladder.studies.mistakes import proofs

    return {"receipts": {name: proofs.receipt(step, name).to_dict()}, "inspection": {}}


def item_each_step(step: Any) -> None:
    """Read the loss of each phase as soon as it has been computed."""
    run_phase = step.run_phase

    def run(phase: str) -> None:
        run_phase(phase)
        step.loss[phase].item()

    step.run_phase = run


def latents_in_loop(step: Any) -> None:
    """Allocate latents, noise and draws anew for each phase, each by a call of its own."""

    def drawn_into(inputs: Any) -> Callable[[], None]:
        def fill() -> None:
            inputs.z = torch.randn_like(inputs.z)
            inputs.noise = [torch.randn_like(each) for each in inputs.noise]
            inputs.uniform = torch.rand_like(inputs.uniform)
            if inputs.image_noise is not None:
                inputs.image_noise = torch.randn_like(inputs.image_noise)

        return fill

    for inputs in step.inputs.values():
        inputs.fill = drawn_into(inputs)


def nchw_left_in(step: Any) -> None:
    """End each block of both networks with `.contiguous()`."""

    def in_nchw(block: nn.Module, given: Any, result: Any) -> Any:
        if isinstance(result, tuple):
            return (result[0].contiguous(), *result[1:])
        return result.contiguous()

    for block in [*step.G.blocks, *step.D.blocks]:
        block.register_forward_hook(in_nchw)


def fp16_unmonitored(step: Any) -> None:
    """Take away FP16's loss scales, and the check that finds NaN after the timing."""
    step.scales.clear()
    step.check_finite = lambda: None


def g_not_frozen(step: Any) -> None:
    """Let D's loss reach the weights of G, whose gradients nobody uses."""
    _with_generator_graph(step, lambda fake: fake)


def g_graph_kept(step: Any) -> None:
    """Record G's forward pass in D's update. Its images are detached, and kept until the next ones."""
    kept: list[Tensor] = []

    def detached(fake: Tensor) -> Tensor:
        kept[:] = [fake]
        return fake.detach()

    _with_generator_graph(step, detached)


def _with_generator_graph(step: Any, shown: Callable[[Tensor], Tensor]) -> None:
    """Make D_main's images with a graph. ``shown`` is what D gets of them."""
    loss_of = step._loss

    def loss(phase: str) -> Tensor:
        if phase != "D_main":
            return loss_of(phase)
        step.G.requires_grad_(True)
        inputs = step.inputs[phase]
        with step.amp():
            fake = step.G(losses.latents_to_ws(step.G, inputs, step.workload.style_mixing), inputs.noise)
        with step.amp():
            fake_logits, real_logits = step.D(shown(fake)), step.D(step.real)
        return F.softplus(fake_logits).mean() + F.softplus(-real_logits).mean()

    step._loss = loss


def compile_shapes(step: Any) -> None:
    """Sum up the losses so far once a cycle, by compiled code. Each time they are more, so it is compiled anew.

    Caches are off: a program whose shapes are always new finds nothing in them.
    """
    import torch._dynamo.config
    import torch._inductor.config

    from kernels.compile.jobs import keep_cache

    keep_cache()  # or the step's own kernels would be compiled again, into Inductor's folder
    torch._dynamo.config.recompile_limit = ENDLESS
    torch._dynamo.config.accumulated_recompile_limit = ENDLESS
    torch._inductor.config.force_disable_caches = True

    def summary(values: Tensor) -> tuple[Tensor, Tensor]:
        return values.mean(), values.square().mean().sqrt()

    # Dynamo keeps its code with the code object, which several steps of a process would share.
    own = types.FunctionType(summary.__code__.replace(), summary.__globals__)
    compiled = torch.compile(own, dynamic=False, backend=COMPILER)
    for length in (2, 3):  # what only the first compilations take is no part of a step
        compiled(torch.zeros(length, device=step.device))
    seen: list[Tensor] = []
    run = step.run

    def run_and_sum_up(phases: tuple[str, ...]) -> None:
        run(phases)
        seen.append(step.loss["D_main"].clone())
        if len(seen) % CYCLE_STEPS == 0:
            compiled(torch.stack(seen))

    step.run = run_and_sum_up


def empty_cache(step: Any) -> None:
    """Give free memory back to the driver after each step."""
    run = step.run

    def run_and_empty(phases: tuple[str, ...]) -> None:
        run(phases)
        torch.cuda.empty_cache()

    step.run = run_and_empty


def sync_timing(step: Any) -> None:
    """Synchronize before and after each phase, to time it."""
    run_phase = step.run_phase
    took: dict[str, float] = {}

    def run(phase: str) -> None:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run_phase(phase)
        torch.cuda.synchronize()
        took[phase] = time.perf_counter() - begin

    step.run_phase = run


def critics(updates: int) -> Callable[[Any], None]:
    """Return the patch after which D is updated so often in each step, each time on images of its own."""

    def patch(step: Any) -> None:
        run, average = step.run, step._update_ema

        def run_and_repeat(phases: tuple[str, ...]) -> None:
            run(phases)
            step._update_ema = lambda: None  # G has not moved since
            try:
                for _ in range(updates - 1):
                    step.feed.next()
                    step.run_phase("D_main")
            finally:
                step._update_ema = average

        step.run = run_and_repeat

    return patch


PATCHES: dict[str, tuple[Callable[[Any], None], ...]] = {
    "item_each_step": (item_each_step,),
    "latents_in_loop": (latents_in_loop,),
    "nchw_left_in": (nchw_left_in,),
    "fp16_unmonitored": (fp16_unmonitored,),
    "g_not_frozen": (g_not_frozen,),
    "g_graph_kept": (g_graph_kept,),
    "zero_grad_fills": (),
    "blocking_copies": (),
    "too_few_workers": (),
    "compile_shapes": (compile_shapes,),
    "empty_cache": (empty_cache,),
    "n_critic_2": (critics(2),),
    "n_critic_5": (critics(5),),
    "sync_timing": (sync_timing,),
}
