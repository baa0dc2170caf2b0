"""Checkpoints: one file of tensors and plain data. Loading executes no code and refuses a file that does not fit."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, cast

import torch
from torch import Tensor

from ladder.base.errors import UserError, one_line
from ladder.base.files import replacing
from ladder.base.plain import Fields
from ladder.training import losslog, mishaps
from stylegan_lite.config import ConfigError, Workload

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep

FORMAT = "stylegan-ladder checkpoint 1"
_PARTS = {
    "workload": dict, "recipe": dict, "device": str, "seed": int, "seconds": float, "images": dict,
    "state": dict,
}  # fmt: skip

Tensors = dict[str, Tensor]


class State(TypedDict):
    """The state of a step (`stylegan_lite.saving`)."""

    count: int
    workload: Fields
    G: Tensors
    D: Tensors
    G_ema: Tensors
    opt_G: dict[int, Tensors]
    opt_D: dict[int, Tensors]
    pl_mean: Tensor
    scales: dict[str, Tensors]
    loss: Tensors
    rng: Tensor
    data: dict[str, int]


class Images(TypedDict):
    """An image set, as a checkpoint names it."""

    source: str
    count: int


class _Content(TypedDict):
    """The parts that every checkpoint file has."""

    format: str
    workload: Fields
    recipe: Fields
    device: str
    seed: int
    seconds: float
    images: Images
    run: str
    log: list[losslog.Unwritten]
    state: State


class Content(_Content, total=False):
    """The content of a checkpoint file. ``kept`` holds buffers of NVIDIA's networks that ours lack, by network."""

    kept: dict[str, Tensors]


NO_IMAGES: Images = {"source": "ladder convert", "count": 0}  # of a checkpoint that was converted


def make_content(
    step: TrainingStep, *, seed: int, seconds: float, images: Images, run: str, state: State | None = None
) -> Content:
    """Return the content of a checkpoint: the whole state of a training, with no line of the log to come.

    Args:
        seed: the seed of the training.
        seconds: seconds of training up to the saved state.
        images: source and count of the image set.
        run: the name of this training (``new_run``).
        state: the state of the step, or None for the current state.
    """
    return {
        "format": FORMAT,
        "workload": step.workload.to_dict() | {"data": None},  # a path of this machine is useless elsewhere
        "recipe": step.recipe.to_dict(),
        "device": step.device,
        "seed": seed,
        "seconds": seconds,
        "images": images,
        "run": run,
        "log": [],
        "state": cast(State, step.state_dict()) if state is None else state,
    }


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain data as one file, whole or not at all. Raises UserError."""
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            _write(content, file)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def new_run() -> str:
    """Return a name for a new training, by which its checkpoints are recognized."""
    return secrets.token_hex(8)


def _write(content: Mapping[str, Any], file: BinaryIO) -> None:
    """Write with torch, and raise the system's own error: of a full disk, torch only says "unexpected pos"."""
    failed: list[OSError] = []

    class Stream:
        def write(self, data: bytes) -> int:
            try:
                return file.write(data)
            except OSError as error:
                failed.append(error)
                raise

        def flush(self) -> None:
            file.flush()

    try:
        torch.save(content, Stream())
    except Exception:
        if failed:
            raise failed[0] from None
        raise


