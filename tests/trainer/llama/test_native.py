from __future__ import annotations

import llama_cpp
import pytest

from trainer.errors import ModelError
from trainer.llama.native import BINDING_VERSION, NativeLog, check_binding, start_native

WARNING, ERROR, INFO, CONTINUATION = 3, 4, 2, 5


def test_another_release_of_the_binding_is_refused_with_both_versions():
    with pytest.raises(ModelError, match=r"llama-cpp-python 0\.4\.0 .*0\.3\.36"):
        check_binding("0.4.0")


def test_the_installed_release_is_the_supported_one():
    assert llama_cpp.__version__ == BINDING_VERSION
    assert start_native() is start_native()


def test_a_line_that_comes_in_pieces_is_one_line():
    log = NativeLog()
    log.callback(ERROR, b"tensor ", None)
    log.callback(CONTINUATION, b"is gone\nnext", None)
    assert log.since(0) == ["tensor is gone"]


def test_information_is_dropped_and_so_is_what_continues_it():
    log = NativeLog()
    log.callback(INFO, b"loading\n", None)
    log.callback(CONTINUATION, b".....\n", None)
    assert log.since(0) == []
    assert log.quote(0) == "llama.cpp gave no reason"


def test_only_lines_after_the_mark_are_quoted():
    log = NativeLog()
    log.callback(ERROR, b"of another model\n", None)
    mark = log.mark()
    log.callback(WARNING, b"first\n", None)
    log.callback(ERROR, b"second\n", None)
    assert log.quote(mark) == "llama.cpp says: first / second"


def test_the_buffer_is_bounded():
    log = NativeLog()
    for number in range(1000):
        log.callback(ERROR, f"line {number}\n".encode(), None)
    assert log.since(0, last=10_000)[0] == "line 800"
    assert log.mark() == 1000


def test_llama_cpp_writes_nothing_to_the_terminal(tmp_path, capfd):
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    log = start_native()
    mark = log.mark()
    loaded = llama_cpp.llama_model_load_from_file(
        bytes(damaged), llama_cpp.llama_model_default_params()
    )
    assert loaded is None
    assert log.since(mark)
    assert capfd.readouterr() == ("", "")
