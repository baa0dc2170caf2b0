"""The mistakes of `ladder.plan.mistakes.yaml` that no recipe makes, and the proof of each that it is in force.

A patch makes a mistake in a built training step; a worker applies it by its name. A proof runs in an inspector process:
it counts in the running step what the clean step does not show, and leaves the step changed. Nothing here is imported
by the model's package.
"""

from __future__ import annotations

import contextlib
import functools
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ladder.core.protocol import CYCLE_STEPS
from ladder.engine.joining import use_loopback
from ladder.plan.variants import Examination
from ladder.receipts import Receipt, evidence, judge
from ladder.receipts.evidence import replace_method, synchronize_device, watch_data
from ladder.receipts.watch import Crossing, name_layout
from stylegan_lite import layers, losses
from stylegan_lite.ops import GAIN, SLOPE
from stylegan_lite.step import ranks

COMPILER = "inductor"  # tests, which have no time to compile, take "eager"
ENDLESS = 1_000_000  # compilations of one function: Dynamo gives up after eight
MAIN = ("G_main", "D_main")
FEW = 4  # steps
DRAWS = ("randn", "rand", "randn_like", "rand_like")  # each allocates its result
IN_PLACE = ("normal_", "uniform_")


def apply(step: Any, name: str) -> None:
    """Make a mistake in a step that has just been built. Unknown names raise KeyError."""
    if (patch := PATCHES[name]) is not None:
        patch(step)


def examine(step: Any, name: str) -> Examination:
    """Return the receipt of a mistake: whether it is in force, read from the running step."""
    receipt = PROOFS[name](step)
    synchronize_device(step)
    return {"receipts": {name: receipt.to_dict()}, "inspection": {}}


# --- patches ----------------------------------------------------------------------------------------------------------


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
            if hasattr(inputs, "image_noise"):
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


