"""Decode images in worker processes and copy them while the GPU computes.

Change. DataLoader workers (8, or the number of cores if that is smaller) persist between epochs and keep 3 batches
each ready. Batches lie in pinned memory. `non_blocking` copies run on a side stream, one batch ahead. Bytes (uint8)
cross the bus and become [-1, 1] on the GPU. `drop_last` gives every batch the shape that a graph was captured for.
Code: `stylegan_lite/step/data.py`.

Why it should help. The default loader decodes in the training process: while it opens JPEGs, nothing launches
kernels. Copies from ordinary memory block the CPU until they are done; from pinned memory they run beside the
computation. A uint8 image is a quarter of its FP32 bytes: 1.6 MB instead of 6.3 MB for a batch of 8 at 256x256.

When it does not. If a batch is decoded faster than the step runs, workers only take it off the critical path. They
can save at most the time that the baseline spends loading, so look at that before hoping for more. On machines with
few cores, workers compete with the process that launches kernels. Idle loaders refill, so a benchmark that pauses
before it measures flatters them. Here cycles before every timing drain the prefetched batches.
"""

import os

from ladder.receipts import Receipt, judge, pair_of


def _cores() -> int:
    """CPU cores this process may use: in a container often fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


title = "optimized data loading"
change = {
    "workers": min(8, _cores()),
    "pin_memory": True,
    "persistent_workers": True,
    "prefetch_factor": 3,
    "drop_last": True,
    "async_copy": True,
    "uint8_input": True,
}
needs = ("cuda",)


def receipt(seen: dict) -> Receipt:
    """Check that workers are alive, and batches cross the bus as bytes, from pinned memory, on their own stream."""
    data, workers = seen["data"], seen["recipe"]["workers"]
    batches = [c for c in data["crossings"] if c["to"] == "cuda"]

    def all_of(words: str, right: list[bool]) -> tuple[bool | None, str]:
        if seen["recipe"].get("gpu_decode") and not batches:
            return None, f"{words}: JPEG files cross, out of sight"
        return bool(right) and all(right), f"{words}: {sum(right)} of {len(right)} copies"

    overlap = data["overlap"]
    return judge(
        (data["workers"] == workers > 0, f"workers alive: {data['workers']} of {workers}"),
        all_of("from pinned memory", [c["pinned"] for c in batches]),
        all_of("asynchronous, on a side stream", [c["non_blocking"] and c["side_stream"] for c in batches]),
        *([all_of("as uint8", [c["dtype"] == "uint8" for c in batches])] if pair_of(seen)["bytes"] else []),
        (
            None,
            f"copies beside other kernels: {'not profiled' if overlap is None else f'{overlap:.2f} of their time'}",
        ),
        (None, f"waiting for data: {data['waiting_ms']:.2f} ms a step"),
    )
