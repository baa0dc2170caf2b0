"""Evidence that a change took effect in the running step, and the receipt for it. Knows nothing of times."""

from ladder.receipts.receipt import FULL, Receipt, gone, judge, launched, share, taken, total

__all__ = ["FULL", "Receipt", "gone", "judge", "launched", "share", "taken", "total"]
