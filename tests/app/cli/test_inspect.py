from __future__ import annotations

from app.text import size


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
    assert "attention           8 heads of 8 on 2 of keys and values" in shown
    assert "can be adapted      q: 64 × 64" in shown
    assert "                    k: 16 × 64" in shown
    assert "special tokens      eos '<|end|>' (257)" in shown
    # two layers, 260 tokens in and out, and the matrices: 4 bytes each
    base = 4 * (2 * 260 * 64 + 2 * (2 * 64 * 64 + 2 * 16 * 64 + 3 * 64 * 96))
    assert f"memory to train     {size(base)} for the base in F32" in shown
    assert f"memory to sample    {2 * 2 * 16 * 2} bytes for a token of the cache" in shown


def test_a_model_that_cannot_be_trained_on_says_why(retrograd, random_llama):
    done = retrograd("inspect", random_llama(architecture="falcon"))
    assert done.returncode == 0, done.stderr
    (verdict,) = [line for line in done.stdout.splitlines() if line.startswith("can be")]
    assert "no: the architecture 'falcon' is not supported" in verdict
