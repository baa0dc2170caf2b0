"""The studies: measurements beside the ladder's run, each a declaration on `ladder.studies.frame`.

A study may know the packages before it in tests/project/test_order.py, but not `ladder.cli`.
"""

# The command of each study, and the module of this package that declares it. It is imported when it is needed. A
# command of two words is an option of another one, which asks the study itself.
STUDIES = {
    "ablate": "ablate",
    "bench-compare": "commits.study",
    "host": "host",
    "kernels": "kernelbench.study",
    "map": "map",
    "noise": "noise",
    "penalty": "penalty",
    "precision": "precision",
    "profile": "profile.study",
    "quality": "quality",
    "doctor --roofline": "roofline.study",
    "scale": "scale",
    "sustain": "sustain",
    "upstream": "upstream.study",
}
