"""The types of the evidence that `ladder.receipts.evidence` gathers: plain data, as receipts read it."""

from __future__ import annotations

from typing import TypedDict

from ladder.core.plain import Fields

Counts = dict[str, dict[str, float]]  # stage or layer -> kind -> amount


class Crossing(TypedDict):
    """One copy between devices."""

    to: str
    bytes: int
    dtype: str
    pinned: bool
    non_blocking: bool
    side_stream: bool


class Launches(TypedDict, total=False):
    """The launches of one kernel. The last three keys are those of few kernels."""

    calls: int
    dtypes: list[str]  # of the first launch's tensors
    tensors: list[str]  # arguments that were tensors in any launch
    dependent: int  # launches before the kernel in front has ended, of code that waits for it
    backward: int  # launches while a gradient is computed: of a forward kernel, to run it again
    cpp: bool  # CUDA C++, whose exported function is counted and nothing more


class Trace(TypedDict, total=False):
    """The profiler's figures of a step. Empty without CUDA, or if the profiler saw no kernels."""

    launches: float  # calls of the CPU that put work on the GPU, graph replays included
    replays: float  # graph launches
    kernels: float  # all that ran
    inductor_kernels: float  # kernels that torch.compile generated, by its names for them
    busy_ms: float  # the union of all kernels and copies; parallel streams count once
    parallel_ms: float  # the sum of kernels' times less their union: for that long two of them ran at once
    zero_kernels: float  # fills, with any value
    graph_memsets: float  # memsets that no call of the CPU asked for: nodes of replayed graphs
    copy_ms: float  # host to device
    overlap: float | None  # the part of copy_ms in which kernels of other streams ran; None without copies
    comm_ms: float  # these three: see `ladder.receipts.traces.derive_communication`
    exposed_ms: float
    comm_bursts: float


class Copies(TypedDict):
    """Compute copies of convolution weights, and how often a weight is still worked on in a forward pass."""

    kept: dict[str, int]  # by dtype
    stale: int  # copies that differ from their weight
    reworked: int


class Adam(TypedDict):
    """Adam's flags, the devices of its step counts, and its calls. A capture needs the counts on the GPU."""

    capturable: bool
    foreach: bool | None
    fused: bool | None
    steps_on: list[str]
    calls: dict[str, int]


class Graphs(TypedDict):
    """CUDA graphs, and the operators and launches of a step."""

    captured: list[str]
    operators: int  # issued by the CPU for one run of each phase, as it is timed
    operators_eager: int
    together: list[str]
    phases_per_step: float
    launches: float | None
    replays: float | None
    kernels: float | None
    busy_ms: float | None


class Fills(TypedDict):
    """The memset nodes of all captured graphs."""

    found: int
    replaced: int
    left: dict[str, int]  # why -> nodes
    memsets: float | None  # that ran in graphs, of a step


class Data(TypedDict):
    """How batches come: workers alive, the copies of one batch to the device, and how long the step waits."""

    workers: int
    crossings: list[Crossing]
    persistent: bool
    decoded: int
    mapped: int
    decoded_on_gpu: int
    fetched: float  # batches requested from the loader a step
    waiting_ms: float
    operators: int
    copy_ms: float | None
    overlap: float | None


class Compiled(TypedDict, total=False):
    """The compiled parts of a step. Empty if its recipe does not compile."""

    mode: str
    failed: str | None
    graphs: dict[str, int]
    late: int
    runs: dict[str, int]
    breaks: int
    why_broken: list[str]
    filters: int
    kernels: float | None


class Parallel(TypedDict):
    """The work of the second stream."""

    phases: dict[str, dict[str, int]]
    ms: float | None
    busy_ms: float | None


class Reduced(TypedDict):
    """The communication of one rank. The last three are of a step, None if nothing was profiled."""

    ranks: int
    gpus: int  # of the whole step: as many as ranks, and with nn.DataParallel those of its one process
    bytes: dict[str, int]  # by phase, of gradients all-reduced in its last run
    comm_ms: float | None
    exposed_ms: float | None
    comm_bursts: float | None


class Evidence(TypedDict):
    """The evidence of one prepared step. Amounts are of one step of a cycle, calls of one run of each phase."""

    recipe: Fields
    norm: str
    device: str
    flops: Counts
    inputs: Counts
    weights: Counts
    convolutions: Counts
    passes: dict[str, list[int]]
    stored: dict[str, int]
    copies: Copies
    energies: dict[str, int]
    relayouts: dict[str, float]
    plain: Counts
    kernels: dict[str, Launches]
    alternatives: dict[str, int]
    islands: dict[str, dict[str, int]]
    gradients: dict[str, float | None]
    adam: Adam
    graphs: Graphs
    fills: Fills
    data: Data
    compile: Compiled
    parallel: Parallel
    reduced: Reduced
    scales: dict[str, dict[str, float]]
    settings: Fields
