"""A result as it is shown: what table, Markdown, CSV and chart have in common.

A result may come from a stranger: its text is reduced to one printable line, and numbers that are not
numbers are shown as missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ladder.base.text import at_commits, factor, number, pair, percent, plain
from ladder.machine import environment
from ladder.plan import catalog, modes
from ladder.report import checks
from ladder.results import record, sources
from ladder.results import store as results
from ladder.results.judging import top_gains
from ladder.results.publishable import publishable
from ladder.stats import verdicts

GIB = 2**30
ARTICLE = "one A100"
LAZY = {"G_pl": "path length", "D_r1": "R1"}
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
    total_interval: tuple[float, float] | None  # 95 %, over rounds
    floor: float | None  # noise of the rung's kind, a share
    receipts: str  # "ok", "not engaged"; "" where there are none
    parity: str  # "0.41 of budget", "failed"; "" where it was not checked
    parity_share: float | None
    rejected: int | None  # visits that were void and repeated
    main_ms: float | None  # without the lazy regularization phases
    main_total: float | None
    host_bound: float | None
    images_per_s: float | None
    memory: float | None  # most that the allocator reserved; on a CPU resident
    allocated: float | None  # most that was allocated of it
    device: float | None  # in use on the whole GPU after timing
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
    visits: int
    rejected: int | None  # visits of the whole run, None where nobody watched
    noise: str  # noise floors and resolution, in a line
    baseline: str | None
    rows: tuple[Row, ...]


def view(result: dict[str, Any]) -> View:
    """Everything that table and chart show of one result."""
    records = result["rungs"]
    on_cpu = result["machine"].get("device") == "cpu"
    base = result.get("baseline")
    article_base = next((number(rung.get("article_ms")) for rung in records if rung["name"] == base), None)
    protocol = result["protocol"]
    mode = protocol.get("mode") if protocol.get("mode") in VERSUS else modes.CUMULATIVE
    top = top_gains(result) if mode == modes.LEAVE_ONE_OUT else result.get("at_top", {})
    rows = tuple(
        _row(rung, article_base, on_cpu, top.get(rung["name"]), mode, _floor(rung)) for rung in records
    )
    quick = bool(protocol.get("quick"))
    return View(
        machine=_machine(result["machine"]),
        workload=_workload(result["workload"]),
        protocol=_protocol(result, protocol),
        marks=tuple(map(plain, publishable(result))),
        remarks=(
            *_remarks(rows, base, article_base, mode),
            *_unmeasured(result, mode),
            *_lazy(records),
            *map(plain, environment.said(result.get(environment.KEY))),
        ),
        reference=_reference(result["ladder"]),
        memory="peak RSS, GiB" if on_cpu else "reserved GiB",
        title=plain(result["ladder"].get("title") or result["ladder"]["name"]),
        quick=quick,
        mode=mode,
        versus=VERSUS[mode],
        visits=sum(len(rung["rounds"]) for rung in [*records, *_twins(result)]),
        rejected=_rejected(result),
        noise=_noise(result),
        baseline=base,
        rows=rows,
    )


def _row(
    rung: dict[str, Any],
    article_base: float | None,
    on_cpu: bool,
    top: dict[str, Any] | None,
    mode: str,
    floor: float | None,
) -> Row:
    article_ms = number(rung.get("article_ms"))
    interval = pair(rung.get("interval_ms"))
    gain = rung.get("gain") if isinstance(rung.get("gain"), dict) else {}
    verdict = rung.get("verdict") if rung.get("verdict") in modes.ADVICE else ""
    top = top or {}
    ok = rung["status"] == "ok"
    rounds = [r for r in rung["rounds"] if isinstance(r, dict)]
    peak = number(rung.get("peak_reserved_bytes"))
    if peak is None and on_cpu:
        peak = _most(rounds, "peak_rss_bytes")
    allocated, device = number(rung.get("peak_allocated_bytes")), _most(rounds, "device_used_bytes")
    whole = (
        mode != modes.LEAVE_ONE_OUT
    )  # there the base is not measured, and `total` would only be the gain's inverse
    rejected = [r["rejected"] for r in rounds if isinstance(r.get("rejected"), list)]
    notes = rung.get("notes")
    return Row(
        name=plain(rung["name"]),
        title=plain(rung.get("title") or rung["name"]),
        status=rung["status"],
        reason=plain(rung.get("reason") or ""),
        step_ms=number(rung["step_ms"]) if ok else None,
        interval=interval if ok else None,
        previous=number(gain.get("ratio"))
        or (number(rung["speedup_previous"]) if mode == modes.CUMULATIVE else None),
        gain=pair(gain.get("interval")),
        verdict=verdict,
        top_gain=number(top.get("gain")),
        top_interval=pair(top.get("interval")),
        advice=top.get("advice", ""),
        total=number(rung["speedup_total"]) if whole else None,
        total_interval=pair(rung.get("total_interval")) if whole else None,
        floor=floor if verdict else None,
        receipts=checks.receipts_word(rung),
        parity=checks.parity_word(rung),
        parity_share=checks.parity_share(rung),
        rejected=sum(map(len, rejected)) if rejected else None,
        main_ms=number(rung["main_ms"]),
        main_total=number(rung["main_speedup_total"]) if whole else None,
        host_bound=number(rung.get("host_bound"), zero=True),
        images_per_s=number(rung["images_per_s"]),
        memory=peak and peak / GIB,
        allocated=allocated and allocated / GIB,
        device=device and device / GIB,
        article_ms=article_ms,
        article_total=article_base / article_ms if article_base and article_ms else None,
        notes=tuple(plain(note) for note in notes) if isinstance(notes, list) else (),
    )


def _most(rounds: list[dict[str, Any]], key: str) -> float | None:
    return max((value for r in rounds if (value := number(r.get(key)))), default=None)


def _floor(rung: dict[str, Any]) -> float | None:
    """The noise floor that a rung was judged by."""
    gain = rung.get("gain") if isinstance(rung.get("gain"), dict) else {}
    return number(gain.get("floor"), zero=True)


def _twins(result: dict[str, Any]) -> list[dict[str, Any]]:
    twins = result.get("twins")
    found = [twin for twin in twins if isinstance(twin, dict)] if isinstance(twins, list) else []
    return [twin for twin in found if isinstance(twin.get("rounds"), list)]


def _rejected(result: dict[str, Any]) -> int | None:
    gpu = result.get("gpu") if isinstance(result.get("gpu"), dict) else {}
    count = number(gpu.get("rejected_visits"), zero=True)
    return None if count is None else int(count)


def _noise(result: dict[str, Any]) -> str:
    """`noise floor 1.8% (host-bound rungs), 0.04% (GPU-bound rungs); differences from 2.9% and 0.3% on are seen`."""
    found = result.get("noise") if isinstance(result.get("noise"), dict) else {}
    said = []
    for kind, of in (("host", "host-bound rungs"), ("gpu", "GPU-bound rungs")):
        floor = number(found[kind].get("floor"), zero=True) if isinstance(found.get(kind), dict) else None
        if floor is not None:
            seen = number(found[kind].get("resolution"))
            resolved = f", differences from {percent(seen)} on are seen" if seen else ""
            of = of if result["machine"].get("device") == "cuda" else "CPU"
            said.append(f"{percent(floor)} ({of}{resolved})")
    assumed = {gain.get("floor") for gain in _gains(result, verdicts.HOST)} if "host" not in found else set()
    if said and any(number(floor) == verdicts.HOST_FLOOR for floor in assumed):
        said.append(f"{percent(verdicts.HOST_FLOOR)} (host-bound rungs, assumed: none of them has a twin)")
    if said:
        return f"noise floor {'; '.join(said)}; what lies inside reads no measurable gain"
    several = sum(rung["status"] == "ok" for rung in result["rungs"]) > 1
    return f"no verdicts: {_no_twins(result)}, so the noise is unknown" if several else ""


def _no_twins(result: dict[str, Any]) -> str:
    """Why nothing is known of the noise, where no floor could be made of the twins."""
    timed, why = [rung["name"] for rung in result["rungs"] if rung["status"] == "ok"], []
    for twin in _twins(result):
        of, ended, reason = twin.get("of"), twin.get("status"), twin.get("reason")
        if ended in results.OUT:
            why.append(f"the twin of {of} is out ({ended}{f': {reason}' if reason else ''})")
        elif twin["rounds"] and of not in timed:
            why.append(f"{of} has a twin and no number itself")
        elif twin["rounds"]:
            why.append(f"the twin of {of} has too few rounds")
    return "; ".join(map(plain, why)) or "no twin was measured"


def _gains(result: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the gains of the rungs of one kind."""
    return [r["gain"] for r in result["rungs"] if r.get("kind") == kind and isinstance(r.get("gain"), dict)]


