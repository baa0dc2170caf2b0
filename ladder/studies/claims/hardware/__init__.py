"""The hardware's facts of a kernel: counters, registers and occupancy.

It may not know the claims or the experiments.
"""
