"""`make venv`, with a python that writes down what pip is asked for, and installs nothing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

PYTHON = """\
#!/bin/sh
case "$*" in
    "-m pip --version") exit 0 ;;
    "-m pip show"*) test -e torch-is-installed ;;
    "-m pip wheel"*)
        for word; do [ "$previous" = --wheel-dir ] && folder=$word; previous=$word; done
        echo "compile $CMAKE_ARGS" >> asked
        touch "$folder/llama_cpp_python-0.3.36-py3-none-any.whl" ;;
    "-m pip install"*)
        case "$*" in *torch==*) touch torch-is-installed ;; esac
        echo "$*" >> asked ;;
    *) exec {python} "$@" ;;
esac
"""

INSTALLED = [
    "-m pip install --quiet -e .[dev]",
    "-m pip install --quiet --no-deps --upgrade --target .venv/share/tensorboard-reader "
    "tensorboard>=2.20,<3 absl-py>=2",
]


@pytest.fixture
def make_venv(root, tmp_path):
    """Runs `make venv` in a copy of the checkout; the lines that pip was asked, since last time."""
    shutil.copytree(root / ".ci", tmp_path / ".ci")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.replace("{python}", sys.executable))
    python.chmod(0o755)
    asked = tmp_path / "asked"

    def run(*choices: str) -> list[str]:
        asked.write_text("")
        env = {"PATH": os.environ["PATH"], "RETROGRAD_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(
            ["make", "venv", f"PYTHON={sys.executable}", *choices],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return asked.read_text().splitlines()

    return run


def test_the_first_time_everything_is_installed_and_the_second_time_nothing(make_venv):
    first = make_venv()
    assert first[0].startswith("compile -DGGML_NATIVE=ON")
    assert first[-2:] == INSTALLED
    assert not [line for line in first if "torch==" in line], "the default index has it"
    assert make_venv() == []


def test_a_build_of_torch_that_was_chosen_stays_chosen(make_venv, tmp_path):
    make_venv("TORCH_INDEX=https://builds.example/cpu")
    assert "TORCH_INDEX=https://builds.example/cpu" in (tmp_path / ".venv/.chosen").read_text()
    assert make_venv("TORCH_INDEX=https://builds.example/cpu") == []

    os.utime(tmp_path / ".venv/.installed", (0, 0))
    assert make_venv() == INSTALLED
    (tmp_path / "torch-is-installed").unlink()
    os.utime(tmp_path / ".venv/.installed", (0, 0))
    assert "--index-url https://builds.example/cpu torch==" in make_venv()[0]

    other = make_venv("TORCH_INDEX=https://builds.example/gpu")
    assert "--force-reinstall --index-url https://builds.example/gpu torch==" in other[0]


def test_another_option_compiles_llama_cpp_again(make_venv):
    make_venv()
    (compiled, installed, *_) = make_venv("CMAKE_ARGS=-DGGML_CUDA=ON")
    assert "-DGGML_CUDA=ON" in compiled
    assert "--force-reinstall" in installed
    assert make_venv("CMAKE_ARGS=-DGGML_CUDA=ON") == []
