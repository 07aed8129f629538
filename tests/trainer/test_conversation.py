from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from trainer.chat.messages import Message
from trainer.conversation import USUAL_CTX, Partner
from trainer.errors import ConfigError, DataError, ModelError, NoTemplateError
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.engine import RolloutEngine

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=12)


def say(conversation, text, seed=3, settings=SETTINGS, stop=lambda: False):
    return conversation.say(text, seed, settings, on_text=lambda _: None, should_stop=stop)


def sampled(model, prompts, seed=3, settings=SETTINGS, adapter=None, **options):
    """What a run's own sampler answers to each of ``prompts``, alone."""
    sizes = {"ctx": 2048, "concurrency": 1, "max_prompt_tokens": 1024, "group_size": 1}
    given = sizes | {"exact": False, "threads": 1} | options
    with RolloutEngine(model, settings=settings, **given) as engine:
        engine.swap_adapter(adapter)
        return [engine.sample([p], [[seed]])[0][0].tokens.tolist() for p in prompts]


def without_template(model: Path, folder: Path) -> Path:
    """The same model under another key for its template, so that it has none."""
    copy = folder / "bare.gguf"
    shutil.copyfile(model, copy)
    data = copy.read_bytes()
    assert b"tokenizer.chat_template" in data
    copy.write_bytes(data.replace(b"tokenizer.chat_template", b"tokenizer.chat_forgotten"[:23]))
    return copy


def test_the_model_reads_what_a_run_would_have_it_read(tiny):
    with Partner(tiny) as partner:
        conversation = partner.conversation(system="Be brief.")
        prompt = b"".join(
            partner.vocabulary.piece(t, special=True) for t in conversation.prompt("Add 2 and 3.")
        )
    assert prompt.decode() == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nAdd 2 and 3.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_the_chat_template_gets_what_a_run_would_give_it(random_llama):
    template = (
        "{% for m in messages if m.role == 'system' %}{{ raise_exception('none') }}{% endfor %}"
        "{{ style }}{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}<|bot|>"
    )
    model = random_llama(layers=1, template=template)
    with Partner(model, variables={"style": "S"}, merge_system=True) as partner:
        prompt = partner.conversation(system="Be brief.").prompt("hi")
        text = b"".join(partner.vocabulary.piece(t, special=True) for t in prompt).decode()
    assert text == "S<|user|>Be brief.\n\nhi<|end|><|bot|>"
    with pytest.raises(ConfigError, match="never reads tone; what it reads: style"):
        Partner(model, variables={"tone": "S"})


def test_each_turn_is_answered_as_the_runs_sampler_answers_it(random_llama, random_adapter):
    model = random_llama(context=2048)
    adapter = random_adapter(model)
    with Partner(model, [None, adapter], threads=1) as partner:
        for voice, file in enumerate([None, adapter]):
            conversation = partner.conversation(voice)
            prompts, replies = [], []
            for text in ("2 + 2 =", "and 3 + 3?", "why?"):
                prompts.append(conversation.prompt(text))
                replies.append(say(conversation, text).reply)
            assert [list(r.tokens) for r in replies] == sampled(model, prompts, adapter=file)
            # All that was said before is in the cache.
            assert [r.reused > 8 for r in replies] == [False, True, True]


def test_what_was_said_is_kept_with_its_answers(tiny):
    with Partner(tiny) as partner:
        conversation = partner.conversation()
        first = say(conversation, "Add 2 and 3.").reply.text
        assert conversation.messages == [
            Message("user", "Add 2 and 3."),
            Message("assistant", first),
        ]
        conversation.reset()
        assert conversation.messages == []
        assert say(conversation, "Add 2 and 3.").reply.text == first


def test_an_empty_answer_leaves_nothing_behind(tiny):
    with Partner(tiny) as partner:
        conversation = partner.conversation()
        stopped = say(conversation, "Add 2 and 3.", stop=lambda: True)
        assert (stopped.reply.text, stopped.reply.ending) == ("", "stopped")
        assert conversation.messages == []


