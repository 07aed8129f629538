from __future__ import annotations

import sys

import pytest

from app.chat import process


@pytest.fixture
def in_its_place(monkeypatch, tmp_path):
    """Lets a program of the test answer instead of the worker: another real process. It finds
    standard input as the worker does, and prints what it likes."""

    def put(source: str) -> None:
        program = tmp_path / "answers"
        program.write_text(f"#!{sys.executable}\n{source}", encoding="utf-8")
        program.chmod(0o700)
        monkeypatch.setattr(process, "COMMAND", (str(program),))

    return put
