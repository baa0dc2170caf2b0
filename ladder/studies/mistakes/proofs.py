"""The proof that a mistake is in force: counts from the running step, which the clean step does not show.

It runs in an inspector process. A proof trains the step for a few phases and leaves it changed.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ladder.base.protocol import CYCLE_STEPS
from ladder.receipts import Receipt, evidence, judge
from ladder.receipts.evidence import replaced, synchronize, watch_data
from ladder.receipts.records import Crossing
from ladder.receipts.watch import layout

MAIN = ("G_main", "D_main")
FEW = 4  # steps
DRAWS = ("randn", "rand", "randn_like", "rand_like")  # each allocates its result
IN_PLACE = ("normal_", "uniform_")


def receipt(step: Any, name: str) -> Receipt:
    """Return whether a mistake is in force in a prepared step."""
    found = PROOFS[name](step)
    synchronize(step)
    return found


class Operators(TorchDispatchMode):
    """Counts of operators by name, and of numbers that the CPU reads from tensors at these addresses."""

    def __init__(self, addresses: Sequence[int] = ()) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.addresses, self.read = {*addresses}, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        self.seen[name] += 1
        self.read += name == "_local_scalar_dense" and args[0].data_ptr() in self.addresses
        return func(*args, **(kwargs or {}))


def losses_read(step: Any) -> Receipt:
    """Count the losses that the CPU reads in a step without lazy phases."""
    with Operators([loss.data_ptr() for loss in step.loss.values()]) as operators:
        step.run(MAIN)
    return judge((operators.read > 0, f"losses that the CPU reads: {operators.read} a step"))


def numbers_allocated(step: Any) -> Receipt:
    """Count the tensors of random numbers that a step without lazy phases allocates."""
    with Operators() as operators:
        for phase in MAIN:
            step._fill(phase)
    new, there = (sum(operators.seen[name] for name in names) for names in (DRAWS, IN_PLACE))
    return judge((new > 0, f"tensors of random numbers allocated: {new} a step, filled in place: {there}"))


def blocks_in_nchw(step: Any) -> Receipt:
    """Count the blocks of a channels_last step whose results are NCHW."""
    seen: list[str] = []

    def look(block: nn.Module, given: Any, result: Any) -> None:
        seen.append(layout(result[0] if isinstance(result, tuple) else result))

    with contextlib.ExitStack() as hooks:
        for block in [*step.G.blocks, *step.D.blocks]:
            hooks.callback(block.register_forward_hook(look).remove)
        for phase in MAIN:
            step.run_phase(phase)
    nchw = sum(each in ("nchw", "either") for each in seen)
    return judge(
        (step.recipe.channels_last, f"the recipe's channels_last: {step.recipe.channels_last}"),
        (0 < nchw == len(seen), f"results of blocks in NCHW: {nchw} of {len(seen)}"),
    )


def without_scales(step: Any) -> Receipt:
    """Look for loss scales, and say what becomes of gradients and weights in a few steps."""
    with step.amp():
        half = torch.get_autocast_dtype(step.device)
    scales, checked = (
        len(step.scales),
        type(step).check_finite == getattr(step.check_finite, "__func__", None),
    )
    step.run_phase("G_main")
    gradients = torch.cat([p.grad.flatten() for p in step.G.parameters() if p.grad is not None])
    zero, broken = (float(x.double().mean()) for x in (gradients == 0, ~gradients.isfinite()))
    for _ in range(FEW):
        step.step()
    after = type(step).check_finite(step) or "all is finite"
    return judge(
        (half == torch.float16, f"autocast in {str(half).removeprefix('torch.')}"),
        (scales == 0, f"loss scales: {scales}"),
        (not checked, f"NaN and infinity are looked for: {checked}"),
        (None, f"gradients of G_main: {zero:.3f} of them 0, {broken:.3f} not finite"),
        (None, f"after {FEW} steps: {after}"[:96]),
    )


def generator_gradients(step: Any) -> Receipt:
    """Count the weights of G with a gradient after D's update."""
    count, _ = _after_d_main(step)
    return judge((count > 0, f"weights of G with a gradient after D_main: {count}"))


def generator_graph(step: Any) -> Receipt:
    """See whether D's images have a graph behind them that no gradient goes through."""
    count, graph = _after_d_main(step)
    return judge(
        (graph, f"the images of D_main come with a graph: {graph}"),
        (count == 0, f"weights of G with a gradient after D_main: {count}"),
    )


