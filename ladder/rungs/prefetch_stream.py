"""Prepare the next batch completely while the step computes.

What changes. `data_loading` copies bytes across the bus beside the step, but turns them into floats in [-1, 1]
(a conversion, a division, a subtraction) on the stream that computes, before the step may begin; and it waits for
the loader's next batch before it launches the step. Here the next batch is asked for once the step has been launched,
and is normalized on the side stream as well, into one of two buffers that take turns. Events keep the streams
apart: the step waits for the buffer to be full, the side stream for the step to have read it.

Why it should help. All that stays in front of a step is one copy on the device (6.3 MB at 256x256 and batch 8: a
few microseconds). And a loader that is late delays the CPU while the GPU is still busy with the last step,
where before it delayed the launch of the next one.

When it does not. Three elementwise kernels on a batch of images are some ten microseconds of a step of ten
milliseconds. Where workers keep up and the CPU runs ahead of the GPU (CUDA graphs), nobody waited for the
loader in the first place. Kernels on the side stream take their share of memory bandwidth from the step.
"""

from ladder.receipts import Receipt, judge

title = "prefetch stream"
change = {"prefetch_stream": True}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """The step asks for its batch with a single operator, and the bytes crossed on a stream of their own."""
    data = seen["data"]
    batches = [c for c in data["crossings"] if c["to"] == "cuda"]
    beside = sum(c["side_stream"] and c["non_blocking"] for c in batches)
    overlap = data["overlap"]
    return judge(
        (data["operators"] == 1, f"operators between the loader and the step: {data['operators']}"),
        (bool(batches) and beside == len(batches), f"on a side stream: {beside} of {len(batches)} copies"),
        (
            None,
            f"copies beside other kernels: {'not profiled' if overlap is None else f'{overlap:.2f} of their time'}",
        ),
        (None, f"waiting for data: {data['waiting_ms']:.2f} ms a step"),
    )
