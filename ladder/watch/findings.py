"""What an observation of `ladder watch` shows: one function for each finding, from the file to a line of advice.

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
FUSABLE = ("Adam", "AdamW", "SGD", "Adagrad")
FEW_TENSORS = 8
BUSY_CORES = 3.0
LIBRARY = (
    "grad_scaler",
    "optimizer",
    "loader",
    "watch",
)  # purposes of synchronizations that are not the user's
CONVERSION = re.compile(r"n(chw|hwc)(to|2)n(chw|hwc)", re.IGNORECASE)
FLATTENING = ("aten::flatten", "aten::reshape", "aten::mean", "aten::adaptive_avg_pool2d")
UNOWNED = -2

Words: TypeAlias = Annotated[str, Meta(max_length=500)]
Lines: TypeAlias = list[Words]
Owner: TypeAlias = Annotated[int, Meta(ge=UNOWNED, le=10_000)]
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
    phase: Count
    order: Count  # how often it is a gradient: 0 is forward, 2 a gradient of a gradient
    note: Words
    owner: Owner  # the optimizer whose weight it reads
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
    foreach: bool
    capturable: bool
    backward: Lines
    calls: Count


class Loader(Record):
    """A loader, and how long its batches were waited for in so many steps without a profiler."""

    line: Words
    workers: Count
    pinned: bool
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
    cuda: Words | None = None
    python: Words
    gpu: Words | None = None
    cores: Positive
    capability: Count
    threads: Positive
    matmul: Precision
    convolution: Precision
    anomaly: bool
    blocking: bool
    walls_ms: Annotated[list[Real], Meta(min_length=2)]
    window: Positive
    period: Positive
    busy_cores: Amount
    idle: list[Idle]
    idle_steps: Positive = 1
    optimizers: Annotated[list[Optimizer], Meta(min_length=1)]
    loaders: list[Loader]
    scalers: Lines  # that make a GradScaler which is enabled
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

    @property
    def step_ms(self) -> float:
        """Return the wall time of a step without a profiler: the median of the later half."""
        return statistics.median(self.walls_ms[len(self.walls_ms) // 2 :])

    @property
    def busy_ms(self) -> float | None:
        """Return the time that the GPU works in a step; None on a CPU."""
        return sum(each.busy_us for each in self.idle) / 1e3 / self.idle_steps if self.idle else None

    def measure(self, rows: Iterable[Row]) -> float:
        """Return milliseconds a step. Under a profiler operators of a CPU last longer: at most the step itself."""
        scale = 1.0
        if not self.gpu:
            scale = min(1.0, 1e3 * self.step_ms * self.window / max(sum(each.us for each in self.rows), 1e-9))
        return scale * sum(each.us for each in rows) / 1e3 / self.window


class Finding(Record, kw_only=True):
    """A loss: what, where, how much of a step is at stake, what to do, and what to watch out for.

    `ms` is None where no time could be measured. `most` of it can be gained, which is an upper bound. `rung` is the
    rung or mistake of this project that measures the same.
    """

    id: Words
    what: Words
    where: Lines
    ms: float | None
    share: float | None
    most: float
    do: Words
    careful: Words
    rung: Words


class Loss(NamedTuple):
    """What a function below sees: rows, or lines whose time is unknown; and texts for the advice."""

    where: Sequence[Row | str]
    ms: float | None = None
    texts: Sequence[str] = ()


class Advice(NamedTuple):
    """What a finding says. `{}` in the first two texts is what the function fills in."""

    what: str
    do: str
    careful: str = ""
    rung: str = ""
    most: float = 1.0


# --- the findings -----------------------------------------------------------------------------------------------------


def find_double_backward(seen: Observation) -> Sequence[Row]:
    return [each for each in seen.rows if each.top.startswith("ConvolutionBackwardBackward")]


def find_ieee_products(seen: Observation) -> Sequence[Row]:
    set_as = {True: seen.matmul, False: seen.convolution}
    rows = list_products(seen, "float32")
    return [each for each in rows if set_as[each.family == families.MATMUL] == "ieee"]


def find_full_precision(seen: Observation) -> Sequence[Row]:
    rows = list_products(seen, "float32")
    return rows if seen.measure(rows) > PRODUCTS_SHARE * seen.step_ms else []


def list_products(seen: Observation, dtype: str) -> list[Row]:
    """Return the rows of convolutions and matrix products on a GPU with TF32 and BF16."""
    return [each for each in seen.rows if seen.capability >= 8 and each.is_product and each.dtype == dtype]


def find_layout_conversions(seen: Observation) -> Sequence[Row]:
    """Find conversions. The input of a network, and what a layer without channels flattens, need one anyway."""
    rows = [
        e for e in seen.rows if (" to N" in e.note or CONVERSION.search(e.kernel)) and e.via != "optimizer"
    ]
    turned = [each for each in rows if each.note != "NCHW to NHWC" and each.top not in FLATTENING]
    return rows if any(not each.order for each in turned) else []


def find_idle_gpu(seen: Observation) -> Loss | None:
    if seen.busy_ms is None or (idle := seen.step_ms - seen.busy_ms) < IDLE * seen.step_ms:
        return None
    phases = sorted(seen.idle, key=lambda each: -each.idle_us)
    stops = [f"the synchronization at {each.line}" for each in list_synchronizations(seen)[:3]]
    stops += dict.fromkeys(f"{e.name} without `capturable=True`" for e in seen.optimizers if not e.capturable)
    count = f"{sum(each.kernels for each in phases) / seen.idle_steps:,.0f}"
    texts = count, f"; in the way: {', '.join(stops)}" if stops else ""
    return Loss([seen.optimizers[each.phase].line for each in phases if each.idle_us], idle, texts)


def list_synchronizations(seen: Observation) -> list[Synchronization]:
    """Return the synchronizations of each step that the user's code makes, the longest first."""
    own = [each for each in seen.synchronizations if each.line and each.via not in LIBRARY]
    own = [each for each in own if each.on_gpu == bool(seen.gpu) and each.calls >= seen.window / 2]
    if not seen.gpu:  # what autograd and DDP read of a CPU's tensors would not wait for a GPU
        own = [each for each in own if all(each.line not in one.backward for one in seen.optimizers)]
    return sorted(own, key=lambda each: -each.us)


