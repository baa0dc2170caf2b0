"""The training behind `ladder train`: the timed step with sample grids, loss log and checkpoints, and the canary."""
