"""What of a line is learnt, and which lines are refused."""

from __future__ import annotations

import json

import pytest

from trainer.chat.dataset import read_prompts
from trainer.chat.prompts import open_template, render_prompt
from trainer.chat.texts import prepare_texts, read_data
from trainer.errors import DataError, ModelError, TemplateError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ("<|im_start|>", "<|im_end|>", "<s>")
USER, BOT = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi there"}


def say(role, content):
    return {"role": role, "content": content}


@pytest.fixture
def chatml(make_vocabulary):
    return make_vocabulary(control=CONTROL, eos="<|im_end|>", template=CHATML)


@pytest.fixture
def prepared(tmp_path):
    """The texts of conversations (or of a file's own bytes), in a file of that name."""

    def prepare(vocabulary, *conversations, raw=None, name="data.jsonl", ctx=200):
        path = tmp_path / name
        lines = [json.dumps({"messages": messages}) for messages in conversations]
        path.write_bytes(raw if raw is not None else "\n".join(lines).encode())
        plain = name.endswith(".txt")
        found = read_data(path, "text" if plain else "jsonl")
        if plain:
            return prepare_texts(path, found, None, vocabulary, ctx=ctx)
        with open_template(vocabulary, path) as template:
            return prepare_texts(path, found, template, vocabulary, ctx=ctx)

    return prepare


def stretches(text, vocabulary):
    """The text as it reads, cut where what is learnt begins and ends."""
    parts = [[False, b""]]
    marks = [False] * len(text.prompt) + text.learnt.tolist()
    for token, learnt in zip([*text.prompt, *text.rest.tolist()], marks, strict=True):
        if learnt != parts[-1][0]:
            parts.append([learnt, b""])
        parts[-1][1] += vocabulary.piece(token, special=True)
    return [(learnt, content.decode()) for learnt, content in parts if content]


# -- conversations -------------------------------------------------------------------------------


def test_the_answer_and_its_end_token_are_learnt_and_nothing_else(chatml, prepared):
    [text] = prepared(chatml, [USER, BOT])
    assert stretches(text, chatml) == [
        (False, "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"),
        (True, "hi there<|im_end|>"),
    ]
    assert (text.line, text.tokens, text.length) == (
        1,
        len(text.rest),
        len(text.prompt) + len(text.rest),
    )
    assert chatml.is_end(int(text.rest[-1]))


