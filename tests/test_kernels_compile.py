"""Every kernel compiles, without a GPU, for every GPU generation in use, and fits its shared memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

# Shared memory one block may use, by compute capability (CUDA C++ Programming Guide, technical specifications).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
ROOT = Path(__file__).parents[1]


def test_every_kernel_compiles_and_fits(tmp_path):
    """In a process of its own: this one may have Triton's interpreter on."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *map(str, SHARED_KIB)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = json.loads(done.stdout)
    assert {name for name, _, _ in compiled} == jit_kernels()
    for name, capability, shared_bytes in compiled:
        assert shared_bytes <= SHARED_KIB[capability] * 1024, f"{name} on sm_{capability}"


def jit_kernels() -> set[str]:
    """The kernels that are there, by their source: whatever is launched is called <something>_kernel."""
    lines = (line for path in (ROOT / "kernels").glob("*.py") for line in path.read_text().splitlines())
    return {line[4:].split("(")[0] for line in lines if line.startswith("def ") and "_kernel(" in line}


# ---- the other process -------------------------------------------------------------------------------------------


def recorded_launches() -> list[tuple]:
    """(kernel, arguments by name) of what the ops launch for a bfloat16 StyleGAN2 layer, gradients included."""
    import torch
    from triton.runtime.jit import JITFunction

    import kernels

    launches = []

    def record(self, *args, grid, warmup, **kwargs):
        launches.append((self, dict(zip(self.arg_names, args, strict=False)) | kwargs))

    JITFunction.run = record
    for name in ("bias_act", "modulate", "demodulate", "instance_norm_act", "upfirdn2d"):
        sys.modules[f"kernels.{name}"].check_device = lambda x: None
    sys.modules["kernels.upfirdn2d"].PROGRAMS = 1  # strips as long as for large images

    def run(function, *inputs):
        inputs = [t.detach().requires_grad_() for t in inputs]
        y = function(*inputs)
        g = torch.zeros_like(y).requires_grad_()
        grads = torch.autograd.grad(y, inputs, g, create_graph=True)
        torch.autograd.grad(grads, [*inputs, g], [torch.zeros_like(d) for d in grads], allow_unused=True)

    bias, scale, strength = torch.zeros(64), torch.zeros(4, 64), torch.zeros(())
    noise, weight = torch.zeros(4, 1, 64, 64), torch.zeros(128, 64, 3, 3)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.zeros(4, 64, 64, 64, dtype=torch.bfloat16).contiguous(memory_format=layout)
        run(kernels.bias_act, x, bias)
        run(
            lambda x, b, t, s: kernels.bias_act(x, b, noise=noise, strength=t, scale=s),
            x,
            bias,
            strength,
            scale,
        )
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
    run(kernels.demodulate, weight, scale)
    return launches


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
        elif parameter.is_constexpr or value is None or value == 1:
            types[parameter.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = "i32"
            if value % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, types, constexprs=constants, attrs=attributes)


def main(capabilities: list[int]) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    compiled = {}
    for kernel, arguments in recorded_launches():
        for capability in capabilities:
            code = triton.compile(source(kernel, arguments), target=GPUTarget("cuda", capability, 32))
            key = kernel.__name__, capability
            compiled[key] = max(compiled.get(key, 0), code.metadata.shared)
    json.dump([(*key, shared) for key, shared in compiled.items()], sys.stdout)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]])
