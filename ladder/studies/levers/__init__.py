"""Levers that change the model, with the parameters and FLOPs of each. They count as no optimizations.

`ladder.plan.levers` lists them. `ladder run --mode levers` times them beside the unchanged model.
"""
