"""Nodes of captured CUDA graphs: the functions of CUDA's driver that read and rewrite them."""

from __future__ import annotations

import ctypes
from ctypes import c_size_t, c_uint, c_void_p
from typing import Any, NamedTuple

# cuda.h: CUgraphNodeType and CUresult
KERNEL, MEMSET, ALLOCATION, FREE = 0, 2, 10, 11
LOSSY_QUERY = 402


class LossyQuery(RuntimeError):
    """The error of a question about a node whose edges are more than plain dependencies."""


class Memset(NamedTuple):
    """The parameters of a memset node: `height` rows of `width` elements of `size` bytes."""

    address: int
    value: int
    size: int
    width: int
    height: int


class _MemsetParams(ctypes.Structure):
    _fields_ = [("dst", ctypes.c_uint64), ("pitch", c_size_t), ("value", c_uint), ("size", c_uint)]
    _fields_ += [("width", c_size_t), ("height", c_size_t)]


class _KernelParams(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2; only the driver reads it
    _fields_ = [("func", c_void_p), ("sizes", c_uint * 7), ("params", c_void_p), ("extra", c_void_p)]
    _fields_ += [("kern", c_void_p), ("ctx", c_void_p)]


class Driver:
    """The functions of CUDA's driver that rewrite a graph. Graphs and nodes are handles.

    The library exports the functions for plain edges without a suffix, in CUDA 13 too; `_v2` has data of edges.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")

    def nodes(self, graph: int) -> list[int]:
        return self._handles("cuGraphGetNodes", graph)

    def dependencies(self, node: int) -> list[int]:
        return self._handles("cuGraphNodeGetDependencies", node)

    def dependents(self, node: int) -> list[int]:
        return self._handles("cuGraphNodeGetDependentNodes", node)

    def kind(self, node: int) -> int:
        found = ctypes.c_int()
        self._call("cuGraphNodeGetType", c_void_p(node), ctypes.byref(found))
        return found.value

    def memset(self, node: int) -> Memset:
        found = _MemsetParams()
        self._call("cuGraphMemsetNodeGetParams", c_void_p(node), ctypes.byref(found))
        return Memset(found.dst, found.value, found.size, found.width, found.height)

    def add_kernel(self, graph: int, like: int, dependencies: list[int]) -> int:
        """Add a node with the kernel, sizes and arguments of a node of another graph."""
        params, made = _KernelParams(), c_void_p()
        self._call("cuGraphKernelNodeGetParams_v2", c_void_p(like), ctypes.byref(params))
        after = (_handles(dependencies), c_size_t(len(dependencies)))
        self._call(
            "cuGraphAddKernelNode_v2", ctypes.byref(made), c_void_p(graph), *after, ctypes.byref(params)
        )
        return made.value

    def copy_attributes(self, node: int, like: int) -> None:
        """Give a kernel's node the attributes of another, its priority among them."""
        self._call("cuGraphKernelNodeCopyAttributes", c_void_p(node), c_void_p(like))

    def connect(self, graph: int, node: int, dependents: list[int]) -> None:
        """Let other nodes wait for this one."""
        edges = (_handles([node] * len(dependents)), _handles(dependents), c_size_t(len(dependents)))
        self._call("cuGraphAddDependencies", c_void_p(graph), *edges)

    def destroy(self, node: int) -> None:
        """Remove a node and its edges."""
        self._call("cuGraphDestroyNode", c_void_p(node))

    def _handles(self, name: str, of: int) -> list[int]:
        count = c_size_t()
        self._call(name, c_void_p(of), None, ctypes.byref(count))
        if not count.value:
            return []
        found = (c_void_p * count.value)()
        self._call(name, c_void_p(of), found, ctypes.byref(count))
        return list(found)

    def _call(self, name: str, *arguments: Any) -> None:
        if not (status := getattr(self._library, name)(*arguments)):
            return
        said = ctypes.c_char_p()
        self._library.cuGetErrorName(status, ctypes.byref(said))
        error = LossyQuery if status == LOSSY_QUERY else RuntimeError
        raise error(f"{name}: {(said.value or b'unknown error').decode()} ({status})")


def _handles(of: list[int]) -> ctypes.Array[c_void_p]:
    return (c_void_p * len(of))(*of)
