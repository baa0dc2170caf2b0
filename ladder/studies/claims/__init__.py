"""`ladder kernels --claims`: the article's claims about kernels, each measured on the GPU at hand.

- `experiments`: the contenders;
- `launching`: the cost of a launch;
- `hardware`: occupancy, registers and counters;
- `registry`: the claims, each with the article's figure, our figure and the reason for a difference.

It may know `kernelbench`, but no other study and not `ladder.cli`.
"""