def _after_d_main(step: Any) -> tuple[int, bool]:
    """Run D_main. Return how many weights of G then have a gradient, and whether its images have a graph."""
    step.opt_G.zero_grad(set_to_none=True)
    graphs: list[bool] = []
    hook = step.G.register_forward_hook(lambda network, given, image: graphs.append(image.requires_grad))
    try:
        step.run_phase("D_main")
    finally:
        hook.remove()
    return sum(p.grad is not None for p in step.G.parameters()), any(graphs)


def gradients_filled(step: Any) -> Receipt:
    """Count the gradients that `zero_grad` fills with zeros."""
    step.run_phase("G_main")
    had = [p for p in step.G.parameters() if p.grad is not None]
    step._zero_grad(step.G, step.opt_G)
    kept = [p.grad for p in had if p.grad is not None and not bool(p.grad.any())]
    return judge((0 < len(kept) == len(had), f"gradients filled with zeros: {len(kept)} of {len(had)}"))


def copies_block(step: Any) -> Receipt:
    """Look at the copies of a batch to the GPU."""
    return blocking(watch_data(step)[0])


def blocking(crossings: Sequence[Crossing]) -> Receipt:
    """Return whether copies to the GPU come from ordinary memory and block."""
    batches = [each for each in crossings if each["to"] == "cuda"]
    slow = [each for each in batches if not (each["pinned"] or each["non_blocking"] or each["side_stream"])]
    return judge(
        (
            0 < len(slow) == len(batches),
            f"copies that block, of ordinary memory: {len(slow)} of {len(batches)}",
        )
    )


def no_workers(step: Any) -> Receipt:
    """Count the processes that decode images."""
    step.feed.next()  # which starts them
    workers = evidence.count_workers(step.feed)
    return judge((workers == 0, f"processes that decode images beside the training: {workers}"))


def compilations(step: Any) -> Receipt:
    """Count what Dynamo compiles in two cycles whose phases are left out."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    with replaced(step, "run_phase", lambda phase: None):
        for _ in range(2 * CYCLE_STEPS):
            step.run(MAIN)
    made = counters["stats"]["unique_graphs"] - before
    return judge((made >= 2, f"graphs compiled in two cycles after the first: {made}"))


def caches_emptied(step: Any) -> Receipt:
    """Count the calls of `torch.cuda.empty_cache` in a step."""
    with calls(torch.cuda, "empty_cache") as count:
        step.run(MAIN)
    return judge((count["calls"] > 0, f"calls of empty_cache: {count['calls']} a step"))


def synchronizations(step: Any) -> Receipt:
    """Count the calls of `torch.cuda.synchronize` in a step without lazy phases."""
    with calls(torch.cuda, "synchronize") as count:
        step.run(MAIN)
    return judge((count["calls"] > 0, f"synchronizations: {count['calls']} a step"))


def updates_of_d(updates: int) -> Callable[[Any], Receipt]:
    """Return the proof that D is updated so often for each update of G, with one moving average."""

    def proof(step: Any) -> Receipt:
        with contextlib.ExitStack() as stack:
            counted = {
                name: stack.enter_context(calls(thing, method))
                for name, thing, method in (
                    ("D", step.opt_D, "step"),
                    ("G", step.opt_G, "step"),
                    ("batches", step.feed, "next"),
                    ("average", step, "_update_ema"),
                )
            }
            step.step(lazy=False)
        seen = {name: each["calls"] for name, each in counted.items()}
        return judge(
            (seen["D"] == updates * seen["G"] > 0, f"updates of D: {seen['D']}, of G: {seen['G']}"),
            (seen["batches"] == updates, f"batches of images: {seen['batches']}"),
            (seen["average"] == seen["G"], f"moving averages: {seen['average']}"),
        )

    return proof


@contextlib.contextmanager
def calls(thing: Any, name: str) -> Iterator[dict[str, int]]:
    """Yield {"calls": n} of a method, which still does its work."""
    counted, method = {"calls": 0}, getattr(thing, name)

    def call(*args: Any, **how: Any) -> Any:
        counted["calls"] += 1
        return method(*args, **how)

    with replaced(thing, name, call):
        yield counted


PROOFS: dict[str, Callable[[Any], Receipt]] = {
    "item_each_step": losses_read,
    "latents_in_loop": numbers_allocated,
    "nchw_left_in": blocks_in_nchw,
    "fp16_unmonitored": without_scales,
    "g_not_frozen": generator_gradients,
    "g_graph_kept": generator_graph,
    "zero_grad_fills": gradients_filled,
    "blocking_copies": copies_block,
    "too_few_workers": no_workers,
    "compile_shapes": compilations,
    "empty_cache": caches_emptied,
    "n_critic_2": updates_of_d(2),
    "n_critic_5": updates_of_d(5),
    "sync_timing": synchronizations,
}
