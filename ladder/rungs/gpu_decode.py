"""Decode JPEG files on the GPU.

Change. Workers only read files: a batch crosses the bus as the bytes of its JPEG files. The function `decode_jpeg` of
torchvision hands them to nvJPEG, a whole batch at once, on the stream that copied batches before. Order and flips are
those of the loader below. Without torchvision, or with a build that lacks nvJPEG, the rung is n/a. Code:
`stylegan_lite/step/gpudecode.py`.

Why it should help. Decoding a JPEG is work for a CPU core. If few cores feed a fast GPU, or share the work with the
process that launches kernels, it is better done elsewhere. Compressed, a batch is a fraction of its bytes.

When it does not. A training step is short of GPU time. Decoding takes its time from the step, and small images fill
the GPU badly. The process that trains calls nvJPEG itself, and waits for its work on the CPU; eight workers that
decode ahead cost it nothing. Decoders differ in how they round and how they enlarge the chroma planes. So pixels
differ by a few steps of 255 from those of the loader below. `cached_uint8` decodes nothing at all. It has not been
run with a real nvJPEG yet.
"""

from ladder.receipts import Receipt, judge

title = "JPEG decoding on the GPU"
change = {"gpu_decode": True, "uint8_input": True}
needs = ("cuda", "nvjpeg")


def receipt(seen: dict) -> Receipt:
    """Check that no image is decoded on the CPU while a cycle runs, and that one batch a step is decoded on the GPU."""
    data = seen["data"]
    return judge(
        (data["decoded"] == 0, f"images decoded on the CPU while a cycle ran: {data['decoded']}"),
        (data["decoded_on_gpu"] > 0, f"images decoded on the GPU: {data['decoded_on_gpu']}"),
        (data["fetched"] == 1, f"batches that a step asks for: {data['fetched']:g}"),
        (None, f"waiting for data: {data['waiting_ms']:.2f} ms a step"),
    )
