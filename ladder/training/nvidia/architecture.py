"""The workload of NVIDIA's networks, by their shapes and attributes. It refuses what our networks do not compute."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.core.text import clean_line
from ladder.training.nvidia import names
from ladder.training.nvidia.pickles import Record
from stylegan_lite.config import ConfigError, Workload

Value = str | int | float | bool | None
# Attributes of NVIDIA's classes, and the only value that our networks compute.
FIXED: dict[str, dict[str, Value]] = {
    "Generator": {"c_dim": 0, "img_channels": 3},
    "Discriminator": {"c_dim": 0, "img_channels": 3},
    "SynthesisBlock": {"architecture": "skip"},
    "DiscriminatorBlock": {"architecture": "resnet"},
    "DiscriminatorEpilogue": {"architecture": "resnet"},
    "SynthesisLayer": {"activation": "lrelu", "use_noise": True},
    "MinibatchStdLayer": {"num_channels": 1},
}
CLASSES = (*FIXED, "MappingNetwork", "SynthesisNetwork", "ToRGBLayer", "Conv2dLayer", "FullyConnectedLayer")
# The attribute of a class that no shape tells.
ATTRIBUTES = {
    **dict.fromkeys(("SynthesisLayer", "ToRGBLayer", "Conv2dLayer"), "conv_clamp"),
    **{"MinibatchStdLayer": "group_size", "MappingNetwork": "w_avg_beta"},
}
MAPPING_RATE = 0.01  # the learning rate of the mapping network, of all others
WHOLE = 1024  # samples in a group of the minibatch deviation, where NVIDIA's has none: the whole batch
BATCH = 8  # of a workload whose file names none, or the next multiple of its groups
DEEPEST, MOST = 4, 500  # dots in a module's name, and modules of a network; 1024x1024 has 3 and 90
NOT_READ = "another architecture than --cfg=stylegan2"


@dataclass(frozen=True)
class Network:
    """One of NVIDIA's networks: its tensors by name, and of a pickle its modules by name."""

    tensors: dict[str, Tensor]
    modules: dict[str, Record]
    frozen: tuple[str, ...] = ()  # weights that a pickle keeps as buffers: Freeze-D


@dataclass(frozen=True)
class Attributes:
    """The settings of NVIDIA's networks that no shape tells."""

    conv_clamp: float | None = None
    mbstd_group: int = 4
    w_avg_beta: float = 0.998


def read_network(where: str, record: object) -> Network:
    """Return the tensors and modules of an unpickled network. Raises UserError."""
    if not isinstance(record, Record):
        raise UserError(f"{where} is no network")
    tensors: dict[str, Tensor] = {}
    modules: dict[str, Record] = {}
    frozen: list[str] = []
    waiting: list[tuple[str, object]] = [("", record)]
    while waiting:
        name, each = waiting.pop()
        if each is None:
            continue
        if not isinstance(each, Record) or name.count(".") > DEEPEST or len(modules) >= MOST:
            raise UserError(f"{where}: {clean_line(name)[:60]} is no module of NVIDIA's")
        modules[name] = each
        dot = f"{name}." if name else ""
        for part in ("_parameters", "_buffers"):
            for key, value in _read_dict(where, each, part).items():
                if isinstance(value, Tensor):
                    tensors[f"{dot}{key}"] = value
                    if part == "_buffers" and key in ("weight", "bias"):
                        frozen.append(f"{dot}{key}")
        waiting += [(f"{dot}{key}", value) for key, value in _read_dict(where, each, "_modules").items()]
    return Network(tensors, modules, tuple(frozen))


def _read_dict(where: str, record: Record, part: str) -> dict[str, Any]:
    content = record.state.get(part, {})
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in dict.keys(content)):
        raise UserError(f"{where}: damaged: {part} is no dictionary of names")
    return dict(dict.items(content))


def read_attributes(path: str, networks: dict[str, Network]) -> Attributes:
    """Return the settings in the attributes of pickled networks. Raises UserError for another architecture."""
    values_of: dict[str, set[Value]] = {"conv_clamp": set(), "group_size": set(), "w_avg_beta": set()}
    for label, each in networks.items():
        for name, record in each.modules.items():
            where = f"{path}: {label}{'.' * bool(name)}{clean_line(name)[:60]}"
            _refuse_record(where, record, name)
            key = ATTRIBUTES.get(record.class_name)
            if key is not None and not name.endswith("skip"):
                values_of[key].add(_read_value(where, record, key))
    for key, values in values_of.items():
        if len(values) > 1:
            shown = ", ".join(sorted(map(repr, values)))[:80]
            raise UserError(f"{path}: {key} differs between layers: {shown}")
    clamp, group, beta = (next(iter(values), None) for values in values_of.values())
    return Attributes(clamp, WHOLE if group is None else group, beta)  # type: ignore[arg-type]  # `Workload.from_dict` checks the types


