"""Drop-in files for another project's ops: today those of NVIDIA's `torch_utils/ops`, on an exported package."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from ladder.core.errors import UserError
from ladder.publish.export import nvidia, package
from ladder.publish.export.package import Origin

PACKAGE = "_ladder_ops"  # beside the drop-in files, imported from there
OPS = ("bias_act", "upfirdn2d")  # that the drop-in files call
TOP, FOLDER = "torch_utils", "ops"
UNDO = f"git checkout {TOP}; rm -r {TOP}/{FOLDER}/{PACKAGE}"  # in a clone
HERE = Path(__file__).parent / "nvidia"
REPLACED = ("bias_act", "conv2d_gradfix", "conv2d_resample", "fma", "grid_sample_gradfix", "upfirdn2d")
SHARED = "shared"  # goes into the package
START = "start"  # becomes `torch_utils/__init__.py`, which NVIDIA left empty
PAGE = """# Ops in place of NVIDIA's

Exported by `ladder export --like nvidia` of the StyleGAN2 optimization ladder {version}, commit
{commit}. The digest of the drop-in files is `{digest}`.

{names}
have the names, arguments and results of the files in `torch_utils/ops` of NVIDIA's stylegan3 and stylegan2-ada-pytorch,
and of R3GAN. They were written anew and contain no code of NVIDIA's. `torch_utils/__init__.py`, empty in a clone, lets
PyTorch accept two arguments of the training loops again: whole numbers as Adam's betas, and a sampler's data set. Copy
`torch_utils` over a clone's, and take it back:

    cp -r torch_utils CLONE/
    cd CLONE; {undo}

They need Python 3.10 and PyTorch {pytorch} or newer. The `environment.yml` of a clone is older. Nothing is built: the
ops run as Triton kernels on a CUDA GPU (Triton {triton} or newer), and as plain PyTorch everywhere else and with
`impl="ref"`. A warning names each call that no fused op serves, once: filters of rank above 1 or of more than 8 taps,
factors above 2, activations other than linear, relu and lrelu.

The import of `conv2d_gradfix` makes second derivatives of PyTorch's own convolutions fast, so networks that call those,
as R3GAN's do, gain too. `conv2d_gradfix.enabled` must be True, as in all these training loops, for
`no_weight_gradients` to take effect.

# The ops below them
"""


def render_files(origin: Origin) -> dict[str, str]:
    """Return the path of each file below `torch_utils` -> its text. The same sources give the same files."""
    inside = package.render_package(origin, [*OPS])
    inside[f"{SHARED}.py"] = _read_source(SHARED).replace("\nfrom kernels.", "\nfrom .")
    texts = {f"{FOLDER}/{PACKAGE}/{path}": text for path, text in inside.items()}
    for name in REPLACED:
        text = _read_source(name).replace("\nfrom kernels", f"\nfrom .{PACKAGE}")
        text = text.replace(f"\nfrom {nvidia.__name__}.{SHARED} ", f"\nfrom .{PACKAGE}.{SHARED} ")
        texts[f"{FOLDER}/{name}.py"] = text.replace(f"\nfrom {nvidia.__name__} ", "\nfrom . ")
    texts["__init__.py"] = _read_source(START)
    page = PAGE.format(
        version=origin.version,
        commit=origin.commit or "unknown",
        digest=digest_files(texts),
        names=", ".join(f"`{name}.py`" for name in REPLACED),
        undo=UNDO,
        pytorch=".".join(map(str, package.PYTORCH_FUSED)),
        triton=".".join(map(str, package.TRITON)),
    )
    texts[f"{FOLDER}/{PACKAGE}/README.md"] = page + inside["README.md"].partition("\n")[2]
    return dict(sorted(texts.items()))


def _read_source(name: str) -> str:
    return (HERE / f"{name}.py").read_text(encoding="utf-8")


def digest_files(texts: Mapping[str, str]) -> str:
    """Return a hash of these files, but not of the pages and the commit among them."""
    whole = hashlib.sha256()
    for path, text in sorted(texts.items()):
        if path.endswith(".py") and not path.endswith(f"{PACKAGE}/__init__.py"):
            whole.update(f"{path}\0{text}\0".encode())
    return whole.hexdigest()[:16]


def export(origin: Origin, folder: Path) -> list[Path]:
    """Write `torch_utils` into `folder`, whole or not at all, and return its files. Raises UserError."""
    return package.write(folder, TOP, render_files(origin))


def refuse_patched(clone: Path) -> None:
    """Raise UserError for a clone that has such files already: they would be measured as its own."""
    for name in REPLACED:
        path = clone / TOP / FOLDER / f"{name}.py"
        if path.is_file() and f"from .{PACKAGE}" in path.read_text(encoding="utf-8", errors="replace"):
            raise UserError(
                f"{clone}: {TOP}/{FOLDER}/{name}.py comes from `ladder export`, and would be measured as the clone's"
                f" own: run `{UNDO}` there, or give another clone"
            )
