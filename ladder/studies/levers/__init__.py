"""Levers that change the model, with the parameters and FLOPs of each. None counts among the optimizations.

`ladder.plan.levers` lists them. `ladder run --mode levers` times them beside the unchanged model.
"""
