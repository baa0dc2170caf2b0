"""Several results: merge, resume, compare, and follow one over time. Measures nothing."""