def test_the_oldest_exchanges_give_way_when_the_context_is_full(random_llama):
    model = random_llama(context=2048)
    with Partner(model, ctx=96, threads=1) as partner:
        conversation = partner.conversation(system="S")
        said = [say(conversation, f"message number {n}?", seed=n) for n in range(8)]
        dropped = sum(one.dropped for one in said)
        assert dropped > 0
        assert conversation.first == 2 * dropped
        assert len(conversation.messages) == 16
        prompt = conversation.prompt("message number 8?")
        text = partner.vocabulary.text([t for t in prompt if t < 256])
        assert text.startswith("S")
        assert "number 0" not in text
        assert "number 7" in text
        # An answer has a quarter of the context, or all that it may have.
        assert all(one.reply.ending != "context" for one in said)


def test_a_message_that_does_not_fit_at_all_is_refused_and_changes_nothing(random_llama):
    with Partner(random_llama(), ctx=48, threads=1) as partner:
        conversation = partner.conversation()
        say(conversation, "hello")
        before = list(conversation.messages)
        with pytest.raises(DataError, match=r"the message has \d+ tokens .* context of 48"):
            say(conversation, "x" * 60)
        assert (conversation.messages, conversation.first) == (before, 0)


def test_a_raw_partner_goes_on_from_the_text_as_it_is(random_llama, tmp_path):
    model = without_template(random_llama(), tmp_path)
    with pytest.raises(NoTemplateError, match="no chat template") as refused:
        Partner(model)
    assert "--raw" not in str(refused.value), "the words of a command are its own"
    with Partner(model, raw=True, threads=1) as partner:
        conversation = partner.conversation()
        assert conversation.prompt("<|user|>2 +") == tuple(b"<|user|>2 +")
        reply = say(conversation, "2 +").reply
        assert [list(reply.tokens)] == sampled(model, [list(b"2 +")], ctx=256, max_prompt_tokens=64)
        assert conversation.messages == []
        with pytest.raises(DataError, match="no tokens"):
            say(conversation, "")


def test_an_adapter_for_another_model_is_refused(random_llama, random_adapter):
    adapter = random_adapter(random_llama(width=32))
    with pytest.raises(ModelError, match="made for another model"):
        Partner(random_llama(), [adapter])


def test_an_adapter_is_no_model(random_llama, random_adapter):
    with pytest.raises(ModelError, match="this is an adapter, and a whole model is expected"):
        Partner(random_adapter(random_llama()))


def test_the_context_is_the_models_own_up_to_a_limit(random_llama):
    for trained, ctx in ((256, 256), (3 * USUAL_CTX, USUAL_CTX)):
        with Partner(random_llama(context=trained), threads=1) as partner:
            assert partner.ctx == ctx
    with pytest.raises(ConfigError, match="ctx = 512 is longer than the 256 tokens"):
        Partner(random_llama(context=256), ctx=512)


@pytest.mark.full
def test_smollm2_talks_over_several_turns_as_the_sampler_would(smollm2):
    settings = SamplingSettings(0.7, 0.9, 24)
    with Partner(smollm2, ctx=1024, threads=2) as partner:
        conversation = partner.conversation(system="You are a poet.")
        prompts, replies = [], []
        for text in ("Write a line about the sea.", "And one about ships?"):
            prompts.append(conversation.prompt(text))
            replies.append(say(conversation, text, settings=settings).reply)
    assert [list(r.tokens) for r in replies] == sampled(
        smollm2, prompts, settings=settings, threads=2
    )
    assert replies[1].reused > len(prompts[0])


@pytest.mark.full
def test_gemma_goes_on_from_a_text_whose_first_half_it_has_read_before(gemma3_copy):
    """Windows of attention: the cache has to keep what is outside of them for going back. In F32,
    where rounding does not depend on how many tokens are decoded together."""
    model, settings = gemma3_copy("f32"), SamplingSettings(0.0, 1.0, 16)
    text = "The planets of the solar system, in order: " + "Mercury, Venus, Earth, " * 110
    with Partner(model, ctx=1024, raw=True, exact=True, threads=2) as partner:
        conversation = partner.conversation()
        whole = say(conversation, text, settings=settings).reply
        part = say(conversation, text[: len(text) // 2], settings=settings).reply
        again = say(conversation, text, settings=settings).reply
    assert part.reused > 100
    assert again.reused > 100
    assert again.tokens == whole.tokens
    assert whole.text.strip()