def shown_gain(row: Row) -> str:
    """Return the factor that a rung gains; nothing where it lies inside the noise, whatever its sign."""
    return "" if row.verdict == verdicts.NO_GAIN else factor(row.previous)


def shown_top(row: Row) -> str:
    """Return the factor that a rung gains at the top; nothing inside the noise."""
    return "" if row.advice == modes.ADVICE[verdicts.NO_GAIN] else factor(row.top_gain)


def _reference(ladder: dict[str, Any]) -> str:
    """Return whose `article_ms` the ladder quotes."""
    known = ladder.get("reference")
    if known is None and ladder["name"] in catalog.ladders():
        known = catalog.load_ladder(ladder["name"]).reference
    return plain(known) if isinstance(known, str) else ARTICLE


def _machine(machine: dict[str, Any]) -> str:
    memory = number(machine.get("gpu_memory_gb"))
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
    norms = f"{workload.get('norm')}{', spectral norm' if workload.get('spectral_norm') else ''}"
    return plain(f"{workload['name']}: {resolution}x{resolution}, batch {batch}, {norms}")


def _protocol(result: dict[str, Any], protocol: dict[str, Any]) -> str:
    at = at_commits(sources.commits(result), result.get("dirty"))
    at += ", " if at else ""
    cycles = protocol.get("cycles")
    return plain(
        f"{_rounds(result)} of {cycles} timed cycle{'s' if cycles != 1 else ''}"
        f" (16 steps each), lazy regularization included; {at}{result['started'][:10]}"
    )


