from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.resources import bundled

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["templates", "static", "migrations", "examples"])
def test_in_a_checkout_the_folders_stand_beside_the_package(name):
    assert bundled(name) == ROOT / name


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    built = subprocess.run(
        [*command, str(ROOT)], capture_output=True, text=True, check=False, timeout=120
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_brings_every_folder_and_nothing_that_git_ignores(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        size = sum(entry.file_size for entry in archive.infolist())
    packed = {name.removeprefix("app/_bundled/") for name in names if "_bundled/" in name}
    assert {name.partition("/")[0] for name in packed} == {
        "templates",
        "static",
        "migrations",
        "examples",
    }
    assert "examples/smoke_tiny_grpo.toml" in packed
    of_examples = {name for name in packed if name.startswith("examples/")}
    assert not {name for name in of_examples if "/runs/" in name or "/models/" in name}
    assert not [name for name in names if "__pycache__" in name]
    assert size < 6 << 20


def test_an_installed_wheel_finds_its_own_folders(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = (
        "from app.resources import bundled\n"
        "for name in ('templates', 'static', 'migrations', 'examples'): print(bundled(name))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=True,
    )
    inside = tmp_path / "installed/app/_bundled"
    assert done.stdout.split() == [
        str(inside / name) for name in ("templates", "static", "migrations", "examples")
    ]
