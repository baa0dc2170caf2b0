"""The rungs, one file each: a docstring that teaches, a title, the change to the recipe, the needs, a receipt."""
