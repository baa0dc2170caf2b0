"""The experiments: contenders that are timed beside each other. Each answers a question of the article.

Activations are normal random numbers. They are in NCHW, the memory format of the article's kernels, unless a name
says channels_last. `ladder.studies.kernelbench.cuda` has the contenders in CUDA C++. If they cannot be built they are
n/a, and the others are measured all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ladder.studies.claims import spectral
from ladder.studies.claims.timed import Experiment, Make, Missing, Setting
from ladder.studies.claims.view import EQUAL
from ladder.studies.kernelbench import cuda
from ladder.studies.kernelbench.calls import random_like
from ladder.studies.kernelbench.timing import Call

SHAPE = (8, 512, 256, 256)  # the article's shape at batch 8
SMOKE_SHAPE = (2, 3, 8, 8)
SLOPE = 0.2
NCHW, CHANNELS_LAST = "NCHW", "channels_last"
THREADS = (32, 64, 128, 256, 512, 1024)  # threads a block
ELEMENTS = (4, 8, 16, 32, 64, 128)  # elements a thread, at 128 threads: more elements take more registers
RESIDENT = (2, 4, 8, 16)  # blocks of 128 threads on a multiprocessor; most have room for 16
LAUNCH_BOUNDS: dict[str, cuda.Flags] = {  # max_threads and min_blocks of `__launch_bounds__`
    "1024 threads": {},
    "256 threads": {"max_threads": 256},
    "256 threads, 4 blocks": {"max_threads": 256, "min_blocks": 4},
    "256 threads, 8 blocks": {"max_threads": 256, "min_blocks": 8},
}
BUILDS: tuple[cuda.Flags, ...] = (
    {"fast_math": True},
    *(flags for flags in LAUNCH_BOUNDS.values() if flags),
)  # besides the usual build
IN_CUDA = (  # experiments whose contenders are CUDA C++, except PyTorch
    "coalescing", "divergence", "reduction", "vector width", "block size in CUDA", "block size of the norm",
    "launch bounds",
)  # fmt: skip
BOUNDS = (None, 96, 64, 32)  # most registers a thread may have


def flags_of(source: str) -> cuda.Flags:
    """Return the flags of the CUDA C++ build for "EXPERIMENT: CONTENDER"."""
    experiment, _, contender = source.partition(": ")
    if experiment == "launch bounds":
        return LAUNCH_BOUNDS.get(contender, {})
    return {"fast_math": True} if contender == "CUDA C++, fast math" else {}


def setting(device: str, smoke: bool) -> Setting:
    return Setting(device, SMOKE_SHAPE if smoke else SHAPE, smoke)


# ---- instance norm + leaky ReLU ------------------------------------------------------------------------------------


def sequence(x: Tensor) -> Tensor:
    """Run the article's two operators in plain PyTorch."""
    return F.leaky_relu(F.instance_norm(x), SLOPE)


def triton_norm(x: Tensor) -> Tensor:
    from kernels import instance_norm_act

    return instance_norm_act(x, *cuda.unit(x.device, *x.shape[:2]), slope=SLOPE, gain=1.0)


def forward(function: Callable[[Tensor], Tensor], dtype: torch.dtype, layout: str = NCHW) -> Make:
    """Return a maker of forward calls of `function`, with gradients on, so that it saves what its backward needs."""

    def make(setting: Setting) -> Call:
        x = _laid(_activation(setting, dtype), layout).requires_grad_()
        return lambda: function(x)

    return make


def backward(function: Callable[[Tensor], Tensor], dtype: torch.dtype, layout: str = NCHW) -> Make:
    """Return a maker of calls of `autograd.grad` alone, over a kept graph."""

    def make(setting: Setting) -> Call:
        x = _laid(_activation(setting, dtype), layout).requires_grad_()
        y = function(x)
        g = _laid(random_like(y), layout)
        return lambda: torch.autograd.grad(y, x, g, retain_graph=True)

    return make


def norm_functions() -> dict[str, Callable[[Tensor], Tensor]]:
    return {
        "PyTorch": sequence,
        "CUDA C++": cuda.norm(),
        "CUDA C++, fast math": cuda.norm({"fast_math": True}),
        "Triton": triton_norm,
    }


# Passes over the activation that must cross memory.
# PyTorch, forward: the norm reads x twice and writes, the activation reads and writes.
# PyTorch, backward: the activation reads two tensors and writes one; the norm reads two twice and writes one.
# Triton and CUDA C++: x and y forward; x, dy and dx backward. Their second reads are not counted: as far as they fit,
# they come from the L2 cache or from shared memory.
PASSES = {"forward": (5, 2, 2, 2), "backward": (8, 3, 3, 3)}


