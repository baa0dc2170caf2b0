"""`ladder doctor --roofline`: the least time that a step needs on this GPU.

It may know `kernelbench`, but no other study and not `ladder.cli`.
"""
