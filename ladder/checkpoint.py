"""Checkpoints: tensors and plain data in one file, loaded without unpickling code, refused where they do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ladder.errors import UserError, one_line
from ladder.files import replacing

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep

FORMAT = "stylegan-ladder checkpoint 1"
_PARTS = {
    "workload": dict,
    "recipe": dict,
    "device": str,
    "seed": int,
    "seconds": float,
    "images": dict,
    "state": dict,
}


def save(path: Path, step: TrainingStep, *, seed: int, seconds: float, images: dict[str, Any]) -> None:
    """Write everything that training from here depends on. ``images``: source and count of the image set."""
    content = {
        "format": FORMAT,
        "workload": step.workload.to_dict()
        | {"data": None},  # a path of this machine means nothing elsewhere
        "recipe": step.recipe.to_dict(),
        "device": step.device,
        "seed": seed,
        "seconds": seconds,
        "images": images,
        "state": step.state_dict(),
    }
    with replacing(path) as temporary:
        torch.save(content, temporary)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint on the CPU. UserError if it is missing, damaged or not one of ours."""
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged zip, foreign pickle, unknown class: torch raises many types
        raise UserError(
            f"{path}: not a checkpoint that can be loaded safely ({type(error).__name__})"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{path}: not a checkpoint of `ladder train`")
    for part, kind in _PARTS.items():
        if not isinstance(content.get(part), kind):
            raise UserError(f"{path}: damaged checkpoint: {part} is missing or of a wrong type")
    return content


def refuse_other(
    path: Path, content: dict[str, Any], workload: dict[str, Any], images: dict[str, Any], device: str
) -> None:
    """UserError unless the checkpoint is of this workload, number of images and kind of device.

    The recipe may differ: a run can go on with another one.
    """
    for key, here in workload.items():
        there = content["workload"].get(key)
        if key != "data" and there != here:
            raise UserError(
                f"{path}: checkpoint of another workload: {key} is {there!r} there, {here!r} here"
            )
    if content["images"] != images:
        there = f"{content['images'].get('count')} {content['images'].get('source')}"
        raise UserError(
            f"{path}: trained on {there}, here are {images['count']} {images['source']}: give the same --data"
        )
    if content["device"] != device:  # its random state is of that device's generator
        raise UserError(f"{path}: trained on {content['device']}: go on with --device {content['device']}")


def restore(path: Path, content: dict[str, Any], step: TrainingStep) -> None:
    """Load the state into a prepared step. UserError if its tensors do not fit."""
    try:
        step.load_state_dict(content["state"])
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged checkpoint: {one_line(str(error))}") from error
