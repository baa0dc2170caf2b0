"""The loss log. It reads losses late from the device, so that no step waits for its own losses.

Each step's losses are copied on the device into a row of a small buffer. A full buffer goes to pinned memory with
an asynchronous copy. It is read when the next buffer is full, long after its arrival.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.core.files import replace_file

# Numbers of some steps: step, images, seconds, the mean loss of each phase, and what else is logged.
Line = dict[str, float | None]


class Unwritten(TypedDict):
    """A step without a line yet, with the loss of each known phase, as a checkpoint has it."""

    step: int
    phases: list[str]
    seconds: float
    losses: list[float]


class Diverged(RuntimeError):
    """An error: a loss or weight became NaN or infinite. Its message is one line with phase and step."""


@dataclass(frozen=True)
class Row:
    """One step: its number from 1, its phases, and the seconds of training when it was queued."""

    step: int
    phases: tuple[str, ...]
    seconds: float


@dataclass
class _Batch:
    rows: list[Row]
    values: Tensor  # [rows, phases] float64, in pinned memory on CUDA
    arrived: torch.cuda.Event | None = None

    def read(self, phases: tuple[str, ...]) -> list[list[float]]:
        """Return the values once they have arrived. Raises Diverged if a loss is NaN or infinite."""
        if self.arrived is not None:
            self.arrived.synchronize()
        values: list[list[float]] = self.values.tolist()
        for row, losses in zip(self.rows, values, strict=True):
            for phase, loss in zip(phases, losses, strict=False):  # other numbers follow the losses
                if phase in row.phases and not math.isfinite(loss):
                    kind = "NaN" if math.isnan(loss) else "infinite"
                    raise Diverged(f"step {row.step}: the loss of {phase} is {kind}")
        return values


class LossLog:
    """A file of JSON lines, one for ``every`` steps: step, images, seconds, and each phase's mean loss.

    The mean covers the steps in which the phase ran, and is null if it ran in none of them. Argument ``also``
    names further numbers on the device (FP16: loss scales), logged as in the last step of a line. Lines end at
    multiples of ``every``. A checkpoint keeps the steps without a line, so a resumed run writes the same lines as
    an unbroken one. Every method raises Diverged if a loss that it reads is NaN or infinite.
    """

    def __init__(
        self, path: Path, phases: tuple[str, ...], *, every: int, batch: int, device: str,
        also: dict[str, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.phases, self.every, self.batch = path, phases, every, batch
        self.also = also or {}
        columns = len(phases) + len(self.also)
        self.buffer = torch.zeros(every, columns, dtype=torch.float64, device=device)
        self.rows: list[Row] = []
        self.pending: list[_Batch] = []  # whole lines not yet written
        self.last: Line | None = None  # the last line written

    def add(self, row: Row, loss: dict[str, Tensor]) -> Line | None:
        """Queue one step's losses, scalars on the device, and return the line that was written, or None."""
        values = [*(loss[phase] for phase in self.phases), *(value.double() for value in self.also.values())]
        self.buffer[len(self.rows)].copy_(torch.stack(values))
        self.rows.append(row)
        if row.step % self.every:
            return None
        self.pending.append(self._send())
        late = self.pending[-1].arrived is not None  # on CUDA, a line is read when the next one is sent
        return self._write(1 if late else 0)

    def check(self) -> None:
        """Wait for everything queued so far and write the whole lines."""
        self._write(0)
        self._peek().read(self.phases)

    def finish(self) -> None:
        """Check the queued losses, then write the remaining steps as a shorter line.

        The steps stay queued, and a resumed run replaces the line.
        """
        self.check()
        if self.rows:
            self._append(self._peek())

    def list_unwritten(self, upto: int) -> list[Unwritten]:
        """Return the steps up to ``upto`` without a whole line, as plain data for a checkpoint."""
        steps: list[Unwritten] = []
        for batch in (*self.pending, self._peek()):
            for row, losses in zip(batch.rows, batch.read(self.phases), strict=True):
                known = losses[: len(self.phases)]
                steps.append(
                    {"step": row.step, "phases": [*row.phases], "seconds": row.seconds, "losses": known}
                )
        return [each for each in steps if each["step"] <= upto]

    def take_up(self, unwritten: list[Unwritten]) -> None:
        """Queue a checkpoint's unwritten steps. Its log may have had lines at other multiples."""
        for each in unwritten:
            losses = torch.tensor(each["losses"], dtype=torch.float64, device=self.buffer.device)
            row = Row(each["step"], tuple(each["phases"]), each["seconds"])
            self.add(row, dict(zip(self.phases, losses, strict=True)))

    def _peek(self) -> _Batch:
        return _Batch(self.rows, self.buffer[: len(self.rows)].cpu())

    def _send(self) -> _Batch:
        rows, self.rows = self.rows, []
        used = self.buffer[: len(rows)]
        if used.device.type != "cuda":
            return _Batch(rows, used)
        values = torch.empty(used.shape, dtype=used.dtype, pin_memory=True)
        values.copy_(used, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return _Batch(rows, values, arrived)

    def _write(self, left: int) -> Line | None:
        """Write all queued lines except the last ``left``. A line that cannot be written stays queued."""
        line = None
        while len(self.pending) > left:
            line = self._append(self.pending[0])
            self.pending.pop(0)
        return line

    def _append(self, batch: _Batch) -> Line:
        values, rows = batch.read(self.phases), batch.rows
        step, seconds = rows[-1].step, round(rows[-1].seconds, 3)
        line: Line = {"step": step, "images": step * self.batch, "seconds": seconds}
        for column, phase in enumerate(self.phases):
            ran = [value[column] for row, value in zip(rows, values, strict=True) if phase in row.phases]
            line[phase] = math.fsum(ran) / len(ran) if ran else None
        line |= dict(zip(self.also, values[-1][len(self.phases) :], strict=True))
        append_text(self.path, json.dumps(line) + "\n")
        self.last = line
        return line


def append_text(path: Path, text: str) -> None:
    """Append ``text`` to a file, all of it or nothing. Raises UserError, for example on a full disk."""
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


def is_list_of_steps(steps: Any) -> bool:
    """Return whether a checkpoint's part has the form that ``LossLog.list_unwritten`` returns."""
    kinds = {"step": int, "phases": list, "seconds": float, "losses": list}
    return isinstance(steps, list) and all(
        isinstance(each, dict) and all(isinstance(each.get(key), kind) for key, kind in kinds.items())
        for each in steps
    )


def trim_log(path: Path, step: int, unwritten: list[Unwritten]) -> None:
    """Remove the lines after ``step``, and lines that hold ``unwritten`` steps, which will be logged again.

    A killed run logged more than its last checkpoint knows. A finished run wrote a shorter last line.
    """
    if not path.exists():
        return
    last = min([step, *(each["step"] - 1 for each in unwritten)])
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if json.loads(line)["step"] <= last:
                lines.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            continue  # half a line of a killed run
    with replace_file(path) as temporary:
        temporary.write_text("".join(lines), encoding="utf-8")
