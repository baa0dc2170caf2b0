"""The training behind `ladder train`: the timed step with grids, loss log and checkpoints; and several side by side."""
