"""compute-sanitizer over every fused kernel: `python -m ladder.sanitize`, or `make sanitize`.

Runs a small set of launches (every op, its gradient and the gradient of that, in both memory formats, on shapes that
divide tiles and shapes that do not) under memcheck and racecheck, with PyTorch's caching allocator off: it hands out
slices of larger blocks, in which reading past the end of a tensor would go unnoticed. Writes
results/sanitizer/MACHINE.txt and .json. Status 0: clean. 1: findings. 2: it could not run, and one line why.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ladder.errors import UserError, one_line
from ladder.files import replacing

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) .*")
LAUNCHED = "launched: "  # how the program under the sanitizer says which kernels it has run
MINUTES = 10  # for one tool, before it is given up


def launch_everything(device: str) -> list[str]:
    """Run every op forward, backward and backward again on ``device``; names of the kernels launched."""
    import torch

    import kernels
    from ladder.watch import launches

    with launches() as seen:
        for shape in ((2, 5, 3, 7), (2, 64, 16, 16), (2, 32, 40, 40)):
            for layout in (torch.contiguous_format, torch.channels_last):
                for dtype in (torch.float32, torch.bfloat16):
                    x = torch.randn(shape, device=device, dtype=dtype).contiguous(memory_format=layout)
                    for function, inputs in calls(kernels, x):
                        differentiate_twice(function, inputs)
    if device == "cuda":
        torch.cuda.synchronize()
    return sorted(seen)


def calls(kernels, x):
    """(function, inputs that are differentiated) for each op on x."""
    import torch

    n, c, h, w = x.shape
    bias, scale, shift = (torch.randn(s, device=x.device) for s in ((c,), (n, c), (n, c)))
    strength, noise = torch.tensor(0.3, device=x.device), torch.randn(n, 1, h, w, device=x.device)
    weight = torch.randn(6, c, 3, 3, device=x.device)
    more = {"noise": noise, "clamp": 2.0}
    yield kernels.bias_act, (x, bias)
    yield lambda x, b, k, s: kernels.bias_act(x, b, strength=k, scale=s, **more), (x, bias, strength, scale)
    if hasattr(kernels, "bias_act_residual"):
        yield kernels.bias_act_residual, (x, bias, x.flip(1))
        yield (
            lambda x: torch.cat([t.flatten() for t in kernels.fork_upfirdn2d(x, [1, 3, 3, 1], padding=2)]),
            (x,),
        )
    if hasattr(kernels, "to_rgb"):
        rgb, image = torch.randn(3, c, device=x.device), torch.randn(n, 3, h, w, device=x.device)
        yield kernels.to_rgb, (x, rgb, scale, torch.randn(3, device=x.device))
        yield lambda i, k, b: kernels.from_rgb(i.to(x.dtype), k.t(), b), (image, rgb, bias)
    if hasattr(kernels, "scale_act"):
        yield kernels.scale_act, (x, scale)
    if hasattr(kernels, "spectral_norm"):
        yield spectral(kernels), (weight, torch.randn(9, 5 * c, device=x.device))
    if hasattr(kernels, "minibatch_std"):
        yield lambda x: kernels.minibatch_std(x, 2, multiple=8), (x,)
    yield kernels.modulate, (x, scale)
    yield kernels.demodulate, (weight, scale)
    if hasattr(kernels, "demodulate_group"):
        group, styles = grouped(kernels), (scale, scale.flip(1))
        yield group, (weight, weight[:3], *styles)
        yield lambda *s: group(weight, weight[:3], *s), styles  # as path length differentiates it
    yield (
        lambda x, s, b, k: kernels.instance_norm_act(x, s, b, noise=noise, strength=k),
        (x, scale, shift, strength),
    )
    yield from plane_calls(kernels, (x, scale, shift, strength), noise)
    if hasattr(kernels, "dense"):
        yield from dense_calls(kernels, scale)
    if hasattr(kernels, "adam"):
        yield adam, (x,)
    if hasattr(kernels, "upfirdn2d"):
        for up, down in ((1, 1), (2, 1), (1, 2)):
            yield lambda x, u=up, d=down: kernels.upfirdn2d(x, [1, 3, 3, 1], up=u, down=d, padding=2), (x,)
    yield from cuda_calls(x, scale, shift, noise, strength)
    if hasattr(kernels, "act_filter"):
        yield lambda x, b: kernels.act_filter(x, b, [1, 3, 3, 1], padding=2), (x, bias)
        how = {"noise": noise, "padding": (2, 1)}
        yield (
            lambda x, b, k, s: kernels.filter_act(x, [1, 3, 3, 1], b, strength=k, scale=s, **how),
            (x, bias, strength, scale.abs() + 0.5),
        )


def plane_calls(kernels, inputs, noise):
    """Instance norm in NCHW, two programs that walk over planes in blocks of 32 pixels, however small they are."""
    try:
        from kernels import instance_norm_act_planes as planes
    except ImportError:  # code of old commits
        return

    def norm(x, s, b, k):
        return kernels.instance_norm_act(x.contiguous(), s, b, noise=noise, strength=k)

    usual, planes.walk = planes.walk, lambda x, tensors=1: planes.Walk(2, 32, 4)
    try:
        yield norm, inputs
    finally:
        planes.walk = usual


def cuda_calls(x, scale, shift, noise, strength):
    """The kernels in CUDA C++, where there are any and they can be built. The pairs have no gradients."""
    try:
        from kernels import cuda
    except ImportError:  # code of old commits
        return
    if x.device.type != "cuda" or cuda.available():
        return
    yield (
        lambda x, s, b, k: cuda.instance_norm_act(x, s, b, noise=noise, strength=k),
        (x, scale, shift, strength),
    )

    def pairs(x):
        for pair in (cuda.strided_act, cuda.coalesced_act, cuda.scalar_copy, cuda.vector_copy):
            pair(x)
        for pair in (cuda.shared_sum, cuda.shuffle_sum):
            pair(x.flatten(1))
        for pair in (cuda.divergent, cuda.predicated):
            pair(x.float())
        cuda.empty()
        return x.square()

    yield pairs, (x,)


def spectral(kernels):
    """Two weights over their norms after a step of the power iteration, beside each other, as a function of both."""
    import torch

    def run(*weights):
        vectors = [[w.new_ones(n) for w, n in zip(weights, sizes, strict=True)] for sizes in ends(weights)]
        kernels.power_iteration([w.detach() for w in weights], *vectors)
        return torch.cat([y.flatten() for y in kernels.spectral_norm(weights, *vectors, gains=(1.0, 0.7))])

    def ends(weights):
        return [len(w) for w in weights], [w[0].numel() for w in weights]

    return run


def grouped(kernels):
    """Demodulation coefficients of two layers, beside each other, as a function of weights and styles."""
    import torch

    def run(first, second, style, other):
        energies = kernels.weight_energies([first, second])
        return torch.cat(kernels.demodulate_group(energies, [style, other]), 1)

    return run


def dense_calls(kernels, x):
    """Fully connected layers on x [N, C]: one after another, side by side, and, once, one whose sum is split."""
    import torch

    n, c = x.shape
    first, second, bias = (torch.randn(s, device=x.device) for s in ((6, c), (3, 6), (6,)))

    def chain(x, first, bias, second):
        return kernels.dense(kernels.dense(x, first, bias, act=True), second, act=True)

    def group(x, first, second, bias):
        return torch.cat(kernels.dense_group(x, [first, second], [bias, bias[:5]], (1, 0)), 1)

    yield chain, (x, first, bias, second)
    yield group, (torch.randn(n, 2, c, device=x.device), first, torch.randn(5, c, device=x.device), bias)
    if c == 5:
        yield kernels.dense, (torch.randn(1, 2049, device=x.device), torch.randn(1, 2049, device=x.device))


def adam(x):
    """x^2, after a step of Adam for a weight without a copy, one with, one whose copy lies turned, and of the last two
    again with gradients of their energies."""
    import torch

    from kernels.adam import AdamPlan, Item, Rates

    weight = torch.randn(70, x.shape[1], 3, 3, device=x.device).contiguous(memory_format=torch.channels_last)
    turned = torch.empty_like(weight.transpose(0, 1), memory_format=torch.channels_last).transpose(0, 1)
    copies = (None, torch.empty_like(weight, dtype=torch.bfloat16), turned.bfloat16())
    copies += tuple(copy.clone() for copy in copies[1:])
    state = [[torch.zeros_like(weight) for _ in range(3)] + [weight.new_zeros(())] for _ in copies]
    items = [Item(*each, copy) for each, copy in zip(state, copies, strict=True)]
    if "energy" in Item._fields:
        energy = weight.sum((2, 3))
        items[3:] = [item._replace(energy=energy) for item in items[3:]]
    plan = AdamPlan(items, Rates(0.1, 0.0, 0.9, 1e-8))
    gradients = [(weight, None if copy is None else torch.ones_like(copy)) for copy in copies]
    gradients[3:] = [
        (*pair, getattr(item, "energy", None)) for pair, item in zip(gradients, items, strict=True)
    ][3:]
    rows, _ = plan.addresses(gradients)
    (table,) = plan.gradient_tables()
    plan.launch(table.copy_(torch.tensor(rows)))
    if "inverse" in inspect.signature(plan.launch).parameters:  # with a loss scale
        plan.launch(table, weight.new_ones(()), weight.new_zeros(()))
    return x.square()


def differentiate_twice(function, inputs) -> None:
    import torch

    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    g = torch.randn_like(y).requires_grad_()
    torch.autograd.grad(y, inputs, g, retain_graph=True)  # for which some ops have a kernel of its own
    first = torch.autograd.grad(y, inputs, g, create_graph=True)
    second = [d for d in first if d.requires_grad]
    directions = [torch.randn_like(d) for d in second]
    torch.autograd.grad(second, [g, *inputs], directions, allow_unused=True)


# ---- the sanitizer -----------------------------------------------------------------------------------------------


def sanitizer() -> str:
    """Path of compute-sanitizer. Raises UserError where there is none."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")] + ["/usr/local/cuda"]
    folders = [Path(home) / part for home in homes if home for part in ("bin", "compute-sanitizer")]
    for folder in (None, *folders):
        if found := shutil.which("compute-sanitizer", path=None if folder is None else str(folder)):
            return found
    raise UserError("compute-sanitizer is not installed (it comes with the CUDA toolkit)")