def _read_value(where: str, record: Record, key: str) -> Value:
    value = record.state.get(key)
    if value is not None and not isinstance(value, str | int | float | bool):
        raise UserError(f"{where}: damaged: {key} is no number or text")
    return value


def _refuse_record(where: str, record: Record, name: str) -> None:
    if record.class_name not in CLASSES:
        raise UserError(f"{where}: {NOT_READ}: it is a {clean_line(record.class_name)[:40]}")
    required = dict(FIXED.get(record.class_name, {}))
    last = name.rpartition(".")[2]
    if record.class_name == "Conv2dLayer":
        required["activation"] = "linear" if last == "skip" else "lrelu"
    if record.class_name == "FullyConnectedLayer":
        required["activation"] = "linear" if last in ("affine", "out") else "lrelu"
        required["bias_gain"] = MAPPING_RATE if last.startswith("fc") and last != "fc" else 1
    for key, value in required.items():
        here = _read_value(where, record, key)
        if key == "c_dim" and here not in (None, 0):
            raise UserError(f"{where}: conditional on labels: c_dim must be 0, and is {here!r:.20}")
        if key in record.state and here != value:
            raise UserError(f"{where}: {key} must be {value!r}, and is {here!r:.40}")


def derive_workload(path: str, networks: dict[str, Network], attributes: Attributes) -> Workload:
    """Return the workload that fits the tensors. Raises UserError, one line, where none does."""
    G = networks["G"].tensors
    if any(name.startswith("synthesis.input") for name in G):
        raise UserError(f"{path}: G: {NOT_READ}: an alias-free generator of StyleGAN3")
    for label, each in networks.items():
        if any(name.startswith(("mapping.embed", "mapping.")[label == "D"]) for name in each.tensors):
            raise UserError(f"{path}: {label}: conditional on labels: c_dim must be 0")
    blocks = [re.fullmatch(r"synthesis\.b(\d{1,5})\.conv1\.weight", name) for name in G]
    fmaps = {int(each[1]): _get_size(path, G, each[0], 0) for each in blocks if each}
    layers = sum(bool(re.fullmatch(r"mapping\.fc\d+\.weight", name)) for name in G)
    if not fmaps or not layers:
        raise UserError(f"{path}: G: {NOT_READ}: it has no mapping.fc0.weight or synthesis.b4.conv1.weight")
    most = max(fmaps.values())
    fields = {
        "resolution": max(fmaps),
        "channel_base": max([r * n for r, n in fmaps.items() if n < most] or [max(fmaps) * most]),
        "channel_max": most,
        "z_dim": _get_size(path, G, "mapping.fc0.weight", 1),
        "w_dim": _get_size(path, G, f"mapping.fc{layers - 1}.weight", 0),
        "mapping_layers": layers,
        "conv_clamp": attributes.conv_clamp,
        "mbstd_group": attributes.mbstd_group,
        "w_avg_beta": attributes.w_avg_beta,
    }
    group = (
        attributes.mbstd_group
        if isinstance(attributes.mbstd_group, int) and 0 < attributes.mbstd_group < WHOLE
        else 1
    )
    try:
        derived = Workload.from_dict(fields | {"batch": -(-BATCH // group) * group}, where=path)
    except ConfigError as error:
        raise UserError(str(error)) from None
    for label, each in networks.items():
        refuse_other(f"{path}: {label}", label, each.tensors, derived)
    return derived


def _get_size(path: str, tensors: dict[str, Tensor], name: str, dimension: int) -> int:
    if name not in tensors or tensors[name].ndim <= dimension:
        raise UserError(f"{path}: G: {NOT_READ}: no {name}, or one of another shape")
    return int(tensors[name].shape[dimension])


def refuse_other(where: str, label: str, tensors: dict[str, Tensor], workload: Workload) -> None:
    """Refuse tensors that are not exactly those of NVIDIA's network of this workload. Raises UserError."""
    ours = names.list_shapes(label, workload)
    expected = {theirs: ours[mine] for theirs, mine in names.map_weights(label, workload).items()}
    expected |= names.list_buffers(label, workload)
    if extra := sorted(tensors.keys() - expected.keys()):
        raise UserError(f"{where}: {NOT_READ}: it has {clean_line(extra[0])[:60]}")
    for name, shape in expected.items():
        if name not in tensors:
            raise UserError(f"{where}: {NOT_READ}: it has no {name}")
        here = tensors[name]
        if tuple(here.shape) != shape or here.dtype != torch.float32:
            kind = str(here.dtype).removeprefix("torch.")
            raise UserError(
                f"{where}.{name}: {list(shape)} float32 is expected, not {list(here.shape)} {kind}"
            )
        if name.endswith(names.FILTER) and not torch.equal(here, names.make_filter()):
            raise UserError(f"{where}.{name}: another filter than [1, 3, 3, 1]")
