"""R3GAN's step, from a clone of its repository, as `ladder.engine.worker` expects it.

Networks, losses and ops are the clone's, at the settings that its `train.py` gives a preset without augmentation. One
iteration of its training loop is written anew, as that loop never returns: real images and latents of both phases; D,
then G, each in micro-batches with one flat tensor of gradients and Adam; the moving average. Learning rate, beta2, the
weight of the penalties and the length of the average follow its schedules. Images are one random batch, and labels
are random. Nothing in the clone's folder is changed.
"""

from __future__ import annotations

import importlib
import math
import sys
import types
from typing import Any

import torch

from ladder.core.errors import UserError
from ladder.studies.upstream.source import PRESETS, write_no_bytecode
from ladder.studies.upstream.step import UpstreamStep

NARROWER = 24  # times, in "tiny"


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
        classes = PRESETS[preset][
            2
        ]  # before the networks, whose initial weights in FP64 take other random numbers
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
        return noise / math.sqrt(weight[0].numel()) if weight.ndim > 1 else 0.1 * noise

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
