"""The calls of CUDA's driver: what each gets, and what is made of its answer, by a library that stands for CUDA's."""

import ctypes
import types
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p

import pytest

from stylegan_lite import graphnodes
from stylegan_lite.graphnodes import Driver, LossyQuery, Memset

# Handles and addresses are longer than 32 bits, as on a GPU: an argument of another width would cut them.
GRAPH, NODES = 0x7F00_1234_5678_9AB0, [0x7F11_0000_0000_0010, 0x7F22_0000_0000_0020, 0x7F33_0000_0000_0030]
ADDRESS = 0x7FAB_CDEF_0123_4560

# The declarations of CUDA 13.0's cuda.h: of the functions without a suffix those for plain edges.
HANDLES = (c_void_p, POINTER(c_void_p), POINTER(c_size_t))
DECLARED = {
    "cuGraphGetNodes": HANDLES,
    "cuGraphNodeGetDependencies": HANDLES,
    "cuGraphNodeGetDependentNodes": HANDLES,
    "cuGraphNodeGetType": (c_void_p, POINTER(c_int)),
    "cuGraphMemsetNodeGetParams": (c_void_p, c_void_p),
    "cuGraphKernelNodeGetParams_v2": (c_void_p, c_void_p),
    "cuGraphAddKernelNode_v2": (POINTER(c_void_p), c_void_p, POINTER(c_void_p), c_size_t, c_void_p),
    "cuGraphKernelNodeCopyAttributes": (c_void_p, c_void_p),
    "cuGraphAddDependencies": (c_void_p, POINTER(c_void_p), POINTER(c_void_p), c_size_t),
    "cuGraphDestroyNode": (c_void_p,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}


class Library(types.SimpleNamespace):
    """Functions in C's convention that note their arguments, and answer as they are told."""

    def __init__(self, **answers):
        super().__init__(called=[], declared=[])
        for name, declared in DECLARED.items():
            function = ctypes.CFUNCTYPE(c_int, *declared)(self._noting(name, answers.get(name)))
            self.declared.append(function)
            # As it is found in a library: ctypes knows no declaration, and would pass a number as 32 bits.
            setattr(self, name, ctypes.CFUNCTYPE(c_int)(ctypes.cast(function, c_void_p).value))

    def _noting(self, name, answer):
        def call(*arguments):
            self.called.append((name, *arguments))
            try:
                return answer(*arguments) if callable(answer) else answer or 0
            except AssertionError:
                return 999  # ctypes would print it and answer 0

        return call


def driver_of(library):
    found = Driver.__new__(Driver)
    found._library = library
    return found


def listing(handles):
    def answer(of, array, count):
        if array:
            assert count[0] == len(handles)
            for i, handle in enumerate(handles):
                array[i] = handle
        count[0] = len(handles)
        return 0

    return answer


@pytest.mark.parametrize("handles", [NODES, []])
def test_handles_come_whole_and_are_counted_first(handles):
    names = ("cuGraphGetNodes", "cuGraphNodeGetDependencies", "cuGraphNodeGetDependentNodes")
    library = Library(**dict.fromkeys(names, listing(handles)))
    driver = driver_of(library)
    assert driver.nodes(GRAPH) == driver.dependencies(NODES[0]) == driver.dependents(NODES[0]) == handles
    assert {(name, of) for name, of, *_ in library.called} == set(
        zip(names, (GRAPH, *NODES[:1] * 2), strict=True)
    )


def test_a_memset_is_read_as_cuda_lays_it_out():
    def answer(
        node, params
    ):  # CUDA_MEMSET_NODE_PARAMS: address, pitch, value, size of an element, width, height
        assert node == NODES[1]
        raw = b"".join(
            n.to_bytes(k, "little") for n, k in ((ADDRESS, 8), (512, 8), (7, 4), (2, 4), (2**33, 8), (3, 8))
        )
        ctypes.memmove(params, raw, len(raw))
        return 0

    def kind(node, found):
        found[0] = 2
        return 0

    driver = driver_of(Library(cuGraphMemsetNodeGetParams=answer, cuGraphNodeGetType=kind))
    assert driver.memset(NODES[1]) == Memset(ADDRESS, 7, 2, 2**33, 3)
    assert driver.kind(NODES[1]) == graphnodes.MEMSET


def test_a_kernel_is_added_with_the_parameters_of_another_node():
    given = bytes(range(72))  # CUDA_KERNEL_NODE_PARAMS_v2: 8 + 7 * 4 (+ 4) + 4 * 8 bytes
    assert ctypes.sizeof(graphnodes._KernelParams) == len(given)

    def params(node, into):
        ctypes.memmove(into, given, len(given))
        return 0

    def add(made, graph, after, count, found):
        taken = ctypes.string_at(found, len(given))
        assert taken == given
        assert (graph, after[:count]) == (GRAPH, NODES[:2])
        made[0] = NODES[2]
        return 0

    library = Library(cuGraphKernelNodeGetParams_v2=params, cuGraphAddKernelNode_v2=add)
    assert driver_of(library).add_kernel(GRAPH, NODES[0], NODES[:2]) == NODES[2]
    assert library.called[0][:2] == ("cuGraphKernelNodeGetParams_v2", NODES[0])


def test_edges_go_from_the_new_node_to_each_that_waits():
    def add(graph, start, end, count):
        assert (graph, start[:count], end[:count]) == (GRAPH, NODES[:1] * 2, NODES[1:])
        return 0

    library = Library(cuGraphAddDependencies=add)
    driver = driver_of(library)
    driver.connect(GRAPH, NODES[0], NODES[1:])
    driver.copy_attributes(NODES[0], NODES[1])
    driver.destroy(NODES[2])
    assert library.called[1:] == [
        ("cuGraphKernelNodeCopyAttributes", *NODES[:2]),
        ("cuGraphDestroyNode", NODES[2]),
    ]


def test_an_error_has_the_function_its_name_and_its_number():
    name = ctypes.create_string_buffer(b"CUDA_ERROR_INVALID_VALUE")

    def named(status, said):
        said[0] = ctypes.cast(name, c_char_p)
        return 0

    driver = driver_of(Library(cuGraphDestroyNode=1, cuGetErrorName=named))
    with pytest.raises(RuntimeError, match=r"^cuGraphDestroyNode: CUDA_ERROR_INVALID_VALUE \(1\)$"):
        driver.destroy(NODES[0])
    driver = driver_of(Library(cuGraphNodeGetDependencies=graphnodes.LOSSY_QUERY))
    with pytest.raises(LossyQuery, match=r"cuGraphNodeGetDependencies: unknown error \(402\)"):
        driver.dependencies(NODES[0])
