"""`--model` and `--set`: a user's own pair, described by a worker process. This process never imports its code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder.core.errors import UserError
from ladder.core.job import Job
from ladder.core.plain import Fields, Plain
from ladder.core.text import clean_line, make_slug
from ladder.engine.pool import Pool, WorkerFailure
from ladder.plan import catalog

LADDER = "pair"  # whose rungs need nothing of StyleGAN2's layers


@dataclass(frozen=True)
class Model:
    """Where a pair is made: folder, file or module, and function; and the function's arguments."""

    place: list[str]
    settings: Plain

    repository: list[str] | None = None  # as `stylegan_lite.config.PairWorkload` has it

    def move(self, copy: Path, original: Path) -> Model:
        """Return the pair of a commit, whose tree is in the folder `copy`; `original` is that of the repository."""
        folder = copy / Path(self.place[0]).relative_to(original)
        return Model([str(folder), *self.place[1:]], self.settings, [str(copy), str(original)])

    @property
    def name(self) -> str:
        """Return what results call it: its file or module."""
        return make_slug(self.place[1].removesuffix(".py").split(".")[-1])


def read_request(model: str | None, settings: Sequence[str], workload: str | None) -> Model | None:
    """Return the pair that the options of a command name, or None.

    Raises:
        UserError: options contradict each other, there is no such file, or its name is one of ours; one line.
    """
    if model is None:
        if settings:
            raise UserError("--set is an argument of the function that --model names: give --model")
        return None
    if workload is not None:
        raise UserError("--model is what is trained, and so is --workload: leave out --workload")
    return read_model(model, settings)


def read_model(model: str, settings: Sequence[str]) -> Model:
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
        found = Model(find_model(model, Path.cwd()), values)
    except ConfigError as error:
        raise UserError(clean_line(str(error))) from None
    if found.name in catalog.list_workloads():
        where = found.place[1]
        raise UserError(f"{where}: the name {found.name} is of a workload of this project; rename the file")
    return found


def describe_model(model: Model, pool: Pool, device: str, seed: int) -> tuple[str, Fields, Plain]:
    """Return the name of a pair, its workload, and the facts that decide which rungs apply.

    Raises UserError, one line with file and line of the user's code, for a pair that cannot be measured.
    """
    more = {"repository": model.repository} if model.repository else {}
    reply = ask_worker(model, pool, "describe", device=device, seed=seed, **more)
    return model.name, reply["fields"] | {"data": None, "flips": True}, reply["facts"]


def identify_model(model: Model, pool: Pool) -> Fields:
    """Return the fields of a pair's workload that stand for its source and settings. Raises UserError."""
    return {"pair": ask_worker(model, pool, "identify")["pair"]}


def ask_worker(model: Model, pool: Pool, command: str, **more: Any) -> Plain:
    """Return a worker's reply about a pair. Raises UserError, one line, if it has a problem."""
    worker = pool.take()
    try:
        reply = worker.call(command, model=model.place, settings=model.settings, **more)
    except WorkerFailure as failure:
        raise UserError(f"{model.place[1]}: {failure.reason}") from None
    finally:
        worker.close()
    if reply["problem"]:
        raise UserError(clean_line(reply["problem"]))
    return reply


def resize(workload: Fields, sizes: Mapping[str, Any]) -> Fields:
    """Return a workload with another batch or resolution. Those of a user's pair are settings of its function."""
    if "pair" not in workload:
        return {**workload, **sizes}
    changed: Any = {key: value for key, value in sizes.items() if value != workload[key]}
    return {**workload, **sizes, "sizes": changed}


def place(workload: Fields, copy: Path, original: Path) -> Fields:
    """Return a pair's workload at the commit whose tree is in the folder `copy`."""
    values: Any = workload
    moved = Model(values["model"], values["settings"]).move(copy, original)
    return {**values, "pair": "", "model": moved.place, "repository": moved.repository}


def refuse_fixed(job: Job, *names: str) -> None:
    """Raise UserError if a pair's function takes no such setting, which a study changes."""
    takes = job.facts["takes"] if job.facts else names
    if lacks := [name for name in names if name not in takes]:
        where = ":".join(job.workload["model"][1:])  # type: ignore[index, arg-type]
        raise UserError(f"{where} takes no setting {lacks[0]!r}, which is to be changed: add that argument")


def refuse_idle_data(data: str | None, workload: Fields) -> None:
    """Raise UserError if images are given to a pair that reads none."""
    if data is not None and not workload["resolution"]:
        raise UserError(
            "--data: this pair reads no images of the workload (no Input of source images): leave it out"
        )
