"""Stand-ins for NVIDIA's StyleGAN2 networks: their names, shapes, attributes and pickles, and what they compute.

Written from the published layout; nothing of NVIDIA's code is here, and nothing of ours.
"""

from __future__ import annotations

import io
import itertools
import math
import pickle
import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

TAPS = torch.tensor([1.0, 3.0, 3.0, 1.0])
FILTER = torch.outer(TAPS, TAPS) / 64
BASE = {
    "resolution": 16,
    "channels": {4: 8, 8: 8, 16: 4},
    "z": 6,
    "w": 5,
    "layers": 2,
    "clamp": 0.8,
    "group": 4,
}
Plain = dict[str, Any]


class EasyDict(dict):
    """Pickled as `dnnlib.util.EasyDict`."""


def reconstruct(meta: Plain) -> None:
    """Pickled as `torch_utils.persistence._reconstruct_persistent_obj`; a test that calls it has failed."""
    raise AssertionError("the pickle was run")


class Module:
    """A module as `torch_utils.persistence` pickles it: source, class name and state."""

    source = "raise SystemExit('the source was run')"

    def __init__(self, class_name: str, parts: Plain, **attributes: Any) -> None:
        self.class_name, self.attributes = class_name, attributes
        self.modules = {name: each for name, each in parts.items() if isinstance(each, Module | type(None))}
        buffers = ("resample_filter", "noise_const", "w_avg")
        self.tensors = {name: each for name, each in parts.items() if isinstance(each, Tensor)}
        self.parameters = {k: torch.nn.Parameter(v) for k, v in self.tensors.items() if k not in buffers}
        self.buffers = {k: v for k, v in self.tensors.items() if k in buffers}

    def __reduce__(self) -> tuple[Any, tuple[Plain]]:
        state = EasyDict(
            training=False, _parameters=OrderedDict(self.parameters), _buffers=OrderedDict(self.buffers),
            _modules=OrderedDict(self.modules), _non_persistent_buffers_set=set(), _backward_hooks=OrderedDict(),
            **self.attributes,
        )  # fmt: skip
        meta = {"type": "class", "version": 6, "module_src": self.source, "class_name": self.class_name}
        return reconstruct, ({**meta, "state": state},)

    def __getitem__(self, path: str) -> Module:
        name, _, rest = path.partition(".")
        return self.modules[name][rest] if rest else self.modules[name]

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        found = {f"{prefix}{name}": each for name, each in self.tensors.items()}
        for name, each in self.modules.items():
            found |= {} if each is None else each.state_dict(f"{prefix}{name}.")
        return found


def _linear(
    inputs: int, outputs: int, activation: str = "linear", rate: float = 1, bias: float = 0
) -> Module:
    parts = {"weight": torch.randn(outputs, inputs) / rate, "bias": bias + torch.randn(outputs) * 0.1 / rate}
    gains = {"weight_gain": rate / np.sqrt(inputs), "bias_gain": rate}
    return Module("FullyConnectedLayer", parts, activation=activation, **gains)


def _conv2d(inputs: int, outputs: int, kernel: int, clamp: float | None, activation: str = "lrelu") -> Module:
    parts: Plain = {"weight": torch.randn(outputs, inputs, kernel, kernel)}
    if activation == "lrelu":
        parts["bias"] = torch.randn(outputs) * 0.1
    parts["resample_filter"] = FILTER.clone()
    return Module("Conv2dLayer", parts, activation=activation, conv_clamp=clamp, act_gain=np.sqrt(2))


def _synthesis_layer(inputs: int, outputs: int, w: int, resolution: int, clamp: float | None) -> Module:
    parts = {
        "weight": torch.randn(outputs, inputs, 3, 3), "bias": torch.randn(outputs) * 0.1,
        "noise_strength": torch.randn([]), "noise_const": torch.randn(resolution, resolution),
        "resample_filter": FILTER.clone(), "affine": _linear(w, inputs, bias=1),
    }  # fmt: skip
    attributes = {"activation": "lrelu", "use_noise": True, "conv_clamp": clamp, "resolution": resolution}
    return Module("SynthesisLayer", parts, **attributes)


