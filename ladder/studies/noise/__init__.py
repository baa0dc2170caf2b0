"""The study behind `ladder noise`: which change this machine can show, by two copies of one rung.

`measure` runs the engine of `ladder run` with one rung and its twin, `record` derives what that says.
"""
