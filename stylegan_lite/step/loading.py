"""A user's pair: found, imported and made. A failure is one line that names file and line of the user's code.

The code runs as the user runs it: from its folder, with the user's own packages.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from stylegan_lite.config import ConfigError, PairWorkload
from stylegan_lite.step.pair import Input

HERE = Path(__file__).resolve().parents[2]
OURS = ("kernels", "stylegan_lite", "ladder", "benches", "tests")


def find_model(model: str, base: Path) -> list[str]:
    """Return (folder, file or module, function) of ``FILE.py``, ``FILE.py:function`` or ``package.module:function``.

    Raises ConfigError, one line, if there is no such file or module, or its name is one of ours.
    """
    target, _, function = model.rpartition(":") if ":" in model else (model, "", "make")
    if target.endswith(".py"):
        path = (base / Path(target).expanduser()).resolve()
        if not path.is_file():
            raise ConfigError(f"--model {model}: no such file")
        folder, target = str(path.parent), path.name
    else:
        parts = target.split(".")
        if not all(part.isidentifier() for part in parts):
            raise ConfigError(f"--model {model}: give FILE.py or package.module:function")
        folder = str(base.resolve())
        place = base.joinpath(*parts)
        if not (place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()):
            try:
                known = importlib.util.find_spec(parts[0]) is not None
            except (ImportError, ValueError):
                known = False
            if not known:
                raise ConfigError(f"--model {model}: no module {target} here, nor is its package installed")
    name = target.removesuffix(".py").split(".")[0]
    if name in OURS:
        raise ConfigError(f"--model {model}: the name {name} is of a package of this project; rename it")
    if not function.isidentifier():
        raise ConfigError(f"--model {model}: {function!r} is no name of a function")
    return [folder, target, function]


def make_pair(workload: PairWorkload) -> tuple[Any, str]:
    """Import the user's module and call its function. Return the pair and the digest of its source and settings.

    Raises ConfigError, one line with file and line, for whatever the user's code does wrong. A source that has changed
    since the run began is refused.
    """
    folder, target, function = workload.model
    if workload.repository:
        prefer_copy(*workload.repository)
    module = import_model(folder, target)
    shown = f"{target}:{function}"
    make = getattr(module, function, None)
    if make is None:
        names = [name for name, each in vars(module).items() if inspect.isfunction(each)]
        raise ConfigError(f"{target}: no function {function!r}; it has: {', '.join(names) or 'none'}")
    if not callable(make):
        raise ConfigError(f"{shown} is no function, but {type(make).__name__}")
    settings = {**workload.settings, **(workload.sizes or {})}
    refuse_settings(make, shown, settings)
    try:
        pair = make(**settings)
    except (Exception, SystemExit) as error:
        raise ConfigError(locate(error, folder, shown)) from error
    if workload.sizes and (got := measure_sizes(pair)) != (workload.batch, workload.resolution):
        asked = ", ".join(f"{key}={value}" for key, value in workload.sizes.items())
        raise ConfigError(f"{shown}: with {asked} its batch is {got[0]}, its images' resolution {got[1]}")
    if workload.repository:
        refuse_others(module, *workload.repository)
    home = workload.repository[0] if workload.repository else folder
    digest = digest_source(home, workload.model, workload.settings)
    if workload.pair and workload.pair != digest:
        raise ConfigError(f"{target}: the source has changed since the run began; start a new one")
    return pair, digest


def make_workload(model: str, **settings: Any) -> dict[str, Any]:
    """Return the workload of a pair for `stylegan_lite.make_step`, for benchmarks outside of this project's commands.

    Args:
        model: FILE.py or package.module:function, below the working folder or installed.
        settings: arguments of the function.

    Raises ConfigError as `make_pair` does.
    """
    place = find_model(model, Path.cwd())
    pair, digest = make_pair(PairWorkload("", place, settings, batch=1))
    batch, resolution = measure_sizes(pair)
    sizes = {"batch": batch, "resolution": resolution}
    return {"pair": digest, "model": place, "settings": settings, **sizes}


def prefer_copy(copy: str, original: str) -> None:
    """Let imports find a copy of a repository before its working tree, whose folders may be on the path."""
    inside = [Path(each).resolve() for each in sys.path if each]
    mirrored = [
        str(Path(copy) / each.relative_to(original))
        for each in inside
        if each.is_relative_to(original) and "site-packages" not in each.parts
    ]
    sys.path[:0] = [*mirrored, *(str(each) for each in (Path(copy) / "src", Path(copy)) if each.is_dir())]


def refuse_others(module: ModuleType, copy: str, original: str) -> None:
    """Raise ConfigError if the user's module, or another of the repository, was imported from elsewhere."""
    if not Path(module.__file__ or "/").resolve().is_relative_to(Path(copy).resolve()):
        raise ConfigError(
            f"{module.__name__} is not in the repository of this folder, whose commits are measured"
        )
    if other := next(iter(list_sources(original)), None):
        where = "put its folder on PYTHONPATH, so that the commit's is found"
        raise ConfigError(f"{other} was imported from the working tree and not from the commit: {where}")


