"""The study behind `ladder profile`: what one rung's step consists of, by category, phase and layer, and its memory.

`tracing` records the step as it is timed, `layers` an eager run with its layers, `composing` makes the tables.
"""
