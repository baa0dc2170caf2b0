"""`ladder precision`: FP32, TF32, BF16, FP16 and FP8 by time, memory, parity and largest batch.

It may not know another study or `ladder.cli`.
"""
