"""Processes that time rungs: worker, pool, lanes, rounds and visits. Knows nothing of tables and charts."""
