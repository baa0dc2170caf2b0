"""The catalog: workloads and ladders (YAML), rungs (one Python file each), and the climb made of them.

A name stands for a file of this package; a path is the user's own YAML file. Every refusal is a ``UserError`` of one
line that names the file and the key. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ladder.core import yamlfile
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.plain import Fields
from ladder.plan import content as contents
from ladder.plan.content import of_workload
from ladder.plan.needs import NEEDS, OF_WORKLOAD, of_change
from ladder.plan.variants import Variant
from ladder.receipts import Evidence, Receipt
from stylegan_lite.config import ConfigError, Recipe, Workload, suggestion

HERE = ROOT / "ladder"
WORKLOADS = HERE / "workloads"
LADDERS = HERE / "ladders"
RUNGS = HERE / "rungs"

MOST_RESOLUTION = (
    4096  # four times StyleGAN2's largest; beyond, its sample images alone take hours and terabytes
)
KEYS = ("title", "reference", "rungs", "rival")  # of a ladder's file
_NAME = re.compile(r"[a-z][a-z0-9_]*")  # a rung is a Python module


@dataclass(frozen=True)
class Rung:
    """One optimization. ``change`` is laid over the recipe of the rungs below it, ``needs`` are capabilities."""

    name: str
    title: str
    summary: str  # first line of the docstring
    text: str  # the whole docstring
    change: Fields
    needs: tuple[str, ...]
    receipt: Callable[[Evidence], Receipt] | None = None  # judges the evidence of ladder.receipts.evidence
    rests_on: tuple[str, ...] = ()  # rungs without which it has nothing to work on: left out with any of them


@dataclass(frozen=True)
class LadderRung:
    """A rung's place in a ladder, and the milliseconds a step that the ladder's reference gives it, if any."""

    name: str
    article_ms: float | None = None


@dataclass(frozen=True)
class Ladder:
    """An ordered list of rungs. ``reference`` names the machine and settings of their ``article_ms``.

    ``rival`` is another ladder, whose highest rung is measured last, with the recipe it has there.
    """

    name: str
    title: str
    rungs: list[LadderRung]
    reference: str | None = None
    rival: str | None = None
    digest: str | None = None  # digest of a user's file; a preset needs none


@dataclass(frozen=True)
class Planned:
    """One rung of a climb: its cumulative recipe (changed fields only), or why it is skipped.

    ``variant``: what an entry of `mistakes` or `levers` changes beside its recipe.
    """

    name: str
    title: str
    recipe: Fields | None
    skipped: str | None
    article_ms: float | None
    variant: Variant | None = None


def list_workloads() -> list[str]:
    """Return the names of the presets, from small to large."""
    names = [path.stem for path in WORKLOADS.glob("*.yaml")]
    return sorted(names, key=lambda name: (_estimate_size(name), name))


def list_ladders() -> list[str]:
    """Return the names of the ladders that ship with this package."""
    return sorted(path.stem for path in LADDERS.glob("*.yaml"))


def list_rungs() -> list[str]:
    """Return the names of all rungs, one for each file in ``ladder/rungs/``."""
    return sorted(path.stem for path in RUNGS.glob("*.py") if path.stem != "__init__")


def _is_rung(name: object) -> bool:
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and (RUNGS / f"{name}.py").is_file()


def load_workload(name_or_path: str) -> tuple[str, Fields]:
    """Read one workload, by name or from the user's YAML file.

    Returns:
        (name, fields): all fields of ``stylegan_lite.config.Workload``. A relative ``data`` is taken from the folder
        of the YAML file. If a user's file has a preset's name and other fields, its name gets digits of their digest.

    Raises:
        UserError: no such workload, bad YAML, an unknown key or a wrong type; one line.
    """
    path = _resolve_path(name_or_path, WORKLOADS, "workload", list_workloads())
    fields = yamlfile.read_yaml(path)
    try:
        workload = Workload.from_dict(fields, where=yamlfile.show_path(path)).to_dict()
    except ConfigError as error:
        raise UserError(str(error)) from None
    if workload["resolution"] > MOST_RESOLUTION:
        raise UserError(
            f"{yamlfile.show_path(path)}: resolution must be at most {MOST_RESOLUTION}, got {workload['resolution']}"
        )
    if workload["data"] is not None:
        workload["data"] = str((path.parent / Path(workload["data"]).expanduser()).resolve())
    name = _make_slug(path)
    if path.parent != WORKLOADS and (preset := of_a_preset(name)):
        content = contents.of_workload(workload)
        name = name if content == preset else f"{name}-{content}"
    return name, workload


def load_recipe(path: str, names: list[str]) -> Fields:
    """Read the fields of ``stylegan_lite.config.Recipe`` from the user's YAML file.

    ``names`` are the rungs that the user may have meant instead.

    Raises:
        UserError: no such rung or file, bad YAML, an unknown key or a wrong type; one line.
    """
    fields = yamlfile.read_yaml(_resolve_path(path, LADDERS, "recipe", names))
    try:
        return Recipe.from_dict(fields, where=path).to_dict()
    except ConfigError as error:
        raise UserError(str(error)) from None


def describe_file(path_folder: Path, name: str) -> str:
    """Return the first comment line of a YAML file of ours, which describes it."""
    first = (path_folder / f"{name}.yaml").read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def load_ladder(name_or_path: str) -> Ladder:
    """Read one ladder, by name or from the user's YAML file. Each of its rungs must exist.

    Raises:
        UserError: no such ladder, bad YAML, an unknown key or rung, a rung twice; one line.
    """
    path = _resolve_path(name_or_path, LADDERS, "ladder", list_ladders())
    where = yamlfile.show_path(path)
    fields = yamlfile.read_yaml(path)
    for key in fields:
        if key not in KEYS:
            raise UserError(f"{where}: unknown key {key!r}{suggestion(key, KEYS, 'known')}")
    title = fields.get("title", path.stem)
    reference = fields.get("reference")
    if not isinstance(title, str) or not (reference is None or isinstance(reference, str)):
        raise UserError(f"{where}: {'reference' if isinstance(title, str) else 'title'} must be text")
    entries = fields.get("rungs")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: rungs must be a list of rung names, one or more")
    steps = [_ladder_rung(entry, where) for entry in entries]
    names = [step.name for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{where}: rungs: {name!r} is there twice")
    rival = fields.get("rival")
    if rival is not None:
        if rival not in list_ladders() or rival == path.stem:
            raise UserError(f"{where}: rival: no other ladder {rival!r}{suggestion(rival, list_ladders())}")
        if (top := load_ladder(rival).rungs[-1].name) in names:
            raise UserError(f"{where}: rival: {top}, the top of {rival}, is a rung here, too")
    made = Ladder(_make_slug(path), title, steps, reference, rival)
    return made if path.parent == LADDERS else _name_ladder(made)


def _name_ladder(ladder: Ladder) -> Ladder:
    """Return a user's ladder with a digest of its content. If it has a preset's name, the digest joins its name."""
    if ladder.name in list_ladders():
        preset = load_ladder(ladder.name)
        if replace(preset, title=ladder.title) == ladder:
            return ladder
    content = contents.digest_content(
        [[step.name, step.article_ms] for step in ladder.rungs] + [ladder.reference, ladder.rival]
    )
    name = f"{ladder.name}-{content}" if ladder.name in list_ladders() else ladder.name
    return replace(ladder, name=name, digest=content)


def list_order(ladder: Ladder) -> list[str]:
    """Return the names of a ladder's rungs, then the top of its rival."""
    return [step.name for step in ladder.rungs] + [
        load_ladder(each).rungs[-1].name for each in [ladder.rival] if each
    ]


