"""A repository with a history of toys, measured by the real plugin: commits whose times are known exactly.

A commit's `stylegan_lite` says how long a step takes, the benchmark says so to asv. All that stands between
them is this project's, and so is the machine that is described. Interpreters have stand-ins for torch as wanted.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

from benches import ROOT
from tests.support.repositories import commit_all, git

STEP = "rungs.Rung.samples_step_time"
MEMORY = "rungs.Rung.track_peak_memory"
# Step k of the history takes SECONDS[k - 1] and is tagged vk; the step from v3 to v4 is the one to be found.
SECONDS = (0.1, 0.1, 0.1, 0.3, 0.3, 0.3)

BENCHMARK = '''
"""Two numbers of one process, as the real ones are: the second is what the first left behind."""
import os
from importlib.metadata import version
from pathlib import Path


class Rung:
    params = (["tiny"], ["baseline"])
    param_names = ("workload", "rung")
    version = "1"

    def samples_step_time(self, workload, rung):
        import stylegan_lite
        left = Path(os.environ["LADDER_ASV_HANDOVER"]) / "left"
        assert not left.exists() or left.read_text() == str(stylegan_lite.BYTES), "left by another commit"
        left.write_text(str(stylegan_lite.BYTES))
        # Of no two commits and torches the same to the last digit: a copy would be refused when it is published.
        own = stylegan_lite.BYTES * 1e-7 + int(version("torch").split(".")[1]) * 1e-8
        return [stylegan_lite.SECONDS + own + i * 1e-4 for i in range(6)]

    def track_peak_memory(self, workload, rung):
        return int((Path(os.environ["LADDER_ASV_HANDOVER"]) / "left").read_text())
'''


def make(folder: Path) -> Path:
    """The repository, on a branch called trunk, without results."""
    shutil.copytree(ROOT / "ladder", folder / "ladder", ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("benches", "kernels", "stylegan_lite"):
        (folder / name).mkdir()
    for path in [*(ROOT / "benches").glob("_*.py"), ROOT / "benches/series.py"]:
        shutil.copy(path, folder / "benches")
    for name in ("asv.conf.json", "benches/asv.virtualenv.conf.json", ".gitignore"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "benches/rungs.py").write_text(BENCHMARK)
    (folder / "kernels/__init__.py").touch()
    for name in ("config.py", "shares.py"):  # publishing knows recipes
        shutil.copy(ROOT / "stylegan_lite" / name, folder / "stylegan_lite")
    git(folder, "init", "-q", "-b", "trunk")
    for number, seconds in enumerate(SECONDS, 1):
        write_toy(folder, seconds, number)
        commit_all(folder, f"step {number}")
        git(folder, "tag", f"v{number}")
    return folder


def write_toy(folder: Path, seconds: float, size: int) -> None:
    (folder / "stylegan_lite/__init__.py").write_text(f"SECONDS, BYTES = {seconds}, {size}\n")


def asv(
    folder: Path, *args: str, python: Path | str = sys.executable, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run asv there without a terminal, with a home of its own beside the repository."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("LADDER_ASV_HANDOVER", "TRITON_INTERPRET")
    }
    settings = {
        "HOME": str(home),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(folder.parent / "decoy"),
        "PIP_INDEX_URL": "http://127.0.0.1:9/nothing-is-installed",
        "PIP_CONFIG_FILE": os.devnull,
    }
    return subprocess.run(
        [str(python), "-m", "asv", *args],
        cwd=folder,
        env=kept | settings | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


# --- interpreters ---------------------------------------------------------------------------------------------------


def interpreter(folder: Path, *, without: tuple[str, ...] = (), files: dict[str, str] | None = None) -> Path:
    """A Python with this one's packages, but for those whose names begin so, and with a few files of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages, python = folder / "packages", folder / "bin/python"
    packages.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not path.name.startswith(without) or not without:
            (packages / path.name).symlink_to(path)
    for name, text in (files or {}).items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "all.pth").write_text(f"{packages}\n")
    return python


TORCH = ("torch", "triton", "nvidia", "functorch")  # and what stands beside it


def torch_files(version: str, triton: str, cuda: str | None = "13.0", code: str = "") -> dict[str, str]:
    """What an interpreter shows of its torch: enough to be asked for versions, and `code` to be imported."""
    return {
        "torch/__init__.py": code,
        "torch/version.py": f"__version__ = {version!r}\ncuda: str | None = {cuda!r}\n",
        **_info("torch", version),
        **_info("triton", triton),
    }


def _info(name: str, version: str, requires: tuple[str, ...] = ()) -> dict[str, str]:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {required}" for required in requires]
    return {f"{name}-{version}.dist-info/METADATA": "\n".join(lines) + "\n"}


def wheel(
    folder: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()
) -> None:
    """A wheel of a few lines; pip asks for no more than this."""
    info = f"{name}-{version}.dist-info"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, **_info(name, version, requires)}.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
