from __future__ import annotations


def test_a_file_that_is_no_gguf_is_refused(retrograd, tmp_path):
    (tmp_path / "notes.gguf").write_text("hello")
    done = retrograd("inspect", tmp_path / "notes.gguf")
    assert done.returncode == 2
    assert "not a GGUF file" in done.stderr


def test_a_missing_file_is_refused(retrograd, tmp_path):
    done = retrograd("inspect", tmp_path / "absent.gguf")
    assert done.returncode == 2
    assert "no such file" in done.stderr