def find_synchronizations(seen: Observation) -> Loss | None:
    rows = list_synchronizations(seen)
    ms = max(LEAST * seen.step_ms, sum(each.us for each in rows) / 1e3 / seen.window) if seen.gpu else None
    calls = ", ".join(dict.fromkeys(each.call for each in rows))
    return Loss(list(dict.fromkeys(each.line for each in rows)), ms, [calls]) if rows else None


def find_slow_loader(seen: Observation) -> Loss | None:
    ms = sum(each.wait_ms for each in seen.loaders)
    if ms < WAITING * seen.step_ms:
        return None
    slowest = max(seen.loaders, key=lambda each: each.wait_ms)
    more = min(max(2 * slowest.workers, 4), seen.cores)
    do = f"`num_workers={more}, persistent_workers=True`{', `pin_memory=True`' if seen.gpu else ''}"
    if slowest.workers >= seen.cores:
        do = f"less work for each image: {slowest.workers} workers share {seen.cores} cores"
    return Loss([slowest.line], min(ms, seen.step_ms), [str(slowest.workers), do])


def find_too_many_workers(seen: Observation) -> Loss | None:
    lines = [each.line for each in seen.loaders if each.workers > seen.cores]
    return Loss(lines) if lines else None


def find_pageable_copies(seen: Observation) -> Sequence[Row]:
    return [each for each in seen.rows if each.kernel.startswith("Memcpy HtoD (Pageable")]


def find_unfused_optimizer(seen: Observation) -> Sequence[Row]:
    def is_slow(row: Row) -> bool:
        own = seen.optimizers[row.phase]
        return own.name in FUSABLE and not own.fused and own.tensors >= FEW_TENSORS and row.line == own.line

    rows = [each for each in seen.rows if each.via == "optimizer"]
    return [each for each in rows if is_slow(each)]


def find_parameter_loop(seen: Observation) -> Sequence[Row]:
    """Find in-place operators that read the weights of an optimizer, many times at one line."""

    def is_in_loop(row: Row) -> bool:
        is_small = re.fullmatch(r"aten::(add|mul|sub|div|lerp|copy|addcmul)_", row.top) is not None
        is_users = row.owner >= 0 and not row.order and not row.via
        many = max(FEW_TENSORS, seen.optimizers[row.owner].tensors / 2) if row.owner >= 0 else 0
        return is_small and is_users and row.calls >= many * seen.window

    lines = {each.line for each in seen.rows if is_in_loop(each)}
    return [each for each in seen.rows if each.line in lines and not each.order]


