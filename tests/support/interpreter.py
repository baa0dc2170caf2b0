"""Triton's interpreter, which runs the kernels on a CPU, without what it does over and over: tests take half as long.

Nothing that a kernel computes changes. By itself the interpreter repeats this work:

- a call of a jitted function from another replaces some 300 members of `triton.language` that are replaced already
- an operation builds a table of number types, compares types and shapes, and widens its operands
- a result makes its shape anew
- an overflow of an integer is computed and ignored, where here it is an error

These names are Triton's own and may go: a name that is not found is left alone.
"""

from __future__ import annotations

import builtins
import functools
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
    semantic = getattr(sys.modules.get("triton.language.semantic"), "TritonSemantic", None)
    if hasattr(semantic, "binary_op_sanitize_overflow_impl"):
        semantic.binary_op_sanitize_overflow_impl = _overflowing()
        by_types = _ByTypes(core.tensor, interpreter.TensorHandle)
        for name, operation in _operations().items():
            if hasattr(semantic, name):
                make = by_types.where if name == "where" else by_types.of_two
                setattr(semantic, name, make(getattr(semantic, name), operation))
        if hasattr(semantic, "broadcast_impl_value"):
            semantic.broadcast_impl_value = by_types.widened(semantic.broadcast_impl_value)


def round_to_nearest(monkeypatch: Any) -> None:
    """Make stores of BF16 round to nearest, as a GPU's do. The interpreter cuts digits off, twice the error."""
    interpreter, language = (
        sys.modules.get(f"triton.{name}") for name in ("runtime.interpreter", "language")
    )
    if interpreter is None or not hasattr(interpreter, "_convert_float"):
        return
    cut = interpreter._convert_float

    def rounded(data: Any, given: Any, wanted: Any, mode: Any) -> Any:
        if (given, wanted) != (language.float32, language.bfloat16):
            return cut(data, given, wanted, mode)
        import torch

        return torch.from_numpy(data.copy()).to(torch.bfloat16).view(torch.uint16).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", rounded)


def _once_a_launch(patch_lang: Callable[..., Any], core: Any) -> Callable[..., Any]:
    """Return a `_patch_lang` that replaces each member once a launch, and puts all back when the launch ends."""
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


def _operations() -> dict[str, Callable[..., Any]]:
    """NumPy's operation of each method of Triton's semantics that takes operands of one type of number."""
    import numpy as np

    return {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "and_": np.bitwise_and,
        "less_than": np.less,
        "less_equal": np.less_equal,
        "greater_than": np.greater,
        "greater_equal": np.greater_equal,
        "equal": np.equal,
        "not_equal": np.not_equal,
        "where": np.where,
    }


ARITHMETIC = ("add", "sub", "mul")
WHOLE = ("int32", "int64")
NUMBERS = ("fp32", "fp64", "int1", "uint32", *WHOLE)  # that NumPy holds as they are
CONSTANTS = {"fp32": float, "fp64": float, "int32": int, "int64": int}


