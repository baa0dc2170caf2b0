"""The losses of phases under torch.compile: one function each, compiled once, counted while they run.

A whole loss is compiled, networks included, so that forward and backward are one graph each. Phases that differentiate
twice are not compiled: AOTAutograd cannot differentiate a compiled backward pass. They run the plain modules, with the
same parameters. Phases freeze different networks, and may run another without a graph. So each is a function of its
own: it sees one state only, and nothing is ever compiled twice.

Functions that cannot be compiled run as they are, and ``failed`` says why. No measurement may call that compiled.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stylegan_lite.config import Recipe

# The parts of max-autotune that end in minutes. Coordinate descent compiles every kernel's neighbours one by one.
# Triton templates for matmuls are left out: here all matmuls are of a few samples in float32.
AUTOTUNE = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN"}


class Compiled:
    """The compiled losses of one step.

    Attributes:
        mode: torch.compile's mode, or "autotune".
        failed: the first line of a compilation's error, or None.
        functions: phase -> its compiled loss; empty where compiling failed.
        graphs: phase -> graphs compiled for it.
        late: phase -> graphs compiled for it since `settle`.
        runs: phase -> calls of its graphs since `settle`.
        breaks: why Dynamo left a function to go back to Python -> how often.
        filters: convolutions with the four taps of the resampling filter, in all graphs.
    """

    def __init__(self, recipe: Recipe, loss: Callable[[str], Tensor], phases: Sequence[str]) -> None:
        self.mode = mode_of(recipe)
        self.own_graphs = brings_graphs(recipe)
        self.failed: str | None = None
        self.phase: str | None = None  # phase whose loss is running
        self.graphs, self.late, self.runs, self.breaks = (Counter() for _ in range(4))
        self.filters = 0
        self.functions = {phase: self._compile(loss, phase) for phase in phases}

    def loss(self, phase: str) -> Tensor:
        """Return the loss of a phase on the current contents of its buffers."""
        self.phase = phase
        if self.own_graphs:  # The last phase's results in the graphs' memory are no longer needed.
            torch.compiler.cudagraph_mark_step_begin()
        return self.functions[phase]()

    def prepare(self, run: Callable[[str], None]) -> None:
        """Compile by running each phase once, forward and backward. A failure gives up all of it."""
        breaks = _graph_breaks()
        try:
            for phase in [*self.functions]:
                run(phase)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # An error that the compiler did not cause comes again without it.
            self.failed = _first_line(error)
            self.functions.clear()
        self.breaks = _graph_breaks() - breaks

    def settle(self) -> None:
        """Clear the counts after the warm-up. Nothing should be compiled from here on."""
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

        # Dynamo keeps its code with the code object, and all steps of a process would share one code object. The ninth
        # step would run uncompiled, and every call would try the others' guards first.
        code = loss.__code__.replace(co_name=f"loss_of_{phase}")
        own = types.FunctionType(code, loss.__globals__, code.co_name, None, loss.__closure__)
        return torch.compile(own, backend=backend, dynamic=False)


def mode_of(recipe: Recipe) -> str:
    """Return torch.compile's mode. Inside a CUDA graph of ours it must not bring graphs of its own."""
    if recipe.compile == "max-autotune" and recipe.cuda_graphs:
        return "max-autotune-no-cudagraphs"
    return recipe.compile


def brings_graphs(recipe: Recipe) -> bool:
    """Return whether torch.compile makes CUDA graphs itself."""
    return mode_of(recipe) in ("reduce-overhead", "max-autotune")


def inductor(graph: torch.fx.GraphModule, inputs: list[Tensor], mode: str) -> Callable:
    """Compile a graph as torch.compile(mode=mode) does."""
    import torch._inductor

    return torch._inductor.compile(graph, inputs, options=options_of(mode))


def options_of(mode: str) -> dict[str, Any]:
    """Return Inductor's options of a mode. "autotune" is no mode of torch's, but one option of its max-autotune."""
    import torch._inductor

    return AUTOTUNE if mode == "autotune" else torch._inductor.list_mode_options(mode)


def _graph_breaks() -> Counter[str]:
    from torch._dynamo.utils import counters

    return Counter(counters["graph_break"])


def _filters(graph: torch.fx.GraphModule) -> int:
    """Count convolutions whose kernel is 4x4: in this model only the resampling filter has that size."""
    found = 0
    for node in graph.graph.nodes:
        if node.op == "call_function" and "conv" in str(node.target) and len(node.args) > 1:
            weight: Any = getattr(node.args[1], "meta", {}).get("example_value")
            found += weight is not None and weight.shape[-1] == 4
    return found


def _first_line(error: BaseException) -> str:
    """Return the first line of the error. If the compiler wrapped an error, that error counts."""
    inner = getattr(error, "inner_exception", None) or error
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return f"{type(inner).__name__}: {lines[0]}" if lines else type(inner).__name__
