"""Checkpoints of `ladder train`: the file, the folder that holds it, and the networks of one as a beginning.

A checkpoint is one file of tensors and plain data. Loading executes no code and refuses a file that does not fit.
Callers that look at a folder hold ``locks.folder_lock``, so that no other training interferes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, cast

import torch
from torch import Tensor

from ladder.core.errors import UserError, one_line
from ladder.core.files import replace_file
from ladder.core.plain import Fields
from ladder.training import losslog, mishaps
from ladder.training.nvidia import names
from stylegan_lite.config import ConfigError, Workload

if TYPE_CHECKING:
    from stylegan_lite.step import TrainingStep

FORMAT = "stylegan-ladder checkpoint 1"
CHECKPOINT, LOG, SAMPLES = "checkpoint.pt", "losses.jsonl", "samples-*.png"  # in a training's folder
PARTS = {
    "workload": dict, "recipe": dict, "device": str, "seed": int, "seconds": float, "images": dict, "state": dict,
    "log": list,
}  # fmt: skip
# The fields of a workload that the networks are made of, but for the channels: those are compared one by one.
MODEL = ("resolution", "norm", "spectral_norm", "z_dim", "w_dim", "mapping_layers", "conv_clamp")

Tensors = dict[str, Tensor]
State = dict[str, Any]  # of a step (`stylegan_lite.step.saving`)


class Images(TypedDict):
    """An image set, as a checkpoint names it."""

    source: str
    count: int


class Content(TypedDict, total=False):
    """The content of a checkpoint file. Only ``kept`` may be missing: buffers of NVIDIA's networks, by network."""

    format: str
    workload: Fields
    recipe: Fields
    device: str
    seed: int
    seconds: float
    images: Images
    log: list[losslog.Unwritten]  # the steps without a line of the log
    state: State
    kept: dict[str, Tensors]


NO_IMAGES: Images = {"source": "ladder convert", "count": 0}  # of a checkpoint that was converted


def make_content(
    step: TrainingStep, *, seed: int, seconds: float, images: Images, state: State | None = None
) -> Content:
    """Return the content of a checkpoint: the whole state of a training, with no line of the log to come.

    Args:
        seed: the seed of the training.
        seconds: seconds of training up to the saved state.
        images: source and count of the image set.
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
        "log": [],
        "state": step.state_dict() if state is None else state,
    }


def write_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write tensors and plain data as one file, whole or not at all. Raises UserError."""
    try:
        with replace_file(path) as temporary, open(temporary, "wb") as file:
            stream = _Stream(file)
            try:
                torch.save(content, stream)
            except Exception as error:
                raise stream.error or error from None
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


