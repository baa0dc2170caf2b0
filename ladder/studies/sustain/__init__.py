"""`ladder sustain`: whether a step is as fast after a minute, with clock and power."""
