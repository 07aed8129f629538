"""What a stranger gets: source archive and wheel built, installed elsewhere, and the demo run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

BUNDLED = {
    "templates/base.html",
    "static/js/live.js",
    "static/vendor/htmx.LICENSE",
    "migrations/README.md",
    "examples/smoke_tiny_grpo.toml",
    "examples/smoke_rl_reward.py",
    "examples/tiny/tiny.gguf",
    "examples/tiny/prompts.jsonl",
    "examples/addition/grpo.toml",
}


def succeed(*command: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def dist(root, tmp_path_factory) -> Path:
    """Both archives; the wheel is built from the source archive, not from the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    succeed(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, root)
    assert len(list(folder.iterdir())) == 2
    return folder


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory) -> Path:
    """The folder of an environment with the wheel in it. What retrograd depends on is borrowed from
    the environment of the tests; a checkout that is installed there in place is not."""
    folder = tmp_path_factory.mktemp("stranger") / "venv"
    succeed(sys.executable, "-m", "venv", "--without-pip", folder)
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    python = folder / "bin/python"
    succeed(*pip, "--python", python, "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    lent = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    # Folders that a .pth file names are searched last, and their own .pth files are not read.
    (site / "lent.pth").write_text("\n".join(sorted(lent)))
    return folder


def test_the_wheel_holds_the_code_and_every_bundled_folder(dist):
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {f"app/_bundled/{name}" for name in BUNDLED} <= set(names)
    assert {"app/cli/main.py", "trainer/run.py"} <= set(names)
    assert {name.split("/")[0] for name in names} == {"app", "trainer", "retrograd-0.1.0.dist-info"}
    # What a run of an example leaves there; a folder of templates is called so too.
    left = {"runs", "models", "__pycache__"}
    own = [name for name in names if not name.startswith("app/_bundled/templates/")]
    assert not [name for name in own if left & set(name.split("/"))]


def test_the_source_archive_holds_what_is_needed_to_build_and_test(dist):
    (source,) = dist.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {*BUNDLED, "pyproject.toml", "LICENSE", "README.md", "Makefile"} <= names
    assert {"trainer/run.py", "tests/conftest.py", ".ci/venv"} <= names
    assert not [name for name in names if name.split("/")[0] in {"runs", "models", "dist", ".venv"}]


def test_the_installed_command_trains_the_demo_in_an_unrelated_folder(installed, tmp_path):
    env = {"PATH": os.defpath, "HOME": str(tmp_path / "home"), "LC_ALL": "C.UTF-8"}
    (tmp_path / "home").mkdir()
    code = "import app, trainer; print(app.__file__); print(trainer.__file__)"
    origins = succeed(installed / "bin/python", "-c", code, cwd=tmp_path, env=env).stdout.split()
    assert [path for path in origins if not path.startswith(str(installed))] == []

    work = tmp_path / "work"
    work.mkdir()
    demo = (installed / "bin/retrograd", "demo", "--once", "--port", "0")
    done = succeed(*demo, cwd=work, env=env, timeout=500)
    assert "adapter: retrograd-demo/adapter.gguf" in done.stdout
    assert (work / "retrograd-demo/adapter.gguf").read_bytes()[:4] == b"GGUF"
    observed = tmp_path / "home/.local/share/retrograd/runs/1/output/observe.jsonl"
    records = map(json.loads, observed.read_text().splitlines())
    rewards = [r["metrics"]["reward/mean"] for r in records if r["type"] == "update"]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
    assert {path.name for path in work.iterdir()} == {"retrograd-demo"}
