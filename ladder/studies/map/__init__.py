"""`ladder map`: where two rungs matter, over batch sizes and resolutions.

It may not know another study or `ladder.cli`.
"""
