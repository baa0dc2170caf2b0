"""Statistics of times: intervals, verdicts, and how many rounds fit a budget. Pure functions of numbers."""
