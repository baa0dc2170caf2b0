"""One iteration of a clone's training loop, NVIDIA's or R3GAN's, as `ladder.engine.worker` expects a step.

Networks, losses, CUDA ops and the dataset are the clone's. The code between them is written anew, because their loops
never return. An iteration draws images and latents for all phases. Each phase computes its loss, one flat tensor of
gradients and Adam. The moving average comes last.

NVIDIA's has the settings of `--cfg=stylegan2 --aug=noaug`: FP16 in the four highest resolutions, with activations
clamped to 256, cuDNN autotuning, ordinary instead of grouped convolutions while training, Adam with the learning rates
of lazy regularization, and three loader workers.

R3GAN's has those that its `train.py` gives a preset without augmentation, and follows its schedules. Images are one
random batch, and labels are random.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.protocol import CYCLE_STEPS, IN_ORDER
from ladder.studies.upstream import source
from ladder.studies.upstream.source import PRESETS, write_no_bytecode

if TYPE_CHECKING:
    from ladder.core.records import Fields

FP16_RESOLUTIONS, CLAMP = 4, 256
NAMES = dict(
    zip(("Gmain", "Greg", "Dmain", "Dreg"), IN_ORDER, strict=True)
)  # NVIDIA's names of the phases, and ours
WORKERS, PREFETCH = 3, 2
MOVED = 0.1  # a weight of an examination moves by this times a normal number: biases and noise strengths begin at zero
NARROWER = 24  # times, in R3GAN's preset "tiny"


def refuse_workload(workload: Fields) -> None:
    """Raise UserError for a workload that NVIDIA's networks do not support."""
    for key, value in (("norm", "demod"), ("spectral_norm", False)):
        if workload.get(key, value) != value:
            raise UserError(f"workload: {key}: NVIDIA's networks have {value!r} alone, not {workload[key]!r}")


