"""Network pickles of NVIDIA's repositories, read without running anything that is in them.

Everywhere else nothing is unpickled. Here a pickle may name the few things of `NAMES` and nothing else. They stand for
inert stand-ins of this module: numbers, tensors, and records of a class name with its state. The source code that a
pickle carries for each class is dropped unread. Storages lie in it as files of `torch.save`. These are read with
`weights_only=True`, torch's own reader that runs nothing.
"""

from __future__ import annotations

import io
import pickle
import struct
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ladder.core.errors import UserError
from ladder.core.text import clean_line

FORMATS = {"f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "b1": "?"}  # of numpy: those of `struct`
TENSORFLOW = "dnnlib.tflib"
# Networks of StyleGAN3's configurations T and R hold arrays. Those of stylegan2 hold numbers alone.
ARRAYS = (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"))


class Refused(Exception):
    """The reason for which a pickle is not read, in a few words."""


class _Sealed(type):
    """The type of the stand-ins. A pickle can set attributes of classes that it names, and not of these."""

    def __setattr__(cls, name: str, value: object) -> None:
        raise Refused(f"it changes {cls.__name__}")


class Record(metaclass=_Sealed):
    """An object of NVIDIA's: the name of its class and its attributes."""

    __slots__ = ("class_name", "state")

    class_name: str
    state: dict[str, Any]

    def __init__(self, meta: object) -> None:
        state = meta.get("state") if isinstance(meta, dict) else None
        name = meta.get("class_name") if isinstance(meta, dict) else None
        if not isinstance(state, dict) or not isinstance(name, str):
            raise Refused("an object of it has no class name or no state")
        self.class_name, self.state = name, dict(state)

    def __setstate__(self, _: object) -> None:
        raise Refused(f"it changes a {clean_line(self.class_name)[:40]}")


class EasyDict(dict[str, Any], metaclass=_Sealed):
    """A dictionary of settings."""

    __slots__ = ()


class _Storage(metaclass=_Sealed):
    """The numbers of a tensor, one after another."""

    __slots__ = ("flat",)

    def __init__(self, content: object) -> None:
        if not isinstance(content, bytes):
            raise Refused("a storage of it is no bytes")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that it refuses next
            storage = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if not isinstance(storage, torch.TypedStorage):
            raise Refused("a storage of it holds something else")
        self.flat = torch.empty(0, dtype=storage.dtype).set_(storage)  # type: ignore[call-overload]


class _Tensor(metaclass=_Sealed):
    """A tensor of a storage. The call returns a torch.Tensor with memory of its own."""

    def __new__(cls, storage: object, offset: object, size: object, stride: object, *_: object) -> Tensor:  # type: ignore[misc]
        if not isinstance(storage, _Storage):
            raise Refused("a tensor of it has no storage")
        offset, sizes, strides = _read_sizes((offset,))[0], _read_sizes(size), _read_sizes(stride)
        count, last = 1, offset
        for each, step in zip(sizes, strides, strict=True):
            count, last = count * each, last + (each - 1) * step
        there = storage.flat.numel()
        if count > there or (count and last >= there):
            raise Refused("a tensor of it is larger than its storage")
        return storage.flat.as_strided(sizes, strides, offset).clone(memory_format=torch.contiguous_format)


class _Parameter(metaclass=_Sealed):
    """A parameter, whose tensor is returned."""

    def __new__(cls, tensor: object, *_: object) -> Tensor:  # type: ignore[misc]
        if not isinstance(tensor, Tensor):
            raise Refused("a parameter of it is no tensor")
        return tensor


class _Type(metaclass=_Sealed):
    """A number type of numpy."""

    __slots__ = ("code", "order")

    def __init__(self, code: object, *_: object) -> None:
        if code not in FORMATS:
            raise Refused(f"it has a number of type {clean_line(str(code))[:20]}")
        self.code, self.order = FORMATS[str(code)], "<"

    def __setstate__(self, state: object) -> None:
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        self.order = order if order in ("<", ">") else "<"


class _Number(metaclass=_Sealed):
    """A number of numpy, returned as Python's."""

    def __new__(cls, kind: object, content: object) -> Any:
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise Refused("a number of it has no type")
        return struct.unpack(kind.order + kind.code, content)[0]


# Every name that a pickle may hold, and what stands for it here.
NAMES: dict[tuple[str, str], type] = {
    ("torch_utils.persistence", "_reconstruct_persistent_obj"): Record,
    ("dnnlib.util", "EasyDict"): EasyDict,
    ("torch._utils", "_rebuild_tensor_v2"): _Tensor,
    ("torch._utils", "_rebuild_parameter"): _Parameter,
    ("torch.storage", "_load_from_bytes"): _Storage,
    ("numpy", "dtype"): _Type,
    ("numpy.core.multiarray", "scalar"): _Number,
    ("numpy._core.multiarray", "scalar"): _Number,
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "set"): set,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        if module.startswith(TENSORFLOW):
            raise Refused("a TensorFlow pickle: NVIDIA's legacy.py makes a PyTorch pickle of it")
        if (module, name) in ARRAYS:
            raise Refused(
                "it holds a numpy array: StyleGAN3's T and R do, networks of --cfg=stylegan2 do not"
            )
        if (module, name) not in NAMES:
            raise Refused(
                f"it names {clean_line(f'{module}.{name}')[:80]}, which no network of NVIDIA's needs"
            )
        return NAMES[module, name]


def read_pickle(path: Path) -> Any:
    """Return the content of a network pickle: a plain dictionary, or what else is in it.

    Values are dictionaries, numbers, text, tensors and `Record`s.

    Raises:
        UserError: a name that is not in `NAMES`, or a damaged file; one line.
    """
    try:
        with open(path, "rb") as file:
            content = _Reader(file).load()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Refused as error:
        raise UserError(f"{path}: refused, and nothing of it was run: {error}") from None
    except Exception as error:  # a pickle can raise any
        raise UserError(f"{path}: damaged, or no network pickle ({type(error).__name__})") from None
    # A pickle can give an ordered dictionary another method `get`.
    return dict(dict.items(content)) if isinstance(content, dict) else content


def _read_sizes(numbers: object) -> tuple[int, ...]:
    """Return whole numbers of 0 and above as a tuple."""
    if not isinstance(numbers, tuple) or not all(type(each) is int and each >= 0 for each in numbers):
        raise Refused("a tensor of it has impossible sizes")
    return numbers