def load_rung(name: str) -> Rung:
    """Import one file of ``ladder/rungs/`` and check what it must offer.

    Raises:
        UserError: no such rung; or its file lacks a docstring, title, change, needs or receipt, or changes a field that
            no recipe has.
    """
    if not _is_rung(name):
        raise UserError(f"no rung {name!r}{suggestion(name, list_rungs())}")
    where = f"ladder/rungs/{name}.py"
    module = importlib.import_module(f"ladder.rungs.{name}")
    text = (module.__doc__ or "").strip()
    title, change, needs = (getattr(module, key, None) for key in ("title", "change", "needs"))
    if not text:
        raise UserError(f"{where}: the docstring that teaches the rung is missing")
    if not isinstance(title, str) or not title:
        raise UserError(f"{where}: title must be text")
    if not isinstance(change, dict):
        raise UserError(f"{where}: change must be a dict of recipe fields")
    if not isinstance(needs, tuple) or not set(needs) <= set(NEEDS):
        raise UserError(f"{where}: needs must be a tuple of {', '.join(NEEDS)}")
    receipt = getattr(module, "receipt", None)
    if not callable(receipt) or not receipt.__doc__:
        raise UserError(
            f"{where}: receipt(seen), with a docstring that says how to know it is on, is missing"
        )
    try:
        Recipe.from_dict(change, where=where)
    except ConfigError as error:
        if str(error).startswith(f"{where}: unknown key") or " must be " in str(error):
            raise UserError(str(error)) from None  # else: impossible alone, perhaps not on top of others
    rests_on = getattr(module, "rests_on", ())
    if not isinstance(rests_on, tuple) or not all(map(_is_rung, rests_on)):
        raise UserError(f"{where}: rests_on must be a tuple of rungs: {', '.join(list_rungs())}")
    summary = text.split("\n", 1)[0].strip()
    return Rung(name, title, summary, text, dict(change), needs, receipt, rests_on)


