"""The processes of `tests/kernels/test_kernels_compile.py`: kernels compiled for GPUs that are not there."""

import json
import os
import sys

from kernels import choices
from kernels.common.fill import fill_words
from tests.support.compiling_skip import run_skip
from tests.support.lanes import contracted_sums, run_rgb_odd

# Shared memory one block may use, by compute capability (CUDA C++ Programming Guide, technical specifications).
SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}
LITTLE = min(SHARED_KIB.values()) * 1024 // 4
BINOMIAL = (0.125, 0.375, 0.375, 0.125)
# Here also NCHW, float32 and float16, which are the same code with other strides and types, and filters as they are.
FULLY = [90]
if os.environ.get("COMPILE_FULLY") == "all":  # eleven minutes on two cores
    FULLY = list(SHARED_KIB)
TABLES = {}  # in the other process: how an op finds its tiles, before tests shorten them
MEDIUM = choices.MEDIUM
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")  # that launches give Triton


def record_launches() -> list[tuple]:
    """Stop all launches. Return the list that (kernel, arguments by name) will be added to."""
    from triton.runtime.jit import JITFunction

    import kernels  # noqa: F401

    launches = []

    def record(self, *args, grid, warmup, **kwargs):
        launches.append((self, dict(zip(self.arg_names, args, strict=False)) | kwargs))

    JITFunction.run = record
    for name, module in list(sys.modules.items()):
        if name.startswith("kernels.") and hasattr(module, "check_device"):
            module.check_device = lambda x: None
    for name in ("upfirdn2d", "filtered_act_launch"):
        sys.modules[f"kernels.upfirdn.{name}"].PROGRAMS = 1  # strips as long as for large images
    return launches


def run(function, *inputs) -> None:
    """A function, its gradients and theirs."""
    import torch

    inputs = [t.detach().requires_grad_() for t in inputs]
    y = function(*inputs)
    g = torch.zeros_like(y).requires_grad_()
    grads = torch.autograd.grad(y, inputs, g, create_graph=True)
    torch.autograd.grad(grads, [*inputs, g], [torch.zeros_like(d) for d in grads], allow_unused=True)


def run_maps(shape: tuple[int, ...], dtype, layout) -> None:
    """Run ops on one pixel at a time, or on whole channels. Their tiles grow with the channels, to 512."""
    import torch

    import kernels

    n, c, h, w = shape
    x = torch.zeros(shape, dtype=dtype).contiguous(memory_format=layout)
    bias, scale, strength = torch.zeros(c), torch.zeros(n, c), torch.zeros(())
    noise = torch.zeros(n, 1, h, w)
    run(kernels.bias_act, x, bias)
    run(lambda x, b, t, s: kernels.bias_act(x, b, noise=noise, strength=t, scale=s), x, bias, strength, scale)
    run(kernels.bias_act_residual, x, bias, x)
    run(kernels.modulate, x, scale)
    styled = x, scale, scale, strength
    run(lambda x, s, b, t: kernels.instance_norm_act(x, s, b, noise=noise, strength=t), *styled)


def run_norms(x) -> None:
    """Norms of modules, with the activations behind them, and weight norm of two layers."""
    import torch

    import kernels

    c = x.shape[1]
    inputs = [t.requires_grad_() for t in (x.detach(), torch.zeros(c), torch.zeros(c))]
    running = torch.zeros(c), torch.zeros(c), 0.1
    for y in (
        kernels.group_norm_act(inputs[0], 32, *inputs[1:], silu=True),
        kernels.group_norm_act(inputs[0], 32, slope=0.2),
        kernels.batch_norm_act(*inputs, running=running, slope=0.2),
    ):
        torch.autograd.grad(y, inputs, torch.zeros_like(y), allow_unused=True)
    vs = [torch.zeros(c, 3, 7, requires_grad=True), torch.zeros(c, c, 3, 3, requires_grad=True)]
    gs = [torch.zeros(c, 1, 1, requires_grad=True), torch.zeros(c, 1, 1, 1, requires_grad=True)]
    ws = kernels.weight_norm(vs, gs, dtype=x.dtype)
    torch.autograd.grad(ws, [*vs, *gs], [torch.zeros_like(w) for w in ws])


