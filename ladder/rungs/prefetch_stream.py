"""Prepare the next batch completely while the step computes.

Change. `data_loading` copies bytes across the bus beside the step. But it converts them to floats in [-1, 1] on the
stream of the step, before the step may begin. And it waits for the loader's next batch before it launches the step.
Here the next batch is requested once the step has been launched. It is converted on the side stream as well, into one
of two buffers that take turns. Events keep the streams apart: the step waits for the buffer to be full, the side stream
for the step to have read it. Code: `stylegan_lite/step/data.py`.

Why it should help. Only one copy on the device stays in front of a step (6.3 MB at 256x256 and batch 8: a few
microseconds). And a late loader delays the CPU while the GPU is still busy with the last step; before, it delayed the
next launch.

When it does not. Three elementwise kernels on a batch of images are some ten microseconds of a step of ten
milliseconds. If workers keep up and the CPU runs ahead of the GPU (CUDA graphs), the step does not wait for the loader
anyway. Kernels on the side stream take their share of memory bandwidth from the step. If loaders keep up, leave this
rung out. At the top of `full` on an H200 it made the step 1.5% slower at equal GPU work. An H100 showed no difference.
"""

from ladder.receipts import Receipt, judge

title = "prefetch stream"
change = {"prefetch_stream": True}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """Check that the step fetches its batch with a single operator, and that bytes crossed on their own stream."""
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
