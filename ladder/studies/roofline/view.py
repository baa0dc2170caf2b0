"""The tables of a roofline for terminal and Markdown: ceilings, then phases, then families of kernels."""

from __future__ import annotations

from ladder.base.records import ABSENT
from ladder.results.parts import OVERLAP
from ladder.studies.roofline import distance, in_step
from ladder.studies.roofline.in_step import Group
from ladder.studies.roofline.schema import Convolution, Light, Measured

MOST_FAMILIES = 24
UNSEEN_MS = 0.005  # shown as 0.00
NAMES = {"copy": "copy, TB/s", "matmul bf16": "matmul BF16, TFLOP/s", "matmul tf32": "matmul TF32, TFLOP/s"}
NAMES |= {"matmul fp32": "matmul FP32, TFLOP/s"}

Table = list[list[str]]  # the first row is the head


def text(found: Light) -> str:
    return "\n\n".join([title(found), *map(_plain, tables(found)), *notes(found)])


def markdown(found: Light) -> str:
    """Return the tables as a Markdown page."""
    return "\n\n".join([f"# {title(found)}", *map(_piped, tables(found)), *map(_cell, notes(found))]) + "\n"


def title(found: Light) -> str:
    w, recipe = found.workload, found.recipe
    how = f"{recipe['precision'].upper()} {found.layout}"
    of = f" of ladder {found.ladder}" if found.ladder else ""
    return (
        f"Roofline of {w['name']} ({w['resolution']}x{w['resolution']}, batch {w['batch']}), rung {found.rung}"
        f"{of}, {how}, on {found.gpu}"
    )


def tables(found: Light) -> list[Table]:
    made = [ceilings(found), phases(found), floor(found)]
    return [*made, groups(found), shares(found)] if found.measured else made


def ceilings(found: Light) -> Table:
    """Return the highest rates and today's. Convolutions show their unweighted range over shapes."""
    today = found.today.rates if found.today else {}
    rows = [["ceiling", "highest", "recorded by", "today"]]
    for key, rate in found.ceilings.items():
        now = f"{today[key] / 1e12:.2f}" if key in today else "-"
        rows.append([NAMES[key], f"{rate.value / 1e12:.2f}", rate.source, now])
    for kind in ("forward", "input gradient", "weight gradient"):
        mine = [row for row in found.convolutions if row.name.startswith(f"{kind}, ")]
        heavy = [row for row in mine if row.flops >= 0.01 * sum(r.flops for r in mine)]
        if not mine:
            continue
        known = sum(row.flops for row in mine if not row.source.startswith("not measured"))
        share = known / sum(row.flops for row in mine)
        now = [today[row.name] for row in heavy if row.name in today]
        rows.append(
            [
                f"convolution {kind}, TFLOP/s",
                _range([row.rate for row in heavy]),
                f"{share:.0%} of the FLOPs measured",
                _range(now),
            ]
        )
    return rows


def phases(found: Light) -> Table:
    measured = found.measured
    rows = [["", "TFLOP", "convolutions ms", "bytes ms", "matmuls ms", "light ms", "at matmul rate ms"]]
    rows[0] += ["measured ms", "x light"] if measured else []
    times = {} if measured is None else measured.phases_ms | {"step": measured.step_ms}
    for name, p in (found.phases | {"step": found.step}).items():
        row = [name, f"{p['flops'] / 1e12:.2f}"]
        row += [
            f"{p[key]:.2f}" for key in ("convolutions_ms", "bytes_ms", "matmul_ms", "light_ms", "peak_ms")
        ]
        if name in times:
            row += [f"{times[name]:.2f}", f"{times[name] / p['light_ms']:.2f}"]
        elif measured:  # its graph includes other phases
            row += ["-", "-"]
        rows.append(row)
    return rows


def floor(found: Light) -> Table:
    """Return the step's bytes by purpose, in MB."""
    step = found.step
    keys = [key for key in step if key.endswith("_bytes")]
    return [
        ["MB a step", *(key.removesuffix("_bytes").replace("_", " ") for key in keys), "in all"],
        ["", *(f"{step[key] / 1e6:.0f}" for key in keys), f"{step['bytes'] / 1e6:.0f}"],
    ]


def parts(measured: Measured) -> dict[str, Group]:
    """Return the groups, and below zero what ran at the same time as another kernel: each instant counts once.

    A group holds all milliseconds of its kernels. On parallel streams they are more than the step has.
    """
    made = dict(measured.groups)
    twice = sum(made[name].ms for name in (in_step.CONVOLUTIONS, in_step.OTHERS)) - measured.busy_ms
    if twice > UNSEEN_MS:
        gap = measured.distance_ms
        made[OVERLAP] = Group(ms=-twice, floor_ms=0.0, of_distance=-twice / gap if gap else None)
    return made