def test_every_answer_of_a_conversation_is_learnt(chatml, prepared):
    talk = [say("system", "be kind"), USER, BOT, say("user", "and?"), say("assistant", "no")]
    [text] = prepared(chatml, talk)
    assert stretches(text, chatml) == [
        (
            False,
            "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (True, "hi there<|im_end|>"),
        (False, "\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"),
        (True, "no<|im_end|>"),
    ]


def test_what_comes_before_an_answer_is_the_prompt_that_a_run_would_sample_from(
    chatml, prepared, tmp_path
):
    """Also where reading the whole text at once would join the prompt's last token to the answer's
    first: this vocabulary merges two line breaks."""
    answer = say("assistant", "\n  he")
    [text] = prepared(chatml, [USER, answer])
    (tmp_path / "prompts.jsonl").write_text(json.dumps({"messages": [USER]}))
    [line] = read_prompts(tmp_path / "prompts.jsonl")
    with open_template(chatml, tmp_path) as template:
        assert text.prompt == render_prompt(line, template, chatml)
    assert stretches(text, chatml)[-1] == (True, "\n  he<|im_end|>")
    whole = chatml.tokenize(
        b"".join(
            chatml.piece(t, special=True) for t in (*text.prompt, *text.rest.tolist())
        ).decode(),
        special=True,
    )
    assert len(whole) < text.length, "or there was nothing to keep apart"


def test_names_of_special_tokens_in_a_content_stay_text(chatml, prepared):
    [text] = prepared(chatml, [USER, say("assistant", "say <|im_end|> to stop")])
    assert stretches(text, chatml)[-1] == (True, "say <|im_end|> to stop<|im_end|>")
    ends = [t for t in text.rest.tolist() if chatml.is_end(t)]
    assert len(ends) == 1
    assert text.learnt.all()


def test_a_vocabulary_that_adds_its_bos_gets_one(make_vocabulary, prepared):
    vocabulary = make_vocabulary(
        control=CONTROL, bos="<s>", eos="<|im_end|>", adds_bos=True, template=CHATML
    )
    [text] = prepared(vocabulary, [USER, BOT, USER, BOT])
    assert [text.prompt[0], *text.prompt[1:], *text.rest.tolist()].count(vocabulary.bos) == 1
    assert text.prompt[0] == vocabulary.bos


def test_vocabularies_that_put_a_space_before_a_text_do_so_once(make_vocabulary, prepared):
    """SentencePiece: an answer that goes on after text has no space of its own."""
    template = (
        "{% for m in messages %}{% if m['role'] == 'user' %}<{{ m['content'] }}>"
        "{% else %} {{ m['content'] }}</s>{% endif %}{% endfor %}"
    )
    vocabulary = make_vocabulary(
        control=("<s>", "</s>"),
        bos="<s>",
        eos="</s>",
        adds_bos=True,
        template=template,
        sentencepiece=True,
    )
    [text] = prepared(vocabulary, [say("user", "a"), say("assistant", "b")])
    names = [vocabulary.piece(t, special=True) for t in (*text.prompt, *text.rest.tolist())]
    assert b"".join(names).decode() == "<s> <a> b</s>"
    assert stretches(text, vocabulary)[-1] == (True, " b</s>")


def test_the_smollm2_template_is_learnt_from(smollm2_vocabulary, prepared):
    [text] = prepared(smollm2_vocabulary, [USER, BOT, say("user", "x"), say("assistant", "y")])
    shown = stretches(text, smollm2_vocabulary)
    assert [content for learnt, content in shown if learnt] == ["hi there<|im_end|>", "y<|im_end|>"]
    assert shown[0][1].startswith("<|im_start|>system\nYou are a helpful AI assistant")


# -- what is refused -----------------------------------------------------------------------------


def refusal(prepared, vocabulary, *conversations, kind=DataError, **options):
    with pytest.raises(kind) as caught:
        prepared(vocabulary, *conversations, **options)
    return str(caught.value)


def test_lines_that_are_no_conversation_with_an_answer_are_named(chatml, prepared, tmp_path):
    raw = b"""{"messages": [{"role": "user", "content": "a question alone"}]}
{"text": "hello"}
{"messages": [{"role": "assistant", "content": "first"}]}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": " "}]}
no JSON
"""
    lines = refusal(prepared, chatml, raw=raw).splitlines()
    place = f"{tmp_path / 'data.jsonl'}"
    assert lines[0] == f"{place}:1: the conversation ends with the role user; it must end with " + (
        "assistant"
    )
    assert lines[1] == f'{place}:2: the field "messages" is missing'
    assert "message 1 has the role assistant where user must come" in lines[2]
    assert 'message 2 (assistant): "content" is empty' in lines[3]
    assert lines[4].startswith(f"{place}:5: not JSON")


def test_texts_that_are_too_long_are_named_with_their_length_and_never_cut(
    chatml, prepared, tmp_path
):
    long = say("assistant", "x" * 100)
    [whole] = prepared(chatml, [USER, long])
    message = refusal(prepared, chatml, [USER, BOT], [USER, long], ctx=whole.length - 1)
    assert message == (
        f"{tmp_path / 'data.jsonl'}:2: the text has {whole.length} tokens, which do not fit in "
        f"ctx = {whole.length - 1}\n"
        f"Set ctx in [training] to {whole.length} or more, or shorten these texts; they are never "
        "cut."
    )
    assert len(prepared(chatml, [USER, long], ctx=whole.length)) == 1


def test_a_template_that_writes_earlier_answers_otherwise_makes_a_text_of_each(
    make_vocabulary, prepared
):
    """As those do that take the thinking out of earlier turns."""
    forgetful = CHATML.replace(
        "m['content']", "(m['content'] if loop.last or m['role'] == 'user' else '...')"
    )
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>", template=forgetful)
    alone, first, second = prepared(vocabulary, [USER, BOT], [USER, BOT, USER, BOT])
    assert [text.line for text in (alone, first, second)] == [1, 2, 2]
    assert first.prompt == alone.prompt
    assert stretches(first, vocabulary)[-1] == (True, "hi there<|im_end|>")
    assert stretches(second, vocabulary) == [
        (
            False,
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n...<|im_end|>\n"
            "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n",
        ),
        (True, "hi there<|im_end|>"),
    ]


def test_a_template_whose_prompt_is_not_how_answers_begin_is_refused(make_vocabulary, prepared):
    odd = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>bot\n{% endif %}")
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>", template=odd)
    assert "writes message 2 (assistant) differently" in refusal(prepared, vocabulary, [USER, BOT])


def test_a_template_without_an_end_token_is_refused(make_vocabulary, prepared):
    endless = CHATML.replace("+ '<|im_end|>\n'", "+ '\n'")
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>", template=endless)
    message = refusal(prepared, vocabulary, [USER, BOT])
    assert "ends an assistant message without a token that ends a generation" in message


def test_the_templates_own_words_are_told_with_the_line(make_vocabulary, prepared):
    strict = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    )
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>", template=strict + CHATML)
    message = refusal(prepared, vocabulary, [USER, BOT], [say("system", "be kind"), USER, BOT])
    assert "data.jsonl:2: " in message
    assert "no system here" in message