def norms() -> list[Experiment]:
    functions = norm_functions()
    found = []
    for dtype, itemsize, word in ((torch.bfloat16, 2, "bf16"), (torch.float32, 4, "fp32")):
        for direction, bind in (("forward", forward), ("backward", backward)):
            contenders = {name: bind(function, dtype) for name, function in functions.items()}
            title = f"instance norm + leaky ReLU, {word}, {direction}"
            shares = dict(zip(functions, PASSES[direction], strict=True))
            found.append(
                Experiment(f"norm {direction} {word}", title, contenders, 2, itemsize, shares=shares)
            )
    return found


def channels_last_norms() -> list[Experiment]:
    """Return the same op in channels_last, the format of the ladder's top.

    No block can keep a map there, so all contenders read x twice.
    """
    functions = norm_functions()
    del functions["CUDA C++, fast math"]
    found = []
    for direction, bind, shares in (("forward", forward, (5, 3, 3)), ("backward", backward, (8, 5, 5))):
        contenders = {
            name: bind(function, torch.bfloat16, CHANNELS_LAST) for name, function in functions.items()
        }
        title = f"instance norm + leaky ReLU, bf16, {CHANNELS_LAST}, {direction}"
        passes = dict(zip(functions, shares, strict=True))
        name = f"norm {direction} bf16 {CHANNELS_LAST}"
        found.append(Experiment(name, title, contenders, 3, 2, shares=passes))
    return found


# ---- access patterns and small pairs -------------------------------------------------------------------------------


def activation(function: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float32) -> Make:
    """Return a maker of calls of `function` on an activation, without gradients."""

    def make(setting: Setting) -> Call:
        x = _activation(setting, dtype)
        return lambda: function(x)

    return make


def leaky(x: Tensor) -> Tensor:
    return F.leaky_relu(x, SLOPE)


def coalescing() -> Experiment:
    contenders = {
        "PyTorch": activation(leaky),
        "strided, N blocks": activation(cuda.for_each_sample(cuda.strided)),
        "coalesced, N blocks": activation(cuda.for_each_sample(cuda.coalesced)),
        "strided": activation(cuda.strided),
        "coalesced": activation(cuda.coalesced),
    }
    return Experiment("coalescing", "the article's activation, strided and coalesced", contenders, 2, 4)


def pairs() -> list[Experiment]:
    """Return pairs of two ways to do one thing, each a page of CUDA C++."""
    return [
        Experiment(
            "divergence",
            "a branch that splits each warp, and the same by predication",
            {
                "divergent": activation(cuda.bound("divergent", steps=cuda.STEPS)),
                "predicated": activation(cuda.bound("predicated", steps=cuda.STEPS)),
                "divergent, whole warps": activation(cuda.bound("divergent", steps=cuda.STEPS, by="warp")),
            },
            2,
            4,
            unlike=("divergent, whole warps",),
        ),
        Experiment(
            "reduction",
            "sums of planes through shared memory and through shuffles",
            {
                "shared memory": activation(cuda.rows("shared_sum")),
                "shuffles": activation(cuda.rows("shuffle_sum")),
            },
            1,
            4,
        ),
        Experiment(
            "vector width",
            "a copy in accesses of 2 and of 16 bytes",
            {
                "2 bytes": activation(cuda.bound("scalar_copy"), torch.bfloat16),
                "16 bytes": activation(cuda.bound("vector_copy"), torch.bfloat16),
            },
            2,
            2,
        ),
    ]


# ---- block sizes, occupancy, launch bounds --------------------------------------------------------------------------


