"""Templates built as those of the families are that people train, with what each is known for.

The templates under ``families/`` are written for these tests: the constructs are those of the real
ones, and so is the text around the turns. Where llama.cpp has a format of its own for a family, it
says what the text must be.
"""

from __future__ import annotations

import ctypes
import json
from datetime import datetime
from pathlib import Path

import llama_cpp
import psutil
import pytest

from trainer.chat.messages import Message
from trainer.chat.prompts import open_template
from trainer.chat.template import ChatTemplate, VariableError
from trainer.chat.texts import prepare_texts, read_data
from trainer.errors import DataError, TemplateError

FOLDER = Path(__file__).with_name("families")
FAMILIES = sorted(path.stem for path in FOLDER.glob("*.jinja"))
SYSTEM = Message("system", "Be brief.")
HELLO, HI, BYE = Message("user", "Hello"), Message("assistant", "Hi!"), Message("user", " Bye \n")
SO_LONG = Message("assistant", "So long")
THOUGHT = Message("assistant", "<think>\nThey greet.\n</think>\n\nHi!")


def source(family):
    return (FOLDER / f"{family}.jinja").read_text()


def opened(family, *, bos="<s>", eos="</s>", system="refuse", **variables):
    return ChatTemplate(
        source(family), bos=bos, eos=eos, name=family, system=system, variables=variables
    )


def written(family, *messages, prompt=True, **options):
    with opened(family, **options) as template:
        return "".join(span.text for span in template.render(messages, prompt))


def by_llama_cpp(name, *messages, prompt=True):
    """The text in llama.cpp's own format of that name, which writes no BOS."""
    held = [(m.role.encode(), m.content.encode()) for m in messages]
    chat = (llama_cpp.llama_chat_message * len(held))(*held)
    buffer = ctypes.create_string_buffer(1 << 16)
    length = llama_cpp.llama_chat_apply_template(
        name.encode(), chat, len(held), prompt, buffer, len(buffer)
    )
    assert 0 < length < len(buffer), f"llama.cpp does not know {name}"
    return buffer.raw[:length].decode()


# -- against llama.cpp's formats -----------------------------------------------------------------

CONVERSATIONS = {
    "question": (HELLO,),
    "with a system message": (SYSTEM, HELLO),
    "three turns": (HELLO, HI, Message("user", "Bye")),
    "three turns, system": (SYSTEM, HELLO, HI, Message("user", "Bye")),
}


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize(
    ("family", "name", "options"),
    [
        ("chatml", "chatml", {}),
        ("llama3", "llama3", {"bos": ""}),
        ("gemma2", "gemma", {"bos": "", "system": "merge"}),
        ("gemma3", "gemma", {"bos": ""}),
        ("phi3", "phi3", {}),
        ("phi4", "phi4", {}),
        ("mistral", "mistral-v1", {"bos": "", "system": "merge"}),
    ],
)
def test_llama_cpp_writes_the_same(family, name, options, conversation):
    """Also where the system message is merged, which llama.cpp's formats do by themselves."""
    messages = CONVERSATIONS[conversation]
    assert written(family, *messages, **options) == by_llama_cpp(name, *messages)


def test_llama_cpp_writes_the_same_where_no_default_is_added():
    messages = (SYSTEM, HELLO, HI, Message("user", "Bye"))
    assert written("qwen2", *messages) == by_llama_cpp("chatml", *messages)
    assert written("qwen3", *messages) == by_llama_cpp("chatml", *messages)
    assert written("granite3", *messages) == by_llama_cpp("granite", *messages)


def test_llama_2_is_llama_cpps_but_for_the_white_space_at_the_border_of_turns():
    ours = written("llama2", SYSTEM, HELLO, HI, Message("user", "Bye"))
    assert ours == (
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello [/INST] Hi! </s><s>[INST] Bye [/INST]"
    )
    theirs = by_llama_cpp("llama2-sys-bos", SYSTEM, HELLO, HI, Message("user", "Bye"))
    assert "".join(theirs.split()) == "".join(ours.split()).removeprefix("<s>")


