"""A training step of NVIDIA's implementation, as `ladder.engine.worker` expects it.

Networks, losses, CUDA ops and the dataset are the clone's, at the settings of its `--cfg=stylegan2 --aug=noaug`:
FP16 in the four highest resolutions, with activations clamped to 256, cuDNN autotuning, ordinary instead of grouped
convolutions while training, Adam with the learning rates of lazy regularization, and three loader workers.

The code between them is one iteration of NVIDIA's training loop, written anew, because that loop never returns. It
draws images and latents for all phases. Each phase computes its loss, one flat tensor of gradients without NaN, and
Adam. The moving average comes last.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.protocol import CYCLE_STEPS, IN_ORDER
from ladder.studies.upstream import source

if TYPE_CHECKING:
    from ladder.core.records import Fields

CONTRACT = 1
PACKAGE = """from ladder.studies.upstream.step import CONTRACT as CONTRACT
from ladder.studies.upstream.examined import make_step as make_step
"""
FP16_RESOLUTIONS, CLAMP = 4, 256
NAMES = dict(
    zip(("Gmain", "Greg", "Dmain", "Dreg"), IN_ORDER, strict=True)
)  # NVIDIA's names of the phases, and ours
WORKERS, PREFETCH = 3, 2
SAME = {"norm": "demod", "spectral_norm": False}  # fixed in NVIDIA's networks


def refuse(workload: Fields) -> None:
    """Raise UserError for a workload that NVIDIA's networks do not support."""
    for key, value in SAME.items():
        if workload.get(key, value) != value:
            raise UserError(f"workload: {key}: NVIDIA's networks have {value!r} alone, not {workload[key]!r}")


