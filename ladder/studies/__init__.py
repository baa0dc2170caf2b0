"""The studies: measurements beside the ladder's run, one package each.

A study may know the packages before it in tests/project/test_order.py, but not `ladder.cli`.
"""
