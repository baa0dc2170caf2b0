"""Constants of the protocol that all parts share: the cycle and how a rung settles."""

CYCLE_STEPS = 16


SETTLE_S = 2.5  # on top of prepare(); ten minutes must fit 8 rungs x 5 rounds

SETTLE_CYCLES = 16
