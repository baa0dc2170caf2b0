"""Two meanings of compiling: the ops as operators for torch.compile, and Triton kernels compiled ahead of their launch.

For torch.compile. The compiler traces a function and fuses what it can. The code around a launch (tables, caches,
tuples of pointers) is not for it to trace. So each op is registered as an operator of PyTorch
(`torch.ops.stylegan_ladder.<op>`), with three parts:

- the operator: a plain function that launches the kernels without autograd;
- a fake implementation: shapes, dtypes and memory formats of the results, without computing;
- a gradient: another operator, registered in the same way.

Files, by the kind of op: `operators.py` has the elementwise ops, demodulation and instance norm. The maps whose
gradient is the same kind of map are in `linear_operators.py`. Linear maps with an activation or a bias are in
`joined_operators.py`.

Rules that all of them follow. An operator may not return its input or a view. So gradients that are not needed are left
out of the result, and parts of one buffer are copied apart. Arguments are tensors and plain numbers, so a call's facts
are written out as a tuple and read back. The registered gradient has no double backward under torch.compile. In eager
mode it has one.

Eager calls never come here. An operator with a registered gradient costs several times the CPU time of an
autograd.Function. A step that waits for the CPU would pay that in full. An op asks `torch.compiler.is_compiling()`, and
calls its operator only then. Both ways run the same launches, so results are equal.

Memory traffic is that of the eager ops: an operator adds no pass. The compiler may fuse neighbouring PyTorch operations
with each other, but not into an operator.

For Triton. The first launch of a kernel compiles it, half a second and more. So `kernels/precompile.py` runs a piece of
work without launches and collects the missing kernels. The other side is `jobs.py`. There a kernel is a job that can be
sent to another process, and a helper process forks compilers. Locks let several programs share the work.

Without Triton no operator can run, but all can be registered, so the package imports anywhere.

A learner should read `linear_operators.py` first, because its gradients need nothing but the operators themselves. Then
follow `operators.py` for the general pattern, and `kernels/precompile.py` before `jobs.py`.
"""
