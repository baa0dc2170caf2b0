"""`ladder scale`: weak and strong scaling over the GPUs of one host, with the communication that is exposed.

It may not know another study or `ladder.cli`.
"""