# -- against the renderer that templates are written for ------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_faces_renderer_writes_the_same(family):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [HELLO, THOUGHT, BYE, SO_LONG]
    for count, prompt in ((1, True), (2, False), (3, True), (4, False)):
        talk = [{"role": m.role, "content": m.content} for m in messages[:count]]
        ((theirs,), _) = render_jinja_template(
            [talk],
            chat_template=source(family),
            add_generation_prompt=prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert written(family, *messages[:count], prompt=prompt) == theirs


# -- what each family is known for ---------------------------------------------------------------


def test_llama_3_trims_contents_and_has_one_bos():
    text = written("llama3", HELLO, HI, BYE, bos="<|begin_of_text|>")
    assert text.count("<|begin_of_text|>") == 1
    assert "user<|end_header_id|>\n\nBye<|eot_id|>" in text


def test_llama_3_2_writes_todays_date_and_says_so():
    with opened("llama32") as template:
        text = "".join(span.text for span in template.render([HELLO]))
        assert template.dated
        assert "date_string" in template.own_variables()
    assert f"Today Date: {datetime.now():%d %b %Y}\n" in text
    assert "ipython" not in text, "it has no tools"


def test_the_date_of_llama_3_2_can_be_fixed():
    with opened("llama32", date_string="26 Jul 2024") as template:
        text = "".join(span.text for span in template.render([SYSTEM, HELLO]))
        assert not template.dated
    assert text == (
        "<s><|start_header_id|>system<|end_header_id|>\n\n"
        "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistrals_without_a_system_role_refuse_one_and_say_what_helps():
    with pytest.raises(TemplateError) as caught:
        written("mistral", SYSTEM, HELLO)
    assert str(caught.value) == (
        "the chat template of mistral failed: After the optional system message, roles must "
        "alternate. It takes no system message: write that text into the first user message, or "
        "set merge_system = true in [model], which puts it there"
    )


def test_mistrals_later_template_puts_the_system_message_before_the_last_question():
    assert written("mistral_v3", SYSTEM, HELLO) == "<s>[INST] Be brief.\n\nHello[/INST]"
    assert written("mistral_v3", SYSTEM, HELLO, HI, Message("user", "Bye")) == (
        "<s>[INST] Hello[/INST] Hi!</s>[INST] Be brief.\n\nBye[/INST]"
    )


def test_gemma_2_refuses_a_system_message_and_gemma_3_merges_it():
    with pytest.raises(TemplateError, match=r"System role not supported\. It takes no system"):
        written("gemma2", SYSTEM, HELLO)
    merged = "<s><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n<start_of_turn>model\n"
    assert written("gemma2", SYSTEM, HELLO, system="merge") == merged
    assert written("gemma3", SYSTEM, HELLO) == merged


def test_a_merged_system_message_is_noticed_and_its_content_stays_content():
    with opened("gemma2", system="merge") as template:
        template.render([HELLO])
        assert not template.merges_system
        spans = template.render([SYSTEM, HELLO])
        assert template.merges_system
    assert [span.text for span in spans if span.user] == ["Be brief.", "Hello"]


def test_merging_is_for_templates_that_take_no_system_message():
    plain = written("chatml", SYSTEM, HELLO)
    assert written("chatml", SYSTEM, HELLO, system="merge") == plain


def test_a_template_that_leaves_out_system_messages_is_refused_too():
    """It would train on other prompts than the file has."""
    with pytest.raises(TemplateError, match=r"leaves out system messages\. It takes no"):
        written("forgetful", SYSTEM, HELLO)
    assert written("forgetful", SYSTEM, HELLO, system="merge") == (
        "<s><|User|>Be brief.\n\nHello<|Assistant|>"
    )


def test_qwen_2_adds_a_system_message_of_its_own():
    assert written("qwen2", HELLO).startswith("<|im_start|>system\nYou are of help.<|im_end|>\n")
    assert "You are of help" not in written("qwen2", SYSTEM, HELLO)


def test_qwen_3_thinks_unless_it_is_told_not_to():
    asked = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert written("qwen3", HELLO) == asked
    assert written("qwen3", HELLO, enable_thinking=True) == asked
    assert written("qwen3", HELLO, enable_thinking=False) == asked + "<think>\n\n</think>\n\n"


def test_qwen_3_takes_the_thinking_out_of_earlier_answers():
    assert written("qwen3", HELLO, THOUGHT, Message("user", "Bye")) == (
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi!<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )


def test_smollm_3_is_switched_by_a_variable_or_by_the_system_message():
    def mode(*messages, **variables):
        text = written("smollm3", *messages, HELLO, **variables)
        assert text.endswith("</think>\n") == ("Mode: /no_think" in text)
        return "/no_think" if "Mode: /no_think" in text else "/think"

    assert mode() == "/think"
    assert mode(enable_thinking=False) == "/no_think"
    assert mode(Message("system", "Be brief. /no_think")) == "/no_think"
    assert mode(Message("system", "/think"), enable_thinking=False) == "/think"


def test_smollm_3_takes_instructions_and_lets_the_whole_system_message_be_replaced():
    assert "## Custom Instructions\n\nBe brief.\n\n<|im_end|>" in written(
        "smollm3", Message("system", "Be brief. /no_think"), HELLO
    )
    text = written("smollm3", Message("system", "Only this. /system_override"), HELLO)
    assert text.startswith("<|im_start|>system\nOnly this.<|im_end|>\n<|im_start|>user")


def test_olmo_2_writes_its_bos_and_ends_answers():
    assert written("olmo2", HELLO, HI, Message("user", "Bye"), bos="<|endoftext|>") == (
        "<|endoftext|><|user|>\nHello\n<|assistant|>\nHi!</s>\n<|user|>\nBye\n<|assistant|>\n"
    )


def test_granite_takes_documents_and_a_switch_for_thinking():
    documents = [{"text": "Bees dance."}, {"text": "Ants do not."}]
    assert (
        "<|start_of_role|>documents<|end_of_role|>Document 0\nBees dance.\n\nDocument 1\n"
        "Ants do not.<|end_of_text|>\n"
    ) in written("granite3", HELLO, documents=documents)
    assert "Write your thoughts first." in written("granite3", HELLO, thinking=True)
    assert written("granite3", HELLO, controls={"length": "short", "n": 2}).endswith(
        '<|start_of_role|>assistant {"length": "short", "n": 2}<|end_of_role|>'
    )


# -- variables -----------------------------------------------------------------------------------


def test_a_variable_that_the_template_never_reads_is_refused_with_those_it_reads():
    with pytest.raises(VariableError) as caught:
        opened("qwen3", enable_thinkin=False)
    assert caught.value.variable == "enable_thinkin"
    assert str(caught.value) == (
        "the chat template of qwen3 never reads enable_thinkin; what it reads: enable_thinking"
    )
    with pytest.raises(VariableError, match="what it reads: no variables"):
        opened("chatml", enable_thinking=False)


def test_what_a_template_sets_for_itself_is_not_among_the_variables_to_give():
    with opened("smollm3") as template:
        assert template.own_variables() == ["enable_thinking", "python_tools", "xml_tools"]
    with opened("granite3") as template:
        assert template.own_variables() == ["controls", "documents", "thinking"]


@pytest.mark.parametrize(
    "name", ["messages", "add_generation_prompt", "bos_token", "tools", "strftime_now", "namespace"]
)
def test_names_that_every_template_has_cannot_be_set(name):
    with pytest.raises(VariableError, match=f"{name} has its meaning in every chat template"):
        opened("llama32", **{name: "x"})


def test_a_refused_variable_leaves_no_process():
    before = set(psutil.Process().children())
    with pytest.raises(VariableError):
        opened("chatml", enable_thinking=False)
    assert set(psutil.Process().children()) <= before


# -- what is learnt ------------------------------------------------------------------------------

_SPECIAL = {
    "llama2": ("<s>", "</s>"),
    "mistral": ("<s>", "</s>"),
    "mistral_v3": ("<s>", "</s>", "[INST]", "[/INST]"),
    "olmo2": ("<s>", "</s>"),
    "forgetful": ("<s>", "</s>", "<|User|>", "<|Assistant|>"),
    "llama3": ("<s>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "llama32": ("<s>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"),
    "gemma2": ("<s>", "<end_of_turn>", "<start_of_turn>"),
    "gemma3": ("<s>", "<end_of_turn>", "<start_of_turn>"),
    "phi3": ("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"),
    "granite3": ("<s>", "<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"),
}
_CHATML = ("<s>", "<|im_end|>", "<|im_start|>", "<|im_sep|>")


@pytest.fixture
def texts_of(make_vocabulary, tmp_path):
    """The texts of one conversation, as the stretches of them that are learnt and not learnt."""

    def texts_of(family, *messages, added=(), merge_system=False, **variables):
        control = _SPECIAL.get(family, _CHATML)
        vocabulary = make_vocabulary(
            control=control, added=added, bos="<s>", eos=control[1], template=source(family)
        )
        path = tmp_path / "data.jsonl"
        path.write_text(
            json.dumps({"messages": [{"role": m.role, "content": m.content} for m in messages]})
        )
        with open_template(vocabulary, path, variables, merge_system=merge_system) as template:
            texts = prepare_texts(path, read_data(path, "jsonl"), template, vocabulary, ctx=10_000)
        return [_stretches(text, vocabulary) for text in texts]

    return texts_of


def _stretches(text, vocabulary):
    parts = [[False, b""]]
    marks = [False] * len(text.prompt) + text.learnt.tolist()
    for token, learnt in zip([*text.prompt, *text.rest.tolist()], marks, strict=True):
        if learnt != parts[-1][0]:
            parts.append([learnt, b""])
        parts[-1][1] += vocabulary.piece(token, special=True)
    return [(learnt, content.decode()) for learnt, content in parts if content]


def learnt_of(stretches):
    return [text for learnt, text in stretches if learnt]


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_answer_and_its_end_are_learnt(family, texts_of):
    [stretches] = texts_of(family, HELLO, HI)
    [learnt] = learnt_of(stretches)
    end = _SPECIAL.get(family, _CHATML)[1]
    thinking = "<think>\n\n</think>\n\n" if family == "qwen3" else ""
    assert learnt.strip() == f"{thinking}Hi!{' ' if family == 'llama2' else ''}{end}"
    assert "Hello" in stretches[0][1]


@pytest.mark.parametrize("family", sorted({*FAMILIES} - {"qwen3", "forgetful"}))
def test_each_answer_of_a_conversation_is_learnt_in_one_text(family, texts_of):
    [stretches] = texts_of(family, HELLO, HI, BYE, SO_LONG)
    assert [words.strip().split("!")[0][:7] for words in learnt_of(stretches)] == ["Hi", "So long"]


def test_the_prompt_is_the_one_that_a_run_would_sample_from(texts_of):
    """With the thinking switched off, its empty tags are read and not learnt."""
    [stretches] = texts_of("qwen3", HELLO, HI, enable_thinking=False)
    assert stretches == [
        (
            False,
            "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        ),
        (True, "Hi!<|im_end|>"),
    ]
    [stretches] = texts_of("smollm3", HELLO, HI, enable_thinking=False)
    assert stretches[0][1].endswith("<|im_start|>assistant\n<think>\n\n</think>\n")
    assert learnt_of(stretches) == ["Hi!<|im_end|>"]


@pytest.mark.parametrize("added", [(), ("<think>", "</think>")])
def test_answers_that_are_rewritten_later_become_a_text_each(texts_of, added):
    first, second = texts_of("qwen3", HELLO, THOUGHT, Message("user", "Bye"), SO_LONG, added=added)
    asked = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert first == [
        (False, asked),
        (True, "<think>\nThey greet.\n</think>\n\nHi!<|im_end|>"),
    ]
    assert second == [
        (
            False,
            f"{asked}Hi!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
        ),
        (True, "<think>\n\n</think>\n\nSo long<|im_end|>"),
    ]


def test_a_system_message_that_moves_on_is_where_each_answer_would_be_sampled(texts_of):
    first, second = texts_of("mistral_v3", SYSTEM, HELLO, HI, Message("user", "Bye"), SO_LONG)
    assert first == [(False, "<s>[INST] Be brief.\n\nHello[/INST]"), (True, " Hi!</s>")]
    assert second == [
        (False, "<s>[INST] Hello[/INST] Hi!</s>[INST] Be brief.\n\nBye[/INST]"),
        (True, " So long</s>"),
    ]


def test_an_answer_of_which_the_template_leaves_a_part_out_is_refused(texts_of):
    """Nothing would be learnt of the thinking, without a word about it."""
    with pytest.raises(DataError, match=r"jsonl:1: .* leaves out a part of message 2 \(assistant"):
        texts_of("forgetful", HELLO, THOUGHT)
    assert learnt_of(texts_of("forgetful", HELLO, HI)[0]) == ["Hi!</s>"]


def test_the_templates_tag_for_thinking_may_be_what_the_answer_begins_with(
    make_vocabulary, tmp_path
):
    """As with models that always think: the generation prompt opens the tag."""
    always = source("qwen3").replace(
        "{{- '<|im_start|>assistant\\n' }}", "{{- '<|im_start|>assistant\\n<think>\\n' }}"
    )
    vocabulary = make_vocabulary(control=_CHATML, bos="<s>", eos="<|im_end|>", template=always)
    path = tmp_path / "data.jsonl"
    talk = [{"role": m.role, "content": m.content} for m in (HELLO, THOUGHT)]
    path.write_text(json.dumps({"messages": talk}))
    with open_template(vocabulary, path) as template:
        [text] = prepare_texts(path, read_data(path, "jsonl"), template, vocabulary, ctx=1000)
    assert learnt_of(_stretches(text, vocabulary)) == ["They greet.\n</think>\n\nHi!<|im_end|>"]


def test_an_eos_after_the_last_turn_alone_does_not_part_a_conversation(texts_of):
    """Phi-3's template ends a conversation that goes no further with one more token."""
    assert written("phi3", HELLO, HI, prompt=False).endswith("Hi!<|end|>\n</s>")
    [stretches] = texts_of("phi3", HELLO, HI, Message("user", "Bye"), SO_LONG)
    assert learnt_of(stretches) == ["Hi!<|end|>", "So long<|end|>"]


def test_a_merged_system_message_is_read_and_not_learnt(texts_of):
    [stretches] = texts_of("gemma2", SYSTEM, HELLO, HI, merge_system=True)
    assert stretches == [
        (
            False,
            "<s><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n<start_of_turn>model\n",
        ),
        (True, "Hi!<end_of_turn>"),
    ]
