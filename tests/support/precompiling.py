"""The other process of `tests/kernels/test_precompile.py`: kernels compiled ahead, for a GPU that is not there.

Each part of `main` has a cache to itself and says what was missing, compiled, launched and raised, before and after.
"""

import json
import os
import sys
from pathlib import Path

from tests.support.programs import Warm


class FakeDriver:
    """An H200 without the H200: what is launched is counted."""

    launched = 0

    class utils:
        @staticmethod
        def get_device_properties(device):
            return {"max_shared_mem": 227 * 1024}

        @staticmethod
        def load_binary(name, kernel, shared, device):
            return 1, 1, 0, 0, 1024

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def launcher_cls(self, source, metadata):
        def launch(*_, **__):
            FakeDriver.launched += 1

        return launch


def forget():
    """As in a process that has just begun: nothing compiled is in memory."""
    from triton.runtime.jit import JITFunction

    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("kernels", "plain", "good", "deadly", "edited"):
            for value in vars(module).values():
                if isinstance(value, JITFunction):
                    value.device_caches.clear()
                elif hasattr(value, "cache_clear"):  # covers hold compiled kernels
                    value.cache_clear()
    if (launches := sys.modules.get("kernels.common.launches")) is not None:
        launches._known.clear()


def activation():
    """An activation forward and backward."""
    import torch

    import kernels

    x = torch.zeros((2, 16, 8, 8), requires_grad=True)
    kernels.bias_act(x, torch.zeros(16, requires_grad=True)).sum().backward()


def work():
    """An activation, and weights of unit norm: kernels with tuples of tensors and of numbers."""
    import torch

    import kernels

    activation()
    weights = [torch.zeros(o, 16, requires_grad=True) for o in (8, 3)]
    us, vs = [torch.zeros(len(w)) for w in weights], [torch.zeros(16) for _ in weights]
    kernels.power_iteration(weights, us, vs)
    ys = kernels.spectral_norm(weights, us, vs, gains=[1.0, 1.0], dtype=torch.float32)
    sum(y.sum() for y in ys).backward()


def launches_of(run) -> int:
    """How many kernels a run launches; nothing is compiled for it."""
    from triton.runtime.jit import JITFunction

    launched, kept = [], JITFunction.run
    JITFunction.run = lambda self, *_, **__: launched.append(self)
    try:
        run()
    finally:
        JITFunction.run = kept
    return len(launched)


def counted(function):
    """(what it returned or the error it raised, kernels compiled in this process, launches)."""
    import triton

    compiled = []

    def listen(*, src, metadata, metadata_group, times, cache_hit):
        if not cache_hit:
            compiled.append(src.name)

    before, triton.knobs.compilation.listener = FakeDriver.launched, listen
    try:
        result = function()
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        triton.knobs.compilation.listener = None
    return result, len(compiled), FakeDriver.launched - before


def ahead(run=work, **options):
    from kernels.precompile import compile_ahead

    forget()
    report, here, launched = counted(lambda: compile_ahead(run, processes=2, **options))
    assert not isinstance(report, str), report
    return vars(report) | {"compiled_here": here, "launched": launched}


def fault(cache: Path, run) -> dict:
    """The report, and what the real run after it did."""
    import triton

    triton.knobs.cache.dir = str(cache)
    seen = ahead(run)
    result, here, launched = counted(run)
    return seen | {
        "raised_after": result if isinstance(result, str) else None,
        "compiled_after": here,
        "launched_after": launched,
    }


PLANTED = """
import os
import triton
import triton.language as tl

if DEADLY and os.environ["CUDA_VISIBLE_DEVICES"] == "":
    os._exit(9)

@triton.jit
def double(x):
    return x + x

@triton.jit
def planted_kernel(x, more, BLOCK: tl.constexpr, WIDE: tl.constexpr, KINDS: tl.constexpr, F: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.static_assert(BLOCK != 64)
    tl.store(x + at, F(tl.load(x + at).to(WIDE)) + KINDS[1][0])

"""


