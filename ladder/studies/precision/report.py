"""What `ladder precision` says: three claims of the article beside what was seen, and the table of precisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ladder.results import store as results
from ladder.stats import estimates
from ladder.studies.precision import plan as precision

CLAIMS = {  # what the article says of FP16 and BF16 against FP32
    "throughput": ("twice the throughput", 2.0),
    "memory": ("memory halved", 0.5),
    "batch": ("batch doubled", 2.0),
}
MEMORY = {"baseline": "allocated_gib", "top": "device_gib"}  # pools of graphs hide from PyTorch's allocator


def claims(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each claim, precision, base and yardstick: {"claim", "article", "ours", "interval", ...}."""
    made = []
    for against, row in precision.pairs(found):
        key = MEMORY[row["on"]]
        ratio, interval = _throughput(against, row)
        values = {
            "throughput": (ratio, interval),
            "memory": (_ratio(row.get(key), against.get(key)), None),
            "batch": (_ratio(_batch(row), _batch(against)), None),
        }
        for claim, (ours, bounds) in values.items():
            made.append(
                {
                    "claim": claim,
                    "article": CLAIMS[claim][1],
                    "precision": row["precision"],
                    "against": against["precision"],
                    "on": row["on"],
                    "ours": ours,
                    "interval": bounds and list(bounds),
                }
            )
    return made


def _throughput(against: dict[str, Any], row: dict[str, Any]) -> tuple[float | None, Any]:
    """How many times as many images a second at the same batch, paired by round."""
    slow, fast = precision.medians(against), precision.medians(row)
    return estimates.speedup(slow, fast), estimates.log_interval(estimates.paired_ratios(slow, fast))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _batch(row: dict[str, Any]) -> int | None:
    """The largest batch, where the search came to its end."""
    largest = row["largest"]
    return largest["batch"] if largest and largest["settled"] else None


def claim_lines(result: dict[str, Any]) -> list[str]:
    """One line a claim."""
    lines = []
    for claim, (words, article) in CLAIMS.items():
        seen = [_said(c) for c in result["claims"] if c["claim"] == claim and c["ours"] is not None]
        lines.append(f"{words} (article: {article:g}x): {'; '.join(seen) or 'not measured here'}")
    return lines


def _said(claim: dict[str, Any]) -> str:
    names = precision.NAMES
    bounds = "" if not claim["interval"] else " ({:.2f}-{:.2f})".format(*claim["interval"])
    what = f"{names[claim['precision']]} for {names[claim['against']]} on the {claim['on']}"
    return f"{what} {claim['ours']:.2f}x{bounds}"


def history_line(history: dict[str, Any]) -> str:
    """What became of the loss scales, in a line."""
    last = history["changes"][-1]
    said = [
        f"{name}: {history['skipped'][name]} of {history['updates'][name]} updates skipped, scale {scale:g} at the end"
        for name, scale in zip(("G", "D"), last[1:3], strict=True)
    ]
    what = f"{history['steps']} steps on {'images' if history['images'] else 'noise'}"
    return f"FP16's loss scales over {what} from {history['initial']:g}: {'; '.join(said)}"


HEADINGS = ("precision", "on", "ms/step", "95% interval", "allocated", "device", "parity", "largest batch")


def cells(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """The table, a tuple for each row; why a row has no number stands where the number would."""
    for row in result["rows"]:
        interval = "" if not row["interval_ms"] else "{:.2f}-{:.2f}".format(*row["interval_ms"])
        ms = f"{row['step_ms']:.2f}" if row["step_ms"] else row["status"]
        yield (
            precision.NAMES[row["precision"]], row["on"], ms, interval,
            _gib(row["allocated_gib"]), _gib(row["device_gib"]), _parity(row["parity"]), _largest(row["largest"]),
        )  # fmt: skip


def _gib(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} GiB"


def _parity(parity: dict[str, Any] | None) -> str:
    if parity is None:
        return ""
    share = "" if parity["share"] is None else f", {parity['share']:.2f} of budget"
    return f"{parity['verdict']}{share}"


def _largest(largest: dict[str, Any] | None) -> str:
    if largest is None:
        return ""
    if largest["batch"] is None:
        return "none"
    return str(largest["batch"]) if largest["settled"] else f"{largest['batch']} or more"


def reasons(result: dict[str, Any]) -> list[str]:
    """Why rows have no number, and what FP8 met."""
    names = precision.NAMES
    lines = [
        f"{names[row['precision']]} on the {row['on']}: {row['status']}: {row['reason']}"
        for row in result["rows"]
        if row["reason"]
    ]
    lines += [
        f"{names[row['precision']]} on the {row['on']}: parity: {row['parity']['reason']}"
        for row in result["rows"]
        if row["parity"] and row["parity"]["reason"] and row["status"] == "ok"
    ]
    return lines + [f"FP8 {what}: {said}" for what, said in result["fp8"].items()]


def text(result: dict[str, Any]) -> str:
    """For a terminal."""
    table = [HEADINGS, *cells(result)]
    widths = [max(len(line[k]) for line in table) for k in range(len(HEADINGS))]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
    lines += ["", *claim_lines(result), *reasons(result)]
    lines += [history_line(result["history"])] if result["history"] else []
    return "\n".join([*lines, *result["protocol"]["notes"]])


def markdown(result: dict[str, Any]) -> str:
    """The page beside the JSON file."""
    facts, rules = result["machine"], result["protocol"]
    commit = results.commit_words(result)
    lines = [
        f"# Precisions on {facts['gpu'] or facts['cpu']}",
        "",
        f"Workload {result['workload']['name']}, batch {result['workload']['batch']}; {rules['rounds']} rounds of"
        f" {rules['cycles']} cycles, each in fresh processes. PyTorch {facts['torch']}, commit {commit}.",
        "",
        "`baseline`: nothing changed but the precision. `top`: the ladder"
        f" `{rules['ladder']}` with its precision exchanged, phases in graphs of their own. FP32 is IEEE in every"
        " matmul and convolution; PyTorch's default, TF32 in convolutions alone, lies between FP32 and TF32.",
        "",
        *(f"**{note}**" for note in rules["notes"]),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|---:|---|---:|---:|---|---|",
        *("| " + " | ".join(line) + " |" for line in cells(result)),
        "",
        *(f"- {line}" for line in [*claim_lines(result), *reasons(result)]),
    ]
    lines += [f"- {history_line(result['history'])}"] if result["history"] else []
    return "\n".join(lines) + "\n"