def triton_leaky(x: Tensor, threads: int, elements: int, registers: int | None = None) -> Tensor:
    """Run leaky ReLU in blocks of `threads` threads, each with `elements` elements and at most so many `registers`."""
    from ladder.studies.claims.small_kernels import leaky_relu_kernel

    y, block = torch.empty_like(x), threads * elements
    more = {} if registers is None else {"maxnreg": registers}
    grid = (-(-x.numel() // block),)
    leaky_relu_kernel[grid](x, y, x.numel(), SLOPE, BLOCK=block, num_warps=threads // 32, **more)
    return y


def swept(**how: int | None) -> Make:
    def make(setting: Setting) -> Call:
        _needs_triton(setting)
        x = _activation(setting, torch.float32)
        return lambda: triton_leaky(x, **how)  # type: ignore[arg-type]

    return make


def sweeps() -> list[Experiment]:
    by_threads = {f"{threads} threads": swept(threads=threads, elements=8) for threads in THREADS}
    by_elements = {f"{elements} elements": swept(threads=128, elements=elements) for elements in ELEMENTS}
    bounds = {
        "no bound" if most is None else f"{most} registers": swept(threads=128, elements=64, registers=most)
        for most in BOUNDS
    }
    in_cuda = {f"{threads} threads": activation(_coalesced(threads)) for threads in THREADS}
    normed = {
        f"{threads} threads": forward(cuda.norm(threads=threads), torch.bfloat16) for threads in THREADS
    }
    launch_bounds = {
        name: forward(cuda.norm(flags, threads=256), torch.bfloat16) for name, flags in LAUNCH_BOUNDS.items()
    }
    return [
        Experiment("block size", "leaky ReLU in Triton, blocks of 32 to 1024", by_threads, 2, 4),
        occupancies(),
        Experiment(
            "occupancy", "leaky ReLU in Triton, 128 threads, more elements a thread", by_elements, 2, 4
        ),
        Experiment(
            "register bounds", "leaky ReLU in Triton, 64 elements a thread, registers bounded", bounds, 2, 4
        ),
        Experiment("block size in CUDA", "the coalesced activation, blocks of 32 to 1024", in_cuda, 2, 4),
        Experiment("block size of the norm", "instance norm in CUDA C++, blocks of 32 to 1024", normed, 2, 2),
        Experiment("launch bounds", "instance norm in CUDA C++, 256 threads", launch_bounds, 2, 2),
    ]


def walked(blocks: int) -> Make:
    """Return a maker of leaky ReLU by `blocks` blocks a multiprocessor, which walk over the activation.

    All of them are one compiled kernel.
    """

    def make(setting: Setting) -> Call:
        _needs_triton(setting)
        from kernels.common.tiles import processor
        from ladder.studies.claims.small_kernels import leaky_relu_walk_kernel

        x = _activation(setting, torch.float32)
        grid = (blocks * processor(x.device)[1],)

        def call() -> Tensor:
            y = torch.empty_like(x)
            leaky_relu_walk_kernel[grid](x, y, x.numel(), SLOPE, BLOCK=128 * 8, num_warps=4)
            return y

        return call

    return make


def occupancies() -> Experiment:
    """Return the experiment on fewer blocks instead of more registers. Only the number of resident warps differs."""
    contenders = {f"{blocks} blocks": walked(blocks) for blocks in RESIDENT}
    return Experiment(EQUAL, "leaky ReLU in Triton, blocks of 128 threads a multiprocessor", contenders, 2, 4)


def _coalesced(threads: int) -> Callable[[Tensor], Tensor]:
    return lambda x: cuda.coalesced(x, threads=threads)


# ---- fusion ----------------------------------------------------------------------------------------------------------


def unfused(setting: Setting) -> Call:
    """Return norm, scale and shift, and activation as three operators with two intermediates."""
    x, scale, bias = _layer(setting)
    return lambda: F.leaky_relu(torch.addcmul(bias, F.instance_norm(x), scale), SLOPE)


def fused(setting: Setting) -> Call:
    from kernels import instance_norm_act

    x, scale, bias = _layer(setting)
    scale, bias = (t.flatten(1).float().expand(x.shape[0], -1).contiguous() for t in (scale, bias))
    return lambda: instance_norm_act(x, scale, bias, slope=SLOPE, gain=1.0)


def fusion() -> Experiment:
    """Return the experiment on fusion. It counts passes over the activation.

    Unfused: 3 (read twice, written), 2 and 2. Fused: 2, or 3 where x is not kept.
    """
    return Experiment(
        "fusion",
        "instance norm, scale and shift, leaky ReLU: three operators and one",
        {"three operators": unfused, "one": fused},
        3,
        2,
        shares={"three operators": 7, "one": 2},
    )


def _layer(setting: Setting) -> tuple[Tensor, Tensor, Tensor]:
    x = _activation(setting, torch.bfloat16)
    scale, bias = (_random((1, setting.shape[1], 1, 1), setting, torch.bfloat16) for _ in range(2))
    return x, scale, bias


def all_experiments() -> list[Experiment]:
    """Return all experiments, the most important first, because a time limit drops the last ones."""
    first, *rest = sweeps()
    norms_ = [*norms()[2:], *channels_last_norms()]
    return [*norms()[:2], coalescing(), fusion(), first, *pairs(), *rest, *norms_, spectral.experiment()]


# ---- errors of the normalization ------------------------------------------------------------------------------------


def norm_errors(setting: Setting) -> dict[str, float]:
    """Return the relative L2 error in float32 against float64, on one sample, of each contender that runs here."""
    torch.manual_seed(0)
    x = _activation(Setting(setting.device, (1, *setting.shape[1:]), setting.smoke), torch.float32)
    exact, found = sequence(x.double()), {}
    for name, function in norm_functions().items():
        with contextlib.suppress(Exception):
            found[name] = float((function(x).double() - exact).norm() / exact.norm())
    return found


def _needs_triton(setting: Setting) -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        raise Missing("needs Triton") from None


def _activation(setting: Setting, dtype: torch.dtype) -> Tensor:
    return _random(setting.shape, setting, dtype)


def _laid(x: Tensor, layout: str) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if layout == CHANNELS_LAST else x


def _random(shape: tuple[int, ...], setting: Setting, dtype: torch.dtype) -> Tensor:
    """Return numbers drawn in the wanted precision. Casting them from float32 would need twice the memory."""
    return torch.randn(shape, device=setting.device, dtype=dtype)
