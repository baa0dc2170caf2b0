"""A result as it is shown: what table, Markdown, CSV and chart have in common.

A result may come from a stranger: its text is reduced to one printable line, and numbers that are not
numbers are shown as missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ladder import catalog

GIB = 2**30
QUICK = "quick: not to be quoted"
PARTIAL = "incomplete: the run was interrupted"
ARTICLE = "one A100"


@dataclass(frozen=True)
class Row:
    """One rung as it is shown. Times in ms a step, memory in GiB, shares 0..1; None where there is no number."""

    name: str
    title: str
    status: str
    reason: str
    step_ms: float | None
    interval: tuple[float, float] | None  # 95 %, over rounds
    previous: float | None  # speedup against the last rung with a number
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
    baseline: str | None
    rows: tuple[Row, ...]


def view(result: dict[str, Any]) -> View:
    """Everything that table and chart show of one result."""
    records = result["rungs"]
    on_cpu = result["machine"].get("device") == "cpu"
    base = result.get("baseline")
    article_base = next((_number(rung.get("article_ms")) for rung in records if rung["name"] == base), None)
    rows = tuple(_row(rung, article_base, on_cpu) for rung in records)
    protocol = result["protocol"]
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
        baseline=base,
        rows=rows,
    )


def _row(rung: dict[str, Any], article_base: float | None, on_cpu: bool) -> Row:
    article_ms = _number(rung.get("article_ms"))
    interval = rung.get("interval_ms")
    if not (isinstance(interval, list) and len(interval) == 2 and all(_number(x) for x in interval)):
        interval = None
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
        interval=tuple(interval) if interval and ok else None,
        previous=_number(rung["speedup_previous"]),
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