def run_grouped(x) -> None:
    """Convolutions in groups, for images [N, C, H, W] in channels_last."""
    import torch

    from kernels.linear import grouped

    for group in grouped.GROUPS:
        weight = torch.zeros(x.shape[1], group, 3, 3, dtype=x.dtype)
        for adjoint in (False, True):
            grouped.convolve(x, weight, adjoint)
        grouped.convolve(x, weight, bias=torch.zeros(x.shape[1], dtype=x.dtype))
        grouped.correlate(x, x, weight)


def run_layers(shape: tuple[int, ...], dtype, layout) -> None:
    """All ops of StyleGAN2 and AdaIN layers on x [N, 64, H, W], gradients of gradients included."""
    import torch

    import kernels
    from kernels.pointwise.logistic_loss import logistic_loss

    n, c, h, w = shape
    run_maps(shape, dtype, layout)
    x = torch.zeros(shape, dtype=dtype).contiguous(memory_format=layout)
    run_norms(x)
    if dtype.itemsize == 2 and layout == torch.channels_last:
        run_grouped(x)
    bias, scale, strength = torch.zeros(c), torch.zeros(n, c), torch.zeros(())
    noise = torch.zeros(n, 1, h, w)
    run(lambda x: kernels.minibatch_std(x, 4, multiple=8), x)
    torch.autograd.grad(kernels.minibatch_std(x.requires_grad_(), 4, multiple=8).sum(), x)
    run(lambda x: sum(t.sum() for t in kernels.fork_upfirdn2d(x, (0.125, 0.375, 0.375, 0.125), down=2)), x)
    for up, down in ((1, 1), (2, 1), (2, 2)):  # the gradient of up is down
        run(lambda x, u=up, d=down: kernels.upfirdn2d(x, BINOMIAL, up=u, down=d), x)
    run(lambda x, b: kernels.act_filter(x, b, BINOMIAL, padding=2), x, bias)
    how = {"noise": noise, "padding": (2, 1)}
    given = x, bias, strength, scale
    run(lambda x, b, t, s: kernels.filter_act(x, BINOMIAL, b, strength=t, scale=s, **how), *given)
    how |= {"strength": strength, "scale": scale.requires_grad_()}
    torch.autograd.grad(y := kernels.filter_act(x.requires_grad_(), BINOMIAL, bias, **how), (x, scale), y)
    torch.autograd.grad(y := kernels.filter_act_modulate(x, BINOMIAL, scale, bias, **how), (x, scale), y)
    del how["padding"]
    run(lambda x, b, s: torch.cat(kernels.bias_act_modulate(x, b, s, **how | {"scale": s})), x, bias, scale)
    torch.autograd.grad(y := kernels.bias_act_modulate(x, bias, scale, **how), (x, scale), y)
    torch.autograd.grad(logistic_loss(scale[:, :1], 1), scale)
    run_skip(x.detach())
    run(kernels.demodulate, torch.zeros(128, c, 3, 3), scale)
    run_group(torch.zeros(128, c, 3, 3).contiguous(memory_format=layout), scale)
    weight, image = torch.zeros(3, c, 1, 1), torch.zeros(n, 3, h, w).contiguous(memory_format=layout)
    run_rgb(x, weight, scale, torch.zeros(3), image, bias, run)


def run_planes(dtype, fully: bool, configurations: int | None = None) -> None:
    """Instance norm of large NCHW maps, with gradients, in every configuration or the first few.

    fully: also partial blocks that are not aligned, in maps without noise: the same code with less in it.
    """
    import torch

    import kernels

    planes = sys.modules["kernels.norm.instance_norm_act_planes"]
    for size in ((64, 128), (65, 63)) if fully else ((64, 128),):  # whole blocks, partial ones
        x, style = torch.zeros(8, 64, *size, dtype=dtype), torch.zeros(8, 64)
        noise = torch.zeros(8, 1, *size) if size == (64, 128) else None
        for _, how in planes.CONFIGS[:configurations]:  # for one program on a multiprocessor, for two
            strength = None if noise is None else torch.zeros((), requires_grad=True)
            inputs = [t.detach().requires_grad_() for t in (x, style, style)]
            with planes.forced(how):
                kernels.instance_norm_act(*inputs, noise=noise, strength=strength).sum().backward()


