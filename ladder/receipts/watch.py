"""The work that PyTorch and Triton really do in a phase, by a dispatch mode, layer hooks and a launch counter.

It is seen at dispatch level, below autograd and autocast: each operator with its tensors, in forward, backward and
double backward alike. Watching slows everything down, so no timed process ever does it.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ladder.core.plain import Plain

Crossing = Plain  # one copy between devices: to, bytes, dtype, pinned, non_blocking, side_stream
WAIT = "griddepcontrol.wait"  # in the code of a kernel that is launched before the kernel in front has ended
LAYOUTS = {(True, False): "nhwc", (False, True): "nchw", (True, True): "either", (False, False): "other"}
LOSSES = ("softplus", "pow", "mean", "sum", "sqrt")  # of losses and penalties, outside any layer
STATISTICS = ("mean", "var", "var_mean", "linalg_vector_norm", "rsqrt")


def name_layout(x: Tensor) -> str:
    """Return the memory format of [N, C, H, W]: "nhwc", "nchw", "either" (C or H x W is 1) or "other"."""
    nhwc = x.is_contiguous(memory_format=torch.channels_last)
    return LAYOUTS[nhwc, x.is_contiguous()]


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Watch(TorchDispatchMode):
    """Counts of everything a receipt may ask about. ``weight`` is how often the phase runs in a step.

    Attributes:
        flops, inputs, weights: {stage: {dtype or layout: FLOPs or bytes a step}} of the convolutions. The stage is
            "forward", "backward" or "double backward" (the pass that differentiates a gradient).
        convolutions: {stage: {"calls": of the convolutions, "largest": longest side of their kernels, "rgb": calls with
            1x1 kernels from or to 3 channels}}. PyTorch's own second derivative uses an image as a kernel.
        relayouts, relayout_bytes: copies of an image from NHWC to NCHW or back, a step.
        plain: {kind: {layer class: calls}} of operators in plain PyTorch.
            Kinds "act", "modulate", "normalize", "resample", "residual": forward operators that our kernels replace.
            Kind "grouped": 3x3 convolutions in groups of 8, 16 or 32 channels.
            Kind "dense": products of matrices, in a backward pass by autograd node instead of layer class.
            Kind "fp8": products in FP8.
            Kind "weight norm": weights made by PyTorch's weight norm.
            Kind "spectral": products of a weight and a vector, by layer class or "power iteration".
            Except for "fp8", plain PyTorch that `kernels.alternatives` chose is not counted.
        islands: {name: {dtype: calls}} of the operators that must stay in full precision.
        fills, accumulated: gradients set to zero, and additions to a gradient that was there already.
        optimizer: {"foreach" | "fused" | "lerp" | "foreach_lerp": calls} of Adam and of moving averages.
        products: {dtype: FLOPs} of matrix products, in all passes.
        passes: {network: batch of each of its forward passes}, of all phases in order.
        reworked: products, casts and copies in a forward pass of one of the weights in ``weights_at`` (addresses).
        calls: operators in all.   crossings: copies between devices.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = 1.0
        self.layers: list[str] = []  # classes of the modules whose forward is running, outermost first
        # Passes of this phase that differentiated with a graph: a pass after them differentiates a gradient.
        self.building: set[int] = set()
        self.calls = self.fills = self.accumulated = 0
        self.relayouts = self.relayout_bytes = 0.0
        self.flops, self.inputs, self.weights, self.plain, self.islands, self.convolutions = (
            defaultdict(Counter) for _ in range(6)
        )
        self.optimizer: Counter[str] = Counter()
        self.products: Counter[str] = Counter()
        self.weights_at: set[int] = set()
        self.reworked = 0
        self.crossings: list[Crossing] = []
        self.passes: defaultdict[str, list[int]] = defaultdict(list)

    def start(self, weight: float) -> None:
        """Begin a new phase, which runs ``weight`` times a step."""
        self.weight, self.building = weight, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self.calls += 1
        self.see(func.overloadpacket.__name__, args, kwargs, out)
        return out

    def see(self, op: str, args: tuple, kwargs: Mapping[str, Any], out: Any) -> None:
        node = torch._C._current_autograd_node()
        if node is not None and torch.is_grad_enabled():
            self.building.add(torch._C._current_graph_task_id())
        # Plain PyTorch by the table of alternatives was chosen, not overlooked.
        left = node is not None or not is_alternative()
        if node is None and left and op in ("mul", "_to_copy", "clone") and isinstance(args[0], Tensor):
            self.reworked += args[0].data_ptr() in self.weights_at
        if op == "convolution":
            flops = 2 * (args[0] if args[6] else out).numel() * args[1][0].numel()
            self.convolution(node, flops, args[:1], args[1])
            if (
                node is None
                and args[8] > 1
                and args[1].shape[1] in (8, 16, 32)
                and args[1].shape[2:] == (3, 3)
            ):
                self.plain["grouped"][self.layer()] += 1
            # Of the model's filters only [1, 3, 3, 1] has 4 taps.
            if node is None and left and args[1].shape[-1] == 4:
                self.plain["resample"][self.layer()] += 1
        elif op == "convolution_backward":
            grad, x, weight, mask = args[0], args[1], args[2], args[10]
            flops = 2 * (x if args[7] else grad).numel() * weight[0].numel()
            self.convolution(node, flops * sum(mask[:2]), (grad, x), weight)
        elif op in ("clone", "_to_copy", "copy_"):
            self.copy(op, args, kwargs, out)
        elif op in ("zero_", "_foreach_zero_", "fill_"):
            if op != "fill_" or args[1] == 0:
                self.fills += len(args[0]) if isinstance(args[0], (list, tuple)) else 1
        elif op == "add_" and node is not None and "AccumulateGrad" in node.name():
            self.accumulated += 1
        elif op.startswith(("_foreach_addcdiv", "_fused_adam")):
            self.optimizer["fused" if op.startswith("_fused") else "foreach"] += 1
        elif op in ("lerp_", "_foreach_lerp_"):
            self.optimizer[op.strip("_")] += 1
        elif node is None and left:
            self.forward(op, args, out)
        if op == "_scaled_mm":
            self.plain["fp8"][self.layer()] += 1
        if op == "mv" and node is None and left:
            self.plain["spectral"][self.layer() or "power iteration"] += 1
        if op in ("mm", "addmm", "bmm", "baddbmm"):
            inner = args[1 if op in ("addmm", "baddbmm") else 0].shape[-1]
            self.products[name_of(out.dtype)] += 2 * out.numel() * inner
        if op in ("mm", "addmm", "bmm", "baddbmm") and left:
            self.plain["dense"][self.layer() or "no layer" if node is None else node.name()] += 1

    def layer(self) -> str | None:
        """Return the class of the module whose forward is running."""
        return self.layers[-1] if self.layers else None

    def stage(self, node: Any) -> str:
        """Return which pass this is. A backward pass that builds a graph will be differentiated itself.

        Our autograd Functions compute without gradients in either pass, so each pass is known by its number.
        """
        if node is None:
            return "forward"
        first = not self.building or torch._C._current_graph_task_id() in self.building
        return "backward" if first else "double backward"

    def convolution(self, node: Any, flops: int, images: tuple[Tensor, ...], weight: Tensor) -> None:
        stage = self.stage(node)
        self.flops[stage][name_of(images[0].dtype)] += flops * self.weight
        if weight.dim() == 4:  # convolutions of one or three dimensions have no such layout
            for x in images:
                self.inputs[stage][name_layout(x)] += x.nbytes * self.weight
            self.weights[stage][name_layout(weight)] += weight.nbytes * self.weight
        seen = self.convolutions[stage]
        seen["calls"] += 1
        seen["largest"] = max(seen["largest"], *weight.shape[2:])
        one = weight.shape[2:] == (1, 1)
        seen["rgb"] += one and (3 in weight.shape[:2] or self.layer() in ("ToRGB", "FromRGB"))

    def copy(self, op: str, args: tuple, kwargs: Mapping[str, Any], out: Tensor) -> None:
        source = args[1] if op == "copy_" else args[0]
        if source.device != out.device and source.numel() > 1:
            self.crossings.append(
                {
                    "to": out.device.type,
                    "bytes": source.nbytes,
                    "dtype": name_of(source.dtype),
                    "pinned": source.is_cpu and torch.cuda.is_available() and source.is_pinned(),
                    "non_blocking": bool(kwargs.get("non_blocking", op == "copy_" and args[2:] == (True,))),
                    "side_stream": out.is_cuda and torch.cuda.current_stream() != torch.cuda.default_stream(),
                }
            )
        if source.dim() == 4 and {name_layout(source), name_layout(out)} == {"nhwc", "nchw"}:
            self.relayouts += self.weight
            self.relayout_bytes += out.nbytes * self.weight

    def forward(self, op: str, args: tuple, out: Any) -> None:
        """Count an operator of a forward pass that belongs to an island, or that our kernels replace."""
        layer = self.layer()
        if layer is None:
            if op in LOSSES:
                self.island("losses and penalties", out)
        elif layer == "Dense" and op in ("addmm", "mm"):
            self.island("mapping and affines", out)
        elif layer == "Discriminator" and op == "var":
            self.island("minibatch std", out)
        elif "batch_norm" in op or "group_norm" in op:
            self.plain["normalize"][layer] += 1
            self.island("statistics", out[1])
        elif "weight_norm" in op:
            self.plain["weight norm"][layer] += 1
        elif op in STATISTICS and layer != "Mapping":
            self.island("statistics", out)
            self.plain["normalize"][layer] += op == "rsqrt"
        elif op == "leaky_relu" and out.dim() == 4:
            self.plain["act"][layer] += 1
        elif "upsample_bilinear" in op:
            self.plain["resample"][layer] += 1
        elif op == "add" and layer == "DiscriminatorBlock":
            self.plain["residual"][layer] += 1
        elif op == "mul" and is_modulation(args):
            self.plain["modulate"][layer] += 1

    def island(self, name: str, out: Any) -> None:
        out = out[0] if isinstance(out, (list, tuple)) else out
        if out.is_floating_point():
            self.islands[name][name_of(out.dtype)] += 1


