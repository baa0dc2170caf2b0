"""What a workload, a recipe, a ladder and a set of images are, by what they hold: a name or a path decides nothing.

A preset's name stands for its fields. Whoever uses the name for other fields gets another name, and a stranger's file
that does so is refused. So is a field that this commit does not know, and a value that none can have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ladder.core.errors import UserError
from ladder.core.records import Fields, Name, Record, Text, locate_problem, read_record, write_record
from ladder.plan.catalog import _find_preset
from ladder.plan.content import fields_of, of_workload
from ladder.results.file import Images
from ladder.results.run import Run

ARTICLE = "article"  # a ladder
# What presets held until they were changed: results of then keep their name. Whoever changes a preset adds to it.
EARLIER = {"tiny": ("43b5b3",)}  # lr, r1_gamma and ema_images of StyleGAN2, until 21 November 2026
_BOUND = Meta(ge=-(10**12), le=10**12)
_Scalar = bool | Annotated[int, _BOUND] | Annotated[float, _BOUND] | Text | None
_SETTINGS = (
    "conv_fp32_precision matmul_fp32_precision cudnn_benchmark cudnn_deterministic adam_foreach adam_fused"
    " adam_capturable ema r1_gamma cpu_threads gomp_spincount kmp_blocktime"
)


# --- fields -----------------------------------------------------------------------------------------------------------


def find_workload_problem(workload: Fields) -> str | None:
    """Return which field of a workload is unknown or impossible, or not that of the preset of its name, or None.

    A field without a default that the file lacks is not known, and held against nobody.
    """
    from stylegan_lite.config import Workload

    if "pair" in workload:
        if _find_preset(workload["name"]) is not None:
            return f"workload: a user's pair is named like the preset {workload['name']}"
        return _find_unknown("pair", workload, "workload")
    if problem := _find_unknown("workload", workload, "workload"):
        return problem
    least = {"channel_base": workload["resolution"]}  # a file may lack it
    fields = {key: value for key, value in workload.items() if key != "name"}
    if problem := _find_impossible(Workload, least | fields):
        return f"workload: {problem}"
    name = workload["name"]
    if (preset := _find_preset(name)) is None or of_workload(workload) in EARLIER.get(name, ()):
        return None
    own, right = fields_of(workload), fields_of(preset)
    for key in sorted(own.keys() & right.keys()):
        if own[key] != right[key]:
            return f"workload: named like the preset {name}, whose {key} is {right[key]}, not {own[key]}"
    return None


def find_recipe_problem(recipe: Fields | None, place: str) -> str | None:
    """Return which field is unknown or impossible, in one line, or None. Each field is judged alone."""
    if problem := _find_unknown("recipe", recipe or {}, place):
        return problem
    problems = (_judge_recipe_field(key, value) for key, value in (recipe or {}).items())
    return next((f"{place}: {problem}" for problem in problems if problem), None)


def find_settings_problem(settings: Fields | None, place: str) -> str | None:
    """Return which setting of PyTorch is unknown, in one line, or None."""
    return _find_unknown("settings", settings or {}, place)


def _find_unknown(kind: str, fields: Fields, place: str) -> str | None:
    problem = locate_problem(_make_record(kind), fields)
    return problem and f"{place}{problem[0]}: {problem[1]}"


@functools.lru_cache(maxsize=4096, typed=True)  # the recipes of a result differ in few fields
def _judge_recipe_field(key: str, value: Any) -> str | None:
    from stylegan_lite.config import Recipe

    return _find_impossible(Recipe, {key: value})


def _find_impossible(kind: Any, fields: Fields) -> str | None:
    """Return which value a field cannot have, or None. What two fields may be together is left to whoever runs them."""
    from stylegan_lite.config import ConfigError

    try:
        kind.from_dict(fields, where="")
    except ConfigError as error:
        line = str(error).partition(": ")[2]
        return line if " must be " in line else None
    return None


@functools.cache  # made late: where asv measures a commit, stylegan_lite is the commit's own
def _make_record(name: str) -> Any:
    from stylegan_lite.config import Recipe, Workload

    known = {"recipe": Recipe, "workload": Workload}
    names = [each.name for each in dataclasses.fields(known[name])] if name in known else _SETTINGS.split()
    required: dict[str, Any] = {}
    if name in ("workload", "pair"):
        images = Literal["sample-photographs", "user-images"] | None
        size, batch = Annotated[int, Meta(ge=4, le=2**16)], Annotated[int, Meta(ge=1, le=2**16)]
        required = {"name": Name, "resolution": size, "batch": batch, "data": images}
        if name == "pair":
            digest = Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
            required |= {"resolution": size | None, "pair": digest, "flips": bool}
            names = []
    optional = [(each, _Scalar, None) for each in names if each not in required]
    return msgspec.defstruct(name, [*required.items(), *optional], bases=(Record,), kw_only=True)


# --- ladders and images -----------------------------------------------------------------------------------------------


def misordered(run: Run) -> str | None:
    """Return in one line why ladder or rungs of a run are not ours that have their names, or None.

    The article's order never changes. Other ladders and rungs have changed. A result is held to what they are now where
    it says that they were the same.
    """
    from ladder.plan import beside, catalog, modes

    name, mode, names = run.ladder.name, run.protocol.mode, run.ladder.rungs
    if mode in modes.STUDIES and (name, names[0]) != (mode, first := beside.load_beside(mode).first):
        return f"ladder: mode {mode} measures {first} and what stands beside it"
    if name not in catalog.list_ladders():
        return None
    is_of_now = (run.measured_code or {}).get("rungs") == _digest_rungs()
    order = iter(catalog.list_order(catalog.load_ladder(name)))
    if (is_of_now or name == ARTICLE) and not all(each in order for each in names if each != modes.ALL):
        return f"ladder: named like {name}, but with other rungs or in another order"
    if not is_of_now or mode == modes.LEAVE_ONE_OUT:
        return None
    for rung in run.rungs:
        recipe = rung.recipe if rung.rounds else None
        if recipe and rung.name in catalog.list_rungs():
            change = catalog.load_rung(rung.name).change
            for key, value in change.items():
                if recipe.get(key) != value and key != "workers":  # loader processes depend on the machine
                    return f"rung {rung.name}: its recipe's {key} is {recipe.get(key)}, not {value}"
    return None


@functools.cache
def _digest_rungs() -> str:
    from ladder.results import code_digest

    return code_digest.digest_rungs()


def of_images(path: str | Path | None) -> Images | None:
    """Return count and digest of a user's prepared images, by what they hold; None for ours, which the code decides.

    The digest is kept beside the folder `path`, where that can be written: a large set takes seconds.
    """
    from ladder.images import prepare as images

    if path is None:
        return None
    folder, known = Path(path), None
    stored = folder.with_name("digest")
    try:
        manifest = json.loads(folder.with_name("manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if manifest.get("source") != images.USER:
        return None
    names = sorted(file.name for file in folder.glob("*.jpg"))
    with contextlib.suppress(OSError, ValueError, UserError):
        known = read_record(Images, json.loads(stored.read_text()))
    if known and known.count == len(names):
        return known
    whole = hashlib.sha256()
    for name in names:
        whole.update(hashlib.sha256((folder / name).read_bytes()).digest())
    known = Images(len(names), whole.hexdigest()[:16])
    with contextlib.suppress(OSError):
        stored.write_text(json.dumps(write_record(known)))
    return known
