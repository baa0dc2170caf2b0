"""Did the change engage? Evidence read from the running step, and the receipt that it gives. Knows nothing of times."""

from ladder.receipts.receipt import FULL, Receipt, gone, judge, launched, share, taken, total

__all__ = ["FULL", "Receipt", "gone", "judge", "launched", "share", "taken", "total"]
