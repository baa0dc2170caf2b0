"""The import of a clone: of NVIDIA's stylegan3 or a repository with its layout, or of R3GAN, which has its ops."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import shutil
import sys
import types
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from ladder.core.errors import UserError
from ladder.core.files import digest_sources, list_below
from ladder.core.plain import Fields

URL, R3GAN_URL = "https://github.com/NVlabs/stylegan3", "https://github.com/brownvc/R3GAN"
NETWORKS = ("networks_stylegan2", "networks")  # stylegan3's name, and that of stylegan2-ada-pytorch
R3GAN = "R3GAN"  # the folder of its networks, which only its repository has
NEEDED = (
    *("training/loss.py", "training/dataset.py", "dnnlib/__init__.py", "torch_utils/misc.py"),
    *(f"torch_utils/ops/{op}.py" for op in ("bias_act", "upfirdn2d", "conv2d_gradfix")),
)
PARTS = ("dnnlib", "torch_utils", "training")
# R3GAN's: resolution, and images per GPU and classes of labels in its README's commands. "tiny" is a narrow CIFAR10.
PRESETS = {
    "FFHQ-256": (256, 32, 0),
    "FFHQ-64": (64, 32, 0),
    "CIFAR10": (32, 64, 10),
    "ImageNet-32": (32, 128, 1000),
    "ImageNet-64": (64, 64, 1000),
    "tiny": (32, 4, 10),
}
PRESET = {"cuda": "FFHQ-256", "cpu": "tiny"}
_OPS = ("bias_act", "upfirdn2d")


@dataclass(frozen=True)
class Modules:
    """The clone's modules that a step uses."""

    networks: Any
    loss: Any
    dataset: Any
    ops: dict[str, types.ModuleType]


def networks_of(folder: Path) -> str:
    """Return the name of the module with StyleGAN2's networks. Raises UserError for another repository."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder: `git clone {URL}`, then give its folder")
    name = next((each for each in NETWORKS if (folder / f"training/{each}.py").is_file()), NETWORKS[0])
    more, url = [f"training/{name}.py"], URL
    if (folder / R3GAN).is_dir():
        name, url, more = R3GAN, R3GAN_URL, ["train.py", "R3GAN/Networks.py", "training/networks.py"]
    for path in (*more, *NEEDED):
        if not (folder / path).is_file():
            raise UserError(f"{folder}: no {path}: give the folder of a clone of {url}")
    return name


def list_parts(folder: Path) -> list[str]:
    """Return the folders and the file of a clone whose sources may run."""
    return [*PARTS, R3GAN, "train.py"] if (folder / R3GAN).is_dir() else [*PARTS]


def make_r3gan(preset: str, batch: int | None, digest: str) -> tuple[str, Fields]:
    """Return name and fields of the workload of R3GAN's preset, which files have as a pair of the user's."""
    size, usual, _ = PRESETS[preset]
    fields: Fields = {
        "resolution": size,
        "batch": batch or usual,
        "data": None,
        "pair": digest,
        "flips": False,
    }
    return f"r3gan-{preset.lower()}", fields


def refuse_unbuildable(device: str) -> None:
    """Raise UserError where NVIDIA's CUDA ops cannot be built, before anything is measured."""
    from ladder.machine import system

    if device != "cuda":
        return
    lacks = system.list_capabilities(device)["nvcc"]
    if lacks is None and shutil.which("ninja") is None:
        lacks = "no ninja on the PATH (pip install ninja)"
    if lacks:
        raise UserError(f"NVIDIA's CUDA ops are built at first use, and cannot be here: {lacks}")


def digest_of(folder: Path) -> str:
    """Return a hash of every source that may run."""
    files = [
        path
        for part in list_parts(folder)
        for path in list_below(folder / part, (".py", ".cpp", ".cu", ".h"))
    ]
    files += [path for path in [folder / "train.py"] if path.name in list_parts(folder)]
    return digest_sources(folder, files)[:16]


