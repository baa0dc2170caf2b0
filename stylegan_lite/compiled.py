"""The losses of the main phases under torch.compile: one function each, compiled once, counted while they run.

A whole loss is compiled, networks and all, so that forward and backward are one graph each. The lazy phases are not:
their losses hold a gradient of their own, and AOTAutograd cannot differentiate a compiled backward pass. They run the
plain modules; parameters are shared. G_main and D_main freeze different networks, and D_main runs G without a graph:
as two functions, each sees only one state of affairs, and nothing is ever compiled twice.

What cannot be compiled runs as it is, and ``failed`` says why: whoever measures must not call that compiled.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stylegan_lite.config import Recipe

PHASES = ("G_main", "D_main")
# Of max-autotune what ends in minutes: not coordinate descent, which compiles every kernel's neighbours one by one, and
# no Triton templates for matmuls, which here are all of a few samples in float32.
AUTOTUNE = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN"}


class Compiled:
    """Compiled losses of one step.

    Attributes:
        mode: torch.compile's, or "autotune". failed: the first line of what a compilation raised, or None.
        functions: phase -> its compiled loss; empty where compiling failed.
        graphs, late: phase -> graphs compiled for it, in all, and since `settle`. runs: calls of them since then.
        breaks: why Dynamo left a function to go back to Python -> how often.
        filters: convolutions with the four taps of the resampling filter, in all graphs.
    """

    def __init__(self, recipe: Recipe, loss: Callable[[str], Tensor]) -> None:
        self.mode = mode_of(recipe)
        self.own_graphs = brings_graphs(recipe)
        self.failed: str | None = None
        self.phase: str | None = None  # whose loss is running
        self.graphs, self.late, self.runs, self.breaks = (Counter() for _ in range(4))
        self.filters = 0
        self.functions = {phase: self._compile(loss, phase) for phase in PHASES}

    def loss(self, phase: str) -> Tensor:
        """The loss of a phase on the inputs as they stand in its buffers."""
        self.phase = phase
        if self.own_graphs:  # what the last phase left in their memory is no longer needed
            torch.compiler.cudagraph_mark_step_begin()
        return self.functions[phase]()

    def prepare(self, run: Callable[[str], None]) -> None:
        """Compile, by running each phase once, forward and backward; on failure all of it is given up."""
        breaks = _graph_breaks()
        try:
            for phase in PHASES:
                run(phase)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever it is: if it was not the compiler, it comes again without it
            self.failed = _first_line(error)
            self.functions.clear()
        self.breaks = _graph_breaks() - breaks

    def settle(self) -> None:
        """Warm-up is over: from here on nothing should be compiled."""
        self.late.clear()
        self.runs.clear()

    def _compile(self, loss_of: Callable[[str], Tensor], phase: str) -> Callable[[], Tensor]:
        def loss() -> Tensor:
            return loss_of(phase)

        def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable:
            self.graphs[self.phase] += 1
            self.late[self.phase] += 1
            self.filters += _filters(graph)
            compiled = inductor(graph, inputs, self.mode)

            def run(*args):
                self.runs[self.phase] += 1
                return compiled(*args)

            return run

        # Dynamo keeps what it compiled with the code object, and all steps of a process would share one: the ninth
        # would run uncompiled, and every call would try the others' guards first.
        code = loss.__code__.replace(co_name=f"loss_of_{phase}")
        own = types.FunctionType(code, loss.__globals__, code.co_name, None, loss.__closure__)
        return torch.compile(own, backend=backend, dynamic=False)


def mode_of(recipe: Recipe) -> str:
    """torch.compile's mode. Inside a CUDA graph of ours it must not bring graphs of its own."""
    if recipe.compile == "max-autotune" and recipe.cuda_graphs:
        return "max-autotune-no-cudagraphs"
    return recipe.compile


def brings_graphs(recipe: Recipe) -> bool:
    """Whether torch.compile makes CUDA graphs itself."""
    return mode_of(recipe) in ("reduce-overhead", "max-autotune")


def inductor(graph: torch.fx.GraphModule, inputs: list[Tensor], mode: str) -> Callable:
    """What torch.compile(mode=mode) does with a graph."""
    import torch._inductor

    return torch._inductor.compile(graph, inputs, options=options_of(mode))


def options_of(mode: str) -> dict[str, Any]:
    """Inductor's options of a mode; "autotune" is none of torch's, but one option of its max-autotune."""
    import torch._inductor

    return AUTOTUNE if mode == "autotune" else torch._inductor.list_mode_options(mode)


def _graph_breaks() -> Counter[str]:
    from torch._dynamo.utils import counters

    return Counter(counters["graph_break"])


def _filters(graph: torch.fx.GraphModule) -> int:
    """Convolutions whose kernel is 4x4: of the model's only the resampling filter is."""
    found = 0
    for node in graph.graph.nodes:
        if node.op == "call_function" and "conv" in str(node.target) and len(node.args) > 1:
            weight: Any = getattr(node.args[1], "meta", {}).get("example_value")
            found += weight is not None and weight.shape[-1] == 4
    return found


def _first_line(error: BaseException) -> str:
    """Of the error that the compiler wrapped, if it did."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {lines[0]}" if lines else type(inner).__name__
