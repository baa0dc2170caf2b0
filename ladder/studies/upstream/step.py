"""A training step of NVIDIA's implementation, as `ladder.engine.worker` expects it.

Networks, losses, CUDA ops and the dataset are the clone's, at the settings of its `--cfg=stylegan2 --aug=noaug`:
FP16 in the four highest resolutions, with activations clamped to 256, cuDNN autotuning, ordinary instead of grouped
convolutions while training, Adam with the learning rates of lazy regularization, and three loader workers.

The code between them is one iteration of NVIDIA's training loop, written anew, because that loop never returns. It
draws images and latents for all phases. Each phase computes its loss, one flat tensor of gradients without NaN, and
Adam. The moving average comes last.

A step whose recipe names a folder `findings` is never timed. It examines itself while it is prepared, and writes what
it finds there: the gradients or the GPU time of each phase. Gradients come from weights, images, latents and noise that
are the same in every such process, whatever the ops and precision.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import importlib.util
import json
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.protocol import CYCLE_STEPS, IN_ORDER
from ladder.studies.upstream import source

if TYPE_CHECKING:
    from ladder.core.records import Fields

CONTRACT = 1
PACKAGE = "from ladder.studies.upstream.step import CONTRACT as CONTRACT, make_step as make_step\n"
FP16_RESOLUTIONS, CLAMP = 4, 256
NAMES = dict(
    zip(("Gmain", "Greg", "Dmain", "Dreg"), IN_ORDER, strict=True)
)  # NVIDIA's names of the phases, and ours
WORKERS, PREFETCH = 3, 2
SEEN = "seen.json"
GRADIENTS, EXACT, TIMES = "gradients", "exact gradients", "times"  # what is examined
MOVED = 0.1  # each weight moves by this times a normal number: biases and noise strengths begin at zero
REPEATS = 4  # profiled runs of each phase
# Images, latents and noise that gradients are computed from. One input says little: where FP16 flips the sign of a few
# activations of a small network, an error is ten times as large.
INPUTS = 6
ZERO = 1e-7  # of a phase's whole gradient: a smaller tensor counts as zero
MOST = 1e30  # the largest error; a file holds no infinity


def refuse_workload(workload: Fields) -> None:
    """Raise UserError for a workload that NVIDIA's networks do not support."""
    for key, value in (("norm", "demod"), ("spectral_norm", False)):
        if workload.get(key, value) != value:
            raise UserError(f"workload: {key}: NVIDIA's networks have {value!r} alone, not {workload[key]!r}")


def make_step(workload: Fields, recipe: Fields, *, device: str, seed: int = 0) -> UpstreamStep:
    """Build a clone's step to be timed, or one that examines itself if the recipe names a folder for findings.

    NVIDIA's, or R3GAN's if the recipe names a preset.
    """
    from ladder.studies.upstream.r3gan import R3GANStep

    kind = R3GANStep if "preset" in recipe else UpstreamStep
    if "findings" not in recipe:
        return kind(workload, recipe, device, seed)
    examination = Times if recipe["what"] == TIMES else Gradients
    examined = type(examination.__name__, (examination, kind), {})
    return examined(workload | {"data": None}, recipe, device, seed)  # type: ignore[no-any-return]