def load(folder: Path) -> Modules:
    """Import the modules. The folder stays on `sys.path`, as NVIDIA's modules import each other by name."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    _stand_in("requests")  # only for downloads, and nothing is downloaded here
    _stand_in("pkg_resources", parse_version=Version)  # newer setuptools lack it; compares torch versions
    _stand_in("distutils.util", strtobool=lambda text: text.lower() in ("y", "yes", "t", "true", "on", "1"))
    with write_no_bytecode():
        ops = {op: importlib.import_module(f"torch_utils.ops.{op}") for op in (*_OPS, "conv2d_gradfix")}
        own = networks_of(folder)
        names = ("networks" if own == R3GAN else own, "loss", "dataset")
        networks, loss, dataset = (importlib.import_module(f"training.{name}") for name in names)
        return Modules(networks, loss, dataset, ops)


@contextlib.contextmanager
def write_no_bytecode() -> Iterator[None]:
    """Import from a clone without changing its folders."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def build_ops(modules: Modules) -> None:
    """Compile and load the CUDA ops, side by side: each takes a minute, most of it one file and one core.

    NVIDIA's loader imports an extension by name, which newer torch does not enter into `sys.modules`. A killed build
    leaves the file `lock`, and torch would wait for it forever.

    Raises:
        RuntimeError: an op falls back to its slow reference.
    """
    from torch.utils import cpp_extension

    load = cpp_extension.load

    def load_entered(name: str, *arguments: Any, **options: Any) -> Any:
        folder = Path(options.get("build_directory") or cpp_extension._get_build_directory(name, False))
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "building", "w") as file:  # the system drops this lock when its process ends
            fcntl.flock(file, fcntl.LOCK_EX)
            (folder / "lock").unlink(missing_ok=True)
            return sys.modules.setdefault(name, load(name, *arguments, **options))

    cpp_extension.load = load_entered
    try:
        with warnings.catch_warnings(record=True) as caught, ThreadPoolExecutor(len(_OPS)) as threads:
            warnings.simplefilter("always")
            built = [*threads.map(lambda name: modules.ops[name]._init(), _OPS)]
    finally:
        cpp_extension.load = load
    for name, there in zip(_OPS, built, strict=True):
        if not there:
            why = str(caught[-1].message).strip() if caught else "no reason was given"
            raise RuntimeError(f"NVIDIA's {name} did not build: {why.splitlines()[-1]}")


def switch_gradfix(modules: Modules, device: str) -> bool:
    """Enable NVIDIA's fast double backward of convolutions if this torch supports it. Return whether it is enabled.

    Otherwise it falls back to PyTorch's by itself, but warns at each call of each layer.
    """
    import torch

    gradfix: Any = modules.ops["conv2d_gradfix"]
    without = gradfix.no_weight_gradients
    if not inspect.signature(
        without
    ).parameters:  # stylegan2-ada-pytorch's, which stylegan3's losses cannot call
        gradfix.no_weight_gradients = lambda disable=True: without() if disable else contextlib.nullcontext()
    gradfix.enabled = True
    with warnings.catch_warnings(), contextlib.suppress(TypeError):
        warnings.simplefilter("ignore")
        gradfix.enabled = bool(gradfix._should_use_custom_op(torch.empty(1, device=device)))
    return gradfix.enabled


def list_parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function. For a class, return those that any `__init__` of its bases names.

    NVIDIA's `persistent_class` wraps a class in a class that takes *args and **kwargs.
    """
    if not inspect.isclass(function):
        return dict(inspect.signature(function).parameters)
    ways = [vars(each)["__init__"] for each in inspect.getmro(function)[:-1] if "__init__" in vars(each)]
    return {name: each for way in reversed(ways) for name, each in inspect.signature(way).parameters.items()}


def pick_accepted(function: Any, **arguments: object) -> Any:
    """Return the arguments that this version of the repository accepts, by a name of their own."""
    known = list_parameters(function)
    return {
        name: value
        for name, value in arguments.items()
        if name in known and known[name].kind is not inspect.Parameter.VAR_KEYWORD
    }


def _stand_in(name: str, **content: Any) -> None:
    """Install a substitute for a missing module, with the names that NVIDIA's code imports from it."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module
        if parent:
            setattr(sys.modules.setdefault(parent, types.ModuleType(parent)), last, module)