def is_modulation(args: tuple) -> bool:
    """Return whether a product scales channels for each sample: [N, C, H, W] * [N, C, 1, 1], or 5-D weights."""
    if not all(isinstance(x, Tensor) for x in args[:2]):
        return False
    shapes = sorted((x.shape for x in args[:2]), key=lambda shape: shape.numel())
    if len(shapes[1]) == 5:
        return True
    return len(shapes[0]) == 4 and shapes[0][2:] == (1, 1) and shapes[0][:2] == shapes[1][:2] != shapes[0]


def is_alternative() -> bool:
    """Return whether plain PyTorch runs in an op's place because the table of `kernels.alternatives` chose it."""
    module = sys.modules.get("kernels.alternatives")  # old commits lack this module
    return module is not None and module.inside()


def alternatives_taken() -> Counter[str]:
    """Return how often the table of alternatives has chosen plain PyTorch so far, by op."""
    module = sys.modules.get("kernels.alternatives")
    return Counter() if module is None else Counter(module.taken)


@contextlib.contextmanager
def layers_named(watch: Watch, *networks: torch.nn.Module) -> Iterator[None]:
    """Tell ``watch`` which layer's forward is running."""

    def enter(module, args):
        if not watch.layers:
            watch.passes[type(module).__name__].append(
                len(args[0]) if args and isinstance(args[0], Tensor) else 0
            )
        watch.layers.append(type(module).__name__)

    def leave(module, args, output):
        watch.layers.pop()

    with contextlib.ExitStack() as hooks:
        for module in {m for network in networks for m in network.modules()}:
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextlib.contextmanager
def intercept_launches(
    package: str, note: Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]
) -> Iterator[None]:
    """Call `note(kernel, arguments, options, compiled)` behind each launch of a Triton kernel defined in `package`.

    All launches pass here, compiled or interpreted. An entry point that fell back to plain PyTorch does not count.
    """
    try:
        from triton.runtime.jit import KernelInterface
    except ImportError:  # no Triton, so no kernels of ours
        yield
        return
    original = KernelInterface.__getitem__
    older: Any = types.SimpleNamespace(mode=None)  # commits without this module launch by way of Triton
    launches = sys.modules.get(f"{package}.common.launches", older)
    mode = launches.mode

    def get_launch(self: Any, grid: Any) -> Any:
        launch = original(self, grid)
        if not str(getattr(getattr(self, "fn", None), "__module__", "")).startswith(package + "."):
            return launch

        def run(*arguments: Any, **options: Any) -> Any:
            compiled = launch(*arguments, **options)
            note(self, arguments, {**options, "grid": grid}, compiled)
            return compiled

        return run

    KernelInterface.__getitem__ = get_launch
    launches.mode = "triton"
    try:
        yield
    finally:
        KernelInterface.__getitem__ = original
        launches.mode = mode


