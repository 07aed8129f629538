from __future__ import annotations

import threading

import llama_cpp
import numpy as np
import psutil
import pytest

from trainer.errors import ConfigError, ModelError
from trainer.llama.batch import TokenBatch
from trainer.llama.context import ContextInUseError, DecodeError, LlamaContext
from trainer.llama.model import LlamaModel

TOKENS = list(b"what is 3 + 4?")


@pytest.fixture(scope="module")
def model(tiny):
    with LlamaModel.open(tiny) as model:
        yield model


def new_context(model, **options):
    sizes = {"n_ctx": 200, "n_batch": 128, "n_seq_max": 4, "exact": True, "threads": 1}
    return LlamaContext(model, **(sizes | options))


@pytest.fixture
def context(model):
    with new_context(model) as context:
        yield context


def last_logits(context, tokens=TOKENS, sequence=0):
    batch = TokenBatch(context.n_batch)
    wanted = np.zeros(len(tokens))
    wanted[-1] = 1
    batch.add(tokens, np.arange(len(tokens)), sequence, wanted)
    return context.decode(batch)[0].copy()


def step(context, token, position, sequences):
    batch = TokenBatch(8)
    batch.add([token] * len(sequences), position, sequences, 1)
    return context.decode(batch).copy()


def test_logits_come_in_the_order_of_the_wanted_tokens(context):
    batch = TokenBatch(32)
    batch.add(TOKENS, np.arange(len(TOKENS)), 0, 1)
    every = context.decode(batch).copy()
    context.clear()
    batch.clear()
    batch.add(TOKENS, np.arange(len(TOKENS)), 0, np.isin(np.arange(len(TOKENS)), [3, 9]))
    some = context.decode(batch)
    np.testing.assert_array_equal(some, every[[3, 9]])


def test_a_copied_sequence_goes_on_like_its_source(context):
    last_logits(context)
    context.copy_sequence(0, 1)
    rows = step(context, 65, len(TOKENS), [0, 1])
    context.remove_sequence(0)
    context.remove_sequence(1)
    last_logits(context, [*TOKENS, 65])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-4)


def test_a_lone_token_has_the_logits_it_has_among_others(context):
    last_logits(context)
    context.copy_sequence(0, 1)
    among = step(context, 65, len(TOKENS), [0, 1])[0]
    context.clear()
    last_logits(context)
    np.testing.assert_array_equal(step(context, 65, len(TOKENS), [0])[0], among)


def test_the_spare_token_beside_a_lone_one_takes_no_cell_for_good(context):
    last_logits(context)
    for position in range(len(TOKENS), 256 - 1):
        step(context, 65, position, [0])
    with pytest.raises(DecodeError, match="no free cells"):
        step(context, 65, 255, [0, 1])


def test_a_full_cache_is_explained(context):
    last_logits(context, [1] * 128)
    last_logits(context, [1] * 128, sequence=1)
    with pytest.raises(DecodeError, match=r"tiny\.gguf.*2 tokens \(status 1\).*no free cells"):
        step(context, 65, 128, [0, 1])


def test_a_batch_over_the_limit_is_refused_before_llama_cpp_aborts(context):
    batch = TokenBatch(129)
    batch.add([1] * 129, np.arange(129), 0, 0)
    with pytest.raises(DecodeError, match="129 tokens is over the limit of 128"):
        context.decode(batch)


def test_more_logit_rows_than_were_reserved_are_refused(context):
    batch = TokenBatch(64)
    batch.add([1] * 64, np.arange(64), 0, 1)
    with pytest.raises(DecodeError, match="logits of 64 tokens"):
        context.decode(batch)


def test_an_invalid_batch_is_explained(context):
    with pytest.raises(DecodeError, match=r"status -1.*the batch is invalid.*llama\.cpp says"):
        step(context, 10**6, 0, [0, 1])


def test_more_sequences_than_llama_cpp_holds_are_refused(model):
    with pytest.raises(ConfigError, match="256 sequences at once"):
        new_context(model, n_seq_max=256)


def test_a_second_thread_is_refused(context):
    caught = []

    def meddle():
        try:
            last_logits(context)
        except ContextInUseError as error:
            caught.append(str(error))

    with context.exclusive():
        other = threading.Thread(target=meddle)
        other.start()
        other.join()
    assert len(caught) == 1
    assert "another thread is using this llama.cpp context" in caught[0]
    last_logits(context)


def test_after_a_swap_logits_are_those_of_a_cold_start(model, context, random_adapter):
    first, second = random_adapter(model.path, seed=1), random_adapter(model.path, seed=2)
    bare = last_logits(context)
    context.swap_adapter(first)
    under_first = last_logits(context)
    context.swap_adapter(second)
    warm = last_logits(context)
    with new_context(model) as cold:
        cold.swap_adapter(second)
        np.testing.assert_array_equal(last_logits(cold), warm)
    assert np.abs(warm - under_first).max() > 0.1
    assert np.abs(under_first - bare).max() > 0.1
    context.swap_adapter(None)
    np.testing.assert_array_equal(last_logits(context), bare)


def test_an_adapter_that_does_not_fit_leaves_the_present_one(
    model, context, random_adapter, random_llama
):
    context.swap_adapter(random_adapter(model.path, seed=1))
    before = last_logits(context)
    foreign = random_adapter(random_llama(width=32), seed=1)
    with pytest.raises(ModelError, match=r"adapter-1\.gguf: llama\.cpp cannot load this adapter"):
        context.swap_adapter(foreign)
    context.clear()
    np.testing.assert_array_equal(last_logits(context), before)


@pytest.mark.parametrize("present", [False, True])
def test_an_adapter_that_llama_cpp_does_not_take_is_freed_and_the_present_one_stays(
    model, context, random_adapter, monkeypatch, present
):
    """No file makes llama.cpp answer so today; its interface says that it may."""
    if present:
        context.swap_adapter(random_adapter(model.path, seed=1))
    before = last_logits(context)
    freed = []
    free = llama_cpp.llama_adapter_lora_free
    monkeypatch.setattr(llama_cpp, "llama_set_adapters_lora", lambda *_: -1)
    monkeypatch.setattr(llama_cpp, "llama_adapter_lora_free", lambda a: (freed.append(a), free(a)))
    with pytest.raises(ModelError, match=r"adapter-2\.gguf: .*status -1"):
        context.swap_adapter(random_adapter(model.path, seed=2))
    with pytest.raises(ModelError, match=r"no adapter: .*status -1"):
        context.swap_adapter(None)
    assert len(freed) == 1
    monkeypatch.undo()
    context.clear()
    np.testing.assert_array_equal(last_logits(context), before)


def test_two_hundred_swaps_leave_resident_memory_flat(smollm2, random_adapter):
    adapters = [random_adapter(smollm2, seed=seed, rank=32) for seed in range(2)]
    size = adapters[0].stat().st_size
    process = psutil.Process()
    with LlamaModel.open(smollm2) as model, new_context(model) as context:
        settled = 0
        for count in range(200):
            context.swap_adapter(adapters[count % 2])
            if count % 50 == 0:
                last_logits(context, TOKENS[:2])
            if count == 20:
                settled = process.memory_info().rss
        growth = process.memory_info().rss - settled
    assert growth < 3 * size  # a leak would be 180 times the size
