"""The networks of a checkpoint as the beginning of a new training (`ladder train --from`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError
from ladder.base.plain import Fields
from ladder.training import checkpoint
from ladder.training.nvidia import names
from stylegan_lite.config import Workload
from stylegan_lite.step import TrainingStep

# The fields of a workload that the networks are made of, but for the channels: those are compared one by one.
MODEL = ("resolution", "norm", "spectral_norm", "z_dim", "w_dim", "mapping_layers", "conv_clamp")


@dataclass(frozen=True)
class Origin:
    """A checkpoint whose networks begin a training."""

    path: Path
    content: checkpoint.Content
    workload: Workload

    def refuse_other(self, workload: Fields) -> None:
        """Refuse a workload whose networks are others.

        Raises:
            UserError: one line with the first field that differs.
        """
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
            getattr(step, label).load_state_dict(self.content["state"][label])  # type: ignore[literal-required]


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
    content = checkpoint.load(path)
    workload = checkpoint.workload_of(path, content)
    for label in names.NETWORKS:
        state: object = content["state"].get(label)
        if not isinstance(state, dict) or {k: tuple(v.shape) for k, v in state.items()} != names.list_shapes(
            label, workload
        ):
            raise UserError(f"{path}: damaged checkpoint: {label} has other tensors than its workload")
    return Origin(path, content, workload)
