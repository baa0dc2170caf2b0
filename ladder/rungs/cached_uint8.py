"""Decode every image once, and read batches from a memory-mapped file of bytes.

Change. Before the first step all images are decoded into one file of uint8, [images, R, R, 3]. The file is mapped
into memory and kept for the next run. A batch is then a copy of stretches of that file, one an image, flipped if the
draw says so. Order and flips are those of the loader below. Workers, pinning and the copy to the GPU stay as they
are: a worker that decoded a JPEG before now copies 196 kB (a 256x256 image). All workers share the pages of one file.
The file belongs to the present state of the folder (names, sizes and times of its files) and is made anew when that
changes. Code: `stylegan_lite/step/imagecache.py`.

Why it should help. A JPEG decodes to the same bytes in every epoch, which costs a CPU core many times more than a
copy. On a machine with few cores the loader no longer waits for them, and no longer takes them from the process that
launches kernels.

When it does not. If enough workers decode ahead of the step, nobody waits for them, and the step takes as long as
before: less than 1% of difference on an H100 and an H200 with 16 cores. Compare the waiting in the receipts. The file
takes several times the disk of the JPEGs (0.4 GB for 2,048 images of 256x256). It should fit into the memory that the
system has left for files, because reading from a slow disk is slower than decoding. It holds decoded images, so an
augmentation that crops while it decodes could not use it. Flips come after it.
"""

from ladder.receipts import Receipt, judge

title = "cached uint8 images"
change = {"cached_images": True}
needs: tuple[str, ...] = ()


def receipt(seen: dict) -> Receipt:
    """Check that no image is decoded while a cycle runs, and that one batch a step is read from the memory map."""
    data = seen["data"]
    return judge(
        (data["decoded"] == 0, f"images decoded while a cycle ran: {data['decoded']}"),
        (data["mapped"] > 0, f"images read from the memory map: {data['mapped']}"),
        (data["fetched"] == 1, f"batches that a step asks for: {data['fetched']:g}"),
        (None, f"waiting for data: {data['waiting_ms']:.2f} ms a step"),
    )
