"""Memsets of captured graphs become kernels: in their places between other nodes, or not at all, with a reason."""

import ctypes

import pytest
import torch

from kernels.common.fill import LONGEST
from stylegan_lite.step import fills, graphnodes
from stylegan_lite.step.fills import Fills, fill_of, replace_memsets
from stylegan_lite.step.graphnodes import Memset
from tests.support import fake_nodes

M, N = (Memset(4096 * (1 + k), k, 4, 100 + k, 1) for k in range(2))
GRAPHS = {  # chains of nodes
    "between two kernels": ("A>m>B",),
    "at a root": ("m>A>B",),
    "at the end": ("A>B>m",),
    "alone": ("m",),
    "several before and behind it": ("A>m>B", "C>m>D", "m>E", "A>C"),
    "behind a memset": ("A>m>n>B", "m>B"),
    "beside a memset": ("A>m>B", "A>n>B", "C>B"),
    "behind a node without work": ("A>empty>m>B",),
}


@pytest.fixture
def driver(monkeypatch):
    found = fake_nodes.Driver()
    fake_nodes.capturing(found, monkeypatch)
    return found


@pytest.mark.parametrize("chains", GRAPHS.values(), ids=GRAPHS)
def test_a_kernel_stands_where_the_memset_stood(driver, chains):
    graph = driver.made(*chains, m=M, n=N)
    before, count, memsets = graph.work(), len(graph.nodes), len(graph.memsets())
    found = replace_memsets(graph, "main", driver)
    assert (found.found, found.replaced, found.left) == (memsets, memsets, {})
    assert graph.work() == before and len(graph.nodes) == count
    assert not graph.memsets() and graph.instantiated == 1
    # Each has the attributes of a node that was captured on the stream of the graph, apart from it.
    source = found.source
    assert source.keep_graph and source.captured == {"stream": "main", "capture_error_mode": "thread_local"}
    assert driver.priorities.keys() <= graph.nodes.keys() and len(driver.priorities) == memsets
    assert {source.nodes[like] for like in driver.priorities.values()} == {
        fill_of(each) for each in (M, N)[:memsets]
    }


def test_a_graph_with_other_edges_or_allocations_stays_as_it_is(driver):
    graph = driver.made("A>m>n>B", m=M, n=N)
    (second,) = (node for node, work in graph.nodes.items() if work == N)
    driver.lossy = {second}
    assert replace_memsets(graph, None, driver) == Fills(2, 0, {"in a graph with programmatic edges": 2})
    allocating = driver.made("A>m>allocation", m=M)
    assert replace_memsets(allocating, None, driver) == Fills(1, 0, {"in a graph that allocates": 1})
    assert graph.memsets() == [M, N] and graph.instantiated == allocating.instantiated == 1


@pytest.mark.parametrize("function", ["add_kernel", "copy_attributes", "connect", "destroy"])
def test_an_error_in_the_middle_is_raised_and_leaves_a_graph_that_computes_the_same(driver, function):
    graph = driver.made("A>m>B>n>C", m=M, n=N)
    before = graph.work()
    driver.broken = {function: 2}  # the first memset is replaced already
    with pytest.raises(RuntimeError, match=rf"^{function}: CUDA_ERROR_UNKNOWN \(999\)"):
        replace_memsets(graph, None, driver)
    assert graph.work() == before and len(graph.nodes) == 5
    assert len(graph.memsets()) == 1 and not graph.instantiated


@pytest.mark.parametrize(
    "memset, expected",
    [
        (Memset(4096, 0xAB, 1, 400, 1), (4096, 100, 0xABABABAB, 4)),
        (Memset(4096, 0x1AB, 1, 4, 1), (4096, 1, 0xABABABAB, 4)),  # only its lowest byte is the value
        (Memset(4096, 0xBEEF, 2, 6, 1), (4096, 3, 0xBEEFBEEF, 4)),
        (Memset(4096, 0xFFFFFFFF, 4, 5, 1), (4096, 5, 0xFFFFFFFF, 4)),
        (Memset(4096, 0, 4, LONGEST, 1), (4096, LONGEST, 0, 4)),
        (Memset(4096, 0, 4, LONGEST + 1, 1), "empty or too long"),
        (Memset(4096, 0, 4, 0, 1), "empty or too long"),
        (Memset(4096, 0xAB, 1, 402, 1), (4096, 201, 0xABAB, 2)),
        (Memset(4098, 0xBEEF, 2, 400, 1), (4098, 400, 0xBEEF, 2)),
        (Memset(4097, 0x1AB, 1, 400, 1), (4097, 400, 0xAB, 1)),
        (Memset(4096, 0, 4, 400, 7), "of several rows"),
    ],
)
def test_a_memset_is_as_many_words_of_its_value_repeated(memset, expected):
    assert fill_of(memset) == expected


