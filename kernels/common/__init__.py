"""The ground that all ops stand on: tiles, sums, Triton's language, needed gradients, overlapping launches, fills.

A learner should read `tiles.py` first. Almost every kernel of this package is one pass over an activation, and almost
every such pass begins with `my_tiles` and `tile_at`.

Tiles. A tile is BLOCK_P pixels by BLOCK_C channels of one sample. The same kernel serves channels_last and NCHW memory:
only the two strides differ, and Triton compiles the stride of 1 in. The size of a tile and the number of programs come
from the table in `kernels/choices.py`. Nothing is tuned at run time, so a call always has the same launch.

Walks. A pass without sums launches one program for each tile. A pass with sums launches only as many programs as are
resident at once, and each walks over many tiles. So a program leaves one row of partial sums instead of one row a tile,
and the rows cost next to nothing. Programs that walk may also fetch tiles ahead (`STAGES`).

Sums. Gradients of biases, scales and styles are sums over pixels. The module `sums.py` takes them in two steps: rows of
partial sums in the pass itself, then one small launch that adds up all rows. The order of addition is fixed, so two
runs on one GPU model give equal bits. That is the base of the project's parity checks.

Precision. Loads are widened to float32 (float64 for float64), all arithmetic happens there, and stores round once. An
op therefore rounds less often than the chain of PyTorch ops that it replaces.

Gradients. An op is a `torch.autograd.Function`. Its backward calls a second Function if the gradient will be
differentiated, else it launches directly. The module `needed.py` finds out which gradients the running backward pass
will use. PyTorch tells its own operators, but not Functions in Python.

Launches. A step has hundreds of short kernels. With `dependent_launch.py` a kernel may start before its predecessor has
ended, on GPUs of compute capability 9.0 and above. Each kernel calls `after_previous` before it touches memory.

Fills. The kernel of `fill.py` writes words to an address, in place of a memset in a captured graph.

For torch.compile each op registers an operator of PyTorch. `operators.py` has the parts that all of them share.

Without Triton. The module `language.py` replaces Triton by an empty stand-in on systems that lack it. All modules can
then be imported, and the `<op>_reference` functions work. With TRITON_INTERPRET=1 Triton runs the kernels on CPU
tensors.

Files, in the order in which to read them: `tiles.py`, `sums.py`, `dependent_launch.py`, `needed.py`, `fill.py`,
`operators.py`, `language.py`.
"""