def run_group(weight, style) -> None:
    """Demodulation of two layers together: as main phases differentiate it, and as path length does."""
    import torch

    import kernels

    inputs = [t.requires_grad_() for t in (weight, weight.detach()[:64], style, style.clone())]
    found = kernels.demodulate_group_fork(kernels.weight_energies(inputs[:2]), inputs[2:])
    ds = found[0] + found[1]
    gs = [torch.zeros_like(d, requires_grad=True) for d in ds]
    torch.autograd.grad(ds, inputs, gs, retain_graph=True)
    first = torch.autograd.grad(ds, inputs[2:], gs, create_graph=True)
    torch.autograd.grad(first, [*inputs, *gs], [torch.zeros_like(d) for d in first])


def run_rgb(x, weight, style, bias, image, wide_bias, run) -> None:
    """To and from 3 channels: where gradients are differentiated again, and where not, which are other kernels."""
    import torch

    import kernels

    run(lambda x, w, s, b: kernels.to_rgb(x, w, s, b, dtype=torch.float32), x, weight, style, bias)
    w = sys.modules["kernels.linear.rgb_weights"].styled_group([weight.requires_grad_()], [style])
    y = kernels.to_rgb(x, w[0], None, bias, dtype=torch.float32, image=image)
    torch.autograd.grad(y, (x, weight, style), y)
    run(lambda i, w, b: kernels.from_rgb(i.to(x.dtype), w, b), image, weight.view(-1, 3), wide_bias)
    for function, inputs in (
        (kernels.to_rgb, (x, weight, style, bias)),
        (kernels.from_rgb, (image, weight, wide_bias)),
    ):
        inputs = [t.detach().clone().requires_grad_() for t in inputs]
        inputs[1] = inputs[1].view(-1, 3) if function is kernels.from_rgb else inputs[1]
        function(*inputs).sum().backward()


def shorten_filters(short: bool) -> None:
    """Short strips for the kernels that walk down one without a loop: at full length one compiles for 10 s."""
    filters, fused = (sys.modules[f"kernels.upfirdn.{name}"] for name in ("upfirdn2d", "filtered_act_launch"))
    row = filters.Config(1, 1, 0, 64, 0.5, 4) if short else None
    table = fused.STRIPS if short else {}
    fused.config = lambda name, nhwc, _, strips=False: (
        (table.get(name) if strips else None) or row or fused.CONFIGS[name, nhwc]
    )
    filters.config = lambda nhwc, up, *more: (
        filters.Config(2, up, 0, 64, 1, 4) if short else TABLES["upfirdn2d"](nhwc, up, *more)
    )
    for module in (filters, fused):
        module._cover.cache_clear()


def run_dense(twice: bool) -> None:
    """Layers as in StyleGAN2: one whose sum is split, as D's is, and some affines; gradients of gradients if asked."""
    import torch

    import kernels

    def run(function, *inputs):
        inputs = [t.requires_grad_() for t in inputs]
        ys = function(*inputs)
        gs = [torch.zeros_like(y, requires_grad=twice) for y in ys]
        torch.autograd.grad(ys, inputs, gs, retain_graph=True)
        if twice:
            first = torch.autograd.grad(ys, inputs, gs, create_graph=True)
            directions = [torch.zeros_like(d) for d in first]
            torch.autograd.grad(first, [*inputs, *gs], directions, allow_unused=True)

    x, w, b = torch.zeros(8, 8192), torch.zeros(512, 8192), torch.zeros(512)
    run(lambda *t: (kernels.dense(*t, weight_gain=0.04, act=True, gain=1.4),), x, w, b)
    weights = [torch.zeros(o, 512) for o in (512, 64, 3)]
    given = torch.zeros(8, 2, 512), *weights, *(torch.zeros(len(w)) for w in weights)
    run(lambda x, *t: kernels.dense_group(x, t[:3], t[3:], (0, 1, 1)), *given)


def run_spectral(dtype, layout) -> None:
    """The power iteration, W / sigma and its gradient, of a discriminator's layers, results in this dtype."""
    import torch

    import kernels

    shapes = ((64, 3, 1, 1), (128, 64, 3, 3), (512, 513, 3, 3))
    weights = [torch.zeros(s).contiguous(memory_format=layout) for s in shapes] + [torch.zeros(512, 8192)]
    for layers in (weights, weights[:1]):
        sizes = [(len(w), w[0].numel()) for w in layers]
        us, vs = ([torch.zeros(n) for n in each] for each in zip(*sizes, strict=True))
        kernels.power_iteration(layers, us, vs)
        inputs = [w.detach().requires_grad_() for w in layers]
        ys = kernels.spectral_norm(inputs, us, vs, gains=[0.5**0.5] * len(layers), dtype=dtype)
        torch.autograd.grad(ys, inputs, [torch.zeros_like(y) for y in ys])