class UpstreamStep:
    """NVIDIA's networks, losses and ops in its order of work. A cycle is 16 of its iterations.

    Attributes:
        updates: NVIDIA's name, network, optimizer and interval of each phase.
    """

    names = NAMES
    # A share of a cycle's kernels: style mixing begins at a random layer, and with none left it copies nothing.
    LAUNCHES_VARY = 0.001

    def __init__(self, workload: Fields, recipe: Fields, device: str, seed: int) -> None:
        self.recipe, self.workload, self.device = recipe, workload, device
        # stylegan3 ignores FP16 on a CPU, stylegan2-ada-pytorch would compute in it
        self.low_precision = device == "cuda" and torch.get_default_dtype() is torch.float32
        self.modules = modules = source.load(Path(recipe["folder"]))
        torch.manual_seed(seed)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.gradfix = source.switch_gradfix(modules, device)
        if device == "cuda":
            source.build_ops(modules)
        self.number = self.seen = 0
        self.updates: list[tuple[str, Any, Any, int]] = []
        self._build()
        self.G_ema = copy.deepcopy(self.G).eval()
        self.images = self._images(seed)
        self.data_capacity = WORKERS * PREFETCH if workload["data"] else 0

    def _build(self) -> None:
        """Make networks, losses and optimizers."""
        workload, modules, device = self.workload, self.modules, self.device
        self.z_dim = workload["z_dim"]
        self.fp16_resolutions = FP16_RESOLUTIONS if self.low_precision else 0
        self.G, self.D = (net.train().requires_grad_(False).to(device) for net in self._networks())
        nets = {"G": self.G} | {f"G_{part}": getattr(self.G, part, None) for part in ("mapping", "synthesis")}
        gamma = workload["r1_gamma"]
        if gamma is None:  # NVIDIA's rule
            gamma = 0.0002 * workload["resolution"] ** 2 / workload["batch"]
        self.loss = modules.loss.StyleGAN2Loss(
            device=torch.device(device), D=self.D, r1_gamma=gamma,
            style_mixing_prob=workload["style_mixing"], pl_weight=workload["pl_weight"],
            pl_batch_shrink=workload["pl_batch_shrink"], pl_decay=workload["pl_decay"],
            **source.pick_accepted(modules.loss.StyleGAN2Loss, **nets, pl_no_weight_grad=True),
        )  # fmt: skip
        for name, module, interval in (
            ("G", self.G, workload["pl_interval"]),
            ("D", self.D, workload["r1_interval"]),
        ):
            share = interval / (interval + 1)  # lazy regularization scales learning rate and betas
            betas = [workload[key] ** share for key in ("beta1", "beta2")]
            adam = torch.optim.Adam(module.parameters(), lr=workload["lr"] * share, betas=betas, eps=1e-8)
            self.updates += [(f"{name}main", module, adam, 1), (f"{name}reg", module, adam, interval)]

    def _networks(self) -> tuple[Any, Any]:
        ours, networks = self.workload, self.modules.networks
        if torch.get_default_dtype() is torch.float64:
            networks.torch = Wide()
        size = {key: ours[key] for key in ("channel_base", "channel_max")}
        size |= {"conv_clamp": ours.get("conv_clamp") or CLAMP, "num_fp16_res": self.fp16_resolutions}
        both = {"c_dim": 0, "img_resolution": ours["resolution"], "img_channels": 3}
        mapping = {"num_layers": ours["mapping_layers"], "w_avg_beta": ours["w_avg_beta"]}
        latent = {"z_dim": ours["z_dim"], "w_dim": ours["w_dim"]}
        options = size | source.pick_accepted(networks.SynthesisBlock, fused_modconv_default="inference_only")
        # stylegan2-ada-pytorch takes them in a dict
        options = source.pick_accepted(networks.Generator, synthesis_kwargs=options) or options
        return (
            networks.Generator(**latent, **both, **options, mapping_kwargs=mapping),
            networks.Discriminator(**both, **size, epilogue_kwargs={"mbstd_group_size": ours["mbstd_group"]}),
        )

    def _images(self, seed: int) -> Any:
        """Yield batches of uint8 images without end. Without data it repeats one random batch."""
        shape = (self.workload["batch"], 3, *2 * (self.workload["resolution"],))
        if not self.workload["data"]:
            images = torch.randint(256, shape, dtype=torch.uint8, pin_memory=self.device == "cuda")
            return iter(lambda: (images, None), 0)
        data = self.modules.dataset.ImageFolderDataset(
            path=str(self.workload["data"]),
            resolution=self.workload["resolution"],
            xflip=self.workload["flips"],
        )
        # NVIDIA's endless sampler does not run with today's torch, so this loop shuffles before each pass.
        shuffle = torch.Generator().manual_seed(seed)
        order = torch.utils.data.RandomSampler(data, num_samples=2**40, generator=shuffle)
        # Ours, from its file: in this process `stylegan_lite` is a package that stands for NVIDIA's.
        path = ROOT / "stylegan_lite" / "step" / "dataworkers.py"
        spec = importlib.util.spec_from_file_location("ladder.studies.upstream.dataworkers", path)
        workers = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(workers)
        loader = torch.utils.data.DataLoader(
            data, batch_size=self.workload["batch"], sampler=order, pin_memory=self.device == "cuda",
            num_workers=WORKERS, prefetch_factor=PREFETCH, worker_init_fn=workers.begin,
        )  # fmt: skip
        return workers.started(loader)

    def prepare(self) -> None:
        """Run every phase once, which autotunes its convolutions."""
        self.step(lazy=True)
        self.number = 0

    def cycle(self, lazy: bool = True) -> None:
        for _ in range(CYCLE_STEPS):
            self.step(lazy)

    @property
    def count(self) -> int:
        """Return the number of iterations so far."""
        return self.number

    def phases(self, number: int) -> tuple[str, ...]:
        """Return the names of the phases of this iteration."""
        return tuple(self.names[name] for name, *_, interval in self.updates if number % interval == 0)

    def step(self, lazy: bool = True) -> None:
        """Run the next iteration."""
        self._step(self.number, lazy)

    def _step(self, number: int, lazy: bool) -> None:
        """Run one iteration. Phases that are not due are left out, and lazy phases too where `lazy` is false."""
        for update, (images, z) in zip(self.updates, self.draw(), strict=True):
            _, module, adam, interval = update
            if number % interval or (interval > 1 and not lazy):
                continue
            self.accumulate(update, images, z)
            self._update(module, adam)
        self._average()
        self.number, self.seen = number + 1, self.seen + self.workload["batch"]

    def draw(self) -> list[tuple[Any, Any]]:
        """Return images, from -1 to 1, and latents of each phase of an iteration: the images are the same."""
        images, _ = next(self.images)
        images = images.to(self.device).to(torch.float32) / 127.5 - 1
        batch = self.workload["batch"]
        latents = torch.randn([len(self.updates) * batch, self.z_dim], device=self.device)
        return [(images, z) for z in latents.split(batch)]

    def accumulate(self, update: tuple[str, Any, Any, int], images: Any, z: Any) -> None:
        """Compute the gradients of one phase."""
        name, module, adam, interval = update
        labels = torch.zeros([len(z), 0], device=self.device)
        adam.zero_grad(set_to_none=True)
        module.requires_grad_(True)
        compute = self.loss.accumulate_gradients
        also = source.pick_accepted(compute, sync=True, cur_nimg=self.seen)
        compute(phase=name, real_img=images, real_c=labels, gen_z=z, gen_c=labels, gain=interval, **also)
        module.requires_grad_(False)

    def _update(self, module: Any, adam: Any) -> None:
        self._flatten(module, lambda flat: torch.nan_to_num(flat, nan=0, posinf=1e5, neginf=-1e5, out=flat))
        adam.step()

    @staticmethod
    def _flatten(module: Any, change: Callable[[Any], Any]) -> None:
        """Put all gradients into one tensor, and change it."""
        weights = [each for each in module.parameters() if each.grad is not None]
        if weights:
            flat = torch.cat([each.grad.flatten() for each in weights])
            change(flat)
            for each, grad in zip(weights, flat.split([each.numel() for each in weights]), strict=True):
                each.grad = grad.reshape(each.shape)

    def _mean_images(self) -> float:
        """Return over how many images the average's weight halves."""
        return min(float(self.workload["ema_images"]), self.seen * 0.05)

    def _average(self) -> None:
        beta = 0.5 ** (self.workload["batch"] / max(self._mean_images(), 1e-8))
        with torch.no_grad():
            for mean, now in zip(self.G_ema.parameters(), self.G.parameters(), strict=True):
                mean.copy_(now.lerp(mean, beta))
            for mean, now in zip(self.G_ema.buffers(), self.G.buffers(), strict=True):
                mean.copy_(now)

    def check_finite(self) -> str | None:
        """Return one line if a weight is not finite, else None."""
        for name, net in (("G", self.G), ("D", self.D)):
            for where, weight in net.named_parameters():
                if not math.isfinite(float(weight.sum())):
                    return f"{name}.{where} is not finite"
        return None

    def settings(self) -> dict[str, bool | int]:
        """Return the settings in force and the numbers of weights."""
        return {
            "cuda_ops": self.device == "cuda",
            "fast_double_backward": self.gradfix,
            **self._precisions(),
            "cudnn_benchmark": True,
            "loader_workers": WORKERS if self.workload["data"] else 0,
            "parameters_G": sum(each.numel() for each in self.G.parameters()),
            "parameters_D": sum(each.numel() for each in self.D.parameters()),
        }

    def _precisions(self) -> dict[str, int]:
        return {"fp16_resolutions": self.fp16_resolutions}

    def _place(self, weight: Any, noise: Any) -> Any:
        """Return the weight of an examination, from the one it begins with and normal noise."""
        return weight.float() + MOVED * noise

    def close(self) -> None:
        self.images = None


