"""Decode JPEG files on the GPU.

What changes. Workers read files and no more: a batch crosses the bus as the bytes of its JPEG files, and torchvision's
`decode_jpeg` hands them to nvJPEG, all of a batch at once, on the stream that copied batches before. Order and flips
are those of the loader below. Without torchvision, or with one that was built without nvJPEG, the rung is n/a.

Why it should help. Decoding a JPEG is work for a CPU core; where few cores feed a fast GPU, or
share them with the process that launches kernels, that work is better done elsewhere. Compressed, a batch is a
fraction of its bytes.

When it does not. The GPU is what a training step is short of: decoding takes its time from the step, and small images
fill it badly. The process that trains calls nvJPEG itself, and waits for what it does on the CPU; eight workers that
decode ahead cost it nothing. Decoders differ in how they round and how they enlarge the chroma planes, so pixels differ
by a few steps of 255 from those of the loader below. `cached_uint8` decodes nothing at all.
"""

from ladder.receipts import Receipt, judge

title = "JPEG decoding on the GPU"
change = {"gpu_decode": True, "uint8_input": True}
needs = ("cuda", "nvjpeg")


def receipt(seen: dict) -> Receipt:
    """No image is decoded on the CPU while a cycle runs, and batches are on the GPU, one a step."""
    data = seen["data"]
    return judge(
        (data["decoded"] == 0, f"images decoded on the CPU while a cycle ran: {data['decoded']}"),
        (data["decoded_on_gpu"] > 0, f"images decoded on the GPU: {data['decoded_on_gpu']}"),
        (data["fetched"] == 1, f"batches that a step asks for: {data['fetched']:g}"),
        (None, f"waiting for data: {data['waiting_ms']:.2f} ms a step"),
    )
