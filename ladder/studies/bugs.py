"""The bugs of `ladder/plan/bugs.yaml`: patches of a training step that has just been built.

A patch changes what a step computes or is fed, never the package's code: parity's reference stays right. Most replace
what a capture runs, so that graphs hold the bug too.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ladder.studies.mistakes import fp16_unmonitored
from stylegan_lite import losses

LATE = 100  # steps, after which late bugs begin
KEPT = 4  # batches


def apply(step: Any, name: str) -> None:
    """Plant a bug in a step that has just been built. Unknown names raise KeyError."""
    PATCHES[name](step)


def replace_loss(
    phases: tuple[str, ...], make: Callable[[Any, str, Tensor], Tensor]
) -> Callable[[Any], None]:
    """Return the patch that makes another loss [] of the right one, in these phases."""

    def patch(step: Any) -> None:
        loss_of = step._loss

        def loss(phase: str, *part: int) -> Tensor:
            right = loss_of(phase, *part)
            return make(step, phase, right) if phase in phases else right

        step._loss = loss

    return patch


def feed_loss(prepare: Callable[[Any, str], Callable[[], None]]) -> Callable[[Any], None]:
    """Return the patch that changes the numbers of a phase before its loss, by what `prepare` returns for it."""

    def patch(step: Any) -> None:
        loss_of, change = step._loss, {phase: prepare(step, phase) for phase in step.inputs}

        def loss(phase: str, *part: int) -> Tensor:
            change.get(phase, lambda: None)()
            return loss_of(phase, *part)  # type: ignore[no-any-return]

        step._loss = loss

    return patch


def freeze_noise(step: Any, phase: str) -> Callable[[], None]:
    buffers = step.inputs[phase].noise
    frozen = [torch.randn_like(each) for each in buffers]

    def change() -> None:
        for mine, old in zip(buffers, frozen, strict=True):
            mine.copy_(old)

    return change


def delay_latents(step: Any, phase: str) -> Callable[[], None]:
    z = step.inputs[phase].z
    last = torch.randn_like(z)

    def change() -> None:
        fresh = z.clone()
        z.copy_(last)
        last.copy_(fresh)

    return change


def repeat_latents(step: Any) -> None:
    fill_of, first = step._fill, {phase: torch.randn_like(each.z) for phase, each in step.inputs.items()}

    def fill(phase: str) -> None:
        fill_of(phase)
        if phase in first:
            step.inputs[phase].z.copy_(first[phase])

    step._fill = fill


def shuffle_labels(step: Any, phase: str, right: Tensor) -> Tensor:
    inputs = step.inputs[phase]
    with step.amp():
        with torch.no_grad():
            fake = step.G(losses.latents_to_ws(step.G, inputs, step.workload.style_mixing), inputs.noise)
        logits = step.D(fake.detach()), step.D(step.real)
    sign = torch.ones_like(logits[0])
    sign[::2] = -1
    return F.softplus(sign * logits[0]).mean() + F.softplus(-sign * logits[1]).mean()


def keep_path_mean(step: Any) -> None:
    loss_of = step._loss

    def loss(phase: str, *part: int) -> Tensor:
        before = step.pl_mean.clone()
        result: Tensor = loss_of(phase, *part)
        step.pl_mean.copy_(before)
        return result

    step._loss = loss


def average_old(step: Any) -> None:
    update, old = step._update_ema, copy.deepcopy(step.networks["G"])

    def average() -> None:
        right, step.networks = step.networks, step.networks | {"G": old}
        update()
        step.networks = right

    step._update_ema = average


def after_updates(change: Callable[[torch.optim.Optimizer], None]) -> Callable[[Any], None]:
    """Return the patch that changes an optimizer's weights or state behind each of its updates."""

    def patch(step: Any) -> None:
        for optimizer in step.optimizers.values():
            update = optimizer.step

            @functools.wraps(update)
            def both(*how: Any, inner: Any = update, of: Any = optimizer, **more: Any) -> None:
                inner(*how, **more)
                with torch.no_grad():
                    change(of)

            optimizer.step = both

    return patch


def reset_moments(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()


def round_weights(optimizer: torch.optim.Optimizer) -> None:
    for weight in optimizer.param_groups[0]["params"]:
        weight.copy_(weight.bfloat16())


def ignore_lazy(step: Any) -> None:
    w = step.workload
    for optimizer in step.optimizers.values():
        optimizer.param_groups[0].update(lr=w.lr, betas=(w.beta1, w.beta2))


def stop_late(tensors: Callable[[Any], list[Tensor]]) -> Callable[[Any], None]:
    """Return the patch after which late steps leave these tensors as they were."""

    def patch(step: Any) -> None:
        run = step.run

        def run_and_put_back(phases: tuple[str, ...]) -> None:
            before = [each.detach().clone() for each in tensors(step)] if step.count >= LATE else []
            run(phases)
            with torch.no_grad():
                for each, old in zip(tensors(step), before, strict=False):
                    each.copy_(old)

        step.run = run_and_put_back

    return patch


def leave_out_r1(step: Any) -> None:
    run = step.run
    step.run = lambda phases: run(tuple(phase for phase in phases if phase != "D_r1"))


def change_images(make: Callable[[], Callable[[Tensor], None]]) -> Callable[[Any], None]:
    """Return the patch that changes each batch of real images in place."""

    def patch(step: Any) -> None:
        fetch, change = step.feed.next, make()

        def fetch_and_change() -> None:
            fetch()
            change(step.real)

        step.feed.next = fetch_and_change

    return patch


def repeat_batches() -> Callable[[Tensor], None]:
    kept: list[Tensor] = []
    count = 0

    def change(real: Tensor) -> None:
        nonlocal count
        if len(kept) < KEPT:
            kept.append(real.clone())
        real.copy_(kept[count % KEPT])
        count += 1

    return change


def halve_contrast(real: Tensor) -> None:
    real.add_(1).div_(2)


def repeat_epochs(step: Any) -> None:
    sampler = step.feed.sampler
    sampler.__class__ = type("Forgetful", (type(sampler),), {"epoch": property(lambda _: 0, lambda *_: None)})


def keep_gradients(step: Any) -> None:
    step._zero_grad = lambda network, optimizer: None


def lose_autocast(step: Any) -> None:
    step.amp = contextlib.nullcontext


PATCHES: dict[str, Callable[[Any], None]] = {
    "average_of_old": average_old,
    "average_stops": stop_late(lambda step: [*step.averages["G"].parameters()]),
    "noise_frozen": feed_loss(freeze_noise),
    "latents_repeated": repeat_latents,
    "r1_lost": leave_out_r1,
    "r1_without_interval": replace_loss(
        ("D_r1",), lambda step, phase, right: right / step.workload.r1_interval
    ),
    "fp16_without_scale": fp16_unmonitored,
    "sign_flipped": replace_loss(("G_main",), lambda step, phase, right: -right),
    "stale_style": feed_loss(delay_latents),
    "moments_reset": after_updates(reset_moments),
    "labels_shuffled": replace_loss(("D_main",), shuffle_labels),
    "few_batches": change_images(repeat_batches),
    "epochs_alike": repeat_epochs,
    "images_unnormalized": change_images(lambda: halve_contrast),
    "gradients_kept": keep_gradients,
    "weights_rounded": after_updates(round_weights),
    "autocast_lost": lose_autocast,
    "rate_without_lazy": ignore_lazy,
    "rate_falls": stop_late(lambda step: [p for each in step.networks.values() for p in each.parameters()]),
    "path_mean_stuck": keep_path_mean,
}
