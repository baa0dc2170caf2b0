"""Whether the fields of a workload, a recipe or settings are known to this commit, and which values none can have."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ladder.core.records import Fields, Name, Record, Text, locate_problem

_MOST = 10**12
Scalar = (
    bool
    | Annotated[int, Meta(ge=-_MOST, le=_MOST)]
    | Annotated[float, Meta(ge=-_MOST, le=_MOST)]
    | Text
    | None
)
_NUMBERS = "r1_gamma cpu_threads gomp_spincount kmp_blocktime"
_SETTINGS = (
    "conv_fp32_precision matmul_fp32_precision cudnn_benchmark cudnn_deterministic adam_foreach adam_fused"
    f" adam_capturable ema {_NUMBERS}"
)


def find_workload_problem(workload: Fields) -> str | None:
    """Return which field is unknown or impossible, in one line, or None."""
    from stylegan_lite.config import Workload

    if problem := _locate("workload", _make_record("workload"), workload):
        return problem
    least = {"channel_base": workload["resolution"]}  # a file may lack it
    fields = {key: value for key, value in workload.items() if key != "name"}
    return _find_impossible("workload", Workload, least | fields)


def find_recipe_problem(recipe: Fields | None, place: str) -> str | None:
    """Return which field is unknown or impossible, in one line, or None. Each field is judged alone."""
    if problem := _locate(place, _make_record("recipe"), recipe or {}):
        return problem
    return next(
        filter(None, (_judge_field(place, key, value) for key, value in (recipe or {}).items())), None
    )


def find_settings_problem(settings: Fields | None, place: str) -> str | None:
    """Return which setting of PyTorch is unknown, in one line, or None."""
    return _locate(place, _make_record("settings"), settings or {})


def _locate(place: str, kind: Any, fields: Fields) -> str | None:
    problem = locate_problem(kind, fields)
    return problem and f"{place}{problem[0]}: {problem[1]}"


@functools.lru_cache(maxsize=4096, typed=True)  # the recipes of a result differ in few fields
def _judge_field(place: str, key: str, value: Any) -> str | None:
    from stylegan_lite.config import Recipe

    return _find_impossible(place, Recipe, {key: value})


def _find_impossible(place: str, kind: Any, fields: dict[str, Any]) -> str | None:
    """Return which value a field cannot have, or None. What two fields may be together is left to whoever runs them."""
    from stylegan_lite.config import ConfigError

    try:
        kind.from_dict(fields, where="")
    except ConfigError as error:
        line = str(error).partition(": ")[2]
        return f"{place}: {line}" if " must be " in line else None
    return None


@functools.cache  # made late: where asv measures a commit, stylegan_lite is the commit's own
def _make_record(name: str) -> Any:
    from stylegan_lite.config import Recipe, Workload

    known = {"recipe": Recipe, "workload": Workload}
    names = [each.name for each in dataclasses.fields(known[name])] if name in known else _SETTINGS.split()
    required: dict[str, Any] = {}
    if name == "workload":
        size = Annotated[int, Meta(ge=4, le=2**16)]
        batch = Annotated[int, Meta(ge=1, le=2**16)]
        images = Literal["sample-photographs", "user-images"] | None
        required = {"name": Name, "resolution": size, "batch": batch, "data": images}
    optional = [(each, Scalar, None) for each in names if each not in required]
    return msgspec.defstruct(name, [*required.items(), *optional], bases=(Record,), kw_only=True)