def find_zeroed_gradients(seen: Observation) -> Loss | None:
    zeroed = [
        e for e in seen.rows if e.via == "optimizer" and e.top in ("aten::zero_", "aten::_foreach_zero_")
    ]
    added = [e for e in seen.rows if e.top == "torch::autograd::AccumulateGrad" and e.op == "aten::add_"]
    return Loss(zeroed, seen.measure([*zeroed, *added])) if zeroed else None


def find_spectral_norm(seen: Observation) -> Sequence[Row]:
    return [each for each in seen.rows if each.via == "spectral_norm"]


def find_weight_norm(seen: Observation) -> Sequence[Row]:
    return [each for each in seen.rows if each.via == "weight_norm"]


def find_elementwise_chain(seen: Observation) -> Sequence[Row]:
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
    return rows if seen.measure(rows) > CHAINED * seen.step_ms else []


def find_frozen_gradients(seen: Observation) -> Loss | None:
    pairs = sorted({(e.owner, e.phase) for e in seen.dropped if e.owner != e.phase and e.count >= e.steps})
    wasted = [row for row in seen.rows if (row.owner, row.phase) in pairs and row.order and row.is_product]
    lines = [line for _, phase in pairs for line in seen.optimizers[phase].backward]
    names = " and ".join(dict.fromkeys(seen.optimizers[owner].line for owner, _ in pairs))
    return Loss(lines, seen.measure(wasted) / 2 or None, [names]) if pairs else None


def find_unowned_gradients(seen: Observation) -> Loss | None:
    rows = [each for each in seen.rows if each.owner == UNOWNED and each.order and each.is_product]
    return Loss(rows, seen.measure(rows) / 2, [str(seen.unowned)]) if seen.unowned and rows else None


def find_unused_graph(seen: Observation) -> Loss | None:
    rows = [each for each in seen.rows if each.unused]
    return Loss([each.outer or each.line for each in rows]) if rows else None


def find_weight_casts(seen: Observation) -> Sequence[Row]:
    rows = [e for e in seen.rows if e.note.startswith("cast") and e.owner >= 0 and e.via != "optimizer"]
    again = {each.line for each in rows if each.note == "cast again" and not each.order}
    return [each for each in rows if each.line in again]


def find_scaler_with_bf16(seen: Observation) -> Loss | None:
    kinds = {each.dtype for each in seen.rows if each.is_product}
    return Loss(seen.scalers) if seen.scalers and "bfloat16" in kinds and "float16" not in kinds else None


def find_empty_cache(seen: Observation) -> Loss | None:
    lines = [line for line, calls in seen.empty_caches.items() if calls > LEAST]
    return Loss(lines) if lines else None


def find_allocator_retries(seen: Observation) -> Loss | None:
    return Loss([], None, [str(seen.retries)]) if seen.retries else None


def find_kept_graphs(seen: Observation) -> Loss | None:
    def is_growing(nodes: list[int]) -> bool:
        more = [after - before for before, after in itertools.pairwise(nodes)]
        return min(more, default=0) > 2 and 2 * min(more) > max(more)

    lines = [line for line, nodes in seen.graphs.items() if is_growing(nodes)]
    return Loss(lines) if lines else None


def find_unused_search(seen: Observation) -> Loss | None:
    lines = [each.line for each in seen.parallels if each.finds_unused]
    return Loss(lines) if lines else None


def find_small_buckets(seen: Observation) -> Loss | None:
    lines = [each.line for each in seen.parallels if each.gradients_mib > 8 * each.bucket_mib]
    return Loss(lines) if lines else None


def find_spinning_threads(seen: Observation) -> Loss | None:
    return Loss([], None, [f"{seen.busy_cores:.1f}"]) if seen.gpu and seen.busy_cores > BUSY_CORES else None


def find_recompilations(seen: Observation) -> Loss | None:
    return Loss([*seen.compiled], None, [str(sum(seen.compiled.values()))]) if seen.compiled else None


