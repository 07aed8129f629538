from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from trainer.errors import ConfigError, ModelError
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.llama.context import MAX_SEQUENCES, ContextInUseError
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, OptimizerSettings, PassSettings
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.continuous import RolloutStopped
from trainer.rollout.engine import RolloutEngine, plan_layout
from trainer.rollout.seeds import answer_seed

PROMPTS = [list(b"2 + 2 ="), list(b"what is the sum of 3 and 4?"), list(b"7")]


def open_engine(weights, **options):
    sizes = {
        "ctx": 128,
        "concurrency": 8,
        "max_prompt_tokens": 64,
        "group_size": 4,
        "settings": SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=12),
        "exact": True,
        "threads": 1,
    }
    return RolloutEngine(weights, **(sizes | options))


def seeds(prompts, members, update=0):
    return [[answer_seed(5, update, i, j) for j in range(members)] for i in range(prompts)]


def log_softmax(rows):
    rows = rows.astype(np.float64)
    rows -= rows.max(axis=-1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True))


def tokens_of(answers):
    return [[answer.tokens.tolist() for answer in group] for group in answers]


@pytest.fixture(scope="module")
def engine(random_llama):
    with open_engine(random_llama()) as engine:
        yield engine


def test_every_logprob_is_that_of_its_own_token_at_its_own_place(engine):
    groups = engine.sample(PROMPTS, seeds(3, 4))
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for answer in group:
            whole = [*prompt, *answer.tokens.tolist()]
            table = log_softmax(engine.logits(whole))
            places = np.arange(len(prompt) - 1, len(whole) - 1)
            np.testing.assert_allclose(answer.logprobs, table[places, answer.tokens], atol=1e-4)


def test_an_answer_of_one_token_to_a_prompt_of_one_token(random_llama):
    settings = SamplingSettings(temperature=0.7, top_p=1.0, max_new_tokens=1)
    with open_engine(random_llama(), settings=settings) as engine:
        ((answer,),) = engine.sample([[65]], [[99]])
        expected = log_softmax(engine.logits([65]) / 0.7)[0, answer.tokens]
    assert answer.tokens.shape == (1,)
    np.testing.assert_allclose(answer.logprobs, expected, atol=1e-5)


def test_answers_end_at_an_end_token_or_at_the_limit(engine):
    answers = [a for group in engine.sample(PROMPTS, seeds(3, 60)) for a in group]
    ends = [[engine.vocabulary.is_end(t) for t in a.tokens.tolist()] for a in answers]
    assert any(a.finished for a in answers)
    assert any(a.truncated for a in answers)
    for answer, end in zip(answers, ends, strict=True):
        assert answer.finished == end[-1]
        assert not any(end[:-1])
        assert answer.finished or len(answer.tokens) == 12


def test_the_text_is_the_bytes_without_the_end_token(engine):
    for answer in engine.sample(PROMPTS[:1], seeds(1, 40))[0]:
        ids = answer.tokens.tolist()
        pieces = b"".join(engine.vocabulary.piece(token) for token in ids)
        assert answer.text == pieces.decode("utf-8", "replace")
        assert "<|end|>" not in answer.text


@pytest.mark.parametrize("concurrency", [1, 2, 3, 7, 32])
def test_concurrency_changes_no_answer(random_llama, concurrency):
    path = random_llama()
    with open_engine(path, concurrency=8) as engine:
        expected = engine.sample(PROMPTS, seeds(3, 5))
    with open_engine(path, concurrency=concurrency) as engine:
        answers = engine.sample(PROMPTS, seeds(3, 5))
    assert tokens_of(answers) == tokens_of(expected)


def test_a_group_of_any_size_is_answered_in_the_order_of_its_seeds(engine):
    uneven = [[11, 12, 13], [], [14]]
    answers = engine.sample(PROMPTS, uneven)
    assert [len(group) for group in answers] == [3, 0, 1]
    backwards = engine.sample(PROMPTS, [row[::-1] for row in uneven])
    assert tokens_of(backwards) == [group[::-1] for group in tokens_of(answers)]


def test_the_same_seed_gives_the_same_answer_and_another_update_another(engine):
    first = tokens_of(engine.sample(PROMPTS, seeds(3, 4)))
    assert tokens_of(engine.sample(PROMPTS, seeds(3, 4))) == first
    assert tokens_of(engine.sample(PROMPTS, seeds(3, 4, update=1))) != first


