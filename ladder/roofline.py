"""`ladder doctor --roofline`: how far a step is from the speed of light of this GPU, and what lies between.

Speed of light: the convolution FLOPs of a workload at the highest rates ever recorded for those convolutions on this
GPU, plus the bytes that must move at the highest bandwidth (`ladder.floors`, `ladder.rates`). Beside it stand the
phases as they are timed, and the kernel families of a traced cycle. With `--gpu NAME` nothing is measured: the floor is
told from recorded rates, on any machine. docs/roofline.md explains what is and what is not in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ladder import catalog, distance, machine, record, report, results, roofline_view
from ladder import rates as recorded
from ladder.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "results" / "roofline"

Found = dict[str, Any]


def command(
    workload: str | None,
    rung: str | None,
    ladder: str,
    device: str | None,
    gpu: str | None,
    as_json: bool,
    out: Path | None = None,
) -> None:
    """Measure (or with ``gpu`` only compute), show, and write what was measured.

    Raises:
        UserError: no GPU to measure, no recorded rates of ``gpu``, or no such rung here; one line.
    """
    out = out or OUT
    name, fields = catalog.load_workload(workload or "article")
    if gpu is not None:
        chosen, recipe = plan(ladder, rung, catalog.possible(dict.fromkeys(catalog.NEEDS), fields))
        found = frame(name, fields, chosen, recipe) | light(
            floors_of(fields, recipe), fields, recipe, recorded.choose(gpu, out)
        )
        paths = []
    else:
        if machine.choose_device(device) != "cuda":
            gpus = ", ".join(recorded.known_gpus(out))
            raise UserError(
                f"--roofline measures a GPU, and none is used here; for the floor alone: --gpu NAME ({gpus})"
            )
        chosen, recipe = plan(ladder, rung, catalog.possible(machine.capabilities("cuda"), fields))
        found = measure(name, fields, chosen, recipe, out)
        paths = write(found, out)
    click.echo(json.dumps(found, indent=1, allow_nan=False) if as_json else roofline_view.text(found))
    for path in paths:
        click.echo(f"result: {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}", err=True)


def plan(ladder: str, rung: str | None, capabilities: dict[str, str | None]) -> tuple[str, dict[str, Any]]:
    """(name, whole recipe) of a rung with all below it; None: the highest that can run."""
    planned = catalog.climb(catalog.load_ladder(ladder), capabilities, None if rung is None else [rung])
    able = [each for each in planned if each.skipped is None]
    if not able:
        raise UserError(f"{planned[-1].name} cannot run here: {planned[-1].skipped}")
    from stylegan_lite.config import Recipe

    return able[-1].name, Recipe.from_dict(able[-1].recipe or {}).to_dict()


def frame(name: str, fields: dict[str, Any], rung: str, recipe: dict[str, Any]) -> Found:
    """What every result begins with."""
    return record.head("roofline", name, fields) | {
        "rung": rung,
        "recipe": recipe,
        "layout": layout_of(recipe),
        "machine": None,
        "measured": None,
    }


def layout_of(recipe: dict[str, Any]) -> str:
    return "channels_last" if recipe["channels_last"] else "nchw"


def floors_of(fields: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """`ladder.floors.count` of plain data."""
    from ladder import floors
    from stylegan_lite.config import Workload

    return floors.count(Workload.from_dict(fields), recipe["precision"])


def frequencies(fields: dict[str, Any]) -> dict[str, float]:
    """How often each phase runs in a step."""
    return {
        "G_main": 1.0,
        "D_main": 1.0,
        "G_pl": 1 / fields["pl_interval"],
        "D_r1": 1 / fields["r1_interval"],
    }


def weigh(floors: dict[str, Any], fields: dict[str, Any]) -> dict[Any, float]:
    """FLOPs a step of each distinct convolution."""
    weights: dict[Any, float] = {}
    for phase, often in frequencies(fields).items():
        for op, times in floors[phase].ops.items():
            weights[op] = weights.get(op, 0.0) + op.flops * times * often
    return weights


def light(
    floors: dict[str, Any], fields: dict[str, Any], recipe: dict[str, Any], rates: recorded.Rates
) -> Found:
    """The speed of light of each phase and of the amortized step, with every rate that went into it."""
    layout, often = layout_of(recipe), frequencies(fields)
    phases = {phase: _phase(floors[phase], layout, recipe["precision"], rates) for phase in often}
    step = {
        key: sum(phases[phase][key] * times for phase, times in often.items()) for key in phases["G_main"]
    }
    convolutions = []
    for op, flops in sorted(weigh(floors, fields).items(), key=lambda item: -item[1]):
        seconds, source = rates.convolution(op, layout)
        convolutions.append(
            {"name": op.key(layout), "flops": flops, "rate": op.flops / seconds, "source": source}
        )
    plain = ("copy", "matmul bf16", "matmul tf32", "matmul fp32")
    return {
        "gpu": rates.gpu,
        "ceilings": {key: vars(rates.known[key]) for key in plain if key in rates.known},
        "phases": phases,
        "step": step,
        "convolutions": convolutions,
    }


def _phase(floor: Any, layout: str, precision: str, rates: recorded.Rates) -> dict[str, float]:
    """FLOPs, bytes, and milliseconds: ``light_ms`` the floor, ``peak_ms`` with convolutions at the matmul rate."""
    kinds = {"forward": 0.0, "input gradient": 0.0, "weight gradient": 0.0}
    for op, times in floor.ops.items():
        kinds[op.kind] += 1000 * times * rates.convolution(op, layout)[0]
    moved = sum(floor.bytes.values())
    copied = 1000 * rates.copy_seconds(moved)
    multiplied = 1000 * max(
        floor.matmul_flops / rates.ceiling("fp32").value, rates.copy_seconds(floor.matmul_bytes)
    )
    convolved = sum(kinds.values())
    return {
        "flops": floor.flops,
        **{f"{kind.replace(' ', '_')}_ms": value for kind, value in kinds.items()},
        "convolutions_ms": convolved,
        **{f"{what.replace(' ', '_')}_bytes": value for what, value in floor.bytes.items()},
        "bytes": moved,
        "bytes_ms": copied,
        "matmul_ms": multiplied,
        "light_ms": convolved + copied + multiplied,
        "peak_ms": 1000 * floor.flops / rates.ceiling(precision).value + copied + multiplied,
    }


def measure(name: str, fields: dict[str, Any], rung: str, recipe: dict[str, Any], out: Path) -> Found:
    """Time the step, trace it, then measure the ceilings: their cuDNN algorithms would stay with the step."""
    from ladder import ceilings
    from ladder.pool import device_lock

    facts = machine.facts("cuda")
    floors = floors_of(fields, recipe)
    with device_lock(machine.device_key("cuda")):
        timed = distance.observe(fields, recipe)
        today = ceilings.measure(weigh(floors, fields), layout_of(recipe), tell=_tell)
    rates = recorded.load(facts["name"], out)
    rates.add(today["rates"], "today")
    found = frame(name, fields, rung, recipe) | light(floors, fields, recipe, rates)
    found |= {"machine": facts, "today": today, "recorded": today["rates"]}
    found["measured"] = timed | distance.split(timed, found["step"])
    return found


def _tell(text: str) -> None:
    if click.get_text_stream("stderr").isatty():
        click.echo(f"\r\x1b[K{text[:100]}", nl=False, err=True)


def write(found: Found, out: Path) -> list[Path]:
    """`<machine>-<workload>.json` and `.md`. The file keeps the highest rates of the one it replaces."""
    stem = f"{results.slug(found['machine']['name'])}-{results.slug(found['workload']['name'])}"
    path = out / f"{stem}.json"
    kept = recorded.Rates(found["gpu"])
    kept.add(recorded.recorded(path, found["machine"]["name"]), path.name)
    kept.add(found["recorded"], "today")
    found["recorded"] = {key: kept.known[key].value for key in sorted(kept.known)}
    report.write_json(path, found)
    report.write(path.with_suffix(".md"), roofline_view.markdown(found))
    return [path, path.with_suffix(".md")]
