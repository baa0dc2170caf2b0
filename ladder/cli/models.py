"""`--model` and `--set`: a user's own pair, described by a worker process. This process never imports its code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.errors import UserError
from ladder.core.plain import Fields, Plain
from ladder.core.text import clean_line
from ladder.engine.pool import Pool, WorkerFailure
from ladder.plan import catalog, modes


@dataclass(frozen=True)
class Model:
    """Where a pair is made: folder, file or module, and function; and the function's arguments."""

    place: list[str]
    settings: Plain


def read_request(request: Any) -> Model | None:
    """Return the pair that the options of a run name, or None. Raises UserError for options that contradict it."""
    if request.model is None:
        if request.set:
            raise UserError("--set is an argument of the function that --model names: give --model")
        return None
    if request.workload is not None:
        raise UserError("--model is what is trained, and so is --workload: leave out --workload")
    if request.mode in modes.STUDIES:
        raise UserError(f"--mode {request.mode} is about StyleGAN2: leave out --model")
    return read_model(request.model, request.set)


def read_model(model: str, settings: list[str]) -> Model:
    """Return the pair of `--model` and `--set`. Raises UserError, one line."""
    from stylegan_lite.config import ConfigError
    from stylegan_lite.step.loading import find_model

    values: Plain = {}
    for each in settings:
        key, equals, text = each.partition("=")
        if not (equals and key.isidentifier()):
            raise UserError(f"--set {clean_line(each)}: give NAME=VALUE")
        if key in values:
            raise UserError(f"--set {key}: it is given twice")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = {"True": True, "False": False, "None": None}.get(text, text)
    try:
        return Model(find_model(model, Path.cwd()), values)
    except ConfigError as error:
        raise UserError(clean_line(str(error))) from None


def describe_model(model: Model, pool: Pool, device: str, seed: int) -> tuple[str, Fields, Plain]:
    """Return the name of a pair, its workload, and the facts that decide which rungs apply.

    Raises UserError, one line with file and line of the user's code, for a pair that cannot be measured.
    """
    worker = pool.take()
    try:
        reply = worker.call("describe", model=model.place, settings=model.settings, device=device, seed=seed)
    except WorkerFailure as failure:
        raise UserError(f"{model.place[1]}: {failure.reason}") from None
    finally:
        worker.close()
    if reply["problem"]:
        raise UserError(clean_line(reply["problem"]))
    if reply["name"] in catalog.list_workloads():
        raise UserError(
            f"{model.place[1]}: the name {reply['name']} is of a workload of this project; rename the file"
        )
    return reply["name"], reply["fields"] | {"data": None, "flips": True}, reply["facts"]


def refuse_idle_data(data: str | None, workload: Fields) -> None:
    """Raise UserError if images are given to a pair that reads none."""
    if data is not None and not workload["resolution"]:
        raise UserError(
            "--data: this pair reads no images of the workload (no Input of source images): leave it out"
        )
