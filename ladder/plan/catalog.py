"""The catalog: workloads and ladders (YAML), rungs (one Python file each), and the climb made of them.

A name stands for a file of this package; a path is the user's own YAML file. Every refusal is a ``UserError`` of one
line that names the file and the key. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ladder.core import yamlfile
from ladder.core.errors import UserError
from ladder.core.paths import ROOT
from ladder.core.plain import Fields
from ladder.plan.content import digest_content, of_workload
from ladder.plan.needs import NEEDS, OF_WORKLOAD, of_change
from ladder.plan.variants import Variant
from ladder.receipts import Evidence, Receipt
from stylegan_lite.config import ConfigError, Recipe, Workload, suggestion

HERE = ROOT / "ladder"
WORKLOADS, LADDERS, RUNGS = HERE / "workloads", HERE / "ladders", HERE / "rungs"
KEYS = ("title", "reference", "rungs", "rival")  # of a ladder's file
MOST_RESOLUTION = 4096  # four times StyleGAN2's largest: beyond, sample images alone take hours and terabytes
MOST_NUMBER = 10**8  # of any field
MOST_BYTES = (
    2**46
)  # 64 TiB of weights, or of activations of one layer a resolution: more than any machine has


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

    def estimate_size(path: Path) -> tuple[int, int, str]:
        fields = yamlfile.read_yaml(path)
        return fields.get("resolution", 0), fields.get("channel_base", 0) * fields.get("batch", 0), path.stem

    return [path.stem for path in sorted(WORKLOADS.glob("*.yaml"), key=estimate_size)]


def list_ladders() -> list[str]:
    """Return the names of the ladders that ship with this package."""
    return sorted(path.stem for path in LADDERS.glob("*.yaml"))


@functools.cache  # a report looks a rung up thousands of times
def list_rungs() -> tuple[str, ...]:
    """Return the names of all rungs, one for each file in ``ladder/rungs/``."""
    return tuple(sorted(path.stem for path in RUNGS.glob("*.py") if path.stem != "__init__"))


def load_workload(name_or_path: str) -> tuple[str, Fields]:
    """Read one workload, by name or from the user's YAML file.

    Returns:
        (name, fields): all fields of ``stylegan_lite.config.Workload``. A relative ``data`` is taken from the folder
        of the YAML file. If a user's file has a preset's name and other fields, its name gets digits of their digest.

    Raises:
        UserError: no such workload, bad YAML, an unknown key or a wrong type; one line.
    """
    path = _resolve_path(name_or_path, WORKLOADS, "workload", list_workloads())
    where = yamlfile.show_path(path)
    try:
        checked = Workload.from_dict(yamlfile.read_yaml(path), where=where)
    except ConfigError as error:
        raise UserError(str(error)) from None
    refuse_size(checked, where)
    workload = checked.to_dict()
    if workload["data"] is not None:
        workload["data"] = str((path.parent / Path(workload["data"]).expanduser()).resolve())
    name, content = _make_slug(path), of_workload(workload)
    is_preset = path.parent == WORKLOADS or of_a_preset(name) in (None, content)
    return name if is_preset else f"{name}-{content}", workload


def refuse_size(workload: Workload, where: str) -> None:
    """Raise `UserError`, one line, for a workload that fits no machine."""
    for key, value in workload.to_dict().items():
        most = MOST_RESOLUTION if key == "resolution" else MOST_NUMBER
        if isinstance(value, int | float) and value > most:
            raise UserError(f"{where}: fits no machine: {key} must be at most {most}, got {value}")
    channels = {resolution: workload.fmaps(resolution) for resolution in workload.resolutions}
    sizes = {
        "mapping_layers, z_dim, w_dim": workload.mapping_layers
        * workload.w_dim
        * max(workload.z_dim, workload.w_dim),
        "channel_base, channel_max": sum(9 * number**2 for number in channels.values()),
        "batch": workload.batch * sum(number * resolution**2 for resolution, number in channels.items()),
    }
    largest = max(sizes, key=lambda key: sizes[key])
    if 4 * sizes[largest] > MOST_BYTES:
        size = 4 * sizes[largest] / 2**40
        raise UserError(
            f"{where}: fits no machine: {largest}: {size:,.0f} TiB of numbers: choose smaller ones"
        )


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
    if unknown := next((key for key in fields if key not in KEYS), None):
        raise UserError(f"{where}: unknown key {unknown!r}{suggestion(unknown, KEYS, 'known')}")
    title, reference, entries, rival = (fields.get(key) for key in KEYS)
    for key, value in (("title", title), ("reference", reference)):
        if value is not None and not isinstance(value, str):
            raise UserError(f"{where}: {key} must be text")
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{where}: rungs must be a list of rung names, one or more")
    steps = [_read_step(entry, where) for entry in entries]
    names = [step.name for step in steps]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"{where}: rungs: {twice[0]!r} is there twice")
    if rival is not None:
        if rival not in list_ladders() or rival == path.stem:
            raise UserError(f"{where}: rival: no other ladder {rival!r}{suggestion(rival, list_ladders())}")
        if (top := load_ladder(rival).rungs[-1].name) in names:
            raise UserError(f"{where}: rival: {top}, the top of {rival}, is a rung here, too")
    ladder = Ladder(_make_slug(path), title or path.stem, steps, reference, rival)
    if path.parent == LADDERS:
        return ladder
    content = digest_content([[[step.name, step.article_ms] for step in steps], reference, rival])
    if ladder.name not in list_ladders():
        return replace(ladder, digest=content)
    if replace(load_ladder(ladder.name), title=ladder.title) == ladder:
        return ladder
    return replace(ladder, name=f"{ladder.name}-{content}", digest=content)


def _read_step(entry: Any, where: str) -> LadderRung:
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


def list_order(ladder: Ladder) -> list[str]:
    """Return the names of a ladder's rungs, then the top of its rival."""
    rival = [load_ladder(ladder.rival).rungs[-1]] if ladder.rival else []
    return [step.name for step in [*ladder.rungs, *rival]]


