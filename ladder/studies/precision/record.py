"""Pure functions that derive the figures of `ladder precision` from the stored numbers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from ladder.stats import estimates

NAMES = {"fp32": "FP32", "tf32": "TF32", "bf16": "BF16", "fp16": "FP16", "fp8": "FP8 dense, BF16"}

TIMED = ("allocated_gib", "reserved_gib", "device_gib", "rss_gib")


def title(row: dict[str, Any]) -> str:
    return f"{NAMES[row['precision']]} on the {row['on']}"


def derive(found: list[dict[str, Any]]) -> None:
    """Fill in the numbers of each row from its rounds, in place."""
    for row in found:
        by_round = medians(row)
        interval = estimates.log_interval(list(by_round.values()))
        row["step_ms"] = estimates.median(list(by_round.values()))
        row["interval_ms"] = interval and list(interval)
        for key in TIMED:
            sizes = [each[key] for each in row["rounds"] if each[key] is not None]
            row[key] = max(sizes, default=None)


def medians(row: dict[str, Any]) -> dict[int, float]:
    """Return each round's median in milliseconds a step."""
    return {each["round"]: statistics.median(each["samples_ms"]) for each in row["rounds"]}


def pairs(found: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield (FP32 or TF32, BF16 or FP16) pairs of rows on the same base."""
    by_name = {(row["on"], row["precision"]): row for row in found}
    for (base, precision), row in by_name.items():
        for against in ("fp32", "tf32") if precision in ("bf16", "fp16") else ():
            if (base, against) in by_name:
                yield by_name[base, against], row


CLAIMS = {  # the article's figures for FP16 and BF16 against FP32
    "throughput": ("twice the throughput", 2.0),
    "memory": ("memory halved", 0.5),
    "batch": ("batch doubled", 2.0),
}

MEMORY = {
    "baseline": "allocated_gib",
    "top": "device_gib",
}  # PyTorch's allocator does not see pools of graphs


def claims(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each claim, precision, base and yardstick: {"claim", "article", "ours", "interval", ...}."""
    made = []
    for against, row in pairs(found):
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
    """Return the ratio of images a second at the same batch, paired by round, and its interval."""
    slow, fast = medians(against), medians(row)
    return estimates.speedup(slow, fast), estimates.log_interval(estimates.paired_ratios(slow, fast))


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _batch(row: dict[str, Any]) -> int | None:
    """Return the largest batch, or None if the search did not finish."""
    largest = row["largest"]
    return largest["batch"] if largest and largest["settled"] else None
