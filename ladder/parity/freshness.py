"""Faults that errors cannot show: a step that reuses numbers, gets wrong images, or runs a phase when it is not due.

Parity loads given numbers and images and runs phases itself, so it never sees a step's own choices. Here the right
choices are stated a second time, from the workload alone: phases by their intervals, images as plain Pillow reads
them.
"""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ladder.core.protocol import CYCLE_STEPS
from ladder.receipts.evidence import replace_method
from stylegan_lite.config import Workload
from stylegan_lite.step import Input, TrainingStep
from stylegan_lite.step.data import EpochSampler, ImageFolder, RandomImages
from stylegan_lite.step.gpudecode import JpegFiles

NEXT, PREFETCH = "the next batch", "the batch after it"
BATCHES = 6  # more than there are buffers on the way
ROUNDING = 8 * torch.finfo(torch.float32).eps  # of numbers in [-1, 1] that come from bytes
# Mean error of an image, if another decoder enlarges the chroma planes. Pillow smooths them; repeated pixels of noise
# are 13 steps of 255 off. Another image is 85 off.
DECODERS = 20 / 127.5


def draws_anew(step: TrainingStep) -> list[str]:
    """Return a line for each buffer that a fill leaves unchanged, and for phases with the same numbers."""
    problems = []
    for phase in step.inputs:
        step._fill(phase)
    # all are filled by now, so a buffer that two phases share shows
    first = {
        phase: {name: part.clone() for name, part in _split_parts(step, phase).items()}
        for phase in step.inputs
    }
    for phase, before in first.items():
        step._fill(phase)
        now = _split_parts(step, phase)
        if any(_share_equal(part, now[name]) > 0.01 for name, part in before.items()):
            problems.append(f"{phase}: a replay is given the numbers of the one before")
    for phase, other in itertools.combinations(first, 2):
        same = first[phase].keys() & first[other].keys()
        if any(_share_equal(first[phase][name], first[other][name]) > 0.01 for name in same):
            problems.append(f"{phase} and {other}: the phases share their latents or noise")
    return problems


def _split_parts(step: TrainingStep, phase: str) -> dict[str, Tensor]:
    """Return the numbers of a phase by name."""
    inputs, parts = step.inputs[phase], dict[str, Tensor]()
    for name, one in inputs.declared.items():
        tensors = inputs[name]
        several, tensors = ([one], [tensors]) if isinstance(one, Input) else (one, tensors)
        for each, tensor in zip(several, tensors, strict=True):
            if each.source in ("normal", "uniform"):  # labels of few classes are equal by chance
                parts[f"{name} {len(parts)}"] = tensor
    return parts


def _share_equal(a: Tensor, b: Tensor) -> float:
    n = min(len(a), len(b))
    return float((a[:n] == b[:n]).double().mean()) if a.shape[1:] == b.shape[1:] else 0.0


# Images


def check_images(step: TrainingStep) -> list[str]:
    """Check the next batches against the expected order, flips and normalization.

    Returns one message for the first wrong image, else [].
    """
    if step.real is None:
        return check_batches(step)
    w, feed, on_gpu = step.workload, step.feed, getattr(step.recipe, "gpu_decode", False)
    source: Any = RandomImages(w.resolution, True, w.batch)
    if w.data is not None:
        source = ImageFolder(w.data, w.resolution, True)
    epoch, done, orders = feed.epoch, feed.consumed, {}
    ranks = getattr(step, "ranks", None)
    mine = slice(None) if ranks is None else slice(ranks.rank, None, ranks.size)
    for number in range(BATCHES):
        if epoch not in orders:
            sampler = EpochSampler(len(source), step.seed, w.flips)
            sampler.epoch = epoch
            orders[epoch] = list(sampler)
            if sorted(index for index, _ in orders[epoch]) != list(range(len(source))):
                return ["an epoch does not visit each image once"]
            if len(source) > 8 and orders[epoch] == orders.get(epoch - 1):
                return ["two epochs visit the images in the same order"]
        feed.next()
        getattr(feed, "prefetch", lambda: None)()
        real = step.real.detach().cpu().float()
        batch = orders[epoch][done * w.batch : (done + 1) * w.batch]
        for k, (index, flip) in enumerate(batch[mine]):
            off, room = (real[k] - _make_image(source, index, flip, on_gpu)).abs(), ROUNDING
            if on_gpu:
                off, room = off.mean(), DECODERS
            if not off.max() <= room:
                where = f"image {k + 1} of batch {number + 1}"
                return [f"{where} is not the one that was drawn: off by {off.max():.2g}"]
        done += 1
        if done == len(source) // w.batch:
            epoch, done = epoch + 1, 0
    return []


def check_batches(step: TrainingStep) -> list[str]:
    """Check the next batches of a pair's own against what it returns for their numbers."""
    ranks = step.ranks
    for _ in range(BATCHES if step.data else 0):
        expected = step.pair.batch(step.feed.first + step.feed.number)
        step.feed.next()
        for name, buffer in step.data.items():
            if not torch.equal(buffer.cpu(), expected[name][ranks.rank :: ranks.size].to(buffer.dtype)):
                return [f"{name} is not the pair's batch of this number"]
    return []


