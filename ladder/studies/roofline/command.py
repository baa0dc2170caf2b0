"""`ladder doctor --roofline`: how far a step is from the speed of light of this GPU, and where the distance lies.

The speed of light is a workload's convolution FLOPs and its necessary bytes, both at the highest rates recorded for
this GPU (`ladder.studies.roofline.floors`, `ladder.studies.roofline.rates`). Beside it stand the timed phases and the
kernel families of a traced cycle. A part that ran faster in the trace than its floor lowers the floor
(`ladder.studies.roofline.in_step`).

With `--gpu NAME` nothing is measured: the floor is computed from recorded rates, on any machine. The option `--again
FILE` computes the floors of an earlier result anew. docs/profile.md explains what counts and what does not.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ladder.base import files, git
from ladder.base import text as texts
from ladder.base.errors import UserError
from ladder.base.locks import device_lock
from ladder.base.paths import ROOT
from ladder.base.records import build, plain
from ladder.base.starting import near
from ladder.machine import environment, system
from ladder.plan import catalog, needs
from ladder.results import loading, record
from ladder.results import store as results
from ladder.results.types import Plain
from ladder.studies.roofline import distance, in_step
from ladder.studies.roofline import rates as recorded
from ladder.studies.roofline import view as roofline_view
from ladder.studies.roofline.schema import CEILINGS, Light, Measured, Result

if TYPE_CHECKING:
    from ladder.studies.roofline.floors import Floor, Op

    Floors = dict[str, Floor]  # by phase

OUT = ROOT / "results" / "roofline"
LADDER = "full"  # the distance of its top is measured


def command(
    workload: str | None,
    rung: str | None,
    ladder: str | None,
    device: str | None,
    gpu: str | None,
    as_json: bool,
    file: Path | None = None,
    out: Path | None = None,
) -> None:
    """Measure the step, show the distance and write the result.

    ``gpu``: only compute, from recorded rates. ``file``: compute the floors of this result anew.

    Raises:
        UserError: no GPU to measure, no recorded rates of ``gpu``, no such rung here, or no roofline in ``file``; one
            line.
    """
    out, ladder = out or OUT, ladder or LADDER
    name, fields = catalog.load_workload(workload or "article")
    if (cheaper := fields.get("convolution", "full")) != "full":
        raise UserError(f"--roofline: {name} has convolution: {cheaper}, and no rate of its groups is known")
    if file is not None:
        found: Light = again(file, out)
        paths = save(found, file)
    elif gpu is not None:
        rates = recorded.choose(gpu, out)  # first: counting the work takes seconds
        chosen, recipe = plan(ladder, rung, needs.possible(dict.fromkeys(needs.NEEDS), fields))
        head = frame(name, fields, ladder, chosen, recipe)
        found = light(head, floors_of(fields, recipe), fields, recipe, rates)
        paths = []
    else:
        if (chosen := system.choose_device(device)) == "cuda":
            environment.refuse(chosen)
        else:
            gpus = ", ".join(recorded.known_gpus(out))
            raise UserError(
                f"--roofline measures a GPU, and none is used here; for the floor alone: --gpu NAME ({gpus})"
            )
        chosen, recipe = plan(ladder, rung, needs.possible(system.capabilities("cuda"), fields))
        with device_lock(system.device_key("cuda")):  # until the files are there: the context stays as long
            found, paths = write(measure(name, fields, ladder, chosen, recipe, out), out)
    click.echo(json.dumps(plain(found), indent=1, allow_nan=False) if as_json else roofline_view.text(found))
    for path in paths:
        click.echo(f"result: {near(path)}", err=True)


def plan(ladder: str, rung: str | None, capabilities: dict[str, str | None]) -> tuple[str, Plain]:
    """Return (name, whole recipe) of a rung with all below it. Without ``rung`` it is the highest that can run."""
    planned = catalog.climb(catalog.load_ladder(ladder), capabilities, None if rung is None else [rung])
    able = [each for each in planned if each.skipped is None]
    if not able:
        raise UserError(f"{planned[-1].name} cannot run here: {planned[-1].skipped}")
    from stylegan_lite.config import Recipe

    return able[-1].name, Recipe.from_dict(able[-1].recipe or {}).to_dict()


def frame(name: str, fields: Plain, ladder: str, rung: str, recipe: Plain) -> Plain:
    """Return the fields that every result begins with."""
    named = {"name": name, **fields, "data": None}
    return record.header("roofline", None, named) | {
        "complete": True,  # the result is made at the end
        "ladder": catalog.load_ladder(ladder).name,
        "rung": rung,
        "recipe": recipe,
        "layout": layout_of(recipe),
        "measured": None,
    }


def layout_of(recipe: Plain) -> str:
    return "channels_last" if recipe["channels_last"] else "nchw"


def floors_of(fields: Plain, recipe: Plain) -> Floors:
    """Run `ladder.studies.roofline.floors.count` on plain data."""
    from ladder.studies.roofline import floors
    from stylegan_lite.config import Workload

    return floors.count(Workload.from_dict(fields), recipe["precision"])


def frequencies(fields: Plain) -> dict[str, float]:
    """Return how often each phase runs in a step."""
    return {
        "G_main": 1.0,
        "D_main": 1.0,
        "G_pl": 1 / fields["pl_interval"],
        "D_r1": 1 / fields["r1_interval"],
    }


def weigh(floors: Floors, fields: Plain) -> dict[Op, float]:
    """Return the FLOPs a step of each distinct convolution."""
    weights: dict[Op, float] = {}
    for phase, often in frequencies(fields).items():
        for op, times in floors[phase].ops.items():
            weights[op] = weights.get(op, 0.0) + op.flops * times * often
    return weights


def amounts(floors: Floors, fields: Plain) -> in_step.Amounts:
    """Return a step's work by the parts that a trace can tell apart (`in_step.PARTS`), in FLOPs.

    Other kernels count in bytes. 1x1 convolutions are among them: cuDNN's kernels for them are named as matmuls.
    """
    found = dict.fromkeys(in_step.PARTS, 0.0)
    for op, flops in weigh(floors, fields).items():
        if not pointwise(op):
            found[op.kind] += flops
            found[in_step.CONVOLUTIONS] += flops
    often = frequencies(fields)
    found[in_step.OTHERS] = sum(sum(floors[phase].bytes.values()) * times for phase, times in often.items())
    return found


def pointwise(op: Op) -> bool:
    return op.weight[-1] == 1


def light(head: Plain, floors: Floors, fields: Plain, recipe: Plain, rates: recorded.Rates) -> Light:
    """Return the speed of light of each phase and of the amortized step, with every rate that it uses.

    ``head`` has the keys of the result that are known before.
    """
    layout, precision, often = layout_of(recipe), recipe["precision"], frequencies(fields)
    times = {phase: _times(floors[phase], layout, rates) for phase in often}
    alone = {part: sum(times[phase][part] * n for phase, n in often.items()) for part in times["G_main"]}
    alone[in_step.OTHERS] = sum(alone[part] for part in ("bytes", "matmul", *_POINTWISE))
    factors, why = in_step.lower(alone, amounts(floors, fields), precision, layout, rates.known)
    phases = {
        phase: _phase(floors[phase], times[phase], factors, rates.ceiling(precision).value) for phase in often
    }
    step = {key: sum(phases[phase][key] * n for phase, n in often.items()) for key in phases["G_main"]}
    convolutions = []
    for op, flops in sorted(weigh(floors, fields).items(), key=lambda item: -item[1]):
        seconds, source = rates.convolution(op, layout)
        convolutions.append(
            {"name": op.key(layout), "flops": flops, "rate": op.flops / seconds, "source": source}
        )
    made = {
        "gpu": rates.gpu,
        "ceilings": {key: vars(rates.known[key]) for key in CEILINGS if key in rates.known},
        "phases": phases,
        "step": step,
        "in_step": plain(why),
        "convolutions": convolutions,
    }
    return build(Light, head | made)


_POINTWISE = {f"1x1 {kind}": kind for kind in in_step.KINDS}


def _times(floor: Floor, layout: str, rates: recorded.Rates) -> dict[str, float]:
    """Return milliseconds of a phase at the ceilings: each kind of convolution, 1x1 convolutions, bytes and matmuls."""
    times = dict.fromkeys((*in_step.KINDS, *_POINTWISE), 0.0)
    for op, n in floor.ops.items():
        times[f"1x1 {op.kind}" if pointwise(op) else op.kind] += 1000 * n * rates.convolution(op, layout)[0]
    computed = floor.matmul_flops / rates.ceiling("fp32").value
    return times | {
        "bytes": 1000 * rates.copy_seconds(sum(floor.bytes.values())),
        "matmul": 1000 * max(computed, rates.copy_seconds(floor.matmul_bytes)),
    }


def _phase(
    floor: Floor, times: dict[str, float], factors: dict[str, float], ceiling: float
) -> dict[str, float]:
    """Return FLOPs, bytes and milliseconds of a phase.

    ``light_ms`` is the floor. ``peak_ms`` has convolutions at the matmul rate.
    """
    others = factors[in_step.OTHERS]
    pointwise_ms = {kind: times[name] * others for name, kind in _POINTWISE.items()}
    kinds = {kind: times[kind] * factors[kind] + pointwise_ms[kind] for kind in in_step.KINDS}
    copied, multiplied, convolved = times["bytes"] * others, times["matmul"] * others, sum(kinds.values())
    return {
        "flops": floor.flops,
        **{f"{kind.replace(' ', '_')}_ms": value for kind, value in kinds.items()},
        "convolutions_ms": convolved,
        "pointwise_ms": sum(pointwise_ms.values()),
        **{f"{what.replace(' ', '_')}_bytes": value for what, value in floor.bytes.items()},
        "bytes": sum(floor.bytes.values()),
        "bytes_ms": copied,
        "matmul_ms": multiplied,
        "light_ms": convolved + copied + multiplied,
        "peak_ms": 1000 * floor.flops / ceiling + copied + multiplied,
    }


def measure(name: str, fields: Plain, ladder: str, rung: str, recipe: Plain, out: Path) -> Result:
    """Time the step, trace it, then measure the ceilings. This order keeps their cuDNN algorithms out of the step.

    The caller holds the lock on the device.
    """
    from ladder.studies.roofline import ceilings

    begin, facts = time.monotonic(), system.facts("cuda")
    head = frame(name, fields, ladder, rung, recipe)
    floors = floors_of(fields, recipe)
    timed = distance.observe(fields, recipe)
    today = ceilings.measure(weigh(floors, fields), layout_of(recipe), tell=_tell)
    rates = recorded.load(facts["name"], out)
    rates.add(today.rates, "today")
    seconds = round(time.monotonic() - begin, 1)
    head |= {"machine": facts, "today": plain(today), "seconds": seconds}
    return _compare(head, floors, fields, recipe, rates, timed, today.rates)


def _compare(
    head: Plain,
    floors: Floors,
    fields: Plain,
    recipe: Plain,
    rates: recorded.Rates,
    timed: distance.Observed | Measured,
    kept: dict[str, float],
) -> Result:
    """Return the measurement beside its floor. The traced step's rates may lower the floor.

    ``recorded`` gets the highest of the traced rates and ``kept``.
    """
    precision, layout = recipe["precision"], layout_of(recipe)
    todo, matmul = amounts(floors, fields), rates.ceiling(precision).value
    seen = in_step.seen(todo, timed.families, precision, layout, matmul)
    rates.add(seen, "today")
    found = light(head, floors, fields, recipe, rates)
    measured = distance.split(timed, found.step)
    both = {key: max(each[key] for each in (kept, seen) if key in each) for key in kept | seen}
    return build(Result, plain(found) | {"recorded": both, "measured": plain(measured)})


def again(path: Path, out: Path) -> Result:
    """Return an earlier result with floors computed anew, from all rates on record and its own trace.

    The measured numbers stay, and so do the measurement's machine and commit.
    """
    from ladder.studies.roofline import schema

    try:
        before = build(Result, loading.load_kind(path, schema.KIND))
    except UserError as error:
        raise UserError(f"--again: {error}") from None
    from stylegan_lite.config import Recipe, Workload

    fields = {key: value for key, value in before.workload.items() if key != "name"}
    fields = dataclasses.asdict(Workload.from_dict(fields))
    recipe = Recipe.from_dict(before.recipe).to_dict()
    rates = recorded.Rates(before.machine.name)
    rates.add(before.today.rates, "today")  # first, so that they keep the source "today"
    rates.join(recorded.load(rates.gpu, out))
    rates.add(before.recorded, path.name)
    floors = floors_of(fields, recipe)
    found = _compare(plain(before), floors, fields, recipe, rates, before.measured, before.recorded)
    return dataclasses.replace(found, floors_commit=git.commit_of(ROOT)[0])


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{text[:100]}", nl=False, err=True)


def write(found: Result, out: Path) -> tuple[Result, list[Path]]:
    """Write `<machine>-<workload>-<ladder>-<rung>.json` and `.md`, keeping the highest rates of the file it replaces.

    Older files are named without ladder and rung. Their rates are read all the same. Return the result with all rates,
    and both paths.
    """
    name = (found.machine.name, found.workload["name"], found.ladder or "", found.rung)
    path = results.place(out / f"{'-'.join(map(texts.slug, name))}.json", plain(found))
    kept = recorded.Rates(found.gpu)
    kept.add(recorded.recorded(path, found.machine.name), path.name)
    kept.add(found.recorded, "today")
    found = dataclasses.replace(found, recorded={key: kept.known[key].value for key in sorted(kept.known)})
    return found, save(found, path)


def save(found: Light, path: Path) -> list[Path]:
    """Write the result and its page. Return both paths."""
    results.write(path, plain(found), exact=True)
    files.write(path.with_suffix(".md"), roofline_view.markdown(found))
    return [path, path.with_suffix(".md")]
