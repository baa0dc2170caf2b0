"""Triton kernels compiled ahead of their launch.

The first launch of a kernel compiles it, half a second and more. So `kernels/precompile.py` runs a piece of work
without launches and collects the missing kernels. The other side is `jobs.py`. There a kernel is a job that can be sent
to another process, and a helper process forks compilers. Locks let several programs share the work.

A learner should read `kernels/precompile.py` before `jobs.py`. The ops as operators for torch.compile are another
matter: `kernels/common/operators.py`.
"""
