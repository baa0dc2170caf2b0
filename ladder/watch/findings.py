"""What an observation of `ladder watch` shows: one table of findings, each with a function that looks for it.

A finding has time at stake only where it was measured. `LEAST` of a step is needed, because a false alarm costs a
reader more than a small loss. On a CPU the times are those of operators, on a GPU those of kernels.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

from msgspec import Meta

from ladder.core.records import Amount, Count, Positive, Real, Record
from ladder.core.text import format_ms
from ladder.receipts import kernel_families as families

LEAST = 0.01  # of a step
CHAINED, CHAIN_OPS = 0.08, 3  # of a step, and different operators, of a chain worth fusing
WAITING, IDLE = 0.1, 0.1  # of a step: for the loader, and by the GPU
PRODUCTS_SHARE = 0.2  # of a step in FP32 products, above which BF16 is worth a try
FUSABLE, FEW_TENSORS = ("Adam", "AdamW", "SGD", "Adagrad"), 8
BUSY_CORES = 3.0
REDUCED, CHANGING = 1.5, 0.5  # times the gradients' bytes in a step; part of the convolutions' shapes
THEIRS = ("grad_scaler", "optimizer", "loader", "watch")  # purposes of what is not the user's own
CONVERSION = re.compile(r"n(chw|hwc)(to|2)n(chw|hwc)", re.IGNORECASE)
UPDATING = re.compile(r"aten::((add|mul|sub|div|copy|addcmul)_|lerp_?)")
CONVERTING = ("aten::contiguous", "aten::clone", "aten::to", "aten::copy_")
UNOWNED = -2

Words: TypeAlias = Annotated[str, Meta(max_length=500)]
Precision: TypeAlias = Literal["tf32", "ieee"]


class Row(Record):
    """The time of one operator, or of one kernel that it launched, at one line in one phase of the window."""

    op: Words
    top: Words  # the outermost operator, or the node of autograd, around it
    kernel: Words
    dtype: Words
    line: Words
    outer: Words  # the line of the training loop from which `line` was reached
    via: Words  # the purpose, such as optimizer
    phase: Count  # the optimizer that ends it
    order: Count  # how often it is a gradient: 0 is forward, 2 a gradient of a gradient
    note: Words
    owner: Annotated[int, Meta(ge=UNOWNED)]  # the optimizer whose weight it reads
    unused: bool  # it made a graph that no backward pass visited
    calls: Positive
    us: Amount

    @property
    def family(self) -> str:
        """Return the family of the kernel, or of the CPU's operator."""
        return families.name_family(self.kernel) if self.kernel else families.find_operator_family(self.op)

    @property
    def is_product(self) -> bool:
        return families.is_convolution(self.family) or self.family == families.MATMUL


class Optimizer(Record):
    """An optimizer as the training made it. `line` calls its `step`, `backward` the gradients before."""

    name: Words
    line: Words
    tensors: Count
    fused: bool
    capturable: bool
    backward: list[Words]
    calls: Count
    reduced: Amount = 0.0  # how often its gradients are added up over the ranks, by bytes