def run_adam(dtype, layout, beta1: float, scaled: bool = False) -> None:
    """Adam for a weight, one with a copy, and one with a turned copy; ``scaled``: with a loss scale."""
    import torch

    from kernels.weights.adam import AdamPlan, Item, Rates

    weight = torch.zeros(128, 64, 3, 3).contiguous(memory_format=layout)
    turned = torch.empty_like(weight.transpose(0, 1), dtype=dtype, memory_format=layout).transpose(0, 1)
    copies, energy = (None, torch.empty_like(weight, dtype=dtype), turned), torch.zeros(128, 64)
    items = [Item(weight, weight, weight, torch.zeros(()), c) for c in copies]
    plan = AdamPlan([*items, items[1]._replace(energy=energy)], Rates(0.1, beta1, 0.9, 0.1))
    plan.launch(*plan.gradient_tables(), *(torch.zeros(()) for _ in range(2 * scaled)))


def take_for_large(large: bool) -> None:
    """Maps here are small and medium ones; large ones take other rows of the tables, whatever their sizes."""
    choices.MEDIUM = 0 if large else MEDIUM
    sys.modules["kernels.common.tiles"].tiling.cache_clear()
    sys.modules["kernels.upfirdn.upfirdn2d"]._cover.cache_clear()


def pretend(capability: int) -> None:
    """Choose tiles from now on as on a GPU of this architecture."""
    from kernels.common import tiles

    tiles.processor = lambda device: (capability, 132)
    tiles.tiling.cache_clear()
    planes = sys.modules["kernels.norm.instance_norm_act_planes"]
    planes.shared_bytes = lambda device: SHARED_KIB[capability] << 10


def launch_few(launches: list[tuple]) -> None:
    """Launch each kernel with most of its tensors: in BF16, channels_last and short strips, and in FP32 and NCHW."""
    import torch

    shorten_filters(True)
    run_layers((2, 64, 16, 16), torch.float32, torch.contiguous_format)
    chosen = fullest(launches)
    launches.clear()
    run_layers((2, 64, 16, 16), torch.bfloat16, torch.channels_last)
    run_dense(twice=False)
    run_adam(torch.bfloat16, torch.channels_last, 0.0)
    run_spectral(torch.bfloat16, torch.channels_last)
    run_planes(torch.bfloat16, False, 1)
    launches[:] = [*chosen, *fullest(launches)]


def fullest(launches: list[tuple]) -> list[tuple]:
    """Return each kernel's launch with the most tensors, and of a filter one for each factor."""
    import torch

    found: dict[tuple, tuple] = {}
    for kernel, arguments in launches:
        given = sum(isinstance(value, torch.Tensor) for value in arguments.values())
        key = kernel, *(arguments[name] for name in ("UP", "DOWN") if name in arguments)
        if given > found.get(key, (-1,))[0]:
            found[key] = given, arguments
    return [(kernel, arguments) for (kernel, *_), (_, arguments) in found.items()]


