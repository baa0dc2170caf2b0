"""Common mistakes of GAN training as patches of a clean step, and the proof that each is in force.

`ladder.plan.mistakes` lists them. `ladder run --mode mistakes` measures them beside the clean step.
"""