def _dataworkers() -> Any:
    """Return our module from its file: in this process `stylegan_lite` is a package that stands for NVIDIA's."""
    path = ROOT / "stylegan_lite" / "dataworkers.py"
    spec = importlib.util.spec_from_file_location("ladder.studies.upstream.dataworkers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class UpstreamStep:
    """NVIDIA's networks, losses and ops in its order of work. A cycle is 16 of its iterations.

    Attributes:
        updates: NVIDIA's name, network, optimizer and interval of each phase.
    """

    fp16_resolutions = FP16_RESOLUTIONS
    # A share of a cycle's kernels: style mixing begins at a random layer, and with none left it copies nothing.
    LAUNCHES_VARY = 0.001

    def __init__(self, workload: Fields, folder: Path, device: str, seed: int) -> None:
        self.recipe = {"folder": str(folder), "cudnn_benchmark": True}
        self.workload, self.device = workload, device
        if device != "cuda":  # stylegan3 ignores FP16 on a CPU, stylegan2-ada-pytorch would compute in it
            self.fp16_resolutions = 0
        self.modules = modules = source.load(folder)
        torch.manual_seed(seed)
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self.gradfix = source.switch_gradfix(modules, device)
        if device == "cuda":
            source.build_ops(modules)
        self.G, self.D = (net.train().requires_grad_(False).to(device) for net in self._networks())
        self.G_ema = copy.deepcopy(self.G).eval()
        nets = {"G": self.G} | {f"G_{part}": getattr(self.G, part, None) for part in ("mapping", "synthesis")}
        self.loss = modules.loss.StyleGAN2Loss(
            device=torch.device(device), D=self.D, r1_gamma=self._gamma(),
            style_mixing_prob=workload["style_mixing"], pl_weight=workload["pl_weight"],
            pl_batch_shrink=workload["pl_batch_shrink"], pl_decay=workload["pl_decay"],
            **source.accepted(modules.loss.StyleGAN2Loss, **nets, pl_no_weight_grad=True),
        )  # fmt: skip
        self.updates = [
            *self._updates_of("G", self.G, "pl_interval"),
            *self._updates_of("D", self.D, "r1_interval"),
        ]
        self.images = self._images(seed)
        self.data_capacity = WORKERS * PREFETCH if workload["data"] else 0
        self.number = self.seen = 0

    def _networks(self) -> tuple[Any, Any]:
        ours, networks = self.workload, self.modules.networks
        size = {key: ours[key] for key in ("channel_base", "channel_max")}
        clamp = ours.get("conv_clamp") or CLAMP
        size |= {"conv_clamp": clamp, "num_fp16_res": self.fp16_resolutions}
        both = {"c_dim": 0, "img_resolution": ours["resolution"], "img_channels": 3}
        mapping = {"num_layers": ours["mapping_layers"], "w_avg_beta": ours["w_avg_beta"]}
        latent = {"z_dim": ours["z_dim"], "w_dim": ours["w_dim"]}
        options = size | source.accepted(networks.SynthesisBlock, fused_modconv_default="inference_only")
        if source.takes_one(networks.Generator, "synthesis_kwargs"):  # the version of stylegan2-ada-pytorch
            options = {"synthesis_kwargs": options}
        return (
            networks.Generator(**latent, **both, **options, mapping_kwargs=mapping),
            networks.Discriminator(**both, **size, epilogue_kwargs={"mbstd_group_size": ours["mbstd_group"]}),
        )

    def _gamma(self) -> float:
        """Return R1's weight: the workload's, or by NVIDIA's rule."""
        gamma = self.workload["r1_gamma"]
        return 0.0002 * self.workload["resolution"] ** 2 / self.workload["batch"] if gamma is None else gamma

    def _updates_of(self, name: str, module: Any, interval: str) -> list[tuple[str, Any, Any, int]]:
        every = self.workload[interval]
        share = every / (every + 1)  # lazy regularization scales learning rate and betas
        betas = [self.workload[key] ** share for key in ("beta1", "beta2")]
        adam = torch.optim.Adam(module.parameters(), lr=self.workload["lr"] * share, betas=betas, eps=1e-8)
        return [(f"{name}main", module, adam, 1), (f"{name}reg", module, adam, every)]

    def _images(self, seed: int) -> Any:
        """Yield batches of uint8 images without end. Without data it repeats one random batch."""
        shape = (self.workload["batch"], 3, *2 * (self.workload["resolution"],))
        if not self.workload["data"]:
            images = torch.randint(256, shape, dtype=torch.uint8)
            return iter(lambda: (images, None), 0)
        data = self.modules.dataset.ImageFolderDataset(
            path=str(self.workload["data"]),
            resolution=self.workload["resolution"],
            xflip=self.workload["flips"],
        )
        # NVIDIA's endless sampler does not run with today's torch, so this loop shuffles before each pass.
        order = torch.utils.data.RandomSampler(
            data, num_samples=2**40, generator=torch.Generator().manual_seed(seed)
        )
        workers = _dataworkers()
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

    def phases(self, number: int) -> list[str]:
        """Return the names of the phases of this iteration."""
        return [NAMES[name] for name, *_, interval in self.updates if number % interval == 0]

    def step(self, lazy: bool = True) -> None:
        """Run one iteration. Phases that are not due are left out, and lazy phases too where `lazy` is false."""
        batch = self.workload["batch"]
        images, latents = self.draw()
        for update, z in zip(self.updates, latents.split(batch), strict=True):
            _, module, adam, interval = update
            if self.number % interval or (interval > 1 and not lazy):
                continue
            self.accumulate(update, images, z)
            self._update(module, adam)
        self._average()
        self.number, self.seen = self.number + 1, self.seen + batch

    def draw(self) -> tuple[Any, Any]:
        """Return the images of an iteration, from -1 to 1, and the latents of all phases."""
        images, _ = next(self.images)
        images = images.to(self.device).to(torch.float32) / 127.5 - 1
        count = len(self.updates) * self.workload["batch"]
        return images, torch.randn([count, self.workload["z_dim"]], device=self.device)

    def accumulate(self, update: tuple[str, Any, Any, int], images: Any, z: Any) -> None:
        """Compute the gradients of one phase."""
        name, module, adam, interval = update
        labels = torch.zeros([len(z), 0], device=self.device)
        adam.zero_grad(set_to_none=True)
        module.requires_grad_(True)
        compute = self.loss.accumulate_gradients
        also = source.accepted(compute, sync=True, cur_nimg=self.seen)
        compute(phase=name, real_img=images, real_c=labels, gen_z=z, gen_c=labels, gain=interval, **also)
        module.requires_grad_(False)

    @staticmethod
    def _update(module: Any, adam: Any) -> None:
        weights = [each for each in module.parameters() if each.grad is not None]
        if weights:
            flat = torch.cat([each.grad.flatten() for each in weights])
            torch.nan_to_num(flat, nan=0, posinf=1e5, neginf=-1e5, out=flat)
            for each, grad in zip(weights, flat.split([each.numel() for each in weights]), strict=True):
                each.grad = grad.reshape(each.shape)
        adam.step()

    def _average(self) -> None:
        images = min(self.workload["ema_images"], self.seen * 0.05)
        beta = 0.5 ** (self.workload["batch"] / max(images, 1e-8))
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
            "fp16_resolutions": self.fp16_resolutions,
            "cudnn_benchmark": True,
            "loader_workers": WORKERS if self.workload["data"] else 0,
            "parameters_G": sum(each.numel() for each in self.G.parameters()),
            "parameters_D": sum(each.numel() for each in self.D.parameters()),
        }

    def close(self) -> None:
        self.images = None