class _ByTypes:
    """Methods of Triton's semantics, each asked once what comes of operands of some types.

    The same types give the same type, and NumPy widens the operands itself. NumPy takes over for operands of one
    type of number, for whole ones, and for a pointer and an offset. Its first result must be the method's to the bit.
    """

    def __init__(self, tensor: Any, make_handle: Callable[..., Any]) -> None:
        self.tensor, self.make_handle = tensor, make_handle
        self.constants: dict[tuple[Any, str], Any] = {}

    def constant(self, semantic: Any, value: Any, dtype: Any) -> Any:
        """The number as a tensor of this type, or the number itself where the method is to decide."""
        name = "int32" if dtype.is_ptr() else dtype.name
        if type(value) is not CONSTANTS.get(name) or (type(value) is int and abs(value) >= 2**31):
            return value
        key = value, name
        if key not in self.constants:
            found = semantic.to_tensor(value) if dtype.is_ptr() else semantic.scalar_constant(value, dtype)
            self.constants[key] = found
        return self.constants[key]

    def of_two(self, method: Callable[..., Any], operation: Callable[..., Any]) -> Callable[..., Any]:
        tensor, make_handle, constant = self.tensor, self.make_handle, self.constant
        results: dict[tuple[str, str], Any] = {}
        arithmetic, adds = method.__name__ in ARITHMETIC, method.__name__ == "add"

        @functools.wraps(method)
        def operate(semantic: Any, lhs: Any, rhs: Any, *sanitized: Any) -> Any:
            if arithmetic and type(lhs) is tensor and type(rhs) is not tensor:
                rhs = constant(semantic, rhs, lhs.dtype)
            elif arithmetic and type(rhs) is tensor and type(lhs) is not tensor:
                lhs = constant(semantic, lhs, rhs.dtype)
            if type(lhs) is not tensor or type(rhs) is not tensor:
                return method(semantic, lhs, rhs, *sanitized)
            key = lhs.type.name, rhs.type.name
            if known := results.get(key):
                type_, steps = known
                if steps:
                    return tensor(semantic.builder.create_addptr(lhs.handle, rhs.handle), type_)
                if sanitized and sanitized[0] and type_.scalar.name == "int32":
                    semantic.binary_op_sanitize_overflow_impl(lhs, rhs, operate)
                return tensor(make_handle(operation(lhs.handle.data, rhs.handle.data), type_.scalar), type_)
            result = method(semantic, lhs, rhs, *sanitized)
            if adds and lhs.dtype.is_ptr() and rhs.dtype.name in WHOLE:
                if _same(semantic.builder.create_addptr(lhs.handle, rhs.handle).data, result):
                    results[key] = result.type, True
            elif {lhs.dtype.name, rhs.dtype.name} <= {*WHOLE} or (
                lhs.dtype == rhs.dtype and lhs.dtype.name in NUMBERS
            ):
                if _same(operation(lhs.handle.data, rhs.handle.data), result):
                    results[key] = result.type, False
            return result

        return operate

    def where(self, method: Callable[..., Any], select: Callable[..., Any]) -> Callable[..., Any]:
        tensor, make_handle, constant = self.tensor, self.make_handle, self.constant
        results: dict[tuple[str, str, str], Any] = {}

        @functools.wraps(method)
        def operate(semantic: Any, condition: Any, x: Any, y: Any) -> Any:
            if type(x) is tensor and type(y) is not tensor:
                y = constant(semantic, y, x.dtype)
            elif type(y) is tensor and type(x) is not tensor:
                x = constant(semantic, x, y.dtype)
            if type(condition) is not tensor or type(x) is not tensor or type(y) is not tensor:
                return method(semantic, condition, x, y)
            key = condition.type.name, x.type.name, y.type.name
            if known := results.get(key):
                found = select(condition.handle.data, x.handle.data, y.handle.data)
                return tensor(make_handle(found, known.scalar), known)
            result = method(semantic, condition, x, y)
            if condition.dtype.name == "int1" and x.dtype == y.dtype and x.dtype.name in NUMBERS:
                if _same(select(condition.handle.data, x.handle.data, y.handle.data), result):
                    results[key] = result.type
            return result

        return operate

    def widened(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Two blocks of as many dimensions, each in the shape of both."""
        import numpy as np

        tensor, make_handle = self.tensor, self.make_handle
        results: dict[tuple[str, str], tuple[Any, Any, tuple[int, ...]]] = {}

        def as_type(x: Any, type_: Any, shape: tuple[int, ...]) -> Any:
            if type_ is None:
                return x
            return tensor(make_handle(np.broadcast_to(x.handle.data, shape), x.handle.dtype.scalar), type_)

        @functools.wraps(method)
        def widen(semantic: Any, lhs: Any, rhs: Any) -> Any:
            key = lhs.type.name, rhs.type.name
            if known := results.get(key):
                ours, theirs, shape = known
                return as_type(lhs, ours, shape), as_type(rhs, theirs, shape)
            found = method(semantic, lhs, rhs)
            if lhs.type.is_block() and rhs.type.is_block() and len(lhs.shape) == len(rhs.shape):
                types = (None if new is old else new.type for new, old in zip(found, (lhs, rhs), strict=True))
                results[key] = *types, builtins.tuple(found[0].shape)
            return found

        return widen


def _same(found: Any, result: Any) -> bool:
    """Whether NumPy's array is what the result holds, bit for bit."""
    wanted = result.handle.data
    return (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


def _overflowing() -> Callable[..., None]:
    """Return the check for overflow after each sum and product, which Triton ignores unless it debugs."""
    import numpy as np

    operations = {name: each for name, each in _operations().items() if name in ARITHMETIC}

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