# --- examinations -----------------------------------------------------------------------------------------------------


class Draws:
    """Random numbers that depend on the seed and the order of draws alone, not on a tensor's precision or device.

    While entered, `torch.randn`, `torch.randn_like` and `torch.rand` draw FP32 numbers on the CPU. `shapes` is a hash:
    it shows whether two processes have drawn the same shapes in the same order.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.shapes = hashlib.sha256()
        self.own = {name: getattr(torch, name) for name in ("randn", "rand", "randn_like")}

    def __enter__(self) -> Draws:
        torch.randn = functools.partial(self._draw, self.own["randn"])
        torch.rand = functools.partial(self._draw, self.own["rand"])
        torch.randn_like = lambda like, dtype=None, device=None, **_: self._draw(
            self.own["randn"], like.shape, dtype=dtype or like.dtype, device=device or like.device
        )
        return self

    def __exit__(self, *_: object) -> None:
        for name, function in self.own.items():
            setattr(torch, name, function)

    def _draw(
        self, draw: Callable[..., Any], *size: Any, dtype: Any = None, device: Any = None, **_: Any
    ) -> Any:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else size
        self.shapes.update(f"{[int(n) for n in shape]}".encode())
        numbers = draw(shape, generator=self.generator, dtype=torch.float32)
        return numbers.to(device or "cpu", dtype or torch.get_default_dtype())


class Wide:
    """The module torch, whose float32 is float64."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, "float64" if name == "float32" else name)