def planted(folder: Path, name: str, deadly: bool = False):
    """A module of kernels that the helper can import, or dies of importing."""
    import importlib

    (folder / f"{name}.py").write_text(PLANTED.replace("DEADLY", str(deadly)))
    importlib.invalidate_caches()
    return importlib.import_module(name)


def launching(module, block: int = 32):
    """A run of the planted kernel and of one from `kernels`."""
    import torch
    import triton.language as tl

    import kernels

    def run():
        module.planted_kernel[(1,)](
            torch.zeros(64), None, BLOCK=block, WIDE=tl.float32, KINDS=((1, 2), (3,)), F=module.double
        )
        kernels.bias_act(torch.zeros(2, 16, 8, 8), torch.zeros(16))

    return run


def keys_that_depend_on_order() -> list[str]:
    """Kernels whose key in Triton's cache is another one if the functions they call have had theirs before."""
    from triton.runtime.jit import JITCallable

    modules = [
        vars(module).values()
        for name, module in sys.modules.items()
        if name.startswith(("kernels.", "triton."))
    ]
    functions = list(
        {id(f): f for values in modules for f in list(values) if isinstance(f, JITCallable)}.values()
    )
    ours = [f for f in functions if f.__module__.startswith("kernels.")]

    def forget_keys():
        for f in functions:
            f.hash, f.used_global_vals = None, {}

    def first(f) -> str:
        forget_keys()
        return f.cache_key

    firsts = [first(f) for f in ours]
    for _ in range(2):  # again when all have one
        for f in ours:
            f.hash = None
        lasts = [f.cache_key for f in ours]
    forget_keys()
    assert len(ours) > 80
    return [f.__name__ for f, a, b in zip(ours, firsts, lasts, strict=True) if a != b]


def main(folder: Path) -> None:
    import triton

    warm = Warm()
    triton.runtime.driver.set_active(FakeDriver())
    for name, module in list(sys.modules.items()):
        if name.startswith("kernels.") and hasattr(module, "check_device"):
            module.check_device = lambda x: None
    found = {"keys that depend on order": keys_that_depend_on_order()}
    found["serial"] = {"launched": launches_of(work)}
    triton.knobs.cache.dir = str(folder / "cold")
    found["cold"] = ahead()
    _, here, after = counted(work)
    found["after"] = {"compiled_here": here, "launched": after}
    found["warm"] = ahead()

    with warm.helping():
        found["together"] = together(folder / "together")
        found |= faults(folder)
    print(json.dumps(found))


def forked(run) -> int:
    """Call `run` in a process of its own; the pipe to read what it returned from."""
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            os.close(read)
            os.write(write, json.dumps(run()).encode())
        finally:
            os._exit(0)
    os.close(write)
    return read


def read_all(pipe: int) -> dict:
    with os.fdopen(pipe, "rb") as file:
        return json.loads(file.read())


def together(cache: Path) -> list[dict]:
    """Two programs that begin at once with the same empty cache."""
    import triton

    triton.knobs.cache.dir = str(cache)
    return [read_all(pipe) for pipe in [forked(lambda: ahead(activation)) for _ in range(2)]]


def faults(folder: Path) -> dict:
    """What goes wrong in a process that compiles, each with a cache of its own."""
    sys.path.insert(0, str(folder))
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # which tells the helper from this process
    good, deadly, edited = planted(folder, "good"), planted(folder, "deadly", True), planted(folder, "edited")
    found = {"does not compile": fault(folder / "broken", launching(good, 64))}
    found["child dies"] = fault(folder / "deadly", launching(deadly))
    path = folder / "edited.py"
    path.write_text(path.read_text().replace("x + x", "x * 2"))
    found["source changed"] = fault(folder / "edited", launching(edited))

    def raises():
        launching(good)()
        raise ValueError("planted")

    found["raises"] = fault(folder / "raised", raises)
    return found


if __name__ == "__main__":
    main(Path(os.environ["TRITON_CACHE_DIR"]))