def check(tool: str, program: str) -> dict[str, Any]:
    """One tool over `launch_everything`: status, number of errors, its summary, its text, the kernels launched."""
    command = [program, "--tool", tool, "--target-processes", "application-only", "--print-limit", "50"]
    command += [sys.executable, "-m", "ladder.sanitize", "--launch"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60 * MINUTES,
        )
        text, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        text, status = f"not done after {MINUTES} minutes", 1
    return judge(text, status)


def judge(text: str, status: int) -> dict[str, Any]:
    """What a sanitizer's text says. Clean is only what came to its end, launched kernels, and says 0 errors."""
    found = SUMMARY.search(text)
    launched = [line for line in text.splitlines() if line.startswith(LAUNCHED)]
    names = launched[-1][len(LAUNCHED) :].split() if launched else []
    errors = int(found.group(1)) if found else None
    if errors:
        verdict = "errors"
    elif found and names and status == 0:
        verdict = "clean"
    else:
        verdict = "did not run"
    last = [line for line in text.splitlines() if line.strip()]
    summary = found.group(0) if found else (last[-1] if last else "said nothing")
    lines = [one_line(line) for line in text.splitlines()]
    return {
        "status": verdict,
        "errors": errors,
        "summary": one_line(summary),
        "kernels": names,
        "text": lines,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ladder.sanitize", description=__doc__.split("\n\n")[0])
    parser.add_argument("--launch", action="store_true", help="only launch the kernels: what the tools watch")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "sanitizer")
    options = parser.parse_args(arguments)
    try:
        program = None if options.launch else sanitizer()
        from kernels import available

        if (why := available()) is not None:
            raise UserError(why)
        if options.launch:
            print(LAUNCHED + " ".join(launch_everything("cuda")), flush=True)
            return 0
        return run(program, options.out)
    except UserError as error:
        print(f"sanitize: {error}", file=sys.stderr)
        return 2


def run(program: str, out: Path) -> int:
    """All tools, one after another; prints and writes what they said."""
    from ladder import machine

    facts, found = machine.facts("cuda"), {}
    for tool in TOOLS:
        found[tool] = check(tool, program)
        print(f"{tool}: {found[tool]['status']}: {found[tool]['summary']}", flush=True)
    if all(result["status"] == "did not run" for result in found.values()):
        raise UserError(f"no tool could run here: {found[TOOLS[0]]['summary']}")
    out.mkdir(parents=True, exist_ok=True)
    with replacing(out / f"{facts['name']}.txt") as path:
        path.write_text("\n".join(f"== {tool}\n" + "\n".join(r["text"]) for tool, r in found.items()) + "\n")
    tools = {tool: {k: v for k, v in result.items() if k != "text"} for tool, result in found.items()}
    with replacing(out / f"{facts['name']}.json") as path:
        path.write_text(json.dumps({"machine": facts, "tools": tools}, indent=1) + "\n")
    if any(result["status"] == "did not run" for result in found.values()):
        raise UserError("a tool could not run here")
    return int(any(result["status"] == "errors" for result in found.values()))


if __name__ == "__main__":
    sys.exit(main())
