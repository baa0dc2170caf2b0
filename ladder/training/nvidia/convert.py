"""`ladder convert`: NVIDIA's networks to a checkpoint of `ladder train`, and a checkpoint to state dicts for NVIDIA."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.core.text import clean_line
from ladder.training import checkpoint
from ladder.training.checkpoint import Content, State, Tensors
from ladder.training.nvidia import architecture, names, pickles
from ladder.training.nvidia.architecture import Attributes, Network
from stylegan_lite.config import Recipe, Workload

ZIP = b"PK\x03\x04"  # the first bytes of torch.save's files
FP16_RESOLUTIONS = 4  # of NVIDIA's networks that clamp
KWARGS = "kwargs"  # in a file of state dicts: the arguments of NVIDIA's classes
DROPPED = ("augment_pipe", "training_set_kwargs")


@dataclass(frozen=True)
class Converted:
    """The outcome: what OUT holds, and lines for the user."""

    content: Mapping[str, Any]
    workload: Workload
    is_checkpoint: bool
    notes: tuple[str, ...]


def convert_file(path: Path) -> Converted:
    """Return the content of the other kind of file. Nothing is written.

    Raises:
        UserError: a file of neither kind, or networks that ours cannot express; one line.
    """
    try:
        with open(path, "rb") as file:
            zipped = file.read(len(ZIP)) == ZIP
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    content = _load_tensors(path) if zipped else pickles.read_pickle(path)
    # The files of torch.save before 1.6 are several pickles. A tensor would compare number by number.
    if isinstance(content, int) and content == MAGIC:
        content = _load_tensors(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: {NEITHER}")
    if content.get("format") == checkpoint.FORMAT:
        return convert_to_nvidia(checkpoint.read_origin(path))
    return convert_from_nvidia(str(path), content)


MAGIC = torch.serialization.MAGIC_NUMBER
NEITHER = "no network pickle, no state dicts of G, D and G_ema, and no checkpoint of `ladder train`"


def _load_tensors(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(f"{path}: refused, and nothing of it was run: it holds more than tensors") from None
    except Exception as error:  # torch raises many types
        raise UserError(f"{path}: damaged, or no file of tensors ({type(error).__name__})") from None


def convert_from_nvidia(path: str, content: Mapping[str, Any]) -> Converted:
    """Return the checkpoint of NVIDIA's networks, pickled ones or state dicts."""
    for label in names.NETWORKS:
        if label not in content:
            there = ", ".join(clean_line(str(key))[:20] for key in [*content][:6])
            raise UserError(
                f"{path}: has no {label}: G, D and G_ema are needed, there are: {there or 'none'}"
            )
    pickled = isinstance(content["G"], pickles.Record)
    dropped = [name for name in DROPPED if content.get(name) is not None]
    notes = [f"dropped: {', '.join(dropped)}"] if dropped else []
    if pickled:
        networks = {
            label: architecture.read_network(f"{path}: {label}", content[label]) for label in names.NETWORKS
        }
        attributes = architecture.read_attributes(path, networks)
    else:
        networks = {label: _read_state(f"{path}: {label}", content[label]) for label in names.NETWORKS}
        attributes = _read_kwargs(path, content.get(KWARGS))
        if KWARGS not in content:
            notes.append("no kwargs beside the state dicts: taken are conv_clamp none, mbstd_group 4")
    workload = architecture.derive_workload(path, networks, attributes)
    if networks["D"].frozen:
        notes.append(f"{len(networks['D'].frozen)} tensors of D were frozen (Freeze-D); here all are trained")
    notes.append(f"batch {workload.batch}, rates and R1 weight are this project's: the file does not say")
    notes.append("optimizers start fresh: the file has no moments")
    return Converted(_make_checkpoint(workload, networks), workload, True, tuple(notes))


def _read_state(where: str, state: object) -> Network:
    """Return a network of a state dict."""
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in state.items()
    ):
        raise UserError(f"{where} is no state dict")
    return Network(dict(state), {})


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
    return Attributes(clamp, architecture.WHOLE if group is None else group, beta)


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
    content: dict[str, Any] = {}
    kept = ours.content.get("kept") or {}
    for label in names.NETWORKS:
        state: Tensors = ours.content["state"][label]  # type: ignore[literal-required]
        beside = kept.get(label) or names.make_buffers(label, workload)
        content[label] = {theirs: state[mine] for theirs, mine in names.map_weights(label, workload).items()}
        content[label] |= {name: beside[name] for name in names.list_buffers(label, workload)}
    notes = [] if kept else ["noise_const is new: this model was never NVIDIA's"]
    return Converted(content | {KWARGS: make_kwargs(workload)}, workload, False, tuple(notes))


def make_kwargs(workload: Workload) -> dict[str, dict[str, Any]]:
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
    group = None if workload.mbstd_group >= architecture.WHOLE else workload.mbstd_group
    groups = {"epilogue_kwargs": {"mbstd_group_size": group}}
    return {"G": {**latents, **image, **size}, "D": {**image, **size, **groups}}
