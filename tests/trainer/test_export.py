"""The exported file against llama.cpp, reached through its own Python interface."""

from __future__ import annotations

import os
from contextlib import contextmanager

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from small_runs import SMALL, exported, rewards, train

from trainer.errors import ConfigError, RetrogradError, TrainingError
from trainer.export import ExportRefusedError, check_writable, write, write_checked
from trainer.gguf.architecture import describe
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder

CPU = torch.device("cpu")
TEXT = (72, 101, 108, 108, 111, 44, 32, 119)


@pytest.fixture(scope="module")
def model(random_llama):
    return random_llama(**SMALL | {"layers": 2})


@pytest.fixture(scope="module")
def decoder(model):
    return Decoder(GgufFile(model), CPU, context=48)


def moved_adapter(decoder, *, rank=2, alpha=4.0, targets=("auto",)):
    names = select_targets(decoder.architecture, targets)
    adapter = Adapter(decoder.architecture, names, rank=rank, alpha=alpha, seed=0, device=CPU)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, B in adapter.factors.values():
            B.copy_(torch.randn(B.shape, generator=generator) * 0.1)
    return adapter


@contextmanager
def llama_cpp_alone(model, adapter=None):
    llama = llama_cpp.Llama(
        str(model),
        lora_path=str(adapter) if adapter else None,
        n_ctx=48,
        n_threads=1,
        logits_all=True,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
    )
    try:
        yield llama
    finally:
        llama.close()


def their_logits(model, adapter, tokens=TEXT):
    with llama_cpp_alone(model, adapter) as llama:
        llama.eval(tokens)
        return torch.tensor(llama.scores[: len(tokens)])


def greedy(model, adapter, prompt, count):
    """The most probable continuation, token by token."""
    tokens = list(prompt)
    with llama_cpp_alone(model, adapter) as llama:
        llama.eval(tokens)
        for _ in range(count):
            tokens.append(int(np.argmax(llama.scores[len(tokens) - 1])))
            llama.eval(tokens[-1:])
    return tokens[len(prompt) :]


@pytest.mark.parametrize(
    ("rank", "alpha"), [(1, 1.0), (2, 4.0), (3, 1.5), (8, 16.0), (8, 8.0), (16, 4.0)]
)
def test_llama_cpp_alone_computes_torchs_logits(model, decoder, tmp_path, rank, alpha):
    """Scaled by alpha / rank once: baked in twice, or left out, these would be whole units off."""
    adapter = moved_adapter(decoder, rank=rank, alpha=alpha)
    path = tmp_path / "adapter.gguf"
    write(path, adapter, dtype="f32")
    mine = decoder.logits(TEXT, adapter)
    assert (mine - decoder.logits(TEXT, None)).abs().max() > 0.05
    torch.testing.assert_close(their_logits(model, path), mine, rtol=0, atol=1e-3)


@pytest.mark.parametrize("target", ["q", "k", "v", "o", "ffn_up", "ffn_down", "ffn_gate"])
def test_each_target_is_written_in_the_files_own_row_order(model, decoder, tmp_path, target):
    adapter = moved_adapter(decoder, targets=[target])
    path = tmp_path / "adapter.gguf"
    write(path, adapter, dtype="f32")
    mine = decoder.logits(TEXT, adapter)
    assert (mine - decoder.logits(TEXT, None)).abs().max() > 0.01
    torch.testing.assert_close(their_logits(model, path), mine, rtol=0, atol=1e-3)


def test_f16_rounds_the_factors_and_nothing_else(model, decoder, tmp_path):
    adapter = moved_adapter(decoder)
    path = tmp_path / "adapter.gguf"
    write(path, adapter, dtype="f16")
    for name, value in adapter.state().items():
        np.testing.assert_array_equal(exported(path)[name], value.numpy().astype(np.float16))
    rounded = moved_adapter(decoder)
    rounded.load_state({name: v.half().float() for name, v in adapter.state().items()})
    mine = decoder.logits(TEXT, rounded)
    torch.testing.assert_close(their_logits(model, path), mine, rtol=0, atol=1e-2)


def test_a_trained_adapter_gives_other_greedy_answers_than_the_base(model, tmp_path):
    """A run of big steps; llama.cpp alone, with its file and without."""
    recorder = train(
        tmp_path,
        model,
        rewards([0.0, 1.0, 0.0, 2.0]),
        {"grpo.updates": 5, "training.lr": 0.05, "grpo.grpo_epochs": 2}
        | {"grpo.clip_range_low": 0.9, "grpo.clip_range_high": 0.9},
    )
    path = recorder.outcome.output
    for prompt in (TEXT, b"hello", b"3 + 4 ="):
        assert greedy(model, path, prompt, 8) != greedy(model, None, prompt, 8)


