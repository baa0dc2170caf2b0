"""Constants of the protocol that all parts share: the cycle, its phases and words of verdicts."""

CYCLE_STEPS = 16
PHASES = ("G_main", "D_main", "G_pl", "D_r1")  # for tables: the phases of every step first
IN_ORDER = ("G_main", "G_pl", "D_main", "D_r1")  # in the order in which a step runs them

# The words of a verdict. Older files say NO_GAIN instead of LESS_THAN.
FASTER, SLOWER, LESS_THAN, AMBIGUOUS = "faster", "slower", "less than", "ambiguous"
TOO_FEW, NO_GAIN = "too few generations", "no measurable gain"
INSIDE = (LESS_THAN, NO_GAIN)  # the noise