class _Stream:
    """A file that remembers the system's own error: of a full disk, torch only says "unexpected pos"."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.flush = file, file.flush
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise


def load_checkpoint(path: Path) -> Content:
    """Read a checkpoint on the CPU. Raises UserError: missing, damaged, or not a checkpoint of this project."""
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
    wrong = [part for part, kind in PARTS.items() if not isinstance(content.get(part), kind)]
    wrong += [] if wrong or losslog.is_list_of_steps(content["log"]) else ["log"]
    kept = content.get("kept", {})
    if not isinstance(kept, dict) or not all(
        isinstance(each, dict) and all(isinstance(value, Tensor) for value in each.values())
        for each in kept.values()
    ):
        wrong.append("kept")
    if wrong:
        raise UserError(f"{path}: damaged checkpoint: {wrong[0]} is missing or of a wrong type")
    if not isinstance(content["state"].get("count"), int):
        raise UserError(f"{path}: damaged checkpoint: it does not know its step")
    return cast(Content, content)


def refuse_converted(path: Path, content: Content) -> None:
    """Refuse to resume a checkpoint of `ladder convert`, which holds no training. Raises UserError."""
    if content["images"] == NO_IMAGES:
        raise UserError(f"{path}: is converted and has no training to go on with: give --from {path}")


def refuse_other(path: Path, content: Content, workload: Fields, images: Images, device: str) -> None:
    """Refuse a checkpoint of another workload, number of images or kind of device.

    The recipe may differ, because a training can continue with another recipe.

    Raises:
        UserError: the checkpoint does not fit.
    """
    for key in workload | content["workload"]:  # a field at its default may be left out in either
        here, there = workload.get(key), content["workload"].get(key)
        if key != "data" and there != here:
            raise UserError(
                f"{path}: checkpoint of another workload: {key} is {there!r} there, {here!r} here"
            )
    if content["images"] != images:
        theirs = f"{content['images'].get('count')} {content['images'].get('source')}"
        ours = f"{images['count']} {images['source']}"
        raise UserError(f"{path}: trained on {theirs}, here are {ours}: give the same --data")
    if content["device"] != device:  # the random state belongs to that device's generator
        raise UserError(f"{path}: trained on {content['device']}: go on with --device {content['device']}")


def restore_step(path: Path, content: Content, step: TrainingStep) -> None:
    """Load the state into a prepared step. Raises UserError if the tensors do not fit."""
    try:
        step.load_state_dict(dict(content["state"]))
    except (RuntimeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: damaged checkpoint: {one_line(str(error))}") from error


# --- the folder -------------------------------------------------------------------------------------------------------


def refuse_occupied(out: Path, resume: Path | None = None) -> None:
    """Refuse a folder that holds another training than that of the checkpoint `resume`, or any without one.

    A checkpoint may go on in its own folder, or in one without a training.

    Raises:
        UserError: the folder's content and the remedy.
    """
    path, other = out / CHECKPOINT, f"another training run than {resume}" if resume else "a training run"
    if path.exists():
        if resume is None or not path.samefile(resume):
            raise UserError(f"{out}: holds {other}: go on with --resume {path}, or give another --out")
    elif resume is None or resume.resolve().parent != out.resolve():
        remains = [LOG] if (out / LOG).exists() and (out / LOG).stat().st_size else []
        remains += [each.name for each in sorted(out.glob(SAMPLES))[-1:]]
        if remains:
            raise UserError(
                f"{out}: holds {remains[0]} of {other}: delete what is there, or give another --out"
            )


def prepare_folder(out: Path, content: Content | None) -> None:
    """Remove half-written files of a killed training, and log lines that will be written again. Raises UserError."""
    try:
        for name in (CHECKPOINT, LOG, SAMPLES):
            for path in out.glob(f".{name}-*.tmp"):
                path.unlink(missing_ok=True)
        if content is not None:
            losslog.trim_log(out / LOG, content["state"]["count"], content["log"])
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error


# --- a copy in memory -------------------------------------------------------------------------------------------------


class Copy:
    """A copy of a step's state on its device, updated in place. It remains when a later step fails midway."""

    def __init__(self) -> None:
        self.state: State | None = None
        self.seconds = 0.0

    def take(self, step: TrainingStep, seconds: float) -> None:
        """Copy the state after a whole step, with the ``seconds`` of training so far.

        Without memory for it, there is no copy.
        """
        now = step.state_dict()
        try:
            if self.state is None or not _is_alike(self.state, now):
                self.state = None
                self.state = copy.deepcopy(now)
            else:
                torch._foreach_copy_(_list_tensors(self.state), _list_tensors(now))
                self.state["count"], self.state["data"] = now["count"], now["data"]
            self.seconds = seconds
        except (MemoryError, RuntimeError) as error:
            if mishaps.explain_mishap(error) is None:
                raise
            self.state = None

    def get_finite(self) -> State | None:
        """Return the copy, or None if it is missing or a weight in it is NaN or infinite."""
        state = self.state
        if state is None:
            return None
        networks = _list_tensors([state[label] for label in names.NETWORKS])
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


# --- networks as the beginning of a training (`ladder train --from`), of images, and of NVIDIA's weights --------------


@dataclass(frozen=True)
class Origin:
    """A checkpoint whose networks are those of its workload."""

    path: Path
    content: Content
    workload: Workload

    def refuse_other(self, workload: Fields) -> None:
        """Refuse a workload whose networks are others. Raises UserError with the first field that differs."""
        here, there = Workload.from_dict({**workload, "data": None}), self.workload
        pairs = {key: (getattr(there, key), getattr(here, key)) for key in MODEL}
        pairs |= {f"channels at {r}x{r}": (there.fmaps(r), here.fmaps(r)) for r in here.resolutions}
        for key, (theirs, ours) in pairs.items():
            if theirs != ours:
                raise UserError(
                    f"{self.path}: networks of another workload: {key} is {theirs!r} there, {ours!r} here"
                )

    def load_into(self, step: TrainingStep) -> None:
        """Load the networks into a prepared step of a workload that fits, in place."""
        for label in names.NETWORKS:
            getattr(step, label).load_state_dict(self.content["state"][label])


def read_origin(path: Path) -> Origin:
    """Read a checkpoint of `ladder train` or `ladder convert` whose networks are those of its workload.

    Raises:
        UserError: no checkpoint, or a damaged one; one line.
    """
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1) == b"\x80":  # the first byte of a pickle
                raise UserError(
                    f"{path}: a pickle and no checkpoint: make one with `ladder convert {path} OUT`"
                )
    content = load_checkpoint(path)
    try:
        workload = Workload.from_dict({**content["workload"], "data": None}, where=f"{path}: workload")
    except ConfigError as error:
        raise UserError(f"damaged checkpoint: {error}") from None
    for label in names.NETWORKS:
        state: object = content["state"].get(label)
        if not isinstance(state, dict) or {k: tuple(v.shape) for k, v in state.items()} != names.list_shapes(
            label, workload
        ):
            raise UserError(f"{path}: damaged checkpoint: {label} has other tensors than its workload")
    return Origin(path, content, workload)