def list_contained(recipe: Mapping[str, Any]) -> list[str]:
    """Return the rungs whose whole change is in ``recipe`` (all fields, or the changed ones), the baseline first."""
    fields = Recipe.from_dict(dict(recipe)).to_dict()
    names = [name for name in list_rungs() if load_rung(name).change.items() <= fields.items()]
    return sorted(names, key=lambda name: (bool(load_rung(name).change), name))


def plan_climb(
    ladder: Ladder,
    capabilities: dict[str, str | None],
    only: Iterable[str] | None = None,
    alone: bool = False,
) -> list[Planned]:
    """Lay the rungs over each other and return the climb.

    A rung is skipped, with the reason, if the hardware or the workload (see `possible`) lacks what it needs. The
    later rungs go on without its change. ``only`` picks rungs to measure. Each keeps the recipe it has in the whole
    ladder, so that its number means the same. With ``alone`` each rung is measured without the others, so two may
    contradict each other.

    Raises:
        UserError: ``only`` names a rung that is not in the ladder, a cumulative recipe is impossible, or a rung takes
            back what one below it changed.
    """
    picked = choose_names(list_order(ladder), only, f"ladder {ladder.name}", of_ladder=True)
    if not alone:
        refuse_contradictions(ladder)
    recipe: Fields = {}
    planned = []
    for step in ladder.rungs:
        rung = load_rung(step.name)
        skipped = find_missing(rung.needs, capabilities) or of_change(rung.change, capabilities)
        if skipped is None:
            recipe = {**recipe, **rung.change}
            try:
                Recipe.from_dict(recipe, where=f"ladder/rungs/{rung.name}.py")
            except ConfigError as error:
                raise UserError(f"ladder {ladder.name}: {error}") from None
        if rung.name in picked:
            kept = dict(recipe) if skipped is None else None
            planned.append(Planned(rung.name, rung.title, kept, skipped, step.article_ms))
    if ladder.rival:
        rival = replace(load_ladder(ladder.rival), rival=None)  # its own highest rung, not its rival's
        top = plan_climb(rival, capabilities)[-1]
        if top.name in picked:
            planned.append(replace(top, title=f"the top of {ladder.rival}", article_ms=None))
    return planned