def test_a_context_with_room_for_little_makes_answers_wait(random_llama):
    path = random_llama()
    prompts = [list(b"the prompt number %02d of many" % i) for i in range(12)]
    with open_engine(path, group_size=1, concurrency=12) as engine:
        expected = engine.sample(prompts, seeds(12, 2))
    # Groups of 64 are announced, so room is made for three prompts, and twelve come.
    with open_engine(path, group_size=64, concurrency=12, max_prompt_tokens=32, ctx=64) as engine:
        answers = engine.sample(prompts, seeds(12, 2))
    assert tokens_of(answers) == tokens_of(expected)


def test_a_prompt_longer_than_a_batch_is_decoded_in_parts(random_llama):
    path = random_llama(context=2048)
    long = np.random.default_rng(0).integers(0, 256, 700).tolist()
    with open_engine(path, ctx=1024, max_prompt_tokens=700) as engine:
        ((answer,),) = engine.sample([long], [[3]])
        whole = [*long, *answer.tokens.tolist()]
        table = log_softmax(engine.logits(whole))[699:-1]
    np.testing.assert_allclose(
        answer.logprobs, table[np.arange(len(answer.tokens)), answer.tokens], atol=1e-4
    )


def test_swapping_an_adapter_changes_what_is_sampled_and_leaves_no_old_cache(
    random_llama, random_adapter
):
    path = random_llama()
    adapter = random_adapter(path, seed=4)
    with open_engine(path) as engine:
        bare = tokens_of(engine.sample(PROMPTS, seeds(3, 4)))
        engine.swap_adapter(adapter)
        warm = engine.sample(PROMPTS, seeds(3, 4))
        engine.swap_adapter(None)
        assert tokens_of(engine.sample(PROMPTS, seeds(3, 4))) == bare
    with open_engine(path) as cold:
        cold.swap_adapter(adapter)
        fresh = cold.sample(PROMPTS, seeds(3, 4))
    assert tokens_of(warm) == tokens_of(fresh) != bare
    for group, others in zip(warm, fresh, strict=True):
        for answer, other in zip(group, others, strict=True):
            np.testing.assert_array_equal(answer.logprobs, other.logprobs)


def test_progress_counts_up_to_all_answers(engine):
    seen = []
    engine.sample(PROMPTS, seeds(3, 6), on_progress=lambda *counts: seen.append(counts))
    done = [count for count, _ in seen]
    assert done == sorted(set(done))
    assert seen[-1] == (18, 18)


def test_a_stop_drops_the_answers_and_leaves_the_engine_usable(engine):
    expected = tokens_of(engine.sample(PROMPTS, seeds(3, 4)))
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) > 3

    with pytest.raises(RolloutStopped):
        engine.sample(PROMPTS, seeds(3, 4), should_stop=should_stop)
    assert len(asked) == 4
    assert tokens_of(engine.sample(PROMPTS, seeds(3, 4))) == expected


def test_a_call_during_another_is_refused_in_any_thread(engine):
    refused = []

    def meddle(*_):
        for call in (lambda: engine.swap_adapter(None), lambda: engine.logits([1])):
            try:
                call()
            except ContextInUseError as error:
                refused.append(str(error))

    def from_both_threads(*_):
        meddle()
        other = threading.Thread(target=meddle)
        other.start()
        other.join()

    engine.sample(PROMPTS[:1], [[1]], on_progress=from_both_threads)
    assert len(refused) == 4
    assert "this sampler is at work already" in refused[0]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "prompt 1 of the batch has no tokens"), ([1] * 65, "has 65 tokens.*at most 64")],
)
def test_prompts_the_engine_was_not_made_for_are_refused(engine, prompt, message):
    with pytest.raises(ConfigError, match=message):
        engine.sample([[1], prompt], [[1], [2]])


def test_a_context_one_token_too_short_is_refused_with_the_one_needed(random_llama):
    with pytest.raises(ConfigError, match=r"ctx = 75.*64 tokens.*raise ctx to 76"):
        open_engine(random_llama(), ctx=75)


@pytest.mark.parametrize("concurrency", [0, 257])
def test_concurrency_outside_its_range_is_refused(random_llama, concurrency):
    with pytest.raises(ConfigError, match=f"generation_concurrency = {concurrency}"):
        open_engine(random_llama(), concurrency=concurrency)


