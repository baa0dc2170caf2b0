"""A result as it is shown: what table, Markdown, CSV and chart have in common.

A result may come from a stranger: its text is reduced to one printable line, and numbers that are not
numbers are shown as missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ladder import catalog, modes, verdicts

GIB = 2**30
QUICK = "quick: not to be quoted"
PARTIAL = "incomplete: the run was interrupted"
ARTICLE = "one A100"
VERSUS = {
    modes.CUMULATIVE: "vs previous",
    modes.SOLO: "alone",
    modes.LEAVE_ONE_OUT: "gain at top",
}


@dataclass(frozen=True)
class Row:
    """One rung as it is shown. Times in ms a step, memory in GiB, shares 0..1; None where there is no number."""

    name: str
    title: str
    status: str
    reason: str
    step_ms: float | None
    interval: tuple[float, float] | None  # 95 %, over rounds
    previous: float | None  # speedup against the last rung with a number, or what the mode compares it with
    gain: tuple[float, float] | None  # interval of `previous`, by which the verdict was made
    verdict: str  # "" where none was made
    top_gain: float | None  # at the top: the whole ladder without it / with it
    top_interval: tuple[float, float] | None
    advice: str  # ADOPT, SKIP, NO DIFFERENCE, ambiguous; "" where it was not left out
    total: float | None  # against the baseline
    main_ms: float | None  # without the lazy regularization phases
    main_total: float | None
    host_bound: float | None
    images_per_s: float | None
    memory: float | None
    article_ms: float | None
    article_total: float | None  # the article's speedup against the same rung as `total`
    notes: tuple[str, ...]


@dataclass(frozen=True)
class View:
    """A result as it is shown: rows, and the words around them."""

    machine: str
    workload: str
    protocol: str
    marks: tuple[str, ...]  # why not to quote it, if so
    remarks: tuple[str, ...]  # what a reader must know: baseline, reasons, notes
    reference: str
    memory: str  # what the memory column means
    title: str
    quick: bool
    mode: str
    versus: str  # heading of `previous`
    noise: str  # noise floors and resolution, in a line; "" where there were no twins
    baseline: str | None
    rows: tuple[Row, ...]


def view(result: dict[str, Any]) -> View:
    """Everything that table and chart show of one result."""
    records = result["rungs"]
    on_cpu = result["machine"].get("device") == "cpu"
    base = result.get("baseline")
    article_base = next((_number(rung.get("article_ms")) for rung in records if rung["name"] == base), None)
    protocol = result["protocol"]
    mode = protocol.get("mode") if protocol.get("mode") in VERSUS else modes.CUMULATIVE
    top = top_gains(result) if mode == modes.LEAVE_ONE_OUT else result.get("at_top", {})
    rows = tuple(
        _row(rung, article_base, on_cpu, top.get(rung["name"]), mode == modes.CUMULATIVE) for rung in records
    )
    quick = bool(protocol.get("quick"))
    marks = ((QUICK,) if quick else ()) + (() if result["complete"] else (PARTIAL,))
    return View(
        machine=_machine(result["machine"]),
        workload=_workload(result["workload"]),
        protocol=_protocol(result, protocol),
        marks=marks,
        remarks=tuple(_remarks(rows, base, article_base)),
        reference=_reference(result["ladder"]),
        memory="peak RSS, GiB" if on_cpu else "peak GiB",
        title=plain(result["ladder"].get("title") or result["ladder"]["name"]),
        quick=quick,
        mode=mode,
        versus=VERSUS[mode],
        noise=_noise(result),
        baseline=base,
        rows=rows,
    )


def top_gains(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """From a leave-one-out result: for each rung its gain at the top, interval, and what to do about it."""
    found = {}
    for rung in result["rungs"]:
        gain = rung.get("gain")
        if isinstance(gain, dict) and rung.get("verdict") in modes.ADVICE:
            gained = {"gain": gain.get("ratio"), "interval": gain.get("interval")}
            found[rung["name"]] = {**gained, "advice": modes.ADVICE[rung["verdict"]]}
    return found


def _row(
    rung: dict[str, Any],
    article_base: float | None,
    on_cpu: bool,
    top: dict[str, Any] | None,
    staircase: bool,
) -> Row:
    article_ms = _number(rung.get("article_ms"))
    interval = _pair(rung.get("interval_ms"))
    gain = rung.get("gain") if isinstance(rung.get("gain"), dict) else {}
    verdict = rung.get("verdict") if rung.get("verdict") in modes.ADVICE else ""
    top = top or {}
    ok = rung["status"] == "ok"
    peak = _number(rung.get("peak_reserved_bytes"))
    if peak is None and on_cpu:
        rounds = [r for r in rung["rounds"] if isinstance(r, dict)]
        peak = max((x for x in (_number(r.get("peak_rss_bytes")) for r in rounds) if x), default=None)
    notes = rung.get("notes")
    return Row(
        name=plain(rung["name"]),
        title=plain(rung.get("title") or rung["name"]),
        status=rung["status"],
        reason=plain(rung.get("reason") or ""),
        step_ms=_number(rung["step_ms"]) if ok else None,
        interval=interval if ok else None,
        previous=_number(gain.get("ratio")) or (_number(rung["speedup_previous"]) if staircase else None),
        gain=_pair(gain.get("interval")),
        verdict=verdict,
        top_gain=_number(top.get("gain")),
        top_interval=_pair(top.get("interval")),
        advice=top.get("advice", ""),
        total=_number(rung["speedup_total"]),
        main_ms=_number(rung["main_ms"]),
        main_total=_number(rung["main_speedup_total"]),
        host_bound=_number(rung.get("host_bound"), zero=True),
        images_per_s=_number(rung["images_per_s"]),
        memory=None if peak is None else peak / GIB,
        article_ms=article_ms,
        article_total=article_base / article_ms if article_base and article_ms else None,
        notes=tuple(plain(note) for note in notes) if isinstance(notes, list) else (),
    )


def _noise(result: dict[str, Any]) -> str:
    """`noise floor 1.8% (host-bound rungs), 0.04% (GPU-bound rungs); differences from 2.9% and 0.3% on are seen`."""
    found = result.get("noise") if isinstance(result.get("noise"), dict) else {}
    said = []
    for kind, of in (("host", "host-bound rungs"), ("gpu", "GPU-bound rungs")):
        floor = _number(found[kind].get("floor"), zero=True) if isinstance(found.get(kind), dict) else None
        if floor is not None:
            seen = _number(found[kind].get("resolution"))
            resolved = f", differences from {percent(seen)} on are seen" if seen else ""
            of = of if result["machine"].get("device") == "cuda" else "CPU"
            said.append(f"{percent(floor)} ({of}{resolved})")
    return f"noise floor {'; '.join(said)}" if said else ""


def shown_gain(row: Row) -> str:
    """The factor a rung gains; nothing where it lies inside the noise, whatever its sign."""
    return "" if row.verdict == verdicts.NO_GAIN else factor(row.previous)


def between(interval: tuple[float, float] | None) -> str:
    """An interval of factors, fine enough for a quarter of a percent: 0.998-1.003x."""
    return f"{interval[0]:.3f}-{interval[1]:.3f}x" if interval else ""


def percent(share: float) -> str:
    """A share as percent with two digits that mean something."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _pair(value: object) -> tuple[float, float] | None:
    if isinstance(value, list) and len(value) == 2 and all(_number(x) for x in value):
        return float(value[0]), float(value[1])
    return None


