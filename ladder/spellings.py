"""The spellings of each op in plain PyTorch, timed: the table behind the baseline's choice.

Modulated convolution, resampling and instance norm can each be written several ways that compute the same thing. The
baseline must use the fastest in its own setting (FP32, NCHW), with all four phases weighted as in a cycle. The same
table in channels_last and in BF16 shows where the choice would change. Phases are timed alone, without data.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypedDict, cast

from ladder.base import locks
from ladder.base import text as texts
from ladder.base.paths import ROOT
from ladder.base.plain import Fields
from ladder.base.protocol import PHASES
from ladder.results import record

OUT = ROOT / "results" / "spellings"

SETTINGS: dict[str, Fields] = {
    "FP32 NCHW": {},
    "FP32 channels_last": {"channels_last": True},
    "BF16 channels_last": {"channels_last": True, "precision": "bf16"},
}
RESAMPLE = ("depthwise", "channels_as_batch", "bilinear", "folded", "subpixel")
MODCONV = ("grouped", "dense")
INSTANCE_NORM = ("functional", "var_mean")


def spellings(norm: str, setting: str) -> Iterator[dict[str, str]]:
    """Yield the recipes to compare: all in FP32 NCHW, else only dense modulation (grouped copies to NCHW)."""
    if norm == "instance":
        axes = {"instance_norm": INSTANCE_NORM, "resample": RESAMPLE}
    else:
        axes = {"modconv": MODCONV if setting == "FP32 NCHW" else ("dense",), "resample": RESAMPLE}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


class Row(TypedDict):
    """One spelling in one setting, and its times or the reason why it has none."""

    setting: str
    spelling: dict[str, str]
    ms: dict[str, float] | None  # of each phase, of "main" and of "step"
    reason: str | None


class Spellings(record.Header):
    """The whole table, as its file has it."""

    kind: str
    workload: Fields
    rows: list[Row]


def time_phases(workload: Fields, recipe: Fields, device: str, seconds: float) -> dict[str, float]:
    """Return the median milliseconds of each phase, timed about ``seconds`` after a warm-up.

    Each call is synchronized. Also returns ``main`` (G_main + D_main) and ``step`` (a cycle's mean with the lazy
    phases at their intervals).
    """
    import torch

    from stylegan_lite import make_step

    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    step = make_step(workload | {"data": None}, recipe, device=device)
    try:
        step.prepare()
        step.feed.next()
        times: dict[str, float] = {}
        for phase in PHASES:
            samples: list[float] = []
            step.run_phase(phase)
            synchronize()
            until = time.perf_counter() + seconds
            while not samples or (time.perf_counter() < until and len(samples) < 20):
                start = time.perf_counter()
                step.run_phase(phase)
                synchronize()
                samples.append((time.perf_counter() - start) * 1e3)
            times[phase] = statistics.median(samples)
        times["main"] = times["G_main"] + times["D_main"]
        w = step.workload
        times["step"] = times["main"] + times["G_pl"] / w.pl_interval + times["D_r1"] / w.r1_interval
        return times
    finally:
        step.close()


def table(
    workload: Fields,
    device: str,
    *,
    settings: list[str] | None = None,
    seconds: float = 0.5,
    on_row: Callable[[Row], None] | None = None,
) -> list[Row]:
    """Return a row for each spelling in each setting. ``on_row`` gets each row."""
    import torch

    rows = []
    for setting in settings or list(SETTINGS):
        for spelling in spellings(str(workload.get("norm", "demod")), setting):
            row: Row = {"setting": setting, "spelling": spelling, "ms": None, "reason": None}
            try:
                row["ms"] = time_phases(workload, {**SETTINGS[setting], **spelling}, device, seconds)
            except (
                RuntimeError,
                NotImplementedError,
            ) as error:  # out of memory, or an op that PyTorch lacks here
                row["reason"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
            if device == "cuda":
                torch.cuda.empty_cache()
            rows.append(row)
            if on_row:
                on_row(row)
    return rows


def result(
    workload_name: str,
    workload: Fields,
    device: str,
    on_row: Callable[[Row], None] | None = None,
) -> Spellings:
    """Return the whole table with the machine's facts and the commit, as it is stored."""
    from ladder.machine import system as machine

    begin, named = time.monotonic(), {"name": workload_name, **workload, "data": None}
    made = record.header("spellings", machine.facts(device), named)
    with locks.device_lock(machine.device_key(device)):
        rows = table(workload, device, on_row=on_row)
    seconds = round(time.monotonic() - begin, 1)
    return cast(Spellings, made | {"rows": rows, "complete": True, "seconds": seconds})


def markdown(data: Spellings) -> str:
    """Return the rows as one Markdown table for each setting, fastest cycle first, the fastest in bold."""
    machine = data["machine"]
    where = f"{machine['gpu'] or machine['cpu']}, PyTorch {machine['torch']}"
    workload = data["workload"]
    lines = [
        f"# Spellings of the same step: {workload['name']} on {where}",
        "",
        f"{workload['resolution']}x{workload['resolution']}, batch {workload['batch']}, norm {workload['norm']}."
        " Milliseconds, each phase alone, synchronized, without data; step = G_main + D_main +"
        f" G_pl / {workload['pl_interval']} + D_r1 / {workload['r1_interval']}.",
    ]
    for setting in SETTINGS:
        rows = [row for row in data["rows"] if row["setting"] == setting]
        rows.sort(key=lambda row: row["ms"]["step"] if row["ms"] else float("inf"))
        if not rows:
            continue
        axes = list(rows[0]["spelling"])
        lines += ["", f"## {setting}", "", "| " + " | ".join([*axes, *PHASES, "main", "step"]) + " |"]
        lines.append("|" + "---|" * len(axes) + "---:|" * 6)
        for place, row in enumerate(rows):
            cells = [str(row["spelling"][axis]) for axis in axes]
            if row["ms"] is None:
                cells += [row["reason"].replace("|", "/")] + [""] * 5
            else:
                cells += [f"{row['ms'][key]:.1f}" for key in (*PHASES, "main", "step")]
                cells[-1] = f"**{cells[-1]}**" if place == 0 else cells[-1]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def measure(workload_name: str, workload: Fields, device: str) -> list[Path]:
    """Measure the table with a line a row on stderr and write it. Return the JSON and the Markdown file."""
    import click

    from ladder.results import store

    def say(row: Row) -> None:
        step = f"{row['ms']['step']:8.1f} ms/step" if row["ms"] else row["reason"]
        click.echo(
            f"{row['setting']:<20} {' '.join(map(str, row['spelling'].values())):<30} {step}", err=True
        )

    data = result(workload_name, workload, device, say)
    stem = f"{texts.slug(data['machine']['name'])}-{texts.slug(workload_name)}"
    return store.save(data, OUT, {"md": markdown(data)}, stem=stem, exact=True)