def load_rung(name: str) -> Rung:
    """Import one file of ``ladder/rungs/`` and check what it must offer.

    Raises:
        UserError: no such rung; or its file lacks a docstring, title, change, needs or receipt, or changes a field that
            no recipe has.
    """
    known = list_rungs()
    if name not in known:
        raise UserError(f"no rung {name!r}{suggestion(name, known)}")
    where = f"ladder/rungs/{name}.py"
    module = importlib.import_module(f"ladder.rungs.{name}")
    text = (module.__doc__ or "").strip()
    title, change, needs, receipt = (
        getattr(module, key, None) for key in ("title", "change", "needs", "receipt")
    )
    rests_on = getattr(module, "rests_on", ())
    for is_right, problem in (
        (text, "the docstring that teaches the rung is missing"),
        (isinstance(title, str) and title, "title must be text"),
        (isinstance(change, dict), "change must be a dict of recipe fields"),
        (isinstance(needs, tuple) and {*needs} <= {*NEEDS}, f"needs must be a tuple of {', '.join(NEEDS)}"),
        (
            getattr(receipt, "__doc__", ""),
            "receipt(seen), whose docstring says how to know it is on, is missing",
        ),
        (isinstance(rests_on, tuple) and {*rests_on} <= {*known}, "rests_on must be a tuple of rungs"),
    ):
        if not is_right:
            raise UserError(f"{where}: {problem}")
    try:
        Recipe.from_dict(change, where=where)
    except ConfigError as error:
        if str(error).startswith(f"{where}: unknown key") or " must be " in str(error):
            raise UserError(str(error)) from None  # else: impossible alone, perhaps not on top of others
    return Rung(name, title, text.split("\n", 1)[0].strip(), text, dict(change), needs, receipt, rests_on)  # type: ignore[arg-type]


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
        UserError: ``only`` names a rung that is not in the ladder, a cumulative recipe is impossible, or a rung changes
            nothing or takes back what one below it changed.
    """
    picked = choose_names(list_order(ladder), only, f"ladder {ladder.name}", of_ladder=True)
    if not alone:
        refuse_useless(ladder)
    recipe: Fields = {}
    planned = []
    for step in ladder.rungs:
        rung = load_rung(step.name)
        skipped = of_change(rung.change, capabilities) or find_missing(rung.needs, capabilities)
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


def refuse_useless(ladder: Ladder) -> None:
    """Raise `UserError` for a rung that changes nothing, or that sets a field of the recipe to another value again.

    The later of two would undo the earlier, and its gain or loss would be of both. It is refused on every machine, even
    on one that can run only one of the two. A rung that rests on the earlier goes further on its field, and may.
    """
    setting: dict[str, tuple[str, Any]] = {}
    usual = asdict(Recipe())
    for below, step in itertools.pairwise([None, *ladder.rungs]):
        rung = load_rung(step.name)
        if below and all(
            setting.get(key, ("", usual[key]))[1] == value for key, value in rung.change.items()
        ):
            raise UserError(
                f"ladder/rungs/{step.name}.py: in ladder {ladder.name} its recipe equals that of the rung before,"
                f" {below.name}: change a field that no rung below it has"
            )
        for field, value in rung.change.items():
            other, before = setting.get(field, (step.name, value))
            setting[field] = step.name, value
            if before != value and other not in rung.rests_on:
                raise UserError(
                    f"ladder {ladder.name}: rungs {other} and {step.name} contradict each other: {field} is {before} in"
                    f" one and {value} in the other; leave one out, or measure each alone with --mode solo"
                )


def find_missing(needs: Iterable[str], capabilities: Mapping[str, str | None]) -> str | None:
    """Return why something that needs these cannot run, in one line, or None."""
    reasons = (
        capabilities.get(need, None if need in OF_WORKLOAD else f"{need} is not known of this machine")
        for need in needs
    )
    return next((reason for reason in reasons if reason is not None), None)


def find_holder(rung: str) -> str:
    """Return which of our ladders has a rung, as the end of a line; nothing if none has."""
    names = (name for name in ["full", *list_ladders()] if rung in list_order(load_ladder(name)))
    name = next(names, None)
    return f"; `--ladder {name}` has it" if name else ""


def choose_names(
    names: list[str], only: Iterable[str] | None, where: str, of_ladder: bool = False
) -> set[str]:
    """Return the names that `--rungs` picks. Raises UserError for one that is not there, and for none."""
    picked = set(names if only is None else only)
    if unknown := sorted(picked - set(names)):
        has = (find_holder(unknown[0]) if of_ladder else "") or suggestion(unknown[0], names, "it has")
        raise UserError(f"--rungs: {', '.join(unknown)} not in {where}{has}")
    if not picked:
        raise UserError(f"--rungs: name one rung or more{suggestion('', names)}")
    return picked


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


@functools.cache
def _find_preset(name: str) -> Fields | None:
    return load_workload(name)[1] if name in list_workloads() else None


def of_a_preset(name: str) -> str | None:
    """Return the content digest of the preset of this name, or None if there is no such preset."""
    preset = _find_preset(name)
    return None if preset is None else of_workload(preset)