def find_graph_breaks(seen: Observation) -> Loss | None:
    return Loss([], None, ["; ".join(seen.breaks)[:200]]) if seen.breaks else None


def find_growing_step(seen: Observation) -> Loss | None:
    quarter = len(seen.walls_ms) // 4
    if quarter < FEW_TENSORS:
        return None
    second, third, last = (sorted(seen.walls_ms[k * quarter : (k + 1) * quarter]) for k in (1, 2, 3))
    ms = [statistics.median(each) for each in (second, third, last)]
    is_growing = 1.1 * ms[0] < ms[1] and 1.1 * ms[1] < ms[2] and second[-2] < last[1]
    return Loss([], None, [f"{format_ms(ms[0])} to {format_ms(ms[2])}"]) if is_growing else None


def find_debug_modes(seen: Observation) -> Loss | None:
    modes = {"anomaly detection": seen.anomaly, "CUDA_LAUNCH_BLOCKING=1": seen.blocking}
    named = [name for name, is_on in modes.items() if is_on]
    return Loss([], None, [" and ".join(named)]) if named else None


# --- the table --------------------------------------------------------------------------------------------------------

Find: TypeAlias = Callable[[Observation], "Loss | Sequence[Row] | None"]
FINDINGS: dict[Find, Advice] = {
    find_double_backward: Advice(
        "the double backward of convolutions runs PyTorch's own formula, which is slow",
        "`ladder export out --ops conv2d --package fastops`: `fastops.conv2d(x, weight, padding=1)`",
        "biases whose second gradient is zero have p.grad None", "conv_double_backward",
    ),
    find_ieee_products: Advice(
        "products in IEEE FP32, without tensor cores",
        "`torch.backends.cudnn.allow_tf32 = True` and `torch.backends.cuda.matmul.allow_tf32 = True`",
        "TF32 keeps 10 bits of the inputs of a product", "tf32", 7 / 8,
    ),
    find_full_precision: Advice(
        "convolutions and matrix products in FP32 or TF32, where BF16 is twice as fast",
        'run the networks under `torch.autocast("cuda", dtype=torch.bfloat16)`',
        "keep losses, gradient penalties, statistics and the moving average in FP32", "bf16", 1 / 2,
    ),
    find_layout_conversions: Advice(
        "images are copied between NCHW and NHWC",
        "`.to(memory_format=torch.channels_last)` for networks and images, without `.contiguous()` behind",
        rung="channels_last",
    ),
    find_idle_gpu: Advice(
        "the GPU has nothing to do: the CPU launches its {} kernels a step too slowly",
        'capture each phase in a CUDA graph (docs/adopt.md), or `torch.compile(mode="reduce-overhead")`{}',
        "a graph replays fixed shapes, branches and random numbers", "cuda_graphs",
    ),
    find_synchronizations: Advice(
        "the CPU waits for the GPU in each step: {}",
        "keep values on the GPU (`.detach()`, `torch.where`, masks), and read them once in a hundred steps",
        rung="item_each_step",
    ),
    find_slow_loader: Advice(
        "the training waits for its loader ({} workers)", "{}",
        "workers draw random numbers from seeds of their own", "data_loading",
    ),
    find_too_many_workers: Advice(
        "a loader has more workers than there are cores", "as many workers as cores at most",
    ),
    find_pageable_copies: Advice(
        "copies to the GPU from ordinary memory, for which the CPU waits",
        "`pin_memory=True` in the loader and `.to(device, non_blocking=True)`", rung="blocking_copies",
    ),
    find_unfused_optimizer: Advice(
        "an optimizer updates its weights in several passes", "`fused=True`", rung="fused_adam",
    ),
    find_parameter_loop: Advice(
        "a loop in Python over all weights, such as a moving average",
        "one call: `torch._foreach_lerp_([*ema.parameters()], [*net.parameters()], 1 - beta)`, `torch._foreach_mul_`",
        "buffers are no parameters: copy them as before",
    ),
    find_zeroed_gradients: Advice(
        "gradients are filled with zeros, and then added to",
        "`zero_grad(set_to_none=True)`, PyTorch's default", "code that reads p.grad must expect None",
        "set_to_none",
    ),
    find_spectral_norm: Advice(
        "spectral norm is computed layer by layer",
        "`ladder export out --ops spectral_norm`: all layers at once", rung="fused_spectral",
    ),
    find_weight_norm: Advice(
        "weight norm is computed layer by layer, in each call",
        "once a step: `with torch.nn.utils.parametrize.cached():` around all calls of the network",
    ),
    find_elementwise_chain: Advice(
        "chains of elementwise operators, each of which reads and writes its whole tensor",
        "`torch.compile` for the function, or for bias, leaky ReLU and gain `ladder export out --ops bias_act`",
        "what torch.compile compiles cannot be differentiated twice", "fused_act",
    ),
    find_frozen_gradients: Advice(
        "gradients of weights are computed and dropped: of those that {} trains",
        "freeze the other network before this line: `D.requires_grad_(False)`, and True before its own",
        "freeze before a CUDA graph is captured", "g_not_frozen",
    ),
    find_unowned_gradients: Advice(
        "gradients of {} weights that no optimizer has",
        "`network.requires_grad_(False)` once, for a network that is never trained",
    ),
    find_unused_graph: Advice(
        "a forward pass records a graph that no backward pass uses", "`with torch.no_grad():` around it",
        rung="g_graph_kept",
    ),
    find_weight_casts: Advice(
        "weights are cast several times a step",
        "one `torch.autocast` region for a phase: it keeps the casts of weights that require gradients",
    ),
    find_scaler_with_bf16: Advice(
        "a GradScaler with BF16, which needs none",
        "`GradScaler(enabled=False)`: BF16 has the exponents of FP32",
    ),
    find_empty_cache: Advice(
        "empty_cache() in the loop", "remove it: the driver gets memory that the next step needs", "",
        "empty_cache",
    ),
    find_allocator_retries: Advice(
        "the allocator ran out of memory and tried again, {} times",
        "a smaller batch, checkpointing (docs/memory.md), or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
    find_kept_graphs: Advice(
        "a variable keeps the graphs of all steps, so memory grows",
        "`.detach()` before it is stored or added",
    ),
    find_unused_search: Advice(
        "DDP searches for unused parameters in each step",
        "`find_unused_parameters=False`, and freeze what a phase does not train",
    ),
    find_small_buckets: Advice(
        "DDP reduces gradients in many small buckets", "`bucket_cap_mb=25`, the default, or more",
    ),
    find_spinning_threads: Advice(
        "the process keeps {} cores busy beside the GPU", "`torch.set_num_threads(1)`, or OMP_NUM_THREADS=1",
    ),
    find_recompilations: Advice(
        "torch.compile compiles in warm steps: {} times", rung="compile_shapes",
        do="shapes that do not change, or `torch.compile(dynamic=True)`; TORCH_LOGS=recompiles names the guard",
    ),
    find_graph_breaks: Advice(
        "graph breaks of torch.compile: {}", "`torch.compile(fullgraph=True)` raises at each of them",
    ),
    find_growing_step: Advice(
        "a step grows longer, {} ms", "look for a list, a graph or a log that grows with each step",
    ),
    find_debug_modes: Advice("{} in force", "switch it off: it is for debugging"),
}  # fmt: skip


def list_findings(seen: Observation) -> list[Finding]:
    """Return what an observation shows, by the time at stake; what has none comes last."""
    findings = []
    for find, advice in FINDINGS.items():
        if not (loss := find(seen)):
            continue
        if not isinstance(loss, Loss):
            loss = Loss(loss, seen.measure(loss))
        share = None if loss.ms is None else min(1.0, loss.ms / seen.step_ms)
        if share is not None and share < LEAST:
            continue
        lines: dict[str, float] = defaultdict(float)
        for each in loss.where:
            lines[each if isinstance(each, str) else each.line] += 1 if isinstance(each, str) else each.us
        texts = [*loss.texts, "", ""]
        findings.append(Finding(
            id=find.__name__.removeprefix("find_"), what=advice.what.format(texts[0]), do=advice.do.format(texts[1]),
            where=[line for line in sorted(lines, key=lambda line: -lines[line]) if line], ms=loss.ms, share=share,
            most=advice.most, careful=advice.careful, rung=advice.rung,
        ))  # fmt: skip
    return sorted(findings, key=lambda each: -(each.ms or 0) * each.most)
