"""`ladder convert`: NVIDIA's networks to a checkpoint of `ladder train`, and a checkpoint to state dicts for NVIDIA."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.core.plain import Plain
from ladder.core.text import clean_line
from ladder.training import checkpoint
from ladder.training.checkpoint import Content, State, Tensors
from ladder.training.nvidia import names, pickles
from ladder.training.nvidia.pickles import Record
from stylegan_lite.config import ConfigError, Recipe, Workload
from stylegan_lite.networks import Discriminator

ZIP = b"PK\x03\x04"  # the first bytes of torch.save's files
FP16_RESOLUTIONS = 4  # of NVIDIA's networks that clamp
KWARGS = "kwargs"  # in a file of state dicts: the arguments of NVIDIA's classes
DROPPED = ("augment_pipe", "training_set_kwargs")
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
WRAPPED = "module."
NOT_READ = "another architecture than --cfg=stylegan2"


@dataclass(frozen=True)
class Converted:
    """The outcome: what OUT holds, and lines for the user."""

    content: Mapping[str, Any]
    workload: Workload
    is_checkpoint: bool
    notes: tuple[str, ...]


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


def convert_file(path: Path) -> Converted:
    """Return the content of the other kind of file. Nothing is written.

    Raises:
        UserError: a file of neither kind, or networks that ours cannot express; one line.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(200)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    for begin, what in INSTEAD.items():
        if head.lstrip().lower().startswith(begin):
            raise UserError(f"{path}: {what}")
    zipped = head.startswith(ZIP)
    content = _load_tensors(path) if zipped else pickles.read_pickle(path)
    # The files of torch.save before 1.6 are several pickles. A tensor would compare number by number.
    if isinstance(content, int) and content == MAGIC:
        content = _load_tensors(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: {NEITHER}")
    if content.get("format") == checkpoint.FORMAT:
        return convert_to_nvidia(checkpoint.read_origin(path))
    return convert_from_nvidia(str(path), content)


# What people have in place of a network, by its first bytes.
INSTEAD = {
    b"<": "a web page, not a network: download the file that the page links to",
    b"version https://git-lfs": "a pointer of Git LFS, not the file: `git lfs pull` fetches it",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
}
MAGIC = torch.serialization.MAGIC_NUMBER
NEITHER = "no network pickle, no state dicts with G_ema, and no checkpoint of `ladder train`"


def _load_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(f"{path}: refused, and nothing of it was run: it holds more than tensors") from None
    except Exception as error:  # torch raises many types
        raise UserError(f"{path}: damaged, or no file of tensors ({type(error).__name__})") from None


def convert_from_nvidia(path: str, content: Mapping[str, Any]) -> Converted:
    """Return the checkpoint of NVIDIA's networks, pickled ones or state dicts. Most people pass on `G_ema` alone."""
    if "G_ema" not in content:
        there = ", ".join(clean_line(str(key))[:20] for key in [*content][:6])
        raise UserError(f"{path}: has no G_ema, the averaged generator; there are: {there or 'none'}")
    pickled = isinstance(content["G_ema"], Record)
    dropped = [name for name in DROPPED if content.get(name) is not None]
    notes = [f"dropped: {', '.join(dropped)}"] if dropped else []
    labels = [label for label in names.NETWORKS if label in content]
    if pickled:
        networks = {label: read_network(f"{path}: {label}", content[label]) for label in labels}
        attributes = read_attributes(path, networks)
    else:
        networks = {label: _read_state(f"{path}: {label}", content[label]) for label in labels}
        attributes = _read_kwargs(path, content.get(KWARGS))
        if KWARGS not in content:
            notes.append("no kwargs beside the state dicts: taken are conv_clamp none, mbstd_group 4")
    workload = derive_workload(path, networks, attributes)
    if "G" not in networks:
        notes.append("no G in the file: it begins as G_ema")
        networks["G"] = networks["G_ema"]
    if "D" not in networks:
        notes.append("no D in the file: a new one, which was never trained")
        networks["D"] = _begin_discriminator(workload)
    if networks["D"].frozen:
        notes.append(f"{len(networks['D'].frozen)} tensors of D were frozen (Freeze-D); here all are trained")
    notes.append(f"batch {workload.batch}, rates and R1 weight are this project's: the file does not say")
    notes.append("optimizers start fresh: the file has no moments")
    return Converted(_make_checkpoint(workload, networks), workload, True, tuple(notes))


def _begin_discriminator(workload: Workload) -> Network:
    """Return a discriminator with random weights, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ours = Discriminator(workload, Recipe()).state_dict()
    weights = {theirs: ours[mine] for theirs, mine in names.map_weights("D", workload).items()}
    return Network(weights | names.make_buffers("D", workload), {})


def _read_state(where: str, state: object) -> Network:
    """Return a network of a state dict."""
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise UserError(f"{where} is no state dict")
    wrapped = all(key.startswith(WRAPPED) for key in state)  # saved from DistributedDataParallel
    return Network({key.removeprefix(WRAPPED) if wrapped else key: state[key] for key in state}, {})


def _read_kwargs(path: str, kwargs: object) -> Attributes:
    """Return the settings in the arguments that stand beside state dicts."""
    if kwargs is None:
        return Attributes()
    try:
        G, D = kwargs["G"], kwargs["D"]  # type: ignore[index]
        clamp, other = G["conv_clamp"], D["conv_clamp"]
        group = D["epilogue_kwargs"]["mbstd_group_size"]
        beta = G["mapping_kwargs"]["w_avg_beta"]
        if G["c_dim"] or D["c_dim"] or clamp != other:
            raise UserError(f"{path}: kwargs: c_dim must be 0, and conv_clamp the same in G and D")
    except (KeyError, TypeError, IndexError):
        raise UserError(f"{path}: kwargs: not those that `ladder convert` writes") from None
    return Attributes(clamp, WHOLE if group is None else group, beta)


def _make_checkpoint(workload: Workload, networks: dict[str, Network]) -> Content:
    ours: dict[str, Tensors] = {}
    kept: dict[str, Tensors] = {}
    for label, each in networks.items():
        by_ours = {mine: each.tensors[theirs] for theirs, mine in names.map_weights(label, workload).items()}
        ours[label] = {name: by_ours[name].contiguous() for name in names.list_shapes(label, workload)}
        kept[label] = {name: each.tensors[name].contiguous() for name in names.list_buffers(label, workload)}
    fields = workload.to_dict() | {"data": None}
    state: State = {
        "count": 0, "workload": fields, "G": ours["G"], "D": ours["D"], "G_ema": ours["G_ema"], "opt_G": {},
        "opt_D": {}, "pl_mean": torch.zeros([]), "scales": {}, "loss": {},
        "rng": torch.Generator().manual_seed(0).get_state(), "data": {"epoch": 0, "consumed": 0},
    }  # fmt: skip
    return {
        "format": checkpoint.FORMAT, "workload": fields, "recipe": Recipe().to_dict(), "device": "cpu", "seed": 0,
        "seconds": 0.0, "images": checkpoint.NO_IMAGES, "log": [], "state": state,
        "kept": kept,
    }  # fmt: skip


def convert_to_nvidia(ours: checkpoint.Origin) -> Converted:
    """Return state dicts under NVIDIA's names, with the arguments of the classes that load them."""
    workload = ours.workload
    if workload.norm != "demod" or workload.spectral_norm:
        raise UserError(f"{ours.path}: NVIDIA's networks have norm: demod and spectral_norm: false alone")
    content: Plain = {}
    kept = ours.content.get("kept") or {}
    for label in names.NETWORKS:
        state: Tensors = ours.content["state"][label]  # type: ignore[literal-required]
        beside = kept.get(label) or names.make_buffers(label, workload)
        content[label] = {theirs: state[mine] for theirs, mine in names.map_weights(label, workload).items()}
        content[label] |= {name: beside[name] for name in names.list_buffers(label, workload)}
    notes = [] if kept else ["noise_const is new: this model was never NVIDIA's"]
    return Converted(content | {KWARGS: make_kwargs(workload)}, workload, False, tuple(notes))


def make_kwargs(workload: Workload) -> dict[str, Plain]:
    """Return the arguments of NVIDIA's `Generator` and `Discriminator`, as its stylegan3 repository takes them."""
    image = {"c_dim": 0, "img_resolution": workload.resolution, "img_channels": 3}
    size = {
        "channel_base": workload.channel_base,
        "channel_max": workload.channel_max,
        "conv_clamp": workload.conv_clamp,
        "num_fp16_res": FP16_RESOLUTIONS if workload.conv_clamp else 0,
    }
    mapping = {"num_layers": workload.mapping_layers, "w_avg_beta": workload.w_avg_beta}
    latents = {"z_dim": workload.z_dim, "w_dim": workload.w_dim, "mapping_kwargs": mapping}
    group = None if workload.mbstd_group >= WHOLE else workload.mbstd_group
    groups = {"epilogue_kwargs": {"mbstd_group_size": group}}
    return {"G": {**latents, **image, **size}, "D": {**image, **size, **groups}}


# --- the workload of NVIDIA's networks, by shapes and attributes; what ours do not compute is refused ----------------


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


def _read_dict(where: str, record: Record, part: str) -> Plain:
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
    if not values_of["group_size"]:  # a file without D
        values_of["group_size"].add(Attributes.mbstd_group)
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
    G = networks.get("G", networks["G_ema"]).tensors
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
    narrow = max([r * n for r, n in fmaps.items() if n < most] or [max(fmaps) * most])
    bases = (narrow, max(r * n for r, n in fmaps.items()))  # the widest may be narrower than channel_max
    base = next((base for base in bases if all(min(base // r, most) == n for r, n in fmaps.items())), narrow)
    fields = {
        "resolution": max(fmaps),
        "channel_base": base,
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