class Loader(Record):
    """A loader, and how long its batches were waited for in so many steps without a profiler."""

    line: Words
    workers: Count
    waits_ms: list[Amount]
    steps: Positive

    @property
    def wait_ms(self) -> float:
        """Return the wait in a step, without the longest tenth: another process may have had the CPU."""
        usual = sorted(self.waits_ms)[: -max(1, len(self.waits_ms) // 10)]
        return statistics.mean(usual or [0.0]) * len(self.waits_ms) / self.steps


class Parallel(Record):
    """A network under DistributedDataParallel."""

    line: Words
    finds_unused: bool
    bucket_mib: Amount
    gradients_mib: Amount


class Idle(Record):
    """The GPU's work and waiting in one phase of the window without stacks."""

    phase: Count
    busy_us: Amount
    idle_us: Amount
    kernels: Count


class Dropped(Record):
    """Gradients of one optimizer's weights that another's phase computed, and that no step used."""

    owner: Count
    phase: Count
    count: Positive
    steps: Positive


class Synchronization(Record):
    """A call that makes the CPU wait for the GPU, or would if there was one."""

    call: Words
    line: Words
    via: Words
    on_gpu: bool
    calls: Positive
    us: Amount


class Observation(Record, kw_only=True):
    """What `ladder_watch.py` saw in a training's process."""

    what: Literal["watch"]
    version: Literal[1]
    torch: Words
    python: Words
    gpu: Words | None = None
    cores: Positive
    capability: Count
    matmul: Precision
    convolution: Precision
    anomaly: bool
    blocking: bool
    benchmark: bool | None = None  # cuDNN's search; None where its algorithms must be deterministic
    new_shapes: Amount = 0.0  # part of the convolutions' shapes that earlier steps had not
    repaired: bool = False  # second derivatives of convolutions are those of `fast_double_backward`
    walls_ms: Annotated[list[Real], Meta(min_length=2)]
    window: Positive
    busy_cores: Amount
    idle: list[Idle]
    idle_steps: Positive = 1
    optimizers: Annotated[list[Optimizer], Meta(min_length=1)]
    loaders: list[Loader]
    scalers: list[Words]  # lines that make a GradScaler which is enabled
    parallels: list[Parallel]
    dropped: list[Dropped]
    graphs: dict[Words, list[Count]]  # nodes of autograd that a variable held at each look, by line
    unowned: Count
    rows: list[Row]
    synchronizations: list[Synchronization]
    empty_caches: dict[Words, Amount]  # calls a step
    compiled: dict[Words, Count]  # in the window, by line of the function
    breaks: dict[Words, Count]
    retries: Count
    lines: dict[Words, Words]

    def __post_init__(self) -> None:
        phases = [e.phase for each in (self.rows, self.dropped, self.idle) for e in each]  # type: ignore[attr-defined]
        owners = [e.owner for each in (self.rows, self.dropped) for e in each]  # type: ignore[attr-defined]
        if max([*phases, *owners], default=0) >= len(self.optimizers):
            raise ValueError("a phase or an owner is none of the optimizers")

    @property
    def step_ms(self) -> float:
        """Return the wall time of a step without a profiler: the median of the later half."""
        return max(statistics.median(self.walls_ms[len(self.walls_ms) // 2 :]), 1e-6)

    @property
    def busy_ms(self) -> float | None:
        """Return the time that the GPU works in a step; None on a CPU."""
        return sum(each.busy_us for each in self.idle) / 1e3 / self.idle_steps if self.idle else None

    @property
    def waiting_ms(self) -> float:
        """Return how much of a step may be lost by waiting: on a GPU, no more than it has nothing to do."""
        return self.step_ms if self.busy_ms is None else max(self.step_ms - self.busy_ms, 0.0)

    def measure(self, rows: Iterable[Row]) -> float:
        """Return milliseconds a step. Under a profiler operators of a CPU last longer: at most the step itself."""
        scale = 1.0
        if not self.gpu:
            scale = min(1.0, 1e3 * self.step_ms * self.window / max(sum(each.us for each in self.rows), 1e-9))
        return scale * sum(each.us for each in rows) / 1e3 / self.window


class Finding(Record):
    """A loss: what, where, how much of a step is at stake, what to do, and what to watch out for.

    `ms` is None where no time could be measured. `most` of it can be gained, which is an upper bound. `rung` is the
    rung or mistake of this project that measures the same.
    """

    id: Words
    what: Words
    where: list[Words]
    ms: float | None
    share: float | None
    most: float
    do: Words
    careful: Words
    rung: Words


class Loss(NamedTuple):
    """What a search returns if rows are not all: lines, milliseconds, and texts for the `{}` of the advice."""

    where: Sequence[Row | str]
    ms: float | None = None
    texts: Sequence[str] = ()


Answer: TypeAlias = "Sequence[Row] | Loss | None"
Search: TypeAlias = Callable[[Observation], Answer]


class Advice(NamedTuple):
    """A row of the table: a search, and what a finding says. `{}` in the first two texts is filled in."""

    search: Search
    what: str
    do: str
    careful: str = ""
    rung: str = ""
    most: float = 1.0


def list_findings(seen: Observation) -> list[Finding]:
    """Return what an observation shows, by the time at stake; what has none comes last."""
    findings = []
    for name, advice in FINDINGS.items():
        if not (loss := advice.search(seen)):
            continue
        where, ms, texts = loss if isinstance(loss, Loss) else Loss(loss, seen.measure(loss))
        share = None if ms is None else min(1.0, ms / seen.step_ms)
        if share is not None and share < LEAST:
            continue
        lines: dict[str, float] = defaultdict(float)
        for each in where:
            lines[each if isinstance(each, str) else each.line] += 1 if isinstance(each, str) else each.us
        named = [line for line in sorted(lines, key=lambda line: -lines[line]) if line]
        what, do = (text.format(*extra) for text, *extra in zip(advice[1:3], [*texts, "", ""], strict=False))
        findings.append(Finding(name, what, named, ms, share, advice.most, do, advice.careful, advice.rung))
    return sorted(findings, key=lambda each: -(each.ms or 0) * each.most)


# --- searches ---------------------------------------------------------------------------------------------------------


def select(test: Callable[[Row], bool]) -> Search:
    """Return a search for the rows that pass a test."""
    return lambda seen: [each for each in seen.rows if test(each)]


def find_double_backward(seen: Observation) -> list[Row]:
    """Return the work of PyTorch's own formula for the second derivative of a convolution."""
    return [] if seen.repaired else [r for r in seen.rows if r.top.startswith("ConvolutionBackwardBackward")]


def list_lines(find: Callable[[Observation], Sequence[str]]) -> Search:
    """Return a search for lines whose time is unknown."""
    return lambda seen: Loss(lines) if (lines := find(seen)) else None


def describe(find: Callable[[Observation], object]) -> Search:
    """Return a search for what has no line: its text fills in the finding."""
    return lambda seen: Loss([], None, [str(text)]) if (text := find(seen)) else None


def list_products(seen: Observation) -> list[Row]:
    """Return the rows of convolutions and matrix products in FP32 on a GPU with TF32 and BF16."""
    return [
        each for each in seen.rows if seen.capability >= 8 and each.is_product and each.dtype == "float32"
    ]


def find_ieee_products(seen: Observation) -> Answer:
    is_ieee = {True: seen.matmul == "ieee", False: seen.convolution == "ieee"}
    return [each for each in list_products(seen) if is_ieee[each.family == families.MATMUL]]


def find_full_precision(seen: Observation) -> Answer:
    rows = list_products(seen)
    return rows if seen.measure(rows) > PRODUCTS_SHARE * seen.step_ms else None


def find_layout_conversions(seen: Observation) -> Answer:
    """Find conversions by the user's calls or by cuDNN's kernels. The input of a network needs one anyway."""
    rows = [
        e for e in seen.rows if (" to N" in e.note or CONVERSION.search(e.kernel)) and e.via != "optimizer"
    ]
    turned = [
        e for e in rows if (e.note == "NHWC to NCHW" and e.top in CONVERTING) or CONVERSION.search(e.kernel)
    ]
    return rows if any(not each.order for each in turned) else None


def find_idle_gpu(seen: Observation) -> Answer:
    if seen.busy_ms is None or seen.waiting_ms < IDLE * seen.step_ms:
        return None
    phases = sorted(seen.idle, key=lambda each: -each.idle_us)
    stops = [f"the synchronization at {each.line}" for each in list_synchronizations(seen)[:3]]
    stops += dict.fromkeys(f"{e.name} without `capturable=True`" for e in seen.optimizers if not e.capturable)
    count = f"{sum(each.kernels for each in phases) / seen.idle_steps:,.0f}"
    texts = count, f"; in the way: {', '.join(stops)}" if stops else ""
    return Loss([seen.optimizers[each.phase].line for each in phases if each.idle_us], seen.waiting_ms, texts)


def list_synchronizations(seen: Observation) -> list[Synchronization]:
    """Return the synchronizations of each step that the user's code makes, the longest first.

    On a CPU those of a backward pass do not count: what autograd and DDP read there would not wait for a GPU.
    """
    inside = () if seen.gpu else {line for each in seen.optimizers for line in each.backward}
    own = [e for e in seen.synchronizations if e.line and e.via not in THEIRS and e.line not in inside]
    own = [each for each in own if each.on_gpu == bool(seen.gpu) and each.calls >= seen.window / 2]
    return sorted(own, key=lambda each: -each.us)


def find_synchronizations(seen: Observation) -> Answer:
    rows = list_synchronizations(seen)
    waited = min(sum(each.us for each in rows) / 1e3 / seen.window, seen.waiting_ms)
    ms = max(LEAST * seen.step_ms, waited) if seen.gpu else None
    calls = ", ".join(dict.fromkeys(each.call for each in rows))
    return Loss(list(dict.fromkeys(each.line for each in rows)), ms, [calls]) if rows else None


def find_slow_loader(seen: Observation) -> Answer:
    if (ms := min(sum(each.wait_ms for each in seen.loaders), seen.waiting_ms)) < WAITING * seen.step_ms:
        return None
    slowest = max(seen.loaders, key=lambda each: each.wait_ms)
    more = min(max(2 * slowest.workers, 4), seen.cores)
    do = f"`num_workers={more}, persistent_workers=True`{', `pin_memory=True`' if seen.gpu else ''}"
    if slowest.workers >= seen.cores:
        do = f"less work for each image: {slowest.workers} workers share {seen.cores} cores"
    return Loss([slowest.line], ms, [str(slowest.workers), do])


def find_unfused_optimizer(seen: Observation) -> Answer:
    slow = [e.name in FUSABLE and not e.fused and e.tensors >= FEW_TENSORS for e in seen.optimizers]
    rows = [each for each in seen.rows if each.via == "optimizer" and slow[each.phase]]
    return [each for each in rows if each.line == seen.optimizers[each.phase].line]


def find_parameter_loop(seen: Observation) -> Answer:
    """Find updates by the weights of an optimizer, many times at one line: in place, or `copy_(p.lerp(...))`."""
    many = [max(FEW_TENSORS, each.tensors / 2) * seen.window for each in seen.optimizers]
    rows = [e for e in seen.rows if e.owner >= 0 and not e.order and not e.via and UPDATING.fullmatch(e.top)]
    lines = {each.line for each in rows if each.calls >= many[each.owner]}
    return [each for each in seen.rows if each.line in lines and not each.order]


def find_zeroed_gradients(seen: Observation) -> Answer:
    zeroed = [
        e for e in seen.rows if e.via == "optimizer" and e.top in ("aten::zero_", "aten::_foreach_zero_")
    ]
    added = [e for e in seen.rows if e.top == "torch::autograd::AccumulateGrad" and e.op == "aten::add_"]
    return Loss(zeroed, seen.measure([*zeroed, *added])) if zeroed else None


def find_elementwise_chain(seen: Observation) -> Answer:
    """Find lines, or runs of neighbouring lines, with several elementwise operators that no module calls."""
    rows = [each for each in seen.rows if each.family == families.ELEMENTWISE and not each.via and each.line]
    places = {each.line: (each.line.rpartition(":")[0], int(each.line.rpartition(":")[2])) for each in rows}
    chains, last = list[list[Row]](), ("", 0)
    for each in sorted(rows, key=lambda row: places[row.line]):
        file, line = places[each.line]
        if (file, line) != last and (file, line - 1) != last:
            chains.append([])
        chains[-1].append(each)
        last = file, line
    long = [chain for chain in chains if len({e.top for e in chain if not e.order}) >= CHAIN_OPS]
    rows = [row for chain in long for row in chain]
    return rows if seen.measure(rows) > CHAINED * seen.step_ms else None


def find_frozen_gradients(seen: Observation) -> Answer:
    pairs = sorted({(e.owner, e.phase) for e in seen.dropped if e.owner != e.phase and e.count >= e.steps})
    wasted = [row for row in seen.rows if (row.owner, row.phase) in pairs and row.order and row.is_product]
    lines = [line for _, phase in pairs for line in seen.optimizers[phase].backward]
    names = " and ".join(dict.fromkeys(seen.optimizers[owner].line for owner, _ in pairs))
    return Loss(lines, seen.measure(wasted) / 2 or None, [names]) if pairs else None


def find_unowned_gradients(seen: Observation) -> Answer:
    rows = [each for each in seen.rows if each.owner == UNOWNED and each.order and each.is_product]
    return Loss(rows, seen.measure(rows) / 2, [str(seen.unowned)]) if seen.unowned and rows else None


def find_weight_casts(seen: Observation) -> Answer:
    rows = [e for e in seen.rows if e.note.startswith("cast") and e.owner >= 0 and e.via != "optimizer"]
    again = {each.line for each in rows if each.note == "cast again" and not each.order}
    return [each for each in rows if each.line in again]


def find_idle_scalers(seen: Observation) -> Sequence[str]:
    kinds = {each.dtype for each in seen.rows if each.is_product}
    return seen.scalers if "bfloat16" in kinds and "float16" not in kinds else []


def find_repeated_reductions(seen: Observation) -> Answer:
    often = {k: each.reduced for k, each in enumerate(seen.optimizers) if each.reduced > REDUCED}
    rows = [each for each in seen.rows if each.phase in often and each.op == "c10d::allreduce_"]
    wasted = sum(seen.measure([row for row in rows if row.phase == k]) * (1 - 1 / often[k]) for k in often)
    lines = [line for k in often for line in seen.optimizers[k].backward]
    return Loss(lines, wasted if seen.gpu else None, [f"{max(often.values()):.2g}"]) if often else None


def find_benchmark(seen: Observation) -> Answer:
    """Find convolutions for which cuDNN's search is off though their shapes stay, or on though they change."""
    rows = [each for each in seen.rows if families.is_convolution(each.family) and not each.order]
    is_off = seen.benchmark is False and not seen.new_shapes
    is_wrong = is_off or (seen.benchmark and seen.new_shapes > CHANGING)
    if not (seen.gpu and is_wrong and seen.measure(rows) > CHAINED * seen.step_ms):
        return None
    state = "off, and their shapes stay" if is_off else "on, and their shapes change"
    return Loss(rows, None, [state, str(is_off)])


def find_kept_graphs(seen: Observation) -> Sequence[str]:
    def is_growing(nodes: list[int]) -> bool:
        more = [after - before for before, after in itertools.pairwise(nodes)]
        return min(more, default=0) > 2 and 2 * min(more) > max(more)

    return [line for line, nodes in seen.graphs.items() if is_growing(nodes)]


def find_growth(seen: Observation) -> str:
    """Return the times of a step that grew in each quarter of the warm-up, "" if they did not."""
    if (quarter := len(seen.walls_ms) // 4) < FEW_TENSORS:
        return ""
    second, third, last = (sorted(seen.walls_ms[k * quarter : (k + 1) * quarter]) for k in (1, 2, 3))
    ms = [statistics.median(each) for each in (second, third, last)]
    is_growing = 1.1 * ms[0] < ms[1] and 1.1 * ms[1] < ms[2] and second[-2] < last[1]
    return f"{format_ms(ms[0])} to {format_ms(ms[2])}" if is_growing else ""


def name_debug_modes(seen: Observation) -> str:
    modes = {"anomaly detection": seen.anomaly, "CUDA_LAUNCH_BLOCKING=1": seen.blocking}
    return " and ".join(name for name, is_on in modes.items() if is_on)


# --- the table --------------------------------------------------------------------------------------------------------

FINDINGS: dict[str, Advice] = {
    "double_backward": Advice(
        find_double_backward,
        "the double backward of convolutions runs PyTorch's own formula, which is slow",
        "`ladder export out --ops conv2d --package fastops`, then `fastops.fast_double_backward()` before the training",
        "biases whose second gradient is zero have p.grad None", "conv_double_backward"),
    "ieee_products": Advice(
        find_ieee_products, "products in IEEE FP32, without tensor cores",
        "`torch.backends.cudnn.allow_tf32 = True` and `torch.backends.cuda.matmul.allow_tf32 = True`",
        "TF32 keeps 10 bits of the inputs of a product", "tf32", 7 / 8),
    "full_precision": Advice(
        find_full_precision, "convolutions and matrix products in FP32 or TF32, where BF16 is twice as fast",
        'run the networks under `torch.autocast("cuda", dtype=torch.bfloat16)`',
        "keep losses, gradient penalties, statistics and the moving average in FP32", "bf16", 1 / 2),
    "layout_conversions": Advice(
        find_layout_conversions, "images are copied between NCHW and NHWC",
        "`.to(memory_format=torch.channels_last)` for networks and images, without `.contiguous()` behind",
        rung="channels_last"),
    "idle_gpu": Advice(
        find_idle_gpu, "the GPU has nothing to do: the CPU launches its {} kernels a step too slowly",
        'capture each phase in a CUDA graph (docs/adopt.md), or `torch.compile(mode="reduce-overhead")`{}',
        "a graph replays fixed shapes, branches and random numbers", "cuda_graphs"),
    "synchronizations": Advice(
        find_synchronizations, "the CPU waits for the GPU in each step ({})",
        "keep values on the GPU (`.detach()`, `torch.where`, masks), and read them once in a hundred steps",
        rung="item_each_step"),
    "slow_loader": Advice(
        find_slow_loader, "the training waits for its loader ({} workers)", "{}",
        "workers draw random numbers from seeds of their own", "data_loading"),
    "too_many_workers": Advice(
        list_lines(lambda seen: [each.line for each in seen.loaders if each.workers > seen.cores]),
        "a loader has more workers than there are cores", "as many workers as cores at most"),
    "pageable_copies": Advice(
        select(lambda row: row.kernel.startswith("Memcpy HtoD (Pageable")),
        "copies to the GPU from ordinary memory, for which the CPU waits",
        "`pin_memory=True` in the loader and `.to(device, non_blocking=True)`", rung="blocking_copies"),
    "unfused_optimizer": Advice(
        find_unfused_optimizer, "an optimizer updates its weights in several passes", "`fused=True` where it is made",
        rung="fused_adam"),
    "parameter_loop": Advice(
        find_parameter_loop, "a loop in Python over all weights, such as a moving average",
        "`torch._foreach_lerp_([*ema.parameters()], [*net.parameters()], 1 - beta)`, `torch._foreach_mul_`",
        "buffers are no parameters: copy them as before"),
    "zeroed_gradients": Advice(
        find_zeroed_gradients, "gradients are filled with zeros, and then added to",
        "`zero_grad(set_to_none=True)`, PyTorch's default", "code that reads p.grad must expect None", "set_to_none"),
    "spectral_norm": Advice(
        select(lambda row: row.via == "spectral_norm"), "spectral norm is computed layer by layer",
        "`ladder export out --ops spectral_norm`: all layers at once", rung="fused_spectral"),
    "weight_norm": Advice(
        select(lambda row: row.via == "weight_norm"), "weight norm is computed layer by layer, in each call",
        "once a step: `with torch.nn.utils.parametrize.cached():` around all calls of the network"),
    "elementwise_chain": Advice(
        find_elementwise_chain, "chains of elementwise operators, each of which reads and writes its whole tensor",
        "`torch.compile` for the function, or for bias, leaky ReLU and gain `ladder export out --ops bias_act`",
        "what torch.compile compiles cannot be differentiated twice", "fused_act"),
    "frozen_gradients": Advice(
        find_frozen_gradients, "gradients are computed and dropped for the weights that {} updates",
        "freeze the other network before this line: `D.requires_grad_(False)`, and True before its own",
        "freeze before a CUDA graph is captured", "g_not_frozen"),
    "unowned_gradients": Advice(
        find_unowned_gradients, "gradients of {} weights that no optimizer has",
        "`network.requires_grad_(False)` once, for a network that is never trained"),
    "unused_graph": Advice(
        list_lines(lambda seen: [each.outer or each.line for each in seen.rows if each.unused]),
        "a forward pass records a graph that no backward pass uses", "`with torch.no_grad():` around it",
        rung="g_graph_kept"),
    "weight_casts": Advice(
        find_weight_casts, "weights are cast several times a step",
        "one `torch.autocast` region for a phase: it keeps the casts of weights that require gradients"),
    "scaler_with_bf16": Advice(
        list_lines(find_idle_scalers), "a GradScaler with BF16, which needs none",
        "`GradScaler(enabled=False)`: BF16 has the exponents of FP32"),
    "empty_cache": Advice(
        list_lines(lambda seen: [line for line, calls in seen.empty_caches.items() if calls > LEAST]),
        "empty_cache() in the loop", "remove it: the driver gets memory that the next step needs", rung="empty_cache"),
    "allocator_retries": Advice(
        describe(lambda seen: seen.retries), "the allocator ran out of memory and tried again, {} times",
        "a smaller batch, checkpointing (docs/memory.md), or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    "kept_graphs": Advice(
        list_lines(find_kept_graphs), "a variable keeps the graphs of all steps, so memory grows",
        "`.detach()` before it is stored or added"),
    "unused_search": Advice(
        list_lines(lambda seen: [each.line for each in seen.parallels if each.finds_unused]),
        "DDP searches for unused parameters in each step",
        "`find_unused_parameters=False`, and freeze what a phase does not train"),
    "small_buckets": Advice(
        list_lines(lambda seen: [e.line for e in seen.parallels if e.gradients_mib > 8 * e.bucket_mib]),
        "DDP reduces gradients in many small buckets", "`bucket_cap_mb=25`, the default, or more"),
    "repeated_reductions": Advice(
        find_repeated_reductions, "gradients are added up over the ranks {} times a step",
        "`with net.no_sync():` around each backward pass but the last; freeze what a phase does not train",
        "forward and backward pass both belong inside of `no_sync`"),
    "cudnn_benchmark": Advice(
        find_benchmark, "cuDNN's search for convolutions is {}", "`torch.backends.cudnn.benchmark = {}`",
        "other algorithms round differently", "cudnn_benchmark"),
    "spinning_threads": Advice(
        describe(lambda seen: f"{seen.busy_cores:.1f}" if seen.gpu and seen.busy_cores > BUSY_CORES else ""),
        "the process keeps {} cores busy beside the GPU", "`torch.set_num_threads(1)`, or OMP_NUM_THREADS=1"),
    "recompilations": Advice(
        list_lines(lambda seen: [*seen.compiled]), "torch.compile compiles in warm steps",
        "shapes that do not change, or `torch.compile(dynamic=True)`; TORCH_LOGS=recompiles names the guard",
        rung="compile_shapes"),
    "graph_breaks": Advice(
        describe(lambda seen: "; ".join(seen.breaks)[:200]), "graph breaks of torch.compile: {}",
        "`torch.compile(fullgraph=True)` raises at each of them"),
    "growing_step": Advice(
        describe(find_growth), "a step grows longer, {} ms",
        "look for a list, a graph or a log that grows with each step"),
    "debug_modes": Advice(describe(name_debug_modes), "{} in force", "switch it off: it is for debugging"),
}  # fmt: skip
