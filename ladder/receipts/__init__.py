"""Evidence that a change took effect in the running step, and the receipt for it. Knows nothing of times."""

from ladder.receipts.receipt import (
    FULL,
    Receipt,
    check_communication,
    check_reduction,
    gone,
    judge,
    judge_accumulation,
    judge_compilation,
    launched,
    list_compiled_phases,
    share,
    taken,
    total,
)

__all__ = [
    "FULL",
    "Receipt",
    "check_communication",
    "check_reduction",
    "gone",
    "judge",
    "judge_accumulation",
    "judge_compilation",
    "launched",
    "list_compiled_phases",
    "share",
    "taken",
    "total",
]
