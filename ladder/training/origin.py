"""The networks of a checkpoint as the beginning of a new training (`ladder train --from`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder.base.errors import UserError, one_line
from ladder.base.plain import Fields
from ladder.training import checkpoint
from stylegan_lite.config import Workload
from stylegan_lite.step import TrainingStep

NETWORKS = ("G", "D", "G_ema")
# The fields of a workload that the networks are made of, but for the channels: those are compared one by one.
MODEL = ("resolution", "norm", "spectral_norm", "z_dim", "w_dim", "mapping_layers", "conv_clamp")
FRESH = "networks of {}; step, optimizers and mean path length start fresh"


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
        for key, (held, wanted) in pairs.items():
            if held != wanted:
                raise UserError(
                    f"{self.path}: networks of another workload: {key} is {held!r} there, {wanted!r} here"
                )

    def load_into(self, step: TrainingStep) -> None:
        """Load the networks into a prepared step, in place.

        Raises:
            UserError: the tensors do not fit.
        """
        try:
            for name in NETWORKS:
                getattr(step, name).load_state_dict(self.content["state"][name])  # type: ignore[literal-required]
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self.path}: damaged checkpoint: {one_line(str(error))}") from error


def read(path: Path) -> Origin:
    """Read a checkpoint of `ladder train` or `ladder convert`. Raises UserError."""
    content = checkpoint.load(path)
    return Origin(path, content, checkpoint.workload_of(path, content))
