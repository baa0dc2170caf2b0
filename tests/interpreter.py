"""Triton's interpreter, which runs the kernels on a CPU, without what it does over and over: tests take half as long.

Nothing that a kernel computes changes. Each call of a jitted function from another replaces some three hundred members
of `triton.language` that are replaced already; each operation builds a table of number types, and each result its
shape anew; and whether an integer overflows is computed and ignored, where here it is an error. These names are
Triton's own and may go: what is not found is left as it is.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from typing import Any


def speed_up() -> None:
    """Once Triton's interpreter is there, and once only; nothing is imported for it."""
    interpreter, core = (
        sys.modules.get(f"triton.{name}") for name in ("runtime.interpreter", "language.core")
    )
    if os.environ.get("TRITON_INTERPRET") != "1":
        return  # kernels are compiled here, by the same semantics: what suits the interpreter breaks them
    if interpreter is None or core is None or hasattr(interpreter, "_sped_up"):
        return
    interpreter._sped_up = True
    if hasattr(interpreter, "_patch_lang"):
        interpreter._patch_lang = _once_a_launch(interpreter._patch_lang, core)
    if hasattr(interpreter, "_get_np_dtype"):
        interpreter._get_np_dtype = _looked_up(interpreter._get_np_dtype, core)
    if hasattr(core, "tuple"):
        core.tensor.__init__ = _with_known_shape(core)
        core.block_type.__init__ = _with_known_numbers(core)
    semantic = getattr(sys.modules.get("triton.language.semantic"), "TritonSemantic", None)
    if hasattr(semantic, "binary_op_sanitize_overflow_impl"):
        semantic.binary_op_sanitize_overflow_impl = _overflowing()


def _once_a_launch(patch_lang: Callable[..., Any], core: Any) -> Callable[..., Any]:
    """What a launch and the functions in it replace is replaced once, and all put back when the launch ends."""
    held: list[Any] = []
    replaced: set[int] = set()
    modules: dict[Any, set[int]] = {}
    languages = {id(core), id(sys.modules["triton.language"])}

    class Launch:
        def restore(self) -> None:
            while held:
                held.pop().restore()
            replaced.clear()

    class Within:
        def restore(self) -> None:
            pass

    def patch(fn: Any) -> Any:
        if fn not in modules:
            modules[fn] = languages & {id(value) for value in fn.__globals__.values()}
        if replaced and modules[fn] <= replaced:
            return Within()
        scope = Within() if held else Launch()
        held.append(patch_lang(fn))
        replaced.update(modules[fn])
        return scope

    return patch


def _looked_up(np_dtype: Callable[[Any], Any], core: Any) -> Callable[[Any], Any]:
    known: dict[str, Any] = {}

    def look_up(dtype: Any) -> Any:
        if isinstance(dtype, core.block_type):
            dtype = dtype.element_ty
        name = dtype.name
        if name not in known:
            known[name] = np_dtype(dtype)
        return known[name]

    return look_up


def _with_known_shape(core: Any) -> Callable[..., None]:
    """`tensor.__init__`; a shape is never changed once it is made."""
    known: dict[tuple, tuple[Any, Any]] = {}
    make = core.tensor.__init__

    def init(self: Any, handle: Any, type: Any) -> None:
        shape = builtins.tuple(type.shape) if type.is_block() else ()
        if shape not in known:
            make(self, handle, type)
            known[shape] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = known[shape]

    return init


def _with_known_numbers(core: Any) -> Callable[..., None]:
    known: dict[tuple, tuple[Any, Any, str]] = {}
    make = core.block_type.__init__

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = builtins.tuple(size.value if isinstance(size, core.constexpr) else size for size in shape)
        if sizes not in known:
            make(self, element_ty, shape)
            known[sizes] = self.shape, self.numel, str(self.shape)
        else:
            self.element_ty = element_ty
            self.shape, self.numel, text = known[sizes]
            self.name = f"<{text}, {element_ty}>"

    return init


def _overflowing() -> Callable[..., None]:
    """What Triton asks for after each sum and product, and then ignores unless it debugs: has an integer overflowed?"""
    import numpy as np

    operations = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def checked(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        operation, scalar = operations.get(binary_op.__name__), lhs.type.scalar
        if operation is None or scalar.int_bitwidth >= 64:
            return
        found = operation(lhs.handle.data, rhs.handle.data, dtype=np.int64, casting="unsafe")
        least, most = scalar.get_int_min_value(), scalar.get_int_max_value()
        if found.size and not (found.min() >= least and found.max() <= most):
            raise OverflowError(
                f"int{scalar.int_bitwidth} overflow detected for operation {binary_op.__name__}"
            )

    return checked
