"""Fill memory inside of CUDA graphs by a kernel, where a memset would stand between two kernels.

Change. cuDNN clears the output of some input and weight gradients by a memset before it adds to it. A captured graph
keeps each as a memset node. After the capture the nodes are replaced by kernels of ours that write the same bytes,
and then the graph is instantiated. Every node that waited for a memset waits for the kernel. A memset of several rows
stays as it is. Code: `stylegan_lite/step/fills.py`, `kernels/common/fill.py`.

Why it should help. A kernel follows a kernel at once. In a trace of a replayed step the chain waits for microseconds
before a memset, and again after it (`ladder profile`: where nothing runs). A step at the top of `full` has 64 memsets.

When it does not. A GPU on which cuDNN's algorithms clear nothing has no such nodes. If other work of the second
stream (`parallel_streams`) fills the gap, the step does not wait for it. If kernels take a millisecond each, a gap of
some microseconds is nothing. Preparing takes longer: each graph is captured, rewritten, and then instantiated.
"""

from ladder.receipts import Receipt, judge

title = "fills by kernels"
change = {"graph_fills": True}
needs = ("cuda", "triton", "cuda_graphs")
rests_on = ("cuda_graphs",)


def receipt(seen: dict) -> Receipt:
    """Check that memset nodes were replaced, and that no memset ran in a replayed graph unless a node had to stay.

    Graphs in which cuDNN recorded none are as they were without this rung.
    """
    found = seen["fills"]
    ran, left = found["memsets"], ", ".join(f"{why} {n}" for why, n in sorted(found["left"].items()))
    return judge(
        (
            found["replaced"] > 0 or (found["graphs"] > 0 and not found["found"]),
            f"memset nodes that are kernels now: {found['replaced']} of {found['found']} in {found['graphs']} graphs",
        ),
        (None, f"memset nodes that stay: {left or 'none'}"),
        (
            None if ran is None or left else ran == 0,
            "memsets in replayed graphs: " + ("not profiled" if ran is None else f"{ran:.1f} a step"),
        ),
    )