def measure_sizes(pair: Any) -> tuple[int, int | None]:
    """Return the batch of a pair, and the resolution of the workload's images; None if it reads none."""
    flat = [
        one
        for phase in pair.phases
        for each in pair.inputs(phase.name).values()
        for one in ([each] if isinstance(each, Input) else each)
    ]
    sizes = [one.shape[-1] for one in flat if one.source == "images"]
    return max(one.batch for one in flat), next(iter(sizes), None)


@functools.cache
def import_model(folder: str, target: str) -> ModuleType:
    """Import the user's file or module, with its folder first on the path."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if not target.endswith(".py"):
            return importlib.import_module(target)
        path = Path(folder) / target
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if path.stem not in sys.modules:  # for dataclasses and pickling, which look a module up by its name
            sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        line = locate(error, folder, target)
        if isinstance(error, ImportError) and (error.name or "").split(".")[0] in OURS:
            line += f"; {error.name} is a package of this project: rename yours"
        raise ConfigError(line) from error


def refuse_settings(make: Any, shown: str, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if the function takes no such settings, or needs others."""
    try:
        signature = inspect.signature(make)
        signature.bind(**settings)
    except (TypeError, ValueError) as error:
        names = list(signature.parameters) if isinstance(error, TypeError) else []
        unknown = next((key for key in settings if key not in names), None)
        if unknown is not None:
            near = difflib.get_close_matches(unknown, names, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; it has: {', '.join(names) or 'none'}"
            raise ConfigError(f"{shown} takes no setting {unknown!r}{meant}") from None
        raise ConfigError(f"{shown}: {error}; give it with --set NAME=VALUE") from None


def list_settings(workload: PairWorkload) -> list[str]:
    """Return the names of the settings that the user's function takes."""
    folder, target, function = workload.model
    return list(inspect.signature(getattr(import_model(folder, target), function)).parameters)


def list_sources(folder: str) -> dict[str, Path]:
    """Return the files of the user's code that are imported by now, by name: those below its folder but ours."""
    home, found = Path(folder), {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not file or not file.endswith(".py") or not os.path.isabs(file) or not os.path.isfile(file):
            continue  # torch has modules with a made-up file
        path = Path(file).resolve()
        if path.is_relative_to(home) and is_of_user(path):
            found[path.relative_to(home).as_posix()] = path
    return found


def is_of_user(path: Path) -> bool:
    """Return whether a file is neither installed nor of this project."""
    ours = path.is_relative_to(HERE) and path.relative_to(HERE).parts[0] in OURS
    return not ours and "site-packages" not in path.parts


def digest_source(folder: str, model: list[str], settings: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits of the user's imported files, the function's name and its settings."""
    whole = hashlib.sha256(json.dumps([model[1:], dict(settings)], sort_keys=True, default=str).encode())
    sources = list_sources(folder)
    if model[1].endswith(".py"):
        sources[model[1]] = Path(model[0]) / model[1]
    else:  # an installed package lies elsewhere
        package = model[1].split(".")[0]
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and os.path.isfile(file) and name.split(".")[0] == package:
                sources[name] = Path(file)
    for name in sorted(sources):
        whole.update(f"{name}\n".encode() + sources[name].read_bytes())
    return whole.hexdigest()[:16]


def locate(error: BaseException, folder: str, else_where: str = "") -> str:
    """Return an error of the user's code in one line: file and line, or else where, then kind and message."""
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{Path(error.filename or '?').name}:{error.lineno}: {type(error).__name__}: {error.msg}"
    where = find_line(traceback.extract_tb(error.__traceback__), folder)
    where = where or (f"{else_where}: " if else_where else "")
    kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
    return f"{where}{kind}{text}"[:500]


def find_line(frames: Any, folder: str) -> str:
    """Return "FILE:LINE: " of the innermost frame in the user's folder, or "" if there is none."""
    for frame in reversed(list(frames)):
        path = Path(frame.filename)
        if not path.is_absolute() or not path.resolve().is_relative_to(folder):
            continue
        if is_of_user(path.resolve()):
            return f"{path.resolve().relative_to(folder).as_posix()}:{frame.lineno}: "
    return ""


def find_definition(function: Any, folder: str) -> str:
    """Return "FILE:LINE: " of where a function of the user's is defined, or ""."""
    try:
        code = inspect.unwrap(function).__code__
    except AttributeError:
        return ""
    path = Path(code.co_filename).resolve()
    return (
        f"{path.relative_to(folder).as_posix()}:{code.co_firstlineno}: "
        if path.is_relative_to(folder)
        else ""
    )