@contextlib.contextmanager
def count_launches(package: str = "kernels") -> Iterator[dict[str, Plain]]:
    """Count launches of kernels defined in `package`, by kernel; with "kernels" those of its CUDA C++ (`cpp`), too.

    Each has calls, the dtypes of its first launch's tensors, the names of arguments that were tensors in any, and, if
    there were any, the launches that are dependent (before the kernel in front has ended, of code that waits for it)
    and those in a backward pass.
    """
    seen: dict[str, Plain] = {}
    cpp: Any = None
    if package == "kernels":
        with contextlib.suppress(ImportError):  # code of old commits
            from kernels.cuda import calls as cpp
    function: Any = getattr(cpp, "function", None)

    def note(kernel: Any, arguments: Sequence[Any], options: Mapping[str, Any], compiled: Any) -> None:
        tensors = [x for x in arguments if isinstance(x, Tensor)]
        dtypes = sorted({name_of(x.dtype) for x in tensors})
        entry = seen.setdefault(kernel.fn.__name__, {"calls": 0, "dtypes": dtypes, "tensors": []})
        entry["calls"] += 1
        if torch._C._current_autograd_node() is not None:
            entry["backward"] = entry.get("backward", 0) + 1
        names = {name for name, x in zip(kernel.arg_names, arguments, strict=False) if isinstance(x, Tensor)}
        entry["tensors"] = sorted(names.union(entry["tensors"]))
        if options.get("launch_pdl") and WAIT in getattr(compiled, "asm", {}).get("ptx", ""):
            entry["dependent"] = entry.get("dependent", 0) + 1

    def count_cpp(name: Any, flags: Any, device: Any) -> Any:
        call = function(name, flags, device)

        def run(*arguments: Any) -> Any:
            for each in (name, f"{name} --use_fast_math")[: 1 + flags.fast_math]:
                seen.setdefault(each, {"calls": 0, "dtypes": [], "tensors": [], "cpp": True})["calls"] += 1
            return call(*arguments)

        return run

    with contextlib.ExitStack() as stack:
        stack.enter_context(intercept_launches(package, note))
        if cpp is not None:
            stack.callback(setattr, cpp, "function", function)
            cpp.function = count_cpp
        yield seen