def test_a_run_exports_alpha_as_configured(model, tmp_path):
    recorder = train(
        tmp_path,
        model,
        rewards([0.0, 1.0]),
        {"lora.rank": 3, "lora.alpha": 7.5, "lora.dtype": "f16", "lora.targets": ["q", "v"]},
    )
    reader = gguf.GGUFReader(recorder.outcome.output)
    assert reader.fields["adapter.lora.alpha"].contents() == 7.5
    assert {t.tensor_type.name for t in reader.tensors} == {"F16"}
    names = {f"blk.{i}.attn_{t}.weight.lora_{f}" for i in (0, 1) for t in "qv" for f in "ab"}
    assert {t.name for t in reader.tensors} == names
    assert {exported(recorder.outcome.output)[n].shape[0] for n in names if n[-1] == "a"} == {3}


# -- before the run ------------------------------------------------------------------------------


def test_a_place_that_can_be_written_is_left_as_it_was(tmp_path):
    path = tmp_path / "runs" / "adapter.gguf"
    check_writable(path)
    assert list(path.parent.iterdir()) == []
    path.write_bytes(b"GGUF, an earlier adapter")
    check_writable(path)
    assert path.read_bytes() == b"GGUF, an earlier adapter"


def test_a_folder_is_no_place_for_an_adapter(tmp_path):
    with pytest.raises(ConfigError, match=r"this is a folder\. Set \[output\] path"):
        check_writable(tmp_path)


def test_a_file_in_the_way_of_the_folder_is_told(tmp_path, model, decoder):
    (tmp_path / "runs").write_text("in the way")
    path = tmp_path / "runs" / "adapter.gguf"
    with pytest.raises(ConfigError, match=r"adapter\.gguf: cannot be written"):
        check_writable(path)
    with pytest.raises(RetrogradError, match=r"adapter\.gguf: cannot be written"):
        write(path, moved_adapter(decoder), dtype="f32")


def test_a_refused_file_never_takes_the_place_of_an_earlier_one(random_llama, tmp_path):
    def refuse(path):
        raise TrainingError(f"{path.name}: no.")

    adapter = small_adapter(random_llama)
    output = tmp_path / "adapter.gguf"
    output.write_bytes(b"an earlier adapter")
    with pytest.raises(ExportRefusedError, match=r"no\. The file is kept as .*\.refused"):
        write_checked(output, adapter, dtype="f16", check=refuse)
    assert output.read_bytes() == b"an earlier adapter"
    assert GgufFile(tmp_path / "adapter.gguf.refused").text("adapter.type") == "lora"


def test_a_file_that_was_accepted_is_at_its_place_alone(random_llama, tmp_path):
    adapter = small_adapter(random_llama)
    output = tmp_path / "adapter.gguf"
    seen = write_checked(output, adapter, dtype="f32", check=lambda path: path.name)
    assert seen.endswith(".partial")
    assert [p.name for p in tmp_path.iterdir()] == ["adapter.gguf"]


def test_a_file_with_other_factors_is_refused(random_llama, tmp_path):
    """What is written is read back: here the adapter moves on between the two."""
    adapter = small_adapter(random_llama)
    output = tmp_path / "adapter.gguf"
    written = adapter.state

    def state_then_move():
        state = written()
        for _, B in adapter.factors.values():
            B.data += 1.0
        return state

    adapter.state = state_then_move
    with pytest.raises(ExportRefusedError, match="is not what was trained"):
        write_checked(output, adapter, dtype="f32", check=lambda _: None)


def small_adapter(random_llama):
    file = GgufFile(random_llama(layers=1))
    names = ["blk.0.attn_q.weight"]
    return Adapter(describe(file), names, rank=2, alpha=4.0, seed=0, device=CPU).random(0.1)


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_rank_one_is_exported_like_any_other(random_llama, tmp_path, dtype):
    file = GgufFile(random_llama(layers=1))
    names = ["blk.0.attn_q.weight"]
    adapter = Adapter(describe(file), names, rank=1, alpha=1.0, seed=0, device=CPU).random(0.1)
    assert write_checked(tmp_path / "a.gguf", adapter, dtype=dtype, check=lambda _: True)


def test_factors_that_overflow_f16_are_refused(random_llama, tmp_path):
    adapter = small_adapter(random_llama)
    adapter.factors["blk.0.attn_q.weight"][0].data += 1e6
    with pytest.raises(ExportRefusedError, match="not finite as F16: training has diverged"):
        write_checked(tmp_path / "a.gguf", adapter, dtype="f16", check=lambda _: None)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: p.write_text("{}"), "is no GGUF file, so it is not replaced"),
        (lambda p: os.mkfifo(p), "this is a device or a pipe"),
        (lambda p: p.mkdir(), "this is a folder"),
    ],
)
def test_only_an_adapter_is_replaced(tmp_path, make, words):
    path = tmp_path / "output"
    make(path)
    with pytest.raises(ConfigError, match=words):
        check_writable(path)


def test_a_name_too_long_for_its_partial_file_is_known_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        check_writable(tmp_path / ("x" * 250))