class OwnActivation(torch.autograd.Function):
    """Bias [C] and leaky ReLU of [N, C, H, W] or [N, C], without `torch.amp.custom_fwd(cast_inputs=...)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        x = x + bias.view(1, -1, *[1] * (x.ndim - 2))
        ctx.save_for_backward(x)
        return F.leaky_relu(x, SLOPE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        (x,) = ctx.saved_tensors
        gradient = gradients[0] * torch.where(x > 0, 1.0, SLOPE)
        return gradient, gradient.sum([0, *range(2, x.ndim)])


def custom_fwd_missing(step: Any) -> None:
    """Compute bias and activation by `OwnActivation`, whose FP32 bias nobody casts."""
    loss_of = step._loss

    def act(x: Tensor, bias: Tensor, recipe: Any, *, gain: float = GAIN, **noise: Any) -> Tensor:
        if noise.get("noise") is not None:
            x = x + (noise["noise"] * noise["strength"]).to(x.dtype)
        return OwnActivation.apply(x, bias) * gain

    def loss(phase: str) -> Tensor:
        with replace_method(layers, "bias_act", act):
            return loss_of(phase)

    step._loss = loss


class Searching(nn.parallel.DistributedDataParallel):
    """DistributedDataParallel with `find_unused_parameters`."""

    @functools.wraps(nn.parallel.DistributedDataParallel.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, find_unused_parameters=True, **more)


def wrap_losses(kind: type[nn.parallel.DistributedDataParallel]) -> Callable[[Any], None]:
    """Return the patch that computes each loss inside of DistributedDataParallel, in a process group of one."""

    def patch(step: Any) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            use_loopback()
            backend = "nccl" if step.device == "cuda" else "gloo"
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        wrapped: dict[str, nn.Module] = {}

        def loss(phase: str, network: nn.Module, compute: Callable[[str], Tensor]) -> Tensor:
            if phase not in wrapped:
                with replace_method(nn.parallel, "DistributedDataParallel", kind):
                    wrapped[phase], _ = ranks._wrapped(ranks._Loss(network, compute), phase)
            return wrapped[phase](phase)  # type: ignore[no-any-return]

        step.ranks.loss = loss

    return patch


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


PATCHES: dict[str, Callable[[Any], None] | None] = {
    "item_each_step": item_each_step,
    "latents_in_loop": latents_in_loop,
    "nchw_left_in": nchw_left_in,
    "fp16_unmonitored": fp16_unmonitored,
    "g_not_frozen": g_not_frozen,
    "g_graph_kept": g_graph_kept,
    **dict.fromkeys(("zero_grad_fills", "blocking_copies", "too_few_workers")),  # the recipe alone
    "compile_shapes": compile_shapes,
    "empty_cache": empty_cache,
    "custom_fwd_missing": custom_fwd_missing,
    "ddp_alone": wrap_losses(nn.parallel.DistributedDataParallel),
    "find_unused_parameters": wrap_losses(Searching),
    "n_critic_2": critics(2),
    "n_critic_5": critics(5),
    "sync_timing": sync_timing,
}


# --- proofs -----------------------------------------------------------------------------------------------------------


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


def prove_losses_read(step: Any) -> Receipt:
    """Count the losses that the CPU reads in a step without lazy phases."""
    with Operators([loss.data_ptr() for loss in step.loss.values()]) as operators:
        step.run(MAIN)
    return judge((operators.read > 0, f"losses that the CPU reads: {operators.read} a step"))


def prove_allocations(step: Any) -> Receipt:
    """Count the tensors of random numbers that a step without lazy phases allocates."""
    with Operators() as operators:
        for phase in MAIN:
            step._fill(phase)
    new, there = (sum(operators.seen[name] for name in names) for names in (DRAWS, IN_PLACE))
    return judge((new > 0, f"tensors of random numbers allocated: {new} a step, filled in place: {there}"))


def prove_nchw(step: Any) -> Receipt:
    """Count the blocks of a channels_last step whose results are NCHW."""
    layouts: list[str] = []

    def look(block: nn.Module, given: Any, result: Any) -> None:
        layouts.append(name_layout(result[0] if isinstance(result, tuple) else result))

    with contextlib.ExitStack() as hooks:
        for block in [*step.G.blocks, *step.D.blocks]:
            hooks.callback(block.register_forward_hook(look).remove)
        for phase in MAIN:
            step.run_phase(phase)
    nchw = sum(each in ("nchw", "either") for each in layouts)
    return judge(
        (step.recipe.channels_last, f"the recipe's channels_last: {step.recipe.channels_last}"),
        (0 < nchw == len(layouts), f"results of blocks in NCHW: {nchw} of {len(layouts)}"),
    )


def prove_no_scales(step: Any) -> Receipt:
    """Look for loss scales, and say what becomes of gradients and weights in a few steps."""
    with step.amp():
        half = torch.get_autocast_dtype(step.device)
    scales, check = len(step.scales), type(step).check_finite
    checked = check == getattr(step.check_finite, "__func__", None)
    step.run_phase("G_main")
    gradients = torch.cat([p.grad.flatten() for p in step.G.parameters() if p.grad is not None])
    zero, broken = (float(x.double().mean()) for x in (gradients == 0, ~gradients.isfinite()))
    for _ in range(FEW):
        step.step()
    return judge(
        (half == torch.float16, f"autocast in {str(half).removeprefix('torch.')}"),
        (scales == 0, f"loss scales: {scales}"),
        (not checked, f"NaN and infinity are looked for: {checked}"),
        (None, f"gradients of G_main: {zero:.3f} of them 0, {broken:.3f} not finite"),
        (None, f"after {FEW} steps: {check(step) or 'all is finite'}"[:96]),
    )


def prove_generator(gradients: bool) -> Callable[[Any], Receipt]:
    """Return the proof that D's images have a graph behind them, with or without gradients of G's weights."""

    def proof(step: Any) -> Receipt:
        step.opt_G.zero_grad(set_to_none=True)
        graphs: list[bool] = []
        hook = step.G.register_forward_hook(lambda network, given, image: graphs.append(image.requires_grad))
        try:
            step.run_phase("D_main")
        finally:
            hook.remove()
        count = sum(p.grad is not None for p in step.G.parameters())
        line = f"weights of G with a gradient after D_main: {count}"
        graph = (any(graphs), f"the images of D_main come with a graph: {any(graphs)}")
        return judge((count > 0, line)) if gradients else judge(graph, (count == 0, line))

    return proof


def prove_fills(step: Any) -> Receipt:
    """Count the gradients that `zero_grad` fills with zeros."""
    step.run_phase("G_main")
    had = [p for p in step.G.parameters() if p.grad is not None]
    step._zero_grad(step.G, step.opt_G)
    filled = [p for p in had if p.grad is not None and not bool(p.grad.any())]
    return judge((0 < len(filled) == len(had), f"gradients filled with zeros: {len(filled)} of {len(had)}"))


def judge_copies(crossings: Sequence[Crossing]) -> Receipt:
    """Return whether copies to the GPU come from ordinary memory and block."""
    batches = [each for each in crossings if each["to"] == "cuda"]
    slow = [each for each in batches if not (each["pinned"] or each["non_blocking"] or each["side_stream"])]
    line = f"copies that block, of ordinary memory: {len(slow)} of {len(batches)}"
    return judge((0 < len(slow) == len(batches), line))


def prove_no_workers(step: Any) -> Receipt:
    """Count the processes that decode images."""
    step.feed.next()  # which starts them
    workers = evidence.count_workers(step.feed)
    return judge((workers == 0, f"processes that decode images beside the training: {workers}"))


def prove_compilations(step: Any) -> Receipt:
    """Count what Dynamo compiles in two cycles whose phases are left out."""
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    with replace_method(step, "run_phase", lambda phase: None):
        for _ in range(2 * CYCLE_STEPS):
            step.run(MAIN)
    graphs = counters["stats"]["unique_graphs"] - before
    return judge((graphs >= 2, f"graphs compiled in two cycles after the first: {graphs}"))


def prove_calls(name: str, what: str) -> Callable[[Any], Receipt]:
    """Return the proof that a function of `torch.cuda` is called in a step without lazy phases."""

    def proof(step: Any) -> Receipt:
        with count_calls((torch.cuda, name)) as (calls,):
            step.run(MAIN)
        return judge((len(calls) > 0, f"{what}: {len(calls)} a step"))

    return proof


def prove_wide(step: Any) -> Receipt:
    """Count the activations of D that are FP32 although its convolutions run under autocast."""
    found: list[bool] = []

    def look(layer: nn.Module, given: Any, result: Tensor) -> None:
        if isinstance(layer, layers.Conv) and layer.bias is not None:
            found.append(result.dtype == torch.float32)

    with nn.modules.module.register_module_forward_hook(look):
        step.run_phase("D_main")
    return judge((0 < sum(found) == len(found), f"activations of D in FP32: {sum(found)} of {len(found)}"))


def prove_wrapped(search: bool) -> Callable[[Any], Receipt]:
    """Return the proof that losses run inside of DistributedDataParallel, with or without its search."""

    def proof(step: Any) -> Receipt:
        searches: list[bool] = []

        def look(module: nn.Module, given: Any, result: Any) -> None:
            if isinstance(module, nn.parallel.DistributedDataParallel):
                searches.append(module.find_unused_parameters)

        with nn.modules.module.register_module_forward_hook(look):
            step.run(MAIN)
        return judge(
            (len(searches) == len(MAIN), f"losses inside of DistributedDataParallel: {len(searches)} a step"),
            (sum(searches) == search * len(MAIN), f"with a search for unused parameters: {sum(searches)}"),
        )

    return proof


def prove_updates(updates: int) -> Callable[[Any], Receipt]:
    """Return the proof that D is updated so often for each update of G, with one moving average."""

    def proof(step: Any) -> Receipt:
        methods = (step.opt_D, "step"), (step.opt_G, "step"), (step.feed, "next"), (step, "_update_ema")
        with count_calls(*methods) as calls:
            step.step(lazy=False)
        of_d, of_g, batches, averages = map(len, calls)
        return judge(
            (of_d == updates * of_g > 0, f"updates of D: {of_d}, of G: {of_g}"),
            (batches == updates, f"batches of images: {batches}"),
            (averages == of_g, f"moving averages: {averages}"),
        )

    return proof


@contextlib.contextmanager
def count_calls(*methods: tuple[Any, str]) -> Iterator[list[list[None]]]:
    """Yield a list for each method that grows with its calls. Each still does its work."""
    calls: list[list[None]] = [[] for _ in methods]

    def make(counted: list[None], method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            counted.append(None)
            return method(*args, **more)

        return call

    with contextlib.ExitStack() as stack:
        for (owner, name), counted in zip(methods, calls, strict=True):
            stack.enter_context(replace_method(owner, name, make(counted, getattr(owner, name))))
        yield calls


PROOFS: dict[str, Callable[[Any], Receipt]] = {
    "item_each_step": prove_losses_read,
    "latents_in_loop": prove_allocations,
    "nchw_left_in": prove_nchw,
    "fp16_unmonitored": prove_no_scales,
    "g_not_frozen": prove_generator(gradients=True),
    "g_graph_kept": prove_generator(gradients=False),
    "zero_grad_fills": prove_fills,
    "blocking_copies": lambda step: judge_copies(watch_data(step)[0]),
    "too_few_workers": prove_no_workers,
    "compile_shapes": prove_compilations,
    "empty_cache": prove_calls("empty_cache", "calls of empty_cache"),
    "custom_fwd_missing": prove_wide,
    "ddp_alone": prove_wrapped(search=False),
    "find_unused_parameters": prove_wrapped(search=True),
    "n_critic_2": prove_updates(2),
    "n_critic_5": prove_updates(5),
    "sync_timing": prove_calls("synchronize", "synchronizations"),
}
