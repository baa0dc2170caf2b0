"""Did a commit make anything slower? Two commits measured side by side, and what was accepted."""
