"""Ops of `kernels/` as a package of their own, for a project that is not this one: `ladder export`.

Files, in the order in which to read them: `sources.py` finds the files, `package.py` writes them, `page.py` describes
them. Two more files are copied into a package: `dispatch.py` chooses between a fused op and plain PyTorch, `check.py`
compares the two.
"""