@pytest.mark.parametrize("concurrency", [1, 31, 255, 256])
@pytest.mark.parametrize("group_size", [1, 8, 300])
def test_a_layout_fits_llama_cpps_sequences_and_its_own_cells(concurrency, group_size):
    layout = plan_layout(
        ctx=512,
        concurrency=concurrency,
        max_prompt_tokens=100,
        group_size=group_size,
        max_new_tokens=20,
    )
    assert layout.slots in (concurrency, MAX_SEQUENCES - 9)
    assert layout.prompt_sequences >= 1
    assert layout.prefix_sequence < MAX_SEQUENCES
    assert layout.cells >= layout.slots * 20 + 100


def test_the_largest_concurrency_runs(random_llama):
    with open_engine(random_llama(), concurrency=256) as engine:
        assert engine.concurrency == 246
        groups = engine.sample(PROMPTS, seeds(3, 100))
    assert [len(group) for group in groups] == [100, 100, 100]


def test_an_engine_that_cannot_open_its_model_says_so(tmp_path):
    with pytest.raises(ModelError, match="there is no such model file"):
        open_engine(tmp_path / "gone.gguf")


def test_an_engine_whose_model_has_no_vocabulary_says_so(random_llama, tmp_path):
    path = tmp_path / "mute.gguf"
    whole = random_llama(extra=(("llama.vocab_size", 260),)).read_bytes()
    at = whole.index(b"gpt2", whole.index(b"tokenizer.ggml.model"))
    path.write_bytes(whole[:at] + b"none" + whole[at + 4 :])
    with pytest.raises(ModelError, match=r"mute\.gguf: the file holds no vocabulary"):
        open_engine(path)


def test_logits_of_more_tokens_than_the_context_holds_are_refused(engine):
    with pytest.raises(ConfigError, match="logits of 5000 tokens"):
        engine.logits([1] * 5000)


LONGER = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=24)


def chats(engine, *questions):
    return [
        engine.vocabulary.tokenize(
            f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n", special=True
        )
        for question in questions
    ]


@pytest.mark.parametrize(
    ("answers", "length"), [(4, 8), pytest.param(8, 24, marks=pytest.mark.full)]
)
def test_smollm2_answers_alike_at_concurrency_1_3_and_32(smollm2_copy, answers, length):
    settings = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=length)
    runs = []
    for concurrency in (32, 3, 1):
        with open_engine(
            smollm2_copy("f32"),
            concurrency=concurrency,
            group_size=answers,
            settings=settings,
            threads=2,
        ) as engine:
            prompts = chats(engine, "What is 3 + 4?", "Name an animal and a colour.")
            runs.append(tokens_of(engine.sample(prompts, seeds(2, answers))))
    assert runs[0] == runs[1] == runs[2]
    assert sum(len(tokens) for group in runs[0] for tokens in group) > answers * length


@pytest.fixture(scope="module")
def smollm2_learner(smollm2):
    cpu = torch.device("cpu")
    decoder = Decoder(GgufFile(smollm2), cpu, context=128)
    names = select_targets(decoder.architecture, ["q"])
    return Learner(
        decoder,
        Adapter(decoder.architecture, names, rank=1, alpha=1.0, seed=0, device=cpu),
        PassSettings(256, "auto", recompute=False, chunk=64, temperature=1.0),
        OptimizerSettings("sgd", 0.0, 1.0),
        on_fallback=lambda _: None,
    )


@pytest.mark.parametrize(
    ("kind", "exact", "limit"),
    [
        pytest.param("f16", False, 3e-3, id="F16 copy, fast context"),
        pytest.param("f32", True, 1e-4, id="F32 copy, exact context"),
    ],
)
def test_smollm2_says_of_its_draws_what_torch_says(
    smollm2_copy, smollm2_learner, kind, exact, limit
):
    """The gap as `sampler/logprob_gap_mean` measures it, over the tokens of sampled answers."""
    questions = ("What is 3 + 4?", "Name an animal.", "Why is the sky blue?", "Hi")
    with open_engine(
        smollm2_copy(kind), concurrency=16, settings=LONGER, exact=exact, threads=2
    ) as engine:
        prompts = chats(engine, *questions)
        groups = engine.sample(prompts, seeds(4, 4))
    gaps = []
    for prompt, answers in zip(prompts, groups, strict=True):
        scored = smollm2_learner.score(prompt, [a.tokens for a in answers], None)
        gaps += [np.abs(mine.numpy() - a.logprobs) for mine, a in zip(scored, answers, strict=True)]
    every = np.concatenate(gaps)

    assert len(every) > 200
    assert every.mean() <= limit