class Wide:
    """The module torch, whose float32 is float64."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, "float64" if name == "float32" else name)


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


# --- R3GAN ------------------------------------------------------------------------------------------------------------


def read_config(preset: str, batch: int) -> Any:
    """Return what the clone's `train.py` would train a preset with, by its own command line.

    Raises:
        UserError: it does not know the preset.
    """
    for name in (
        "training.training_loop",
        "metrics",
        "metrics.metric_main",
    ):  # to train, and not needed for this
        sys.modules.setdefault(name, types.ModuleType(name))
    with write_no_bytecode():
        train: Any = importlib.import_module("train")
    train.init_dataset_kwargs = lambda data: (train.dnnlib.EasyDict(use_labels=True), preset)
    configs: list[Any] = []
    train.launch_training = lambda c, **_: configs.append(c)
    name, labels = "CIFAR10" if preset == "tiny" else preset, bool(PRESETS[preset][2])
    words = [f"--preset={name}", f"--batch={batch}", "--gpus=1", "--aug=0", f"--cond={int(labels)}"]
    try:
        train.main.main([*words, "--metrics=none", "--outdir=.", "--data=."], "train", standalone_mode=False)
    except UnboundLocalError:
        raise UserError(f"the clone's train.py has no preset {name}") from None
    if preset == "tiny":
        for net in (configs[0].G_kwargs, configs[0].D_kwargs):
            for key in ("WidthPerStage", "CardinalityPerStage"):
                net[key] = [number // NARROWER for number in net[key]]
    return configs[0]


class R3GANStep(UpstreamStep):
    """R3GAN's networks, losses and ops in its order of work. A cycle is 16 of its iterations."""

    names = {"D": "D_main", "G": "G_main"}
    LAUNCHES_VARY = 0.0

    def _build(self) -> None:
        batch, preset = self.workload["batch"], self.recipe["preset"]
        self.config = config = read_config(preset, batch)
        # Labels before the networks, whose initial weights take other random numbers in FP64.
        classes = PRESETS[preset][2]
        drawn = torch.randint(max(classes, 1), [batch])
        self.labels = torch.eye(max(classes, 1))[drawn][:, :classes].to(self.device)
        self.G, self.D = (net.train().requires_grad_(False).to(self.device) for net in self._networks())
        self.loss = self.modules.loss.R3GANLoss(G=self.G, D=self.D)
        self.z_dim = config.G_kwargs.NoiseDimension
        self.updates = []
        for name, net, options in (("D", self.D, config.D_opt_kwargs), ("G", self.G, config.G_opt_kwargs)):
            betas = tuple(map(float, options.betas))  # whole numbers, which PyTorch refuses today
            self.updates.append(
                (name, net, torch.optim.Adam(net.parameters(), betas=betas, eps=options.eps), 1)
            )

    def _networks(self) -> tuple[Any, Any]:
        is_wide, networks = torch.get_default_dtype() is torch.float64, self.modules.networks
        shape = {"c_dim": PRESETS[self.recipe["preset"]][2], "img_resolution": self.workload["resolution"]}
        nets = []
        for name, options in (("Generator", self.config.G_kwargs), ("Discriminator", self.config.D_kwargs)):
            options = {key: value for key, value in options.items() if key != "class_name"} | shape
            if not self.low_precision:
                options["FP16Stages"] = []
            nets.append(getattr(networks, name)(**options))
        for module in [each for net in nets for each in net.modules()] if is_wide else []:
            if hasattr(module, "DataType"):
                module.DataType = torch.float64
            for key, kernel in vars(module)["_buffers"].items():  # a filter, in float32 as its op wants it
                setattr(module, key, kernel.float())
        return nets[0], nets[1]

    def _place(self, weight: Any, noise: Any) -> Any:
        """Return the weight of an examination: layers of about the gain that they begin with, none of them zero."""
        return noise / math.sqrt(weight[0].numel()) if weight.ndim > 1 else MOVED * noise

    def _schedule(self, name: str) -> float:
        """Return a setting of this iteration: it goes from its first to its last value along half a cosine."""
        each = self.config[f"{name}_scheduler"]
        share = min(self.seen / each["total_nimg"], 1.0)
        first, last = each["base_value"], each["final_value"]
        return float(last + (first - last) * (1 + math.cos(math.pi * share)) / 2)

    def draw(self) -> list[tuple[Any, Any]]:
        """Return images, from -1 to 1, and latents of D's phase and of G's."""
        shape, drawn = [self.workload["batch"], self.z_dim], []
        for _ in self.updates:
            images, _ = next(self.images)
            drawn.append((images.clone(), torch.randn(shape, device=self.device)))
        return [(each.to(self.device).to(torch.float32) / 127.5 - 1, z.clone()) for each, z in drawn]

    def accumulate(self, update: tuple[str, Any, Any, int], images: Any, z: Any) -> None:
        """Compute the gradients of one phase."""
        name, module, adam, _ = update
        part = min(self.config[f"{name.lower()}_batch_gpu"], len(z))
        adam.zero_grad(set_to_none=True)
        module.requires_grad_(True)
        labels = self.labels[: len(z)].to(torch.get_default_dtype())
        for real, c, latents in zip(images.split(part), labels.split(part), z.split(part), strict=True):
            self.loss.accumulate_gradients(
                phase=name, real_img=real, real_c=c, gen_z=latents, gamma=self._schedule("gamma"), gain=part / len(z)
            )  # fmt: skip
        module.requires_grad_(False)

    def _update(self, module: Any, adam: Any) -> None:
        for group in adam.param_groups:
            group["lr"], group["betas"] = self._schedule("lr"), (0.0, self._schedule("beta2"))
        self._flatten(module, lambda flat: None)
        adam.step()

    def _mean_images(self) -> float:
        return self._schedule("ema")

    def _precisions(self) -> dict[str, int]:
        return {"bf16_stages": len(self.config.G_kwargs.FP16Stages) if self.low_precision else 0}