def _generator(z: int, w: int, layers: int, channels: dict[int, int], clamp: float | None) -> Module:
    widths = [z, *[w] * layers]
    mapping: Plain = {
        f"fc{k}": _linear(a, b, "lrelu", 0.01) for k, (a, b) in enumerate(itertools.pairwise(widths))
    }
    mapping["w_avg"] = torch.randn(w)
    blocks: Plain = {}
    for resolution, width in channels.items():
        parts: Plain = {"resample_filter": FILTER.clone()}
        if resolution == 4:
            parts["const"] = torch.randn(width, 4, 4)
        else:
            parts["conv0"] = _synthesis_layer(channels[resolution // 2], width, w, resolution, clamp)
        parts["conv1"] = _synthesis_layer(width, width, w, resolution, clamp)
        rgb = {
            "weight": torch.randn(3, width, 1, 1),
            "bias": torch.randn(3),
            "affine": _linear(w, width, bias=1),
        }
        parts["torgb"] = Module("ToRGBLayer", rgb, conv_clamp=clamp)
        blocks[f"b{resolution}"] = Module(
            "SynthesisBlock", parts, architecture="skip", use_fp16=resolution > 8
        )
    parts = {"synthesis": Module("SynthesisNetwork", blocks)}
    parts["mapping"] = Module("MappingNetwork", mapping, w_avg_beta=0.995)
    return Module("Generator", parts, c_dim=0, img_channels=3, z_dim=z, w_dim=w)


def _discriminator(channels: dict[int, int], clamp: float | None, group: int) -> Module:
    blocks: Plain = {}
    top = max(channels)
    for resolution in sorted(channels, reverse=True)[:-1]:
        inputs, outputs = channels[resolution], channels[resolution // 2]
        parts: Plain = {"resample_filter": FILTER.clone()}
        if resolution == top:
            parts["fromrgb"] = _conv2d(3, inputs, 1, clamp)
        parts["conv0"] = _conv2d(inputs, inputs, 3, clamp)
        parts["conv1"] = _conv2d(inputs, outputs, 3, clamp)
        parts["skip"] = _conv2d(inputs, outputs, 1, None, "linear")
        blocks[f"b{resolution}"] = Module("DiscriminatorBlock", parts, architecture="resnet")
    width = channels[4]
    last = {
        "mbstd": Module("MinibatchStdLayer", {}, group_size=group, num_channels=1),
        "conv": _conv2d(width + 1, width, 3, clamp), "fc": _linear(width * 16, width, "lrelu"),
        "out": _linear(width, 1),
    }  # fmt: skip
    blocks["b4"] = Module("DiscriminatorEpilogue", last, architecture="resnet")
    return Module("Discriminator", blocks, c_dim=0, img_channels=3)


def networks(seed: int = 0, **other: Any) -> dict[str, Any]:
    """The content of a network pickle. `other` replaces entries of `BASE`."""
    torch.manual_seed(seed)
    b = BASE | other
    shape = (b["z"], b["w"], b["layers"], b["channels"], b["clamp"])
    pipe = Module("AugmentPipe", {"p": torch.ones([])}, xflip=1.0)
    found = {"G": _generator(*shape), "D": _discriminator(b["channels"], b["clamp"], b["group"])}
    settings = EasyDict(
        class_name="training.dataset.ImageFolderDataset", path="/photos.zip", use_labels=False
    )
    return {**found, "G_ema": _generator(*shape), "augment_pipe": pipe, "training_set_kwargs": settings}


@contextmanager
def _importable() -> Iterator[None]:
    """NVIDIA's module names, while a pickle is written."""
    before = dict(sys.modules)
    for name, holder in (("torch_utils.persistence", reconstruct), ("dnnlib.util", EasyDict)):
        module = types.ModuleType(name)
        setattr(module, "_reconstruct_persistent_obj" if holder is reconstruct else "EasyDict", holder)
        sys.modules |= {name.partition(".")[0]: types.ModuleType(name.partition(".")[0]), name: module}
    named = (reconstruct.__module__, reconstruct.__qualname__, EasyDict.__module__)
    reconstruct.__module__, reconstruct.__qualname__ = (
        "torch_utils.persistence",
        "_reconstruct_persistent_obj",
    )
    reconstruct.__name__, EasyDict.__module__ = "_reconstruct_persistent_obj", "dnnlib.util"
    try:
        yield
    finally:
        reconstruct.__module__, reconstruct.__qualname__, EasyDict.__module__ = named
        reconstruct.__name__ = named[1]
        for name in ("torch_utils", "torch_utils.persistence", "dnnlib", "dnnlib.util"):
            sys.modules.pop(name, None)
        sys.modules |= {name: each for name, each in before.items() if name not in sys.modules}


def dumped(content: object, protocol: int = 4) -> bytes:
    """A pickle under NVIDIA's names."""
    with _importable():
        stream = io.BytesIO()
        pickle.Pickler(stream, protocol).dump(content)
        return stream.getvalue()


def write(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(dumped(content, protocol))
    return path


# The function of the published networks, for one sample after another


def _act(x: Tensor, bias: Tensor, clamp: float | None, gain: float = math.sqrt(2)) -> Tensor:
    x = F.leaky_relu(x + bias.view(1, -1, *[1] * (x.ndim - 2)), 0.2) * gain
    return x if clamp is None else x.clamp(-clamp * gain / math.sqrt(2), clamp * gain / math.sqrt(2))


def _fir(x: Tensor, pad: tuple[int, int], up: int = 1, down: int = 1) -> Tensor:
    n, c, h, w = x.shape
    if up == 2:
        x = torch.stack([x, torch.zeros_like(x)], 4).reshape(n, c, h, 2 * w)
        x = torch.stack([x, torch.zeros_like(x)], 3).reshape(n, c, 2 * h, 2 * w)
    x = F.pad(x, pad * 2)
    kernel = (FILTER.to(x) * (4 if up == 2 else 1)).expand(c, 1, 4, 4)
    return F.conv2d(x, kernel, groups=c)[:, :, ::down, ::down]


def mapped(s: dict[str, Tensor], z: Tensor, layers: int) -> Tensor:
    x = z * (z.square().mean(1, keepdim=True) + 1e-8).rsqrt()
    for k in range(layers):
        weight, bias = s[f"mapping.fc{k}.weight"], s[f"mapping.fc{k}.bias"]
        x = _act(x @ weight.t() * (0.01 / math.sqrt(weight.shape[1])), bias * 0.01, None)
    return x


def _style(s: dict[str, Tensor], name: str, w: Tensor) -> Tensor:
    weight = s[f"{name}.affine.weight"]
    return w @ weight.t() / math.sqrt(weight.shape[1]) + s[f"{name}.affine.bias"]


def image(s: dict[str, Tensor], ws: Tensor, resolutions: list[int], clamp: float | None) -> Tensor:
    """One image [1, 3, R, R] of ws [num_ws, w_dim], with the constant noise."""
    x, rgb, k = s["synthesis.b4.const"][None], None, 0
    for resolution in resolutions:
        block = f"synthesis.b{resolution}"
        for conv in ("conv1",) if resolution == 4 else ("conv0", "conv1"):
            name = f"{block}.{conv}"
            weight = s[f"{name}.weight"] * _style(s, name, ws[k])[None, :, None, None]
            weight = weight * (weight.square().sum((1, 2, 3), keepdim=True) + 1e-8).rsqrt()
            if conv == "conv0":
                x = _fir(F.conv_transpose2d(x, weight.transpose(0, 1), stride=2), (1, 1)) * 4
            else:
                x = F.conv2d(x, weight, padding=1)
            x = _act(x + s[f"{name}.noise_const"] * s[f"{name}.noise_strength"], s[f"{name}.bias"], clamp)
            k += 1
        weight = s[f"{block}.torgb.weight"]
        style = _style(s, f"{block}.torgb", ws[k]) / math.sqrt(weight.shape[1])
        y = F.conv2d(x, weight * style[None, :, None, None]) + s[f"{block}.torgb.bias"].view(1, 3, 1, 1)
        y = y if clamp is None else y.clamp(-clamp, clamp)
        rgb = y if rgb is None else _fir(rgb, (2, 1), up=2) + y
    return rgb


def logits(
    s: dict[str, Tensor], x: Tensor, resolutions: list[int], clamp: float | None, group: int
) -> Tensor:
    """[N, 1] of images [N, 3, R, R]."""

    def conv(x: Tensor, name: str, **how: Any) -> Tensor:
        weight = s[f"{name}.weight"]
        return F.conv2d(x, weight / math.sqrt(weight[0].numel()), **how)

    top = resolutions[-1]
    x = _act(conv(x, f"b{top}.fromrgb"), s[f"b{top}.fromrgb.bias"], clamp)
    for resolution in resolutions[:0:-1]:
        name = f"b{resolution}"
        skip = conv(_fir(x, (1, 1), down=2), f"{name}.skip") * math.sqrt(0.5)
        x = _act(conv(x, f"{name}.conv0", padding=1), s[f"{name}.conv0.bias"], clamp)
        x = conv(_fir(x, (2, 2)), f"{name}.conv1", stride=2)
        x = skip + _act(x, s[f"{name}.conv1.bias"], clamp, gain=1.0)
    n, c, h, w = x.shape
    y = x.reshape(min(group, n), -1, c, h, w)
    y = (y - y.mean(0)).square().mean(0).add(1e-8).sqrt().mean((1, 2, 3))
    x = torch.cat([x, y.reshape(-1, 1, 1, 1).repeat(min(group, n), 1, h, w)], 1)
    x = _act(conv(x, "b4.conv", padding=1), s["b4.conv.bias"], clamp).flatten(1)
    x = _act(x @ s["b4.fc.weight"].t() / math.sqrt(x.shape[1]), s["b4.fc.bias"], None)
    return x @ s["b4.out.weight"].t() / math.sqrt(x.shape[1]) + s["b4.out.bias"]
