"""Measures StyleGAN2 training rung by rung: workloads, rungs, worker processes, statistics, results, charts.

Importing this package costs nothing: torch is imported by the worker processes only.
"""