# ---- on a GPU ----


def memset(x, value, size, rows=1):
    """Put a memset on the current stream, by CUDA's driver: of the whole tensor, or of the first half of each row."""
    library, stream = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    address = ctypes.c_uint64(x.data_ptr())
    values = {1: ctypes.c_ubyte, 2: ctypes.c_ushort, 4: ctypes.c_uint}
    if rows == 1:
        call = getattr(library, f"cuMemsetD{8 * size}Async")
        status = call(address, values[size](value), ctypes.c_size_t(x.nbytes // size), stream)
    else:
        pitch, width = ctypes.c_size_t(x.nbytes // rows), ctypes.c_size_t(x.nbytes // rows // size // 2)
        call = getattr(library, f"cuMemsetD2D{8 * size}Async")
        status = call(address, pitch, values[size](value), width, ctypes.c_size_t(rows), stream)
    assert status == 0


def kinds(graph):
    driver = graphnodes.Driver()
    return [driver.kind(node) for node in driver.nodes(graph.raw_cuda_graph())]


def priority(node):
    """The priority of a kernel's node: CU_LAUNCH_ATTRIBUTE_PRIORITY is 8, and a value has 64 bytes."""
    value = (ctypes.c_int * 16)()
    status = ctypes.CDLL("libcuda.so.1").cuGraphKernelNodeGetAttribute(ctypes.c_void_p(node), 8, value)
    assert status == 0
    return value[0]


@pytest.mark.gpu
@pytest.mark.parametrize("level", [0, -2])
def test_a_graph_of_memsets_between_kernels_computes_the_same(level):
    x = torch.zeros(5000, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream(priority=level)

    def work():
        memset(x[:1024], 0xAB, 1)  # at the root
        x.add_(1)
        memset(x[100:2000], 0xBEEF, 2)
        memset(x[1000:4097], 0xFFFFFFFE, 4)  # behind a memset
        x.mul_(3)
        memset(x[:100].view(torch.int8)[1:7], 5, 1)  # neither begins nor ends with a word
        memset(x[200:400], 9, 4, rows=10)
        x.sub_(7)
        memset(x[4999:], 0, 4)  # nothing behind it

    fills.compile_ahead()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        work()
    assert kinds(graph).count(graphnodes.MEMSET) == 6
    launched = kinds(graph).count(graphnodes.KERNEL)
    found = replace_memsets(graph, stream)
    assert (found.found, found.replaced, found.left) == (6, 5, {"of several rows": 1})
    assert kinds(graph).count(graphnodes.MEMSET) == 1
    driver = graphnodes.Driver()
    kernels = [n for n in driver.nodes(graph.raw_cuda_graph()) if driver.kind(n) == graphnodes.KERNEL]
    assert len(kernels) == launched + 5 and {priority(node) for node in kernels} == {level}
    for seed in range(3):
        torch.manual_seed(seed)
        x.random_(0, 1000)
        start = x.clone()
        work()
        expected = x.clone()
        x.copy_(start)
        graph.replay()
        assert torch.equal(x, expected)


@pytest.mark.gpu
def test_a_captured_gradient_of_a_convolution_has_no_memsets_and_is_the_same():
    torch.manual_seed(0)
    how = {"device": "cuda", "dtype": torch.bfloat16}
    x = torch.randn(8, 128, 16, 16, **how).contiguous(memory_format=torch.channels_last).requires_grad_()
    w = torch.randn(128, 64, 3, 3, **how).contiguous(memory_format=torch.channels_last).requires_grad_()
    stream, graphs = torch.cuda.Stream(), []

    def work():
        y = torch.nn.functional.conv_transpose2d(x, w, stride=2)
        return torch.autograd.grad(y, (x, w), torch.ones_like(y))

    fills.compile_ahead()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    for rewritten in (False, True):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            gradients = work()
        memsets = kinds(graph).count(graphnodes.MEMSET)
        if rewritten:
            found = replace_memsets(graph, stream)
            print(f"a convolution's gradients: {found}")
            assert (found.found, found.replaced, found.left) == (memsets, memsets, {})
            assert graphnodes.MEMSET not in kinds(graph)
        graphs.append((graph, gradients))
    for _ in range(3):
        x.detach().normal_()
        for graph, _ in graphs:
            graph.replay()
        for expected, same in zip(graphs[0][1], graphs[1][1], strict=True):
            # Weight gradients are added up in any order.
            torch.testing.assert_close(same, expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
