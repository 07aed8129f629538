from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

import pytest


def test_version(retrograd):
    done = retrograd("--version")
    assert (done.returncode, done.stdout) == (0, f"retrograd {version('retrograd')}\n")


def test_help_names_every_command(retrograd):
    done = retrograd("--help")
    assert done.returncode == 0
    for command in ("train", "check", "inspect", "fetch", "reward", "demo"):
        assert re.search(rf"\b{command}\b", done.stdout)


def test_the_command_line_is_quick_because_nothing_heavy_is_imported():
    code = (
        "import sys; import app.cli; "
        "print([name for name in ('torch', 'llama_cpp', 'numpy', 'pydantic', 'gguf') "
        "if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_command_or_option_is_a_usage_error(retrograd):
    assert retrograd("trian").returncode == 2
    assert retrograd("train", "x.toml", "--sed", "3").returncode == 2


@pytest.mark.parametrize("command", [("train",), ("check",), ("reward", "test")])
def test_a_missing_configuration_is_one_sentence_and_status_2(retrograd, tmp_path, command):
    done = retrograd(*command, "absent.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("absent.toml does not exist")
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_debug_shows_where_an_error_comes_from(retrograd, tmp_path):
    done = retrograd("train", "absent.toml", "--debug", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "absent.toml does not exist" in done.stderr