def refuse_contradictions(ladder: Ladder) -> None:
    """Raise `UserError` for two rungs that set one field of the recipe to different values.

    The later would undo the earlier, and its gain or loss would be of both. It is refused on every machine, even on
    one that can run only one of the two. A rung that rests on the earlier goes further on its field, and may.
    """
    setting: dict[str, tuple[str, Any]] = {}
    for step in ladder.rungs:
        rung = load_rung(step.name)
        for field, value in rung.change.items():
            other, before = setting.get(field, (step.name, value))
            setting[field] = step.name, value
            if before != value and other not in rung.rests_on:
                raise UserError(
                    f"ladder {ladder.name}: rungs {other} and {step.name} contradict each other: {field} is {before} in"
                    f" one and {value} in the other; leave one out, or measure each alone with --mode solo"
                )


def find_missing(needs: Iterable[str], capabilities: dict[str, str | None]) -> str | None:
    """Return why something that needs these cannot run, in one line, or None."""
    for need in needs:
        unknown = None if need in OF_WORKLOAD else f"{need} is not known of this machine"
        reason = capabilities.get(need, unknown)
        if reason is not None:
            return reason
    return None


def find_holder(rung: str) -> str:
    """Return which of our ladders has a rung, as the end of a line; nothing if none has."""
    names = ["full", *list_ladders()] if _is_rung(rung) else []
    found = next((name for name in names if rung in list_order(load_ladder(name))), None)
    return f"; `--ladder {found}` has it" if found else ""


def choose_names(
    names: list[str], only: Iterable[str] | None, where: str, of_ladder: bool = False
) -> set[str]:
    """Return the names that `--rungs` picks. Raises UserError for one that is not there, and for none."""
    picked = set(names if only is None else only)
    unknown = sorted(picked - set(names))
    if unknown:
        has = (find_holder(unknown[0]) if of_ladder else "") or suggestion(unknown[0], names, "it has")
        raise UserError(f"--rungs: {', '.join(unknown)} not in {where}{has}")
    if not picked:
        raise UserError(f"--rungs: name one rung or more{suggestion('', names)}")
    return picked


def _ladder_rung(entry: Any, where: str) -> LadderRung:
    """Return the rung of an entry ``name`` or ``name: milliseconds``."""
    name, article_ms = entry, None
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, article_ms),) = entry.items()
        number = type(article_ms) in (int, float) and math.isfinite(article_ms) and article_ms > 0
        if not number and article_ms is not None:
            raise UserError(f"{where}: rungs: {name}: expected milliseconds a step, got {article_ms!r}")
    if not isinstance(name, str):
        raise UserError(f"{where}: rungs: expected NAME or NAME: MILLISECONDS, got {str(entry)[:60]!r}")
    if name not in list_rungs():
        raise UserError(f"{where}: rungs: no rung {name!r}{suggestion(name, list_rungs())}")
    return LadderRung(name, None if article_ms is None else float(article_ms))


def _resolve_path(name_or_path: str, folder: Path, kind: str, names: list[str]) -> Path:
    """Return the file of a preset by name, else the user's file. A file that lies around never hides a preset."""
    if name_or_path in names:
        return folder / f"{name_or_path}.yaml"
    path = Path(name_or_path).expanduser()
    if path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        if path.is_file():
            return path
        raise UserError(f"{name_or_path}: no such {kind} file")
    raise UserError(
        f"no {kind} {name_or_path!r}{suggestion(name_or_path, names)}, or give a YAML file (FILE.yaml)"
    )


def _make_slug(path: Path) -> str:
    """Return a name for files and tables of only [a-z0-9._-], also for a user's file."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("-.")[:60] or "unnamed"


def _estimate_size(name: str) -> tuple[int, int]:
    fields = yamlfile.read_yaml(WORKLOADS / f"{name}.yaml")
    return fields.get("resolution", 0), fields.get("channel_base", 0) * fields.get("batch", 0)


@functools.cache
def _find_preset(name: str) -> Fields | None:
    return load_workload(name)[1] if name in list_workloads() else None


def of_a_preset(name: str) -> str | None:
    """Return the content digest of the preset of this name, or None if there is no such preset."""
    preset = _find_preset(name)
    return None if preset is None else of_workload(preset)
