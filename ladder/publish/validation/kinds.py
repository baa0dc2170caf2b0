"""What results of other kinds than a ladder's may hold: `ladder kernels`, `ladder doctor --roofline`, `ladder sustain`.

Other files have `ladder precision` (`ladder.studies.precision.schema`), kernels.tuning and its like
(`ladder.studies.kernelbench.tuning_schema`), and the project's own checks and trials
(`ladder.publish.validation.schema_checks`). As in `ladder.results.schema`: keys that are not named are refused, so
whoever writes a new one adds it there.
"""

from __future__ import annotations

from typing import Any

from ladder.base import text
from ladder.base.rules import Rule
from ladder.publish.regressions import schema as accepting
from ladder.publish.validation import schema_checks
from ladder.results import code_digest, identity, publishable
from ladder.studies.claims.schema import CLAIMS, contradicted
from ladder.studies.kernelbench import tuning_schema
from ladder.studies.kernelbench.schema import KERNELS
from ladder.studies.precision import schema as schema_precision
from ladder.studies.roofline import in_step
from ladder.studies.roofline.schema import ROOFLINE
from ladder.studies.sustain import measure as sustaining
from ladder.studies.sustain.schema import SUSTAINED
from ladder.studies.upstream import schema as upstream

# ---- ladder kernels ----------------------------------------------------------------------------------------------

# ---- ladder doctor --roofline ------------------------------------------------------------------------------------

KINDS: dict[str, Rule] = (
    {
        "claims": CLAIMS,
        "kernels": KERNELS,
        "precision": schema_precision.RESULT,
        "roofline": ROOFLINE,
        "sustained": SUSTAINED,
        "upstream": upstream.RESULT,
    }
    | tuning_schema.KINDS
    | schema_checks.KINDS
)
UNNAMED = {"tools": "sanitizer", "benchmarks": "pytest-benchmark"}  # by a key that no other kind has


def kind_of(data: dict[str, Any]) -> Any:
    """Return what a file calls its kind ("what" in self-tests and tables of faults), or None for a ladder's."""
    for key in ("what", "kind"):
        if key in data:
            return data[key]
    return next((kind for key, kind in UNNAMED.items() if key in data and "schema" not in data), None)


def contradiction(data: dict[str, Any]) -> str | None:
    """What cannot be in a file that its schema takes, in one line, or None."""
    kind = kind_of(data)
    machine = data.get("machine") or data.get("machine_info")
    if machine is None or kind.endswith("tuning"):
        return None
    hardware = machine["gpu"] if machine.get("device", "cpu") == "cuda" else machine["cpu"]
    hardware = hardware["brand_raw"] if isinstance(hardware, dict) else hardware
    if hardware is None or machine["name"] not in (
        text.slug(hardware),
        text.slug(machine["gpu"] or hardware),
    ):
        return f"machine.name: {machine['name']!r} is not made from its hardware"
    if isinstance(data.get("workload"), dict) and (problem := identity.misnamed(data["workload"])):
        return problem
    if kind == "claims":
        return contradicted(data)
    if kind == "compare":
        return accepting.problem_of(data)
    if kind == "precision":
        return schema_precision.contradiction(data)
    if kind == "upstream":
        return upstream.contradiction(data)
    if kind == "sustained":
        return sustaining.contradiction(data)
    if kind == "kernels":
        if problem := code_digest.contradiction(data):
            return problem
        for row in data["rows"]:
            if row.get("sitting", 0) >= len(data.get("sittings", [None])):
                return f"{row['case']}: there was no sitting {row['sitting']}"
            for temperature, found in row["us"].items():
                for name, summary in found.items():
                    samples = row["samples_us"].get(temperature, {}).get(name)
                    if (
                        not samples
                        or not min(samples) * 0.999999 <= summary["median"] <= max(samples) * 1.000001
                    ):
                        return f"{row['case']}: the median of {name} is not among its samples"
    return None


def marks(data: dict[str, Any]) -> list[str]:
    """Why a file that is accepted must not be quoted."""
    kind = kind_of(data)
    noted = kind in ("kernels", "claims", "precision", "sustained", "upstream")
    found = list(data["protocol"]["notes"]) if noted else []
    if kind == "roofline":
        if data["dirty"]:
            found.append("dirty work tree: not to be published")
        found += [f"no floor: {name} took less" for name in in_step.below(data["measured"]["groups"])]
    if kind in schema_checks.KINDS:
        found += [publishable.DIRTY] * bool(data.get("dirty"))
        found += [publishable.PARTIAL] * (data.get("complete") is False)
    return found
