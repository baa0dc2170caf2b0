"""`ladder doctor --roofline`: the least time that a step needs on this GPU."""