def launch_all(launches: list[tuple], capability: int) -> None:
    """Launch as `launch_few` in all sizes, and everything else for architectures that are compiled fully."""
    import torch

    planes = sys.modules["kernels.norm.instance_norm_act_planes"]
    for shape in ((8, 64, 64, 64), (2, 64, 16, 16)):
        shorten_filters(capability not in FULLY or shape[0] == 2)
        run_layers(shape, torch.bfloat16, torch.channels_last)
    run_maps((2, 512, 16, 16), torch.bfloat16, torch.channels_last)
    if capability in FULLY:
        take_for_large(True)
        shorten_filters(False)
        run_layers((8, 64, 64, 64), torch.bfloat16, torch.channels_last)
        take_for_large(False)
    run_dense(twice=capability in FULLY)
    run_adam(torch.bfloat16, torch.channels_last, 0.0)
    run_spectral(torch.bfloat16, torch.channels_last)
    run_planes(torch.bfloat16, capability in FULLY)
    run_planes(torch.float32, capability in FULLY)
    if capability in FULLY:
        run_adam(torch.float32, torch.contiguous_format, 0.9)
        run_adam(torch.float16, torch.channels_last, 0.0, scaled=True)
        shorten_filters(True)
        run_planes(torch.float64, False)
        planes.LEAST_PIXELS, least = 1 << 40, planes.LEAST_PIXELS  # in tiles, as smaller maps
        nchw, nhwc = torch.contiguous_format, torch.channels_last  # `launch_few` has FP32 in NCHW
        for dtype, layout in ((torch.float16, nchw), (torch.float32, nhwc)):
            rest, launches[:] = launches[:], []
            run_layers((8, 64, 64, 64), dtype, layout)
            launches[:] = [*rest, *fullest(launches)]
        planes.LEAST_PIXELS = least
        run_maps((2, 512, 16, 16), torch.float32, torch.channels_last)
        rest, launches[:] = launches[:], []
        for dtype in (torch.bfloat16, torch.float32):
            for layout in (nchw, nhwc):
                run_rgb_odd(dtype, layout)
        # The other kernel sums nothing over lanes.
        launches[:] = [*rest, *(each for each in launches if each[0].__name__ == "rgb_narrow_kernel")]
    elif capability >= 100:  # what 80 has, by another way through LLVM
        launches[:] = fullest(launches)


def sources(launches: list[tuple]) -> dict[tuple, object]:
    """What a GPU would be asked to compile: {cache key: (source, options)}."""
    wanted = {}
    for kernel, arguments in launches:
        code = source(kernel, arguments)
        options = {name: arguments[name] for name in OPTIONS if name in arguments}
        wanted[(kernel.__name__, code.hash(), *options.values())] = code, options
    return wanted


def source(kernel, arguments: dict):
    """Return the source that Triton would compile for these arguments: types, constants, multiples of 16."""
    import torch
    from triton.compiler import ASTSource

    pointers = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64"}
    pointers |= {torch.float16: "*fp16", torch.int64: "*i64", torch.int32: "*i32"}
    types, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        if isinstance(value, torch.Tensor):
            types[parameter.name] = pointers[value.dtype]
            attributes |= {(i,): [["tt.divisibility", 16]]} if value.data_ptr() % 16 == 0 else {}
        elif isinstance(value, tuple) and not parameter.is_constexpr:  # of tensors
            types[parameter.name] = tuple(pointers[each.dtype] for each in value)
            attributes |= {(i, k): [["tt.divisibility", 16]] for k in range(len(value))}
        elif parameter.is_constexpr or value is None or (value == 1 and not parameter.do_not_specialize):
            types[parameter.name], constants[(i,)] = "constexpr", value
        elif isinstance(value, float):
            types[parameter.name] = "fp32"
        else:
            types[parameter.name] = "i64" if value >= 1 << 31 else "i32"
            if value % 16 == 0 and not parameter.do_not_specialize:
                attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, types, constexprs=constants, attrs=attributes)


def main(arguments: list[str]) -> None:
    """Compile for these architectures, or for one in few configurations; say what came of it.

    For older ones than 90 each kernel is compiled with the most tensors. A configuration that needs little shared
    memory on 90 is not compiled again. Older ones were seen to need up to four times as much.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    launches, compiled, known = record_launches(), [], {}
    TABLES["upfirdn2d"] = sys.modules["kernels.upfirdn.upfirdn2d"].config
    few = arguments == ["few"]
    for capability in [90] if few else map(int, arguments):
        pretend(capability)
        launches.clear()
        launch_few(launches) if few else launch_all(launches, capability)
        for size in (4, 2, 1):
            fill_words(1 << 40, 1, 0, size)
        # A GPU runs what was compiled for an older one of its generation: 86 and 89 what 80 has.
        generation = capability // 10 if len(FULLY) == 1 else capability
        needed = sources(fullest(launches))
        for key, (source, options) in (needed | sources(launches)).items():
            if generation == 8 and key not in needed and known.get((9, key), (LITTLE + 1,))[0] <= LITTLE:
                known[8, key] = known[9, key]
            if (generation, key) not in known:
                code = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
                known[generation, key] = code.metadata.shared, contracted_sums(code.asm["ptx"])
            compiled.append((key[0], capability, *known[generation, key]))
    json.dump({"compiled": compiled, "rows": [choices.row(key) for key in choices._chosen]}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
