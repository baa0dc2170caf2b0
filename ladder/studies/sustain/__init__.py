"""`ladder sustain`: whether a step is as fast after a minute, with clock and power.

It may not know another study or `ladder.cli`.
"""
