"""One file for each rung: a docstring that teaches, a title, the change to the recipe, the hardware it
needs."""