def _make_image(source: Any, index: int, flip: bool, as_jpeg: bool) -> Tensor:
    pixels = source.decode(index)
    if as_jpeg and not hasattr(source, "files"):  # it became a file first
        data, *_ = JpegFiles(source)[index, False]
        with Image.open(io.BytesIO(data.numpy().tobytes())) as image:
            pixels = np.asarray(image.convert("RGB"))
    pixels = np.flip(pixels, 1) if flip else pixels
    return torch.from_numpy(pixels.transpose(2, 0, 1).astype(np.float32)) / 127.5 - 1


# The order of a cycle


def list_phases(step: TrainingStep, index: int, lazy: bool = True) -> tuple[str, ...]:
    """Return the phases of one step of a cycle, from the intervals alone: those of the workload, or of the pair."""
    every = {phase.name: phase.every for phase in step.pair.phases if phase.is_lazy}
    if isinstance(step.workload, Workload):
        every = {"G_pl": step.workload.pl_interval, "D_r1": step.workload.r1_interval}
    return tuple(phase for phase in step.order if phase not in every or (lazy and index % every[phase] == 0))


def list_kinds(step: TrainingStep) -> list[tuple[str, ...]]:
    """Return the kinds of steps in cycles, each a sequence of phases."""
    return sorted({list_phases(step, index, lazy) for index in range(CYCLE_STEPS) for lazy in (True, False)})


def check_schedule(step: TrainingStep) -> list[str]:
    """Return a line for each thing that a cycle does at a wrong time, or not at all.

    Nothing is computed, drawn or fetched meanwhile. A step fetches the next batch, then draws for and runs each
    phase. If phases are launched as one, all draws come first. At last it begins the batch after it, which some
    loaders prefetch.
    """
    for lazy in (True, False):
        name = "a cycle" if lazy else "a cycle without lazy phases"
        expected = [call for index in range(CYCLE_STEPS) for call in _record_calls(step, index, lazy)]
        calls: list[str] = []
        with record_calls(step, calls):
            step.cycle(lazy=lazy)
        if problems := _list_differences(name, step.order, calls, expected):
            return problems
    whole = getattr(step.recipe, "whole_step_graph", False)
    needed = ["+".join(kind) for kind in list_kinds(step)] if whole else step.order
    missing = [name for name in needed if step.graphs and name not in step.graphs]
    return [f"no graph of {name}: it runs eagerly" for name in missing]


def _record_calls(step: TrainingStep, index: int, lazy: bool) -> list[str]:
    due = list_phases(step, index, lazy)
    drawn = {phase: [_name_numbers(step, phase)] if step.given[phase].is_drawn else [] for phase in due}
    if getattr(step.recipe, "whole_step_graph", False):
        run = [*itertools.chain(*drawn.values()), "+".join(due)]
    else:
        run = [call for phase in due for call in (*drawn[phase], phase)]
    return [NEXT, *run, *([PREFETCH] if hasattr(step.feed, "prefetch") else [])]


def _name_numbers(step: TrainingStep, phase: str) -> str:
    """Return the name of a phase's numbers, after the first phase with this buffer.

    `draws_anew` finds shared buffers.
    """
    return f"numbers for {next(name for name in step.inputs if step.inputs[name] is step.inputs[phase])}"


@contextlib.contextmanager
def record_calls(step: TrainingStep, seen: list[str]) -> Iterator[None]:
    """Record a step's calls below its own choices. The step is unchanged afterwards."""
    count = step.count

    def note(what: str) -> Callable[[], None]:
        return lambda: seen.append(what)

    with contextlib.ExitStack() as stack:
        for inputs in {id(inputs): inputs for inputs in step.inputs.values()}.values():
            phase = next(name for name in step.inputs if step.inputs[name] is inputs)
            stack.enter_context(replace_method(inputs, "fill", note(_name_numbers(step, phase))))
        stack.enter_context(replace_method(step, "replay", seen.append))
        stack.enter_context(replace_method(step, "replay_together", lambda due: seen.append("+".join(due))))
        stack.enter_context(replace_method(step.feed, "next", note(NEXT)))
        if hasattr(step.feed, "prefetch"):
            stack.enter_context(replace_method(step.feed, "prefetch", note(PREFETCH)))
        try:
            yield
        finally:
            step.count = count


def _list_differences(name: str, phases: tuple[str, ...], seen: list[str], expected: list[str]) -> list[str]:
    """Return the first differences: missing phases, else missing images and numbers, else the first wrong step."""
    ran, due = ([phase for call in calls for phase in call.split("+")] for calls in (seen, expected))
    for words, things in (
        ("runs {} {} times", phases),
        ("draws {} {} times", [call for call in dict.fromkeys(due) if call.startswith("numbers")]),
        ("asks for {} {} times", [NEXT, PREFETCH]),
    ):
        wrong = [each for each in things if ran.count(each) != due.count(each)]
        if wrong:
            return [
                f"{name} {words.format(each, ran.count(each))}, expected {due.count(each)}" for each in wrong
            ]
    if seen == expected:
        return []
    at = next(k for k, (a, b) in enumerate(zip([*seen, ""], [*expected, ""], strict=False)) if a != b)
    call, due = ([*calls, "nothing"][at] for calls in (seen, expected))
    return [f"step {expected[: at + 1].count(NEXT)} of {name}: {call} where {due} is due"]
