"""The computer: its GPU, CPU, driver, clocks, threads and compiler caches. Knows nothing of rungs or results."""
