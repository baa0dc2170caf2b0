"""Names to recipes: which rungs of which ladder to measure, in which mode. Knows nothing of processes or times."""
