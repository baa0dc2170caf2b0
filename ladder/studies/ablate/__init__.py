"""`ladder ablate`: what each rung is worth, whatever the order of the ladder, and which rungs need each other.

It may not know another study or `ladder.cli`.
"""
