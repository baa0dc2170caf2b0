"""The training step of any pair: phases, capture, accumulation, updates, data, ranks and checkpoints.

Nothing here knows a network, a layer or a loss: `stylegan_lite.step.pair` says what a pair is.
"""

from stylegan_lite.step.pair import CYCLE, Input, Pair, Phase
from stylegan_lite.step.training import TrainingStep

__all__ = ["CYCLE", "Input", "Pair", "Phase", "TrainingStep"]
