"""The report of `ladder precision`: three claims of the article beside our figures, and the table of precisions."""

from __future__ import annotations

from collections.abc import Iterator

from ladder.base.text import aligned, counted, piped
from ladder.results import store as results
from ladder.results.types import head
from ladder.studies.precision import record
from ladder.studies.precision.record import CLAIMS, Claim, History, Largest, Parity, Result


def claim_lines(result: Result) -> list[str]:
    """Return one line for each claim."""
    lines = []
    for claim, (words, article) in CLAIMS.items():
        seen = [_said(c) for c in result.claims if c.claim == claim and c.ours is not None]
        lines.append(f"{words} (article: {article:g}x): {'; '.join(seen) or 'not measured here'}")
    return lines


def _said(claim: Claim) -> str:
    names = record.NAMES
    bounds = "" if not claim.interval else " ({:.2f}-{:.2f})".format(*claim.interval)
    what = f"{names[claim.precision]} for {names[claim.against]} on the {claim.on}"
    return f"{what} {claim.ours:.2f}x{bounds}"


def history_line(history: History) -> str:
    """Return one line on the history of the loss scales."""
    last = history.changes[-1]
    said = [
        f"{name}: {history.skipped[name]} of {history.updates[name]} updates skipped, scale {scale:g} at the end"
        for name, scale in zip(("G", "D"), last[1:3], strict=True)
    ]
    what = f"{counted(history.steps, 'step')} on {'images' if history.images else 'noise'}"
    return f"FP16's loss scales over {what} from {history.initial:g}: {'; '.join(said)}"


HEADINGS = ("precision", "on", "ms/step", "95% interval", "allocated", "device", "parity", "largest batch")


def cells(result: Result) -> Iterator[tuple[str, ...]]:
    """Yield the table's rows as tuples of text. A missing number is replaced by its reason."""
    for row in result.rows:
        interval = "" if not row.interval_ms else "{:.2f}-{:.2f}".format(*row.interval_ms)
        ms = f"{row.step_ms:.2f}" if row.step_ms else row.status
        yield (
            record.NAMES[row.precision], row.on, ms, interval,
            _gib(row.allocated_gib), _gib(row.device_gib), _parity(row.parity), _largest(row.largest),
        )  # fmt: skip


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} GiB"


def _parity(parity: Parity | None) -> str:
    if parity is None:
        return ""
    share = "" if parity.share is None else f", {parity.share:.2f} of budget"
    return f"{parity.verdict}{share}"


def _largest(largest: Largest | None) -> str:
    if largest is None:
        return ""
    if largest.batch is None:
        return "none"
    return str(largest.batch) if largest.settled else f"{largest.batch} or more"


def reasons(result: Result) -> list[str]:
    """Return the reasons for missing numbers, and parity's for rows that are timed all the same."""
    names = record.NAMES
    lines = [
        f"{names[row.precision]} on the {row.on}: {row.status}: {row.reason}"
        for row in result.rows
        if row.reason
    ]
    lines += [
        f"{names[row.precision]} on the {row.on}: parity: {row.parity.reason}"
        for row in result.rows
        if row.parity and row.parity.reason and row.status == "ok"
    ]
    return lines


def text(result: Result) -> str:
    """Return the report for a terminal."""
    lines = [*aligned([HEADINGS, *cells(result)]), "", *claim_lines(result), *reasons(result)]
    lines += [history_line(result.history)] if result.history else []
    return "\n".join([*lines, *result.protocol.notes])


def markdown(result: Result) -> str:
    """Return the page beside the JSON file."""
    facts, rules = result.machine, result.protocol
    commit = results.commit_words(head(result))
    lines = [
        f"# Precisions on {facts.gpu or facts.cpu}",
        "",
        f"Workload {result.workload['name']}, batch {result.workload['batch']}; {counted(rules.rounds, 'generation')}"
        f" of {counted(rules.cycles, 'cycle')}, each in fresh processes. PyTorch {facts.torch}, commit {commit}.",
        "",
        "`baseline`: nothing changed but the precision. `top`: the ladder"
        f" `{rules.ladder}` with its precision exchanged, phases in graphs of their own. FP32 is IEEE in every"
        " matmul and convolution; PyTorch's default, TF32 in convolutions alone, lies between FP32 and TF32.",
        "",
        *(f"**{note}**" for note in rules.notes),
        "",
        *piped([HEADINGS, *cells(result)], words=(0, 1, 3, 6, 7), show=str),
        "",
        *(f"- {line}" for line in [*claim_lines(result), *reasons(result)]),
    ]
    lines += [f"- {history_line(result.history)}"] if result.history else []
    return "\n".join(lines) + "\n"
