"""The loss log: read late from the device, so that no step waits for its own losses.

Each step's losses are copied on the device into a row of a small buffer. A full buffer goes to pinned memory with an
asynchronous copy, and is read when the next one is full: by then it has long arrived.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.base.errors import UserError
from ladder.base.files import replacing

Unwritten = dict[
    str, Any
]  # one step that no line has yet: step, phases, seconds, and the loss of each known phase


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

    def read(self) -> Tensor:
        """Return the values once they have arrived."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.values


class LossLog:
    """JSON lines, one for ``every`` steps: step, images, seconds, and each phase's mean loss over the steps it ran in.

    A phase that did not run in those steps is null. ``also`` are more numbers of the device (FP16: loss scales), as
    they were in a line's last step. Lines end at multiples of ``every``, and a checkpoint keeps the steps that no line
    has yet: a resumed run writes the lines that an unbroken one would have written.
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
        self.pending: list[_Batch] = []  # whole lines that are not written yet
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
        self.pending.append(self._send())
        late = self.pending[-1].arrived is not None  # a line is read when the next one is sent
        return self._write(1 if late else 0)

    def check(self) -> None:
        """Wait for everything queued so far; Diverged if any of it is NaN or infinite."""
        self._write(0)
        _refuse_bad(self.rows, self._unsent(), self.phases)

    def finish(self) -> None:
        """As ``check``, and write what is left as a shorter line. The steps stay: a run that goes on replaces it."""
        self.check()
        if self.rows:
            self._append(_Batch(self.rows, self._unsent(), None))

    def unwritten(self, upto: int) -> list[Unwritten]:
        """Return the steps up to ``upto`` that no whole line has yet, as plain data for a checkpoint; synchronizes.

        Raises:
            Diverged: a loss of theirs is NaN or infinite.
        """
        found: list[Unwritten] = []
        for batch in (*self.pending, _Batch(self.rows, self._unsent(), None)):
            values = batch.read()
            _refuse_bad(batch.rows, values, self.phases)
            for row, losses in zip(batch.rows, values.tolist(), strict=True):
                about = {"step": row.step, "phases": list(row.phases), "seconds": row.seconds}
                found.append(about | {"losses": losses[: len(self.phases)]})
        return [each for each in found if each["step"] <= upto]

    def take_up(self, unwritten: list[Unwritten]) -> None:
        """Queue the steps that a checkpoint kept, perhaps one that wrote lines at other multiples."""
        for each in unwritten:
            row = Row(each["step"], tuple(each["phases"]), each["seconds"])
            losses = torch.tensor(each["losses"], dtype=torch.float64, device=self.buffer.device)
            self.add(row, dict(zip(self.phases, losses, strict=True)))

    def _unsent(self) -> Tensor:
        return self.buffer[: len(self.rows)].cpu()

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

    def _write(self, left: int) -> dict[str, Any] | None:
        """Write all lines that are queued but the last ``left``; one that cannot be written stays queued."""
        line = None
        while len(self.pending) > left:
            line = self._append(self.pending[0])
            self.pending.pop(0)
        return line

    def _append(self, sent: _Batch) -> dict[str, Any]:
        values = sent.read()
        _refuse_bad(sent.rows, values, self.phases)
        line = self._line(sent.rows, values.tolist())
        append(self.path, json.dumps(line) + "\n")
        self.last = line
        return line

    def _line(self, rows: list[Row], values: list[list[float]]) -> dict[str, Any]:
        step, seconds = rows[-1].step, round(rows[-1].seconds, 3)
        line: dict[str, Any] = {"step": step, "images": step * self.batch, "seconds": seconds}
        for column, phase in enumerate(self.phases):
            ran = [value[column] for row, value in zip(rows, values, strict=True) if phase in row.phases]
            line[phase] = math.fsum(ran) / len(ran) if ran else None
        return line | dict(zip(self.also, values[-1][len(self.phases) :], strict=True))


def append(path: Path, text: str) -> None:
    """Add ``text`` to a file, all of it or nothing. UserError where it cannot be written, a full disk say."""
    left = text.encode()
    try:
        with open(path, "ab", buffering=0) as stream:
            size = stream.tell()
            try:
                while left:
                    left = left[stream.write(left) :]
            except OSError:
                os.ftruncate(stream.fileno(), size)
                raise
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def are_unwritten(steps: Any) -> bool:
    """Whether a checkpoint's part is what ``LossLog.unwritten`` returns."""
    kinds = {"step": int, "phases": list, "seconds": float, "losses": list}
    return isinstance(steps, list) and all(
        isinstance(each, dict) and all(isinstance(each.get(key), kind) for key, kind in kinds.items())
        for each in steps
    )


def trim(path: Path, step: int, unwritten: list[Unwritten]) -> None:
    """Keep the lines up to ``step`` that hold none of the ``unwritten`` steps: those come again.

    A run that was killed logged more than its last checkpoint knows, and one that ended wrote a shorter line at last.
    """
    if not path.exists():
        return
    last = min([step, *(each["step"] - 1 for each in unwritten)])
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= last:
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
