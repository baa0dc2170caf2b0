"""The article's claims about kernels, each measured on the GPU at hand: `ladder kernels --claims`.

`experiments` says what is timed beside what, `occupancy` and `resources` what a kernel takes of a multiprocessor,
`launching` what it costs to start one, `counters` what Nsight Compute counts while it runs. `registry` holds the
claims: the article's figure, how ours follows from the measurements, and one sentence on why the two differ.
"""