@contextlib.contextmanager
def set_default(dtype: torch.dtype) -> Iterator[None]:
    """Make a precision that of new tensors inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


if TYPE_CHECKING:
    Examined = UpstreamStep
else:
    Examined = object  # the step of a clone comes behind it


class Gradients(Examined):
    """Compare each phase's gradients with exact ones, which another examination wrote into the folder `exact`.

    That one computes in FP64: where a clone's networks name float32, they get float64. No update follows, so every
    phase sees the same weights.
    """

    def __init__(self, workload: Fields, recipe: Fields, device: str, seed: int) -> None:
        self.findings, self.exact, self.draws = Path(recipe["findings"]), Path(recipe["exact"]), Draws(seed)
        self.is_exact = recipe["what"] == EXACT
        self.dtype = torch.float64 if self.is_exact else torch.get_default_dtype()
        with set_default(self.dtype), self.draws:
            super().__init__(workload, recipe, device, seed)
            with torch.no_grad():
                for weight in [*self.G.parameters(), *self.D.parameters()]:
                    # in FP32, so that FP64 gets the same numbers
                    moves = torch.randn(weight.shape, device=self.device, dtype=torch.float32)
                    weight.copy_(self._place(weight, moves))

    def prepare(self) -> None:
        """Compute the gradients, and write their errors; exact ones are written rounded by 3e-8."""
        if self.is_exact:
            torch.backends.cudnn.benchmark = False  # trying every algorithm in FP64 takes minutes
        errors: dict[str, list[Any]] = {}
        shape = (self.workload["batch"], 3, *2 * (self.workload["resolution"],))
        with set_default(self.dtype), self.draws:
            torch.manual_seed(0)  # for whole numbers, which are drawn on the device
            for number in range(INPUTS):
                levels = torch.randint(256, shape, generator=self.draws.generator).to(torch.float32)
                images = (levels / 127.5 - 1).to(self.device, torch.get_default_dtype())
                for update in self.updates:
                    z = torch.randn([len(images), self.z_dim], device=self.device)
                    self.accumulate(update, images, z)
                    phase, weights = self.names[update[0]], [*update[1].parameters()]
                    grads = [torch.zeros_like(each) if each.grad is None else each.grad for each in weights]
                    values = torch.cat([each.flatten() for each in grads]).double().cpu().numpy()
                    path = self.exact / f"{phase}-{number}.npy"
                    if self.is_exact:
                        np.save(path, values.astype(np.float32), allow_pickle=False)
                        continue
                    exact = np.load(path, mmap_mode="r", allow_pickle=False)
                    error = derive_error(exact, values, [each.numel() for each in grads])
                    errors.setdefault(phase, []).append(error)
        digest = hashlib.sha256()
        for weight in [*self.G.parameters(), *self.D.parameters()]:
            digest.update(weight.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
        findings = {"weights": digest.hexdigest(), "draws": self.draws.shapes.hexdigest(), "errors": errors}
        (self.findings / SEEN).write_text(json.dumps(findings))


class Times(Examined):
    """Write the GPU time in ms of each phase with its update: the union of its kernels and copies, under a profiler."""

    def __init__(self, workload: Fields, recipe: Fields, device: str, seed: int) -> None:
        self.findings = Path(recipe["findings"])
        super().__init__(workload, recipe, device, seed)

    def prepare(self) -> None:
        """Warm up, profile and write."""
        from ladder.engine import profiling
        from ladder.receipts import traces

        super().prepare()
        self.step()  # every phase once more: its convolutions are tuned, its kernels compiled
        profiling.load_profiler()
        runs = [(update, *drawn) for update, drawn in zip(self.updates, self.draw(), strict=True)] * REPEATS
        recorded = profiling.Recorded()

        def run_phase(update: Any, images: Any, z: Any) -> None:
            self.accumulate(update, images, z)
            self._update(update[1], update[2])
            torch.cuda.synchronize()

        def run_phases() -> None:
            for each in runs:
                recorded.run(functools.partial(run_phase, *each))

        recorded.profile = traces.profile_cycle(run_phases)
        times = tabulate_times([self.names[update[0]] for update, *_ in runs], recorded.cycles())
        (self.findings / SEEN).write_text(json.dumps(times))


def tabulate_times(phases: list[str], events: list[Any]) -> dict[str, dict[str, Any]]:
    """Return by phase the GPU time in ms of each run and the median number of kernels, of each run's events."""
    from ladder.receipts import traces

    times: dict[str, list[float]] = {}
    kernels: dict[str, list[int]] = {}
    for phase, each in zip(phases, events, strict=True):
        times.setdefault(phase, []).append(
            traces.busy_ms(each) * CYCLE_STEPS
        )  # a phase is no cycle of 16 steps
        kernels.setdefault(phase, []).append(len(traces.list_kernels(each)))
    return {phase: {"gpu_ms": times[phase], "kernels": statistics.median(kernels[phase])} for phase in times}


def derive_error(exact: Any, got: Any, sizes: list[int]) -> tuple[float, float]:
    """Return the relative L2 error of all gradients together, and the root mean square of each tensor's.

    In the second, a small tensor counts as much as a large one. A tensor whose exact gradient is 0, or FP64's rounding
    of it (biases in R1), is left out. No tensor's error counts for more than 1.
    """
    wrong, right, shares, begin = 0.0, 0.0, [], 0
    least = (ZERO * float(np.linalg.norm(np.asarray(exact, dtype=np.float64)))) ** 2
    for size in sizes:
        tensor = np.asarray(exact[begin : begin + size], dtype=np.float64)
        off = float(np.linalg.norm(np.asarray(got[begin : begin + size], dtype=np.float64) - tensor)) ** 2
        norm, begin = float(np.linalg.norm(tensor)) ** 2, begin + size
        wrong, right = wrong + off, right + norm
        if norm > least:
            shares.append(off / norm if off < norm else 1.0)  # also for what is no number
    whole = math.sqrt(wrong / right) if right else math.sqrt(wrong)
    return whole if math.isfinite(whole) else MOST, math.sqrt(sum(shares) / max(len(shares), 1))
