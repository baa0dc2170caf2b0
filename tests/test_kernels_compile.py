"""Every kernel compiles, without a GPU, for every GPU generation in use, and fits its shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from kernels import choices

# Shared memory one block may use, by compute capability (CUDA C++ Programming Guide, technical specifications).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
FULLY = 90  # here also NCHW and float32, which are the same code with other strides and types
ROOT = Path(__file__).parents[1]


def test_every_kernel_compiles_and_fits_in_every_configuration(tmp_path):
    """In a process of its own: this one may have Triton's interpreter on."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    archs = list(SHARED_KIB)
    halves = [
        subprocess.Popen(
            [sys.executable, __file__, *map(str, half)],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for half in (archs[::2], archs[1::2])
    ]
    compiled, used = [], set()
    for half in halves:
        out, err = half.communicate(timeout=280)
        assert half.returncode == 0, err[-3000:]
        compiled += json.loads(out)["compiled"]
        used |= {choices.Key(*row) for row in json.loads(out)["rows"]}
    assert {name for name, *_ in compiled} == jit_kernels()
    assert used == set(choices.TABLE)  # no row that the calls below do not come to
    for name, capability, shared_bytes in compiled:
        assert shared_bytes <= SHARED_KIB[capability] * 1024, f"{name} on sm_{capability}"


def jit_kernels() -> set[str]:
    """The kernels that are there, by their source: whatever is launched is called <something>_kernel."""
    lines = (line for path in (ROOT / "kernels").glob("*.py") for line in path.read_text().splitlines())
    return {line[4:].split("(")[0] for line in lines if line.startswith("def ") and "_kernel(" in line}


# ---- the other process -------------------------------------------------------------------------------------------


def record_launches() -> list[tuple]:
    """From now on nothing is launched; returns the list that (kernel, arguments by name) will be added to."""
    from triton.runtime.jit import JITFunction

    import kernels  # noqa: F401

    launches = []

    def record(self, *args, grid, warmup, **kwargs):
        launches.append((self, dict(zip(self.arg_names, args, strict=False)) | kwargs))

    JITFunction.run = record
    for name in ("bias_act", "modulate", "demodulate", "instance_norm_act", "rgb", "upfirdn2d"):
        sys.modules[f"kernels.{name}"].check_device = lambda x: None
    sys.modules["kernels.upfirdn2d"].PROGRAMS = 1  # strips as long as for large images
    return launches


def run_layers(shape: tuple[int, ...], dtype, layout) -> None:
    """All ops of StyleGAN2 and AdaIN layers on x [N, 64, H, W], gradients of gradients included."""
    import torch

    import kernels

    def run(function, *inputs):
        inputs = [t.detach().requires_grad_() for t in inputs]
        y = function(*inputs)
        g = torch.zeros_like(y).requires_grad_()
        grads = torch.autograd.grad(y, inputs, g, create_graph=True)
        torch.autograd.grad(grads, [*inputs, g], [torch.zeros_like(d) for d in grads], allow_unused=True)

    n, c, h, w = shape
    x = torch.zeros(shape, dtype=dtype).contiguous(memory_format=layout)
    bias, scale, strength = torch.zeros(c), torch.zeros(n, c), torch.zeros(())
    noise = torch.zeros(n, 1, h, w)
    run(kernels.bias_act, x, bias)
    run(lambda x, b, t, s: kernels.bias_act(x, b, noise=noise, strength=t, scale=s), x, bias, strength, scale)
    run(kernels.modulate, x, scale)
    run(
        lambda x, s, b, t: kernels.instance_norm_act(x, s, b, noise=noise, strength=t),
        x,
        scale,
        scale,
        strength,
    )
    for up, down in ((1, 1), (2, 1), (2, 2)):  # the gradient of up is down
        run(lambda x, u=up, d=down: kernels.upfirdn2d(x, (0.125, 0.375, 0.375, 0.125), up=u, down=d), x)
    run(kernels.demodulate, torch.zeros(128, c, 3, 3), scale)
    weight, image = torch.zeros(3, c, 1, 1), torch.zeros(n, 3, h, w).contiguous(memory_format=layout)
    run_rgb(x, weight, scale, torch.zeros(3), image, bias, run)


def run_rgb(x, weight, style, bias, image, wide_bias, run) -> None:
    """To and from 3 channels: where gradients are differentiated again, and where not, which are other kernels."""
    import torch

    import kernels

    run(lambda x, w, s, b: kernels.to_rgb(x, w, s, b, dtype=torch.float32), x, weight, style, bias)
    run(lambda i, w, b: kernels.from_rgb(i.to(x.dtype), w, b), image, weight.view(-1, 3), wide_bias)
    for function, inputs in (
        (kernels.to_rgb, (x, weight, style, bias)),
        (kernels.from_rgb, (image, weight, wide_bias)),
    ):
        inputs = [t.detach().clone().requires_grad_() for t in inputs]
        function(
            *(t.view(-1, 3) if t is inputs[1] and function is kernels.from_rgb else t for t in inputs)
        ).sum().backward()


def launches_on(capability: int, launches: list[tuple]) -> dict[tuple, object]:
    """What a GPU of this architecture would be asked to compile: {cache key: (source, options)}."""
    import torch

    from kernels import tiles

    tiles.processor = lambda device: (capability, 132)
    tiles.tiling.cache_clear()
    launches.clear()
    for shape in ((8, 64, 64, 64), (2, 64, 16, 16)):
        run_layers(shape, torch.bfloat16, torch.channels_last)
    if capability == FULLY:
        run_layers((8, 64, 64, 64), torch.bfloat16, torch.contiguous_format)
        run_layers((8, 64, 64, 64), torch.float32, torch.channels_last)
    wanted = {}
    for kernel, arguments in launches:
        code = source(kernel, arguments)
        wanted[kernel.__name__, code.hash(), arguments.get("num_warps")] = code
    return wanted


def source(kernel, arguments: dict):
    """What Triton would compile for these arguments: types, constants, and what is a multiple of 16."""
    import torch
    from triton.compiler import ASTSource

    pointers = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}
    types, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if isinstance(value, torch.Tensor):
            types[parameter.name], attributes[(i,)] = pointers[value.dtype], [["tt.divisibility", 16]]
        elif parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
            types[parameter.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, types, constexprs=constants, attrs=attributes)


def main(capabilities: list[int]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    from kernels import choices

    launches, compiled = record_launches(), []
    for capability in capabilities:
        for (name, _, warps), source in launches_on(capability, launches).items():
            options = {} if warps is None else {"num_warps": warps}
            code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            compiled.append((name, capability, code.metadata.shared))
    json.dump({"compiled": compiled, "rows": [choices.row(key) for key in choices._chosen]}, sys.stdout)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]])