def _rounds(result: dict[str, Any]) -> str:
    """How many rounds the numbers are made of: `median of 2 to 3 rounds`. A run that was stopped planned more."""
    timed = [rung for rung in result["rungs"] if rung["status"] == "ok"]
    there = [[each for each in rung["rounds"] if isinstance(each, dict)] for rung in timed]
    counts = [sum(not record.void_memory(each) for each in rounds) for rounds in there]
    most = max(counts, default=0) or result["protocol"].get("rounds")
    said = f"{min(counts)} to {most}" if counts and 0 < min(counts) < most else f"{most}"
    said += f" round{'s' if most != 1 else ''}"
    said += f" (of {len(result['merged'])} runs)" if result.get("merged") else ""
    return f"median of {said}" if timed else f"{said} planned, none with a number,"


def _unmeasured(result: dict[str, Any], mode: str) -> list[str]:
    """Name the unmeasured rungs (`--rungs`) that a shown rung contains beside the one before it."""
    ladder, names = result["ladder"]["name"], {rung["name"] for rung in result["rungs"]}
    if mode != modes.CUMULATIVE or ladder not in catalog.ladders():
        return []
    others = [rung.name for rung in catalog.load_ladder(ladder).rungs if rung.name not in names]
    # How many loaders there are depends on the machine, and this may be another one.
    changes = {
        name: {k: v for k, v in catalog.load_rung(name).change.items() if k != "workers"} for name in others
    }
    lines, below = [], set[str]()
    for rung in result["rungs"]:
        recipe = rung.get("recipe")
        if rung["status"] == "ok" and isinstance(recipe, dict):
            there = [name for name in others if changes[name] and changes[name].items() <= recipe.items()]
            if more := [name for name in there if name not in below]:
                lines.append(f"part of {plain(rung['name'])} and not measured here: {', '.join(more)}")
            below |= {*there}
    return lines


def _lazy(records: list[dict[str, Any]]) -> list[str]:
    """Say how much lazy phases add to a step that has them, for the first and the last rung that know it."""
    lines = []
    found = {rung["name"]: costs for rung in records if (costs := record.lazy_costs(rung))}
    for name in dict.fromkeys([*list(found)[:1], *list(found)[-1:]]):
        each = []
        for phase, (ms, interval) in sorted(found[name].items()):
            if ms <= 0 or (interval and interval[0] <= 0):
                each.append(f"what {LAZY.get(phase, phase)} adds is within the noise")
                continue
            around = f" ({interval[0]:.4g} to {interval[1]:.4g})" if interval else ""
            each.append(f"{LAZY.get(phase, phase)} adds {ms:.4g} ms{around} to a step that has it")
        lines.append(f"{plain(name)}: {', '.join(each)}")
    return lines


def _remarks(rows: tuple[Row, ...], base: str | None, article_base: float | None, mode: str) -> list[str]:
    remarks = []
    if base is None:
        remarks.append("no rung has a number")
    elif base != "baseline" and mode != modes.LEAVE_ONE_OUT:
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
