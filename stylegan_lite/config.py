"""Workload and recipe: two frozen dataclasses of plain data. `from_dict` checks them.

A workload is the training task, a recipe the way it runs. Both come from YAML, so every refusal is one line that names
the file and the key.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from stylegan_lite import shares

T = TypeVar("T", bound="_Config")
SHORT = 80  # characters of a list of names that stands whole in an error line
NAMED = 6  # names of a longer list
ALIKE = 0.6  # difflib's own cutoff, from which on two names are close
# Fields of a recipe that only the layers of StyleGAN2 read; `modconv` and `instance_norm` are spellings of theirs.
OF_LAYERS = (
    "resample", "conv", "fused_norm", "cuda_norm", "fast_math", "fused_act", "fused_residual", "fused_filter",
    "fused_modulation", "rgb", "dense", "demodulation", "joint_batch", "weights", "fused_update", "spectral_norm",
    "streams", "dependent_launch",
)  # fmt: skip
# Fields that only a user's pair reads: for modules of PyTorch's that StyleGAN2 has not, or has ops of its own for.
OF_PAIRS = (
    "double_backward",
    "fused_group_norm",
    "fused_batch_norm",
    "fused_weight_norm",
    "fused_spectral_norm",
    "fused_grouped_conv",
)
# Fields of a workload or a recipe that came after the first results: left out of plain data at their defaults.
LATER = {
    "Workload": ("spectral_norm", "conv_clamp", "convolution", "block_layers"),
    "PairWorkload": (),
    "Recipe": (
        *("ranks", "reduce", "rank_statistics", "micro_batches", "checkpointing", "graph_fills"),
        *OF_PAIRS,
    ),
}


class ConfigError(ValueError):
    """The error of an impossible workload or recipe. Its message is one line for a user."""


def suggestion(wrong: object, names: Iterable[str], listed: str = "there are") -> str:
    """Return the end of an error line about an unknown name: the probable name, and the existing names.

    The line reads `; did you mean 'bf16'? there are, nearest first: bf16, fp16, ... (38 in all)`. A list that fits
    stands whole, in its own order.
    """
    names = list(names)
    asked = _folded(str(wrong))
    likeness = {name: difflib.SequenceMatcher(None, asked, _folded(name)).ratio() for name in names}
    near = sorted(names, key=lambda name: -likeness[name])
    meant = [repr(name) for name in near[:2] if likeness[name] >= ALIKE]
    text = f"; did you mean {' or '.join(meant)}? {listed}" if meant else f"; {listed}"
    if len(whole := ", ".join(names)) <= SHORT:
        return f"{text}: {whole}"
    return f"{text}{', nearest first' * bool(asked)}: {', '.join(near[:NAMED])}, ... ({len(names)} in all)"


def _folded(name: str) -> str:
    return name[:60].lower().replace("-", "_").replace(" ", "_")


@dataclass(frozen=True)
class _Config:
    @classmethod
    def from_dict(cls: type[T], values: dict[str, Any], where: str | None = None) -> T:
        """Check and build. ``where`` names the file in messages. Unknown keys and wrong types raise ConfigError."""
        where = where or cls.__name__.lower()
        if not isinstance(values, dict):
            raise ConfigError(
                f"{where}: expected a mapping of {cls.__name__.lower()} fields, got {_show(values)}"
            )
        hints = typing.get_type_hints(cls)
        for key in values:
            if key not in hints:
                raise ConfigError(f"{where}: unknown key {_show(key)}{suggestion(key, hints, 'known')}")
        for field in dataclasses.fields(cls):
            if field.name not in values and field.default is dataclasses.MISSING:
                raise ConfigError(f"{where}: missing key {field.name!r}")
        checked = {key: _check(where, key, value, hints[key]) for key, value in values.items()}
        config = cls(**checked)
        config._refuse_impossible(where)
        return config

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, JSON- and YAML-safe. ``from_dict`` of it gives an equal object.

        A field of `LATER` is left out at its default, because older results lack it.
        """
        later = {f.name: f.default for f in dataclasses.fields(self) if f.name in LATER[type(self).__name__]}
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in later or v != later[k]}

    def _refuse_impossible(self, where: str) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Workload(_Config):
    """The training task. Defaults are StyleGAN2's (Karras et al. 2020, arXiv:1912.04958)."""

    resolution: int
    channel_base: int
    batch: int
    norm: Literal["demod", "instance"] = "demod"
    spectral_norm: bool = False  # the discriminator's weights are divided by their largest singular value
    conv_clamp: float | None = None  # bound of the convolutions' activations, for FP16; NVIDIA has 256
    # Levers: another model. `stylegan_lite.levers` says how each 3x3 convolution of the blocks is replaced.
    convolution: Literal["full", "separable", "grouped", "inverted_residual"] = "full"
    block_layers: int = 2  # 3x3 convolutions of a block; 1 leaves out the one that keeps the resolution
    channel_max: int = 512
    z_dim: int = 512
    w_dim: int = 512
    mapping_layers: int = 8
    mbstd_group: int = 4
    style_mixing: float = 0.9
    w_avg_beta: float = 0.998
    r1_gamma: float | None = None  # by default 0.0002 * resolution^2 / batch
    r1_interval: int = 16
    pl_interval: int = 4
    pl_batch_shrink: int = 2
    pl_decay: float = 0.01
    pl_weight: float = 2.0
    lr: float = 0.002
    beta1: float = 0.0
    beta2: float = 0.99
    ema_images: int = 10_000  # half-life of the generator's moving average, in images
    flips: bool = True
    data: str | None = None  # folder of images at `resolution`; without it random images, for tests

    @property
    def gamma(self) -> float:
        """Return the R1 weight in force."""
        return 0.0002 * self.resolution**2 / self.batch if self.r1_gamma is None else self.r1_gamma

    @property
    def resolutions(self) -> list[int]:
        """Return [4, 8, ..., resolution]."""
        return [2**k for k in range(2, self.resolution.bit_length())]

    def fmaps(self, resolution: int) -> int:
        """Return the channels at a resolution: min(channel_base / resolution, channel_max)."""
        return min(self.channel_base // resolution, self.channel_max)

    def _refuse_impossible(self, where: str) -> None:
        if self.resolution < 8 or self.resolution & (self.resolution - 1):
            raise ConfigError(f"{where}: resolution must be a power of two from 8, got {self.resolution}")
        if self.channel_base < self.resolution:
            raise ConfigError(
                f"{where}: channel_base must be at least the resolution ({self.resolution}: one channel there), "
                f"got {self.channel_base}"
            )
        sizes = ("channel_max", "batch", "z_dim", "w_dim", "mapping_layers", "mbstd_group", "pl_batch_shrink")
        for key in sizes:
            if getattr(self, key) < 1:
                raise ConfigError(f"{where}: {key} must be at least 1, got {getattr(self, key)}")
        for key in ("r1_interval", "pl_interval"):
            if not 1 <= getattr(self, key) <= 16 or 16 % getattr(self, key):
                raise ConfigError(
                    f"{where}: {key} must divide the 16-step cycle (1, 2, 4, 8, 16), got {getattr(self, key)}"
                )
        group = min(self.mbstd_group, self.batch)
        if self.batch % group:
            raise ConfigError(f"{where}: batch must be a multiple of mbstd_group ({group}), got {self.batch}")
        for key in ("style_mixing", "w_avg_beta", "pl_decay", "beta1", "beta2"):
            if not 0.0 <= getattr(self, key) <= 1.0:
                raise ConfigError(f"{where}: {key} must lie in [0, 1], got {getattr(self, key)}")
        for key in ("lr", "ema_images"):
            if not getattr(self, key) > 0:
                raise ConfigError(f"{where}: {key} must be positive, got {getattr(self, key)}")
        if max(self.beta1, self.beta2) == 1.0:
            raise ConfigError(f"{where}: beta1 and beta2 must be below 1, got {self.beta1} and {self.beta2}")
        if min(self.gamma, self.pl_weight) < 0:
            raise ConfigError(
                f"{where}: r1_gamma and pl_weight must be 0 or more, got {self.gamma} and {self.pl_weight}"
            )
        if self.conv_clamp is not None and not (self.conv_clamp > 0 and self.norm == "demod"):
            raise ConfigError(f"{where}: conv_clamp must be positive, and needs norm: demod")
        if self.block_layers not in (1, 2):
            raise ConfigError(f"{where}: block_layers must be 1 or 2, got {self.block_layers}")
        if self.convolution != "full" and (self.norm != "demod" or self.spectral_norm):
            raise ConfigError(
                f"{where}: convolution: {self.convolution} needs norm: demod without spectral_norm"
            )


@dataclass(frozen=True)
class PairWorkload(_Config):
    """The training task of a user's pair (`stylegan_lite.step.pair`).

    `model` is (folder, file or module below it, function), with which the pair is made; `settings` are the function's
    arguments. `pair` is a digest of its source and settings. `sizes` are laid over the settings, where a study has the
    pair in another batch or resolution; the digest is without them. `repository` is (a copy of a commit, the working
    tree that it is of) where `model` lies in the copy: then all of the user's code comes from it.
    """

    pair: str
    model: list
    settings: dict
    batch: int
    resolution: int | None = None  # of the workload's images, if the pair reads some
    data: str | None = None
    flips: bool = True
    sizes: dict | None = None
    repository: list | None = None

    def _refuse_impossible(self, where: str) -> None:
        if self.batch < 1:
            raise ConfigError(f"{where}: batch must be at least 1, got {self.batch}")


@dataclass(frozen=True)
class Recipe(_Config):
    """The way a workload runs: one field for each switch. The defaults are the baseline.

    The baseline is PyTorch's own behaviour plus ``set_to_none=False``. The fields ``modconv``, ``resample`` and
    ``instance_norm`` choose between spellings of the same op in plain PyTorch. A kernel is ``resample: triton``.
    """

    channels_last: bool = False
    # bf16, fp16: autocast; fp64: parity's reference
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = "fp32"
    loss_scale: float = 65536.0  # for fp16: the first scales of G and D
    loss_scale_interval: int = 2000  # updates without overflow after which a scale is doubled
    modconv: Literal["grouped", "dense"] = "dense"
    resample: Literal[
        "depthwise", "channels_as_batch", "bilinear", "folded", "subpixel", "shifts", "triton"
    ] = "subpixel"
    instance_norm: Literal["functional", "var_mean"] = "functional"
    conv: Literal["aten", "double_backward"] = "aten"  # double_backward: second derivatives by convolutions
    fused_norm: bool = False
    cuda_norm: bool = False  # instance norm's fused kernel in CUDA C++, built at first use, in Triton's place
    fast_math: bool = False  # CUDA C++ built with nvcc's --use_fast_math
    set_to_none: bool = False
    cuda_graphs: bool = False
    whole_step_graph: bool = False  # all phases of a step as one graph, one for each kind of step
    graph_fills: bool = False  # memset nodes of captured graphs become kernels
    adam: Literal["default", "capturable"] = "default"
    fused_adam: bool = False  # all of Adam's update in one kernel
    ema: Literal["loop", "foreach"] = "loop"  # foreach: the moving average in a few multi-tensor kernels
    # time cuDNN's algorithms at each convolution's first call, keep the fastest
    cudnn_benchmark: bool = False
    # precision of FP32 matmuls and convolutions
    fp32_precision: Literal["default", "ieee", "tf32"] = "default"
    workers: int = 0
    pin_memory: bool = False
    persistent_workers: bool = False
    prefetch_factor: int | None = None
    drop_last: bool = False
    async_copy: bool = False  # non_blocking host-to-device copies on a side stream, one batch ahead
    uint8_input: bool = False  # bytes cross the bus; normalized on the device
    prefetch_stream: bool = False  # the next batch is also normalized beside the step, on the side stream
    # JPEG files cross the bus as they are and are decoded on the GPU (torchvision, nvJPEG)
    gpu_decode: bool = False
    cached_images: bool = False  # decoded once into a memory-mapped file of bytes; workers only read
    fused_act: bool = False
    fused_residual: bool = False  # the discriminator's residual sums inside the activation's pass
    fused_filter: bool = False  # resampling's filter and the activation beside it in one pass over memory
    fused_modulation: bool = False  # a block's first activation is written with the style of its second layer
    # convolutions from and to 3 channels: cuDNN's, or one memory-bound kernel
    rgb: Literal["conv", "triton"] = "conv"
    # fully connected layers; triton: gains, bias, activation in one launch; fp8: forward in FP8
    dense: Literal["linear", "triton", "fp8"] = "linear"
    # coefficients in each layer, or of all layers at once as soon as their styles exist
    demodulation: Literal["layer", "grouped"] = "layer"
    joint_batch: bool = False  # D_main passes fakes and reals through D together, their statistics kept apart
    weights: Literal["per_use", "once"] = "per_use"  # once: cast and scaled when they change, not at each use
    fused_update: bool = False  # Adam writes the next step's cast weights in the same kernel
    spectral_norm: Literal["plain", "triton"] = (
        # for a workload with spectral norm: layer by layer, or all layers' weights together in a few launches
        "plain"
    )
    # two: gradients of weights and the moving average beside the rest of the step
    streams: Literal["one", "two"] = "one"
    # our kernels' blocks take their places while the kernel in front still ends
    dependent_launch: bool = False
    # torch.compile of the main phases; autotune: max-autotune without coordinate descent
    compile: Literal["off", "default", "autotune", "reduce-overhead", "max-autotune"] = "off"
    ranks: int = 1  # GPUs that share the workload's batch, a process each (data_parallel: one process)
    # how the ranks' gradients become one; flat: one all-reduce of all that the optimizer reads
    reduce: Literal["none", "flat", "ddp", "data_parallel"] = "none"
    # local: mean path length, w_avg and cut groups of each rank alone, as NVIDIA has them
    rank_statistics: Literal["total", "local"] = "total"
    micro_batches: int = 1  # parts of the batch that go forward and backward one after another
    # backward of main phases runs passes between convolutions, or blocks, again (`stylegan_lite.step.recompute`)
    checkpointing: bool = False
    # Of a user's pair: PyTorch's convolutions are differentiated twice by convolutions
    double_backward: bool = False
    fused_group_norm: bool = False  # nn.GroupNorm, with the SiLU or ReLU behind it
    fused_batch_norm: bool = False  # nn.BatchNorm, with the ReLU or leaky ReLU behind it
    fused_grouped_conv: bool = False  # 3x3 convolutions in groups of 8, 16 or 32 channels
    fused_weight_norm: bool = False  # the weights of all layers with weight norm, made together
    fused_spectral_norm: bool = False  # likewise with spectral norm, after a step of its power iteration

    @property
    def has_kernels(self) -> bool:
        """Return whether the recipe may run Triton kernels: a field is ``triton``, or is on and called ``fused_``."""
        return any(v == "triton" or (k.startswith("fused_") and v) for k, v in self.to_dict().items())

    def refuse_on(self, device: str, where: str = "recipe") -> None:
        """Raise ConfigError if this recipe cannot run on ``device`` ("cuda" or "cpu")."""
        if device != "cpu":
            return
        if self.cudnn_benchmark or self.fp32_precision != "default":
            key = "cudnn_benchmark" if self.cudnn_benchmark else "fp32_precision"
            raise ConfigError(f"{where}: {key} is a switch of CUDA's libraries; on the CPU leave it out")
        for key in ("cuda_graphs", "pin_memory", "async_copy", "gpu_decode", "dependent_launch"):
            if getattr(self, key):
                raise ConfigError(f"{where}: {key}: true needs a CUDA device; on the CPU it must be false")

    def refuse_layers(self, where: str = "recipe") -> None:
        """Raise ConfigError for a field that only the layers of StyleGAN2 read: another pair would ignore it."""
        for field in dataclasses.fields(self):
            if field.name in OF_LAYERS and getattr(self, field.name) != field.default:
                raise ConfigError(
                    f"{where}: {field.name} is about layers of StyleGAN2, which this pair has not"
                )

    def refuse_for(self, workload: Workload, where: str = "recipe") -> None:
        """Raise ConfigError if this recipe cannot train ``workload``."""
        if field := next((name for name in OF_PAIRS if getattr(self, name)), None):
            raise ConfigError(f"{where}: {field} is for pairs of your own (--model), not for StyleGAN2")
        if (why := shares.problem_with(self, workload)) is not None:
            raise ConfigError(f"{where}: {why}")

    def _refuse_impossible(self, where: str) -> None:
        if self.loss_scale <= 0 or self.loss_scale_interval < 1:
            raise ConfigError(f"{where}: loss_scale must be positive and loss_scale_interval at least 1")
        if self.precision == "fp16" and self.cuda_graphs and not self.fused_adam:
            raise ConfigError(
                f"{where}: precision: fp16 with cuda_graphs needs fused_adam: true (a graph cannot wait to hear "
                "whether an update overflowed; a fused optimizer reads that on the device)"
            )
        if self.workers < 0:
            raise ConfigError(f"{where}: workers must be 0 or more, got {self.workers}")
        if self.workers == 0 and (self.persistent_workers or self.prefetch_factor is not None):
            key = "persistent_workers" if self.persistent_workers else "prefetch_factor"
            raise ConfigError(f"{where}: {key} needs workers: 1 or more, got workers: 0")
        if self.prefetch_factor is not None and self.prefetch_factor < 1:
            raise ConfigError(f"{where}: prefetch_factor must be at least 1, got {self.prefetch_factor}")
        if self.async_copy and not self.pin_memory:
            raise ConfigError(
                f"{where}: async_copy needs pin_memory: true (a copy from pageable memory blocks)"
            )
        if self.gpu_decode and self.cached_images:
            raise ConfigError(
                f"{where}: gpu_decode needs cached_images: false (which has nothing left to decode)"
            )
        if self.gpu_decode and not self.uint8_input:
            raise ConfigError(f"{where}: gpu_decode needs uint8_input: true (bytes are what it gives)")
        if self.prefetch_stream and not self.async_copy:
            raise ConfigError(f"{where}: prefetch_stream needs async_copy: true (the stream it extends)")
        if self.cuda_graphs and self.adam != "capturable":
            raise ConfigError(
                f"{where}: cuda_graphs needs adam: capturable (the step count must live on the device), "
                f"got adam: {self.adam}"
            )
        if self.whole_step_graph and not self.cuda_graphs:
            raise ConfigError(f"{where}: whole_step_graph needs cuda_graphs: true (what it joins)")
        if self.graph_fills and not self.cuda_graphs:
            raise ConfigError(f"{where}: graph_fills needs cuda_graphs: true (whose memsets it replaces)")
        if self.fused_filter and not (self.resample == "triton" and self.fused_act):
            raise ConfigError(
                f"{where}: fused_filter needs resample: triton and fused_act: true (what it joins)"
            )
        if self.fused_modulation and not (self.fused_filter and self.fused_norm and self.modconv == "dense"):
            raise ConfigError(
                f"{where}: fused_modulation needs fused_filter: true, fused_norm: true and modconv: dense "
                "(what it joins)"
            )
        if self.fused_residual and not self.fused_act:
            raise ConfigError(f"{where}: fused_residual needs fused_act: true (what it joins)")
        if self.cuda_norm and not (self.fused_norm and self.compile == "off"):
            raise ConfigError(
                f"{where}: cuda_norm needs fused_norm: true (whose kernel it replaces) and compile: off (which cannot "
                "look into it)"
            )
        if self.fast_math and not self.cuda_norm:
            raise ConfigError(f"{where}: fast_math needs cuda_norm: true (what is built with it)")
        if self.fused_update and not (self.fused_adam and self.weights == "once"):
            raise ConfigError(
                f"{where}: fused_update needs fused_adam: true and weights: once (what it joins)"
            )
        if self.dependent_launch and not self.has_kernels:
            raise ConfigError(
                f"{where}: dependent_launch needs kernels of ours (fused_norm, fused_act, ...): only they wait for the "
                "one in front"
            )
        if self.streams == "two" and not (self.conv == "double_backward" and self.weights == "once"):
            raise ConfigError(
                f"{where}: streams: two needs conv: double_backward and weights: once (whose gradients it takes)"
            )
        if self.streams == "two" and self.compile != "off":
            raise ConfigError(
                f"{where}: streams: two needs compile: off (which computes all gradients itself)"
            )
        if self.demodulation == "grouped" and self.modconv != "dense":
            raise ConfigError(
                f"{where}: demodulation: grouped needs modconv: dense (per-sample weights bring it with them)"
            )
        if self.resample == "shifts" and self.compile == "off":
            raise ConfigError(f"{where}: resample: shifts needs compile (what fuses the slices)")
        if self.compile == "reduce-overhead" and self.cuda_graphs:
            raise ConfigError(
                f"{where}: compile: reduce-overhead brings CUDA graphs of its own; with cuda_graphs: true take default "
                "or max-autotune"
            )
        if self.compile in ("reduce-overhead", "max-autotune") and not (self.cuda_graphs or self.set_to_none):
            raise ConfigError(
                f"{where}: compile: {self.compile} needs set_to_none: true (its graphs overwrite what is kept)"
            )
        if self.fused_spectral_norm and self.checkpointing:
            raise ConfigError(
                f"{where}: fused_spectral_norm needs checkpointing: false (whose blocks iterate once more)"
            )
        norms = ("fused_group_norm", "fused_batch_norm", "fused_weight_norm", "fused_spectral_norm")
        if self.compile != "off" and any(getattr(self, name) for name in norms):
            raise ConfigError(f"{where}: fused norms of modules need compile: off (which fuses them itself)")
        if self.precision == "fp64" and self.cuda_graphs:
            raise ConfigError(f"{where}: precision: fp64 is the parity reference and is never captured")
        if (why := shares.problem(self)) is not None:
            raise ConfigError(f"{where}: {why}")


def check_configs(workload: Any, recipe: Any) -> None:
    """Raise ConfigError unless these are a Workload and a Recipe."""
    for kind, given in ((Workload, workload), (Recipe, recipe)):
        if not isinstance(given, kind):
            name = kind.__name__
            raise ConfigError(
                f"{name.lower()} must be a {name} ({name}.from_dict({{...}})), got {_show(given)}"
            )


def _show(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _check(where: str, key: str, value: Any, hint: Any) -> Any:
    """Return ``value`` as the hinted type (an int is a float, a bool is not an int), else raise ConfigError."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if typing.get_origin(option) is Literal:
            if type(value) is str and value in typing.get_args(option):
                return value
        elif option is float and type(value) in (int, float):
            if value == value and abs(value) != float("inf"):
                return float(value)
        elif type(value) is option:
            return value
    raise ConfigError(f"{where}: {key} must be {_expected(options)}, got {_show(value)}")


def _expected(options: tuple[Any, ...]) -> str:
    names = {bool: "true or false", int: "an integer", float: "a number", str: "text", types.NoneType: "null"}
    chosen = {each: "one of " + ", ".join(typing.get_args(each)) for each in options if each not in names}
    return " or ".join((names | chosen)[option] for option in options)
