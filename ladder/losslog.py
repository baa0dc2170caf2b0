"""The loss log: read late from the device, so that no step waits for its own losses.

Each step's losses are copied on the device into a row of a small buffer. A full buffer goes to pinned memory with an
asynchronous copy, and is read when the next one is full: by then it has long arrived.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.files import replacing


class Diverged(RuntimeError):
    """A loss or weight became NaN or infinite; the message is one line that names phase and step."""


@dataclass(frozen=True)
class Row:
    """One step: its number (the first is 1), the phases that ran in it, seconds of training when it was queued."""

    step: int
    phases: tuple[str, ...]
    seconds: float


@dataclass
class _Batch:
    rows: list[Row]
    values: Tensor  # [rows, phases] float64, in pinned memory on CUDA
    arrived: torch.cuda.Event | None


class LossLog:
    """JSON lines, one for ``every`` steps: step, images, seconds, and each phase's mean loss over the steps it ran in.

    A phase that did not run in those steps is null. ``also`` are more numbers of the device (FP16: loss scales), as
    they were in a line's last step. Lines end at multiples of ``every``, so that a resumed run writes the lines that
    an unbroken one would have written.
    """

    def __init__(
        self,
        path: Path,
        phases: tuple[str, ...],
        *,
        every: int,
        batch: int,
        device: str,
        also: dict[str, Tensor] | None = None,
    ) -> None:
        self.path, self.phases, self.every, self.batch = path, phases, every, batch
        self.also = also or {}
        columns = len(phases) + len(self.also)
        self.buffer = torch.zeros(every, columns, dtype=torch.float64, device=device)
        self.rows: list[Row] = []
        self.pending: _Batch | None = None
        self.last: dict[str, Any] | None = None  # the last line written

    def add(self, row: Row, loss: dict[str, Tensor]) -> dict[str, Any] | None:
        """Queue one step's losses, scalars on the device; returns a line if one was written.

        Raises:
            Diverged: an earlier loss, just read, is NaN or infinite.
        """
        values = [*(loss[phase] for phase in self.phases), *(value.double() for value in self.also.values())]
        self.buffer[len(self.rows)].copy_(torch.stack(values))
        self.rows.append(row)
        if row.step % self.every:
            return None
        sent = self._send()
        line = self._read(self.pending)
        self.pending = sent
        if sent.arrived is None:
            line, self.pending = self._read(sent), None
        return line

    def check(self) -> None:
        """Wait for everything queued so far; Diverged if any of it is NaN or infinite."""
        self._read(self.pending)
        self.pending = None
        if self.rows:
            _refuse_bad(self.rows, self.buffer[: len(self.rows)].cpu(), self.phases)

    def finish(self) -> None:
        """As ``check``, and write what is left as a shorter line."""
        self.check()
        if self.rows:
            self._read(_Batch(self.rows, self.buffer[: len(self.rows)].cpu(), None))
            self.rows = []

    def _send(self) -> _Batch:
        rows, self.rows = self.rows, []
        used = self.buffer[: len(rows)]
        if used.device.type != "cuda":
            return _Batch(rows, used, None)
        values = torch.empty(used.shape, dtype=used.dtype, pin_memory=True)
        values.copy_(used, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return _Batch(rows, values, arrived)

    def _read(self, sent: _Batch | None) -> dict[str, Any] | None:
        if sent is None:
            return None
        if sent.arrived is not None:
            sent.arrived.synchronize()
        _refuse_bad(sent.rows, sent.values, self.phases)
        self.last = self._line(sent.rows, sent.values.tolist())
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(self.last) + "\n")
        return self.last

    def _line(self, rows: list[Row], values: list[list[float]]) -> dict[str, Any]:
        step, seconds = rows[-1].step, round(rows[-1].seconds, 3)
        line: dict[str, Any] = {"step": step, "images": step * self.batch, "seconds": seconds}
        for column, phase in enumerate(self.phases):
            ran = [value[column] for row, value in zip(rows, values, strict=True) if phase in row.phases]
            line[phase] = math.fsum(ran) / len(ran) if ran else None
        return line | dict(zip(self.also, values[-1][len(self.phases) :], strict=True))


def trim(path: Path, step: int) -> None:
    """Keep the lines up to ``step``: a run that was killed logged more than its last checkpoint knows."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # half a line, of the moment it was killed
    with replacing(path) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")


def _refuse_bad(rows: list[Row], values: Tensor, phases: tuple[str, ...]) -> None:
    for row, losses in zip(rows, values.tolist(), strict=True):
        for phase, loss in zip(phases, losses, strict=False):  # behind them are numbers of other kinds
            if phase in row.phases and not math.isfinite(loss):
                raise Diverged(
                    f"step {row.step}: the loss of {phase} is {'NaN' if math.isnan(loss) else 'infinite'}"
                )
