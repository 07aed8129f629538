from __future__ import annotations

import pytest

from trainer.chat.vocabulary import Vocabulary
from trainer.errors import ModelError
from trainer.llama.model import LlamaModel
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.voice import Voice

PROMPT = list(b"2 + 2 =")
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=24)


def say(voice, prompt=PROMPT, seed=5, settings=SETTINGS, stop=lambda: False):
    """The reply, and the pieces that came on the way to it."""
    pieces = []
    reply = voice.answer(prompt, seed, settings, on_text=pieces.append, should_stop=stop)
    return reply, pieces


def sampled(weights, prompt, seed, settings=SETTINGS, adapter=None):
    """What the sampler of a run draws, one answer at a time."""
    with RolloutEngine(
        weights,
        ctx=128,
        concurrency=1,
        max_prompt_tokens=64,
        group_size=1,
        settings=settings,
        exact=False,
        threads=1,
    ) as engine:
        engine.swap_adapter(adapter)
        return engine.sample([prompt], [[seed]])[0][0]


@pytest.fixture(scope="module")
def weights(random_llama):
    return random_llama()


@pytest.fixture(scope="module")
def model(weights):
    with LlamaModel.open(weights) as model:
        yield model


def open_voice(model, adapter=None, ctx=128):
    vocabulary = Vocabulary(model.vocab, model)
    return Voice(model, vocabulary, adapter, ctx=ctx, exact=False, threads=1)


@pytest.fixture
def voice(model):
    with open_voice(model) as voice:
        yield voice


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, SamplingSettings(0.7, 0.9, 24)],
    ids=["the whole distribution", "a nucleus"],
)
@pytest.mark.parametrize("seed", [0, 5, 2**63 - 1])
def test_a_seed_draws_the_answer_that_the_sampler_draws(voice, weights, settings, seed):
    reply, pieces = say(voice, seed=seed, settings=settings)
    answer = sampled(weights, PROMPT, seed, settings)
    assert list(reply.tokens) == answer.tokens.tolist()
    assert reply.text == answer.text == "".join(pieces)
    assert (reply.ending == "end") == answer.finished


def test_so_it_does_under_an_adapter_while_another_voice_has_none(model, weights, random_adapter):
    adapter = random_adapter(weights)
    with open_voice(model) as bare, open_voice(model, adapter) as adapted:
        replies = [say(v)[0].tokens for v in (bare, adapted, bare)]
    assert list(replies[1]) == sampled(weights, PROMPT, 5, adapter=adapter).tokens.tolist()
    assert list(replies[0]) == sampled(weights, PROMPT, 5).tokens.tolist()
    assert replies[0] == replies[2] != replies[1]


def test_what_a_prompt_begins_with_like_the_last_one_is_not_decoded_again(voice, weights):
    first, _ = say(voice)
    longer = [*PROMPT, *first.tokens, *b" and 3 + 3 ="]
    reply, _ = say(voice, longer)
    # The last token that was drawn has not been read.
    assert reply.reused == len(PROMPT) + len(first.tokens) - 1
    assert list(reply.tokens) == sampled(weights, longer, 5).tokens.tolist()
    again, _ = say(voice, longer)
    assert (again.reused, again.tokens) == (len(longer) - 1, reply.tokens)
    other, _ = say(voice, list(b"2 - 2 ="))
    assert other.reused == 2
    assert list(other.tokens) == sampled(weights, list(b"2 - 2 ="), 5).tokens.tolist()


def test_a_context_that_is_full_ends_the_answer(model):
    with open_voice(model, ctx=12) as voice:
        endings = {say(voice, seed=seed)[0].ending: seed for seed in range(6)}
        reply, _ = say(voice, seed=endings["context"])
        assert len(PROMPT) + len(reply.tokens) == 12
        with pytest.raises(ValueError, match="12 tokens in a context of 12"):
            say(voice, [65] * 12)


def test_a_reader_who_has_had_enough_keeps_what_was_written(voice):
    whole, _ = say(voice)
    asked = iter([False, False, False, True])
    reply, pieces = say(voice, stop=lambda: next(asked))
    assert reply.ending == "stopped"
    assert reply.tokens == whole.tokens[:3]
    assert whole.text.startswith("".join(pieces).rstrip("\ufffd"))
    nothing, pieces = say(voice, stop=lambda: True)
    assert (nothing.tokens, nothing.text, pieces) == ((), "", [])


def test_a_character_of_several_tokens_comes_as_one(voice, model):
    """A random model over bytes writes a good deal that is no character, and some that are."""
    vocabulary, whole = Vocabulary(model.vocab, model), set()
    for seed in range(40):
        reply, pieces = say(voice, seed=seed)
        assert "".join(pieces) == reply.text
        assert reply.text == vocabulary.text(reply.tokens)
        whole |= {p for p in pieces if len(p) == 1 and ord(p) > 0xFF and p != "\ufffd"}
    assert whole


def test_a_temperature_of_zero_takes_the_likeliest_token_whatever_the_seed(voice, weights):
    greedy = SamplingSettings(0, 1.0, 24)
    replies = {say(voice, seed=seed, settings=greedy)[0].tokens for seed in range(3)}
    nearly = sampled(weights, PROMPT, 1, SamplingSettings(1e-4, 1.0, 24))
    assert replies == {tuple(nearly.tokens.tolist())}


def test_an_adapter_that_llama_cpp_refuses_is_named(model, weights):
    with pytest.raises(ModelError, match="cannot load this adapter"):
        open_voice(model, weights)
