"""The oldest versions: declared for every dependency, installed and tested by a job, and refused below that."""

import re
from importlib import metadata
from pathlib import Path

import pytest
from click.testing import CliRunner

from ladder.cli import doctor
from ladder.cli import main as cli
from ladder.core import bounds
from ladder.core.errors import UserError
from ladder.images.prepare import prepare_images
from tests.support import pictures
from tests.support.pictures import encode, fill, plain

source, cache = pictures.source, pictures.cache
ROOT = Path(__file__).resolve().parents[2]


def test_every_dependency_has_an_oldest_version_that_is_not_above_the_locked_one():
    text = (ROOT / "pyproject.toml").read_text()
    listed = text.split("\ndependencies = [", 1)[1].split("\n]", 1)[0]
    names = {line.split('"')[1] for line in listed.splitlines() if '"' in line}
    assert len(bounds.read_oldest_versions()) == len(names), "a bound that `ladder.core.bounds` cannot read"
    for name, version in bounds.read_oldest_versions().items():
        pins = re.findall(
            rf"^{re.escape(name)}==([\d.]+)", (ROOT / "requirements.lock").read_text(), re.M | re.I
        )
        assert pins and all(bounds._parse_version(version) <= bounds._parse_version(pin) for pin in pins), (
            name
        )


def test_pillow_that_is_too_old_is_refused_in_one_line_and_doctor_says_it(source, cache, monkeypatch):
    version = metadata.version
    installed = lambda name: "9.5.0" if name.lower() == "pillow" else version(name)  # noqa: E731
    monkeypatch.setattr(bounds.importlib.metadata, "version", installed)
    least = bounds.read_oldest_versions()["pillow"]
    line = f"pillow 9.5.0 is older than {least}, which this project needs: pip install 'pillow>={least}'"
    with pytest.raises(UserError) as refusal:
        prepare_images(fill(source, {"a.png": encode(plain())}), 16, cache=cache)
    assert str(refusal.value) == line and not cache.exists()
    (check,) = [each for each in doctor.check_packages() if "9.5.0" in each.detail]
    assert check.status == "warning" and check.remedy == f"pip install 'pillow>={least}'"
    assert CliRunner().invoke(cli.main, ["list"]).exit_code == 0
