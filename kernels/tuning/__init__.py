"""Programs that search for the rows of the tables, on the GPU at hand. Nothing here runs when a model does.

A kernel's tile size, number of warps, number of programs and depth of prefetch decide how much of the memory bandwidth
it reaches. The best choice depends on the GPU, the dtype, the memory format and the size of the map. Timing candidates
inside a training run would cost minutes, and would make two runs differ. So the choices are rows of tables in the
source, and these programs find them:

- `python -m kernels.tuning`: the elementwise ops and instance norm by tiles (`kernels/choices.py`).
- `python -m kernels.tuning.filters`: `upfirdn2d` and the ops with an activation beside the filter.
- `python -m kernels.tuning.planes`: instance norm of large NCHW maps.
- `python -m kernels.tuning.sums`: the launch that adds up rows of partial sums.

Each prints rows that can be pasted into its table, beside the rows in force, and writes everything timed as JSON. The
files of one H200 are in `results/kernels`, and tests compare the tables with them.

How a candidate is timed (`timing.py`). Calls on many buffers in turn are captured in one CUDA graph. So no launch
overhead counts, and the L2 cache never holds the next buffer. The yardstick is a copy of as many bytes. A share of 90%
means that the copy takes 90% of the kernel's time. A single copy is no good yardstick: drivers copy some sizes slowly,
so the fastest of a few ways counts.

How the search goes (`search`). All candidates are compiled side by side, then timed at the first shape until the time
is up. The best few, and the row in force, go on to the other shapes. The row with the best geometric mean of shares
wins. A candidate that needs too many registers or too much shared memory is a row with an error.

Candidates. Each program lists configurations that can be good by reasoning: 16-byte loads, 16 to 64 resident warps, one
wave of programs with sums. So a search takes minutes instead of hours.

Forward, backward and double backward are tuned apart, because they move different numbers of bytes and hold different
numbers of sums in registers. Gradients are called through autograd, as training calls them (`calls.py`).

Without a GPU each program says so in one line and ends with status 2.

A learner should read `timing.py` first, then `__main__.py`, whose candidates explain what a tile size trades.
"""
