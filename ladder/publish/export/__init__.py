"""Ops of `kernels/` as a package of their own, for a project that is not this one: `ladder export`.

`package.py` copies the files that the ops import. `drop_in.py` adds files in place of NVIDIA's.
"""