def _reference(ladder: dict[str, Any]) -> str:
    """Whose `article_ms` they are."""
    known = ladder.get("reference")
    if known is None and ladder["name"] in catalog.ladders():
        known = catalog.load_ladder(ladder["name"]).reference
    return plain(known) if isinstance(known, str) else ARTICLE


def _machine(machine: dict[str, Any]) -> str:
    memory = _number(machine.get("gpu_memory_gb"))
    parts = [str(machine.get("gpu") or machine.get("cpu") or machine["name"])]
    if machine.get("gpu"):
        parts.append(f"{memory:.0f} GiB" if memory else "")
    elif machine.get("cores"):
        parts.append(f"{machine['cores']} core{'s' if machine['cores'] != 1 else ''}")
    parts.append(f"PyTorch {machine['torch']}" if machine.get("torch") else "")
    parts.append(f"CUDA {machine['cuda']}" if machine.get("cuda") else "")
    return plain(", ".join(part for part in parts if part))


def _workload(workload: dict[str, Any]) -> str:
    resolution, batch = workload.get("resolution"), workload.get("batch")
    return plain(f"{workload['name']}: {resolution}x{resolution}, batch {batch}, {workload.get('norm')}")


def _protocol(result: dict[str, Any], protocol: dict[str, Any]) -> str:
    commit = result.get("commit")
    at = f"commit {commit[:10]}{' with changes' if result.get('dirty') else ''}, " if commit else ""
    rounds, cycles = protocol.get("rounds"), protocol.get("cycles")
    return plain(
        f"median of {rounds} round{'s' if rounds != 1 else ''} of {cycles} timed cycle{'s' if cycles != 1 else ''}"
        f" (16 steps each), lazy regularization included; {at}{result['started'][:10]}"
    )


def _remarks(rows: tuple[Row, ...], base: str | None, article_base: float | None) -> list[str]:
    remarks = []
    if base is None:
        remarks.append("no rung has a number")
    elif base != "baseline":
        there = any(row.name == "baseline" for row in rows)
        why_not = "the baseline has no number here" if there else "the baseline was not measured"
        remarks.append(f"speedups refer to {plain(base)}: {why_not}")
        if article_base is None and any(row.article_ms for row in rows):
            remarks.append(f"the article has no number for {plain(base)}, so none of its speedups are shown")
    why: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != "ok":
            why.setdefault((row.status, row.reason), []).append(row.name)
    for (status, reason), names in why.items():
        remarks.append(f"{', '.join(names)}: {status}{': ' + reason if reason else ''}")
    said: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes:
            said.setdefault(note, []).append(row.name)
    return remarks + [f"{', '.join(names)}: {note}" for note, names in said.items()]


def plain(text: object) -> str:
    """Display text in one line: control and direction characters gone, at most 200 characters."""
    kept = "".join(c if c.isprintable() else " " for c in str(text))
    return " ".join(kept.split())[:200]


def ms(value: float | None) -> str:
    """Milliseconds with the digits that mean something: 312, 90.4, 27.31."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def factor(value: float | None) -> str:
    """A speedup: 1.18x."""
    return "" if value is None else f"{value:.2f}x"


def amount(value: float | None) -> str:
    """Images a second, GiB: three digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _number(value: object, zero: bool = False) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value) if value > 0 or (zero and value == 0) else None
    return None