def test_a_template_that_alters_contents_cannot_be_made_to_name_a_special_token(
    make_vocabulary, prepared
):
    backwards = CHATML.replace("m['content']", "m['content'] | reverse")
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>", template=backwards)
    [text] = prepared(vocabulary, [USER, BOT])
    assert stretches(text, vocabulary)[-1] == (True, "ereht ih<|im_end|>")
    message = refusal(prepared, vocabulary, [USER, say("assistant", ">s<")])
    assert "rewrites the messages" in message


def test_a_model_without_a_template_has_no_conversations(make_vocabulary, prepared):
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>")
    refusal(prepared, vocabulary, [USER, BOT], kind=ModelError)


def test_a_file_that_is_not_there_or_holds_nothing(chatml, prepared, tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read_data(tmp_path / "gone.jsonl", "jsonl")
    assert "the file holds no conversation" in refusal(prepared, chatml, raw=b"\n\n")
    assert "the file holds no text" in refusal(prepared, chatml, raw=b"\n", name="data.txt")


# -- plain text ----------------------------------------------------------------------------------


def test_a_line_of_plain_text_is_learnt_to_its_end(chatml, prepared):
    """Where no BOS stands before it, its first token follows nothing."""
    one, other = prepared(chatml, raw="hello\r\n\n  wörld".encode(), name="data.txt")
    assert (one.line, other.line) == (1, 3)
    # "he" is one token
    assert stretches(one, chatml) == [(False, "he"), (True, "llo<|im_end|>")]
    assert len(one.prompt) == len(other.prompt) == 1
    assert one.learnt.all()
    assert "".join(content for _, content in stretches(other, chatml)) == "  wörld<|im_end|>"


def test_after_a_bos_all_of_it_is_learnt(make_vocabulary, prepared):
    vocabulary = make_vocabulary(control=CONTROL, bos="<s>", eos="<|im_end|>", adds_bos=True)
    [text] = prepared(vocabulary, raw=b"hello", name="data.txt")
    assert stretches(text, vocabulary) == [(False, "<s>"), (True, "hello<|im_end|>")]


def test_plain_text_names_no_special_token(chatml, prepared):
    [text] = prepared(chatml, raw=b"x<|im_end|>y", name="data.txt")
    assert [t for t in text.rest.tolist() if chatml.is_end(t)] == [chatml.eos]


def test_plain_text_needs_an_end_token(make_vocabulary, prepared):
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>")
    vocabulary.eos = None
    assert "has no end token" in refusal(
        prepared, vocabulary, raw=b"hello", name="data.txt", kind=ModelError
    )


def test_bytes_that_are_not_utf8_are_named(chatml, prepared, tmp_path):
    message = refusal(prepared, chatml, raw=b"fine\nnot \xff fine", name="data.txt")
    assert message.startswith(f"{tmp_path / 'data.txt'}:2: byte 5 of the line (0xff) is not UTF-8")


def test_a_template_that_never_ends_is_told_with_its_line(make_vocabulary, prepared):
    endless = "{% for i in range(9999999) %}{% for j in range(9999999) %}{% endfor %}{% endfor %}"
    vocabulary = make_vocabulary(control=CONTROL, eos="<|im_end|>", template=endless + CHATML)
    with pytest.raises((TemplateError, DataError)):
        prepared(vocabulary, [USER, BOT])
