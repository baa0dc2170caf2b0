"""Decode every image once, and read batches from a memory-mapped file of bytes.

What changes. Before the first step all images are decoded into one file of uint8, [images, R, R, 3], which is
mapped into memory and kept for the next run. A batch is then a copy of as many stretches of that file, flipped where
the draw says so; order and flips are those of the loader below. Workers, pinning and the copy to the GPU stay as they
are: a worker that decoded a JPEG before now copies 196 kB (a 256x256 image), and all workers share the pages of one
file. The file belongs to the folder as it is (names, sizes and times of its files) and is made anew when that changes.

Why it should help. A JPEG decodes in every epoch to the same bytes as in the epoch before, which costs a CPU core
many times what it costs to copy them. On a machine with few cores the loader no longer waits for those, and the
process that launches kernels no longer shares them.

When it does not. Where enough workers decode ahead of the step, nobody waits for them, and the step takes as long as
before: compare the waiting in the receipts. The file takes several times the disk of the JPEGs (0.4 GB for 2,048
images of 256x256) and should fit into the memory that the system has left for files: from a slow disk, reading is
slower than decoding. It holds what decoding gives, so an augmentation that crops while it decodes could not use it;
flips are done behind it.
"""

from ladder.receipts import Receipt, judge

title = "cached uint8 images"
change = {"cached_images": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """No image is decoded while a cycle runs, and batches are read from the memory map, one a step."""
    data = seen["data"]
    return judge(
        (data["decoded"] == 0, f"images decoded while a cycle ran: {data['decoded']}"),
        (data["mapped"] > 0, f"images read from the memory map: {data['mapped']}"),
        (data["fetched"] == 1, f"batches that a step asks for: {data['fetched']:g}"),
        (None, f"waiting for data: {data['waiting_ms']:.2f} ms a step"),
    )