def load(path: Path) -> Content:
    """Read a checkpoint on the CPU.

    Checkpoints of earlier versions have neither "run" nor "log"; both become empty.

    Raises:
        UserError: the file is missing, damaged or not a checkpoint of this project.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such checkpoint file")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types: damaged zip, foreign pickle, unknown class
        raise UserError(
            f"{path}: not a checkpoint that can be loaded safely ({type(error).__name__})"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        is_weights = isinstance(content, dict) and isinstance(content.get("G_ema"), dict)
        hint = "; `ladder convert` makes one of NVIDIA's weights" if is_weights else ""
        raise UserError(f"{path}: not a checkpoint of `ladder train`{hint}")
    for part, kind in _PARTS.items():
        if not isinstance(content.get(part), kind):
            raise UserError(f"{path}: damaged checkpoint: {part} is missing or of a wrong type")
    content.setdefault("run", "")
    content.setdefault("log", [])
    if not isinstance(content["run"], str) or not losslog.is_list_of_steps(content["log"]):
        raise UserError(f"{path}: damaged checkpoint: run or log is of a wrong type")
    if not isinstance(content["state"].get("count"), int):
        raise UserError(f"{path}: damaged checkpoint: it does not know its step")
    if not _are_tensors(content.get("kept", {})):
        raise UserError(f"{path}: damaged checkpoint: kept is of a wrong type")
    return cast(Content, content)


def _are_tensors(kept: object) -> bool:
    """Return whether `kept` holds tensors by network and name."""
    return isinstance(kept, dict) and all(
        isinstance(each, dict) and all(isinstance(value, Tensor) for value in each.values())
        for each in kept.values()
    )


def is_converted(content: Content) -> bool:
    """Return whether `ladder convert` made the checkpoint, so that there is no training to resume."""
    return content["images"] == NO_IMAGES


def refuse_converted(path: Path, content: Content) -> None:
    """Refuse to resume a checkpoint that holds no training. Raises UserError."""
    if is_converted(content):
        raise UserError(f"{path}: is converted and has no training to go on with: give --from {path}")


def workload_of(path: Path, content: Content) -> Workload:
    """Return the workload of a checkpoint, without images. Raises UserError."""
    try:
        return Workload.from_dict({**content["workload"], "data": None}, where=f"{path}: workload")
    except ConfigError as error:
        raise UserError(f"damaged checkpoint, or one of another version: {error}") from None


def refuse_other(path: Path, content: Content, workload: Fields, images: Images, device: str) -> None:
    """Refuse a checkpoint of another workload, number of images or kind of device.

    The recipe may differ, because a training can continue with another recipe.

    Raises:
        UserError: the checkpoint does not fit.
    """
    for key in workload | content["workload"]:  # a field at its default may be left out in either
        here, held = workload.get(key), content["workload"].get(key)
        if key != "data" and held != here:
            raise UserError(f"{path}: checkpoint of another workload: {key} is {held!r} there, {here!r} here")
    if content["images"] != images:
        there = f"{content['images'].get('count')} {content['images'].get('source')}"
        raise UserError(
            f"{path}: trained on {there}, here are {images['count']} {images['source']}: give the same --data"
        )
    if content["device"] != device:  # the random state belongs to that device's generator
        raise UserError(f"{path}: trained on {content['device']}: go on with --device {content['device']}")


def restore(path: Path, content: Content, step: TrainingStep) -> None:
    """Load the state into a prepared step.

    Raises:
        UserError: the tensors do not fit.
    """
    try:
        step.load_state_dict(dict(content["state"]))
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged checkpoint: {one_line(str(error))}") from error


class Copy:
    """A copy of a step's state on its device, updated in place. It remains when a later step fails midway."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.seconds = 0.0

    def take(self, step: TrainingStep, seconds: float) -> None:
        """Copy the state after a whole step, with the ``seconds`` of training so far.

        Without memory for it, there is no copy.
        """
        now = cast(State, step.state_dict())
        try:
            if self.state is None or not _is_alike(self.state, now):
                self.state = None
                self.state = copy.deepcopy(now)
            else:
                torch._foreach_copy_(_list_tensors(self.state), _list_tensors(now))
                self.state["count"], self.state["data"] = now["count"], now["data"]
            self.seconds = seconds
        except (MemoryError, RuntimeError) as error:
            if mishaps.explain(error) is None:
                raise
            self.state = None

    def get_finite(self) -> State | None:
        """Return the copy, or None if it is missing or a weight in it is NaN or infinite."""
        state = self.state
        if state is None:
            return None
        networks = _list_tensors([state["G"], state["D"], state["G_ema"]])
        return state if all(bool(each.isfinite().all()) for each in networks) else None


def _list_tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    return [tensor for part in parts for tensor in _list_tensors(part)]


def _is_alike(mine: Any, theirs: Any) -> bool:
    """Return whether both states hold tensors under the same names."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return mine.keys() == theirs.keys() and all(_is_alike(mine[key], theirs[key]) for key in mine)
    return isinstance(mine, dict) == isinstance(theirs, dict)
