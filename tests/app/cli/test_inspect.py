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


def test_a_model_that_can_be_trained_on(retrograd, random_llama):
    done = retrograd("inspect", random_llama(heads=8, kv_heads=2))
    assert done.returncode == 0, done.stderr
    shown = [line.rstrip() for line in done.stdout.splitlines()]
    assert "architecture        llama" in shown
    assert "query heads         8" in shown
    assert "key/value heads     2" in shown
    assert "tensors                21 × F32" in shown
    assert "chat template       yes" in shown
    assert "can be trained on   yes" in shown


def test_a_model_that_cannot_be_trained_on_says_why(retrograd, random_llama):
    done = retrograd("inspect", random_llama(architecture="falcon"))
    assert done.returncode == 0, done.stderr
    (verdict,) = [line for line in done.stdout.splitlines() if line.startswith("can be")]
    assert "no: the architecture 'falcon' is not supported" in verdict
