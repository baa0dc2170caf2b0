"""`ladder train`: the timed step, with sample grids, a loss log and checkpoints; and the canary."""