def groups(found: Light) -> Table:
    rows = [["a step's time", "ms", "floor ms", "of the distance"]]
    for name, group in parts(found.measured).items():
        rows.append([name, f"{group.ms:.2f}", f"{group.floor_ms:.2f}", _percent(group.of_distance)])
    return rows


def shares(found: Light) -> Table:
    rows = [["kernels", "us a step", "kernels a step", "of the step", "of the distance", "heaviest"]]
    for row in found.measured.families[:MOST_FAMILIES]:
        numbers = [f"{row.us:.0f}", f"{row.kernels:.0f}", _percent(row.of_step)]
        rows.append([row.family, *numbers, _percent(row.of_distance), row.heaviest])
    return rows


def notes(found: Light) -> list[str]:
    """Return the notes that a reader needs, one line each."""
    lines = _unmeasured(found.convolutions)
    if found.measured is None:
        lines.append("Nothing was measured here: floors from recorded rates.")
    else:
        m = found.measured
        lines.append(
            f"A step takes {m.step_ms:.2f} ms, {m.times_light:.2f} times the floor"
            f" ({found.step['light_ms']:.2f} ms); {m.distance_ms:.2f} ms lie between."
        )
        lines += scored(found)
        lines += [
            f"In a traced step ({low.source}) {part} took {low.ms:.2f} ms where the ceilings alone ask for"
            f" {low.alone_ms:.2f}: that is their floor."
            for part, low in (found.in_step or {}).items()
        ]
        lines += [f"Below its floor, so this is none: {name}." for name in in_step.below(m.groups)]
        if m.phases_ms and found.recipe.get("whole_step_graph") is True:
            lines.append("Phases were timed in a second step, in which each is a graph of its own.")
        if found.floors_commit is not ABSENT:
            lines.append(
                f"Measured at commit {_commit(found.commit)}; floors as commit"
                f" {_commit(found.floors_commit)} computes them."
            )
        if found.today and (skipped := found.today.skipped):
            lines.append(f"Not measured today: {len(skipped)} shapes ({next(iter(skipped.values()))}).")
    return lines


def scored(found: Light) -> list[str]:
    """Return the line on the speed-of-light score; none for a machine and workload without frozen times."""
    if found.measured is None or (known := distance.frozen(found.gpu, found.workload)) is None:
        return []
    step_ms, light_ms = found.measured.step_ms, found.step["light_ms"]
    fixed, today = (distance.scored(step_ms, known.base_ms, ms) for ms in (known.floor_ms, light_ms))
    told = "none, the step is below the floor" if fixed is None else f"{fixed:.3f}"
    beside = "none" if today is None else f"{today:.3f}"
    return [
        f"Speed-of-light score: {told} (1 at the floor, 0.5 at the base), by the floor of {known.floor_ms:.2f} ms"
        f" frozen on {known.since} and a base of {known.base_ms:.2f} ms; {beside} by today's floor of"
        f" {light_ms:.2f} ms."
    ]


def _unmeasured(rows: list[Convolution]) -> list[str]:
    whole = sum(row.flops for row in rows)
    guessed = sum(row.flops for row in rows if row.source.startswith("not measured"))
    if not guessed:
        return []
    return [
        f"{guessed / whole:.0%} of the convolutions' FLOPs are of shapes that nobody has measured: they take the"
        " highest rate of their kind, so the floor can be too low, not too high."
    ]


def _commit(name: str | None) -> str:
    return "unknown" if name is None else name[:10]


def _range(values: list[float]) -> str:
    if not values:
        return "-"
    low, high = min(values) / 1e12, max(values) / 1e12
    return f"{low:.0f} to {high:.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _plain(table: Table) -> str:
    widths = [max(len(row[k]) for row in table if k < len(row)) for k in range(len(table[0]))]
    lines = []
    for row in table:
        cells = [
            cell.ljust(widths[k]) if k == 0 or not _number(table, k) else cell.rjust(widths[k])
            for k, cell in enumerate(row)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _number(table: Table, column: int) -> bool:
    return all(row[column][:1].isdigit() or row[column][:1] in "-" for row in table[1:] if column < len(row))


def _piped(table: Table) -> str:
    head, *rows = table
    rule = ["---:" if k and _number(table, k) else "---" for k in range(len(head))]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (head, rule, *rows))


def _cell(text: str) -> str:
    """Escape a cell. A rate's source may be the name of a file that a stranger sent."""
    return text.replace("|", "/").replace("&", "&amp;").replace("<", "&lt;")
