"""From lines of a data file to the texts that supervised fine-tuning learns.

A text is token ids with a mark at each that is learnt: what the assistant said and the end token of
its turn, or all of a plain text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainer.chat.dataset import listing, read_conversations, read_plain
from trainer.chat.encode import encode, encode_rest
from trainer.chat.messages import DataLine, Message
from trainer.chat.prompts import see_special_names, with_bos
from trainer.chat.template import ChatTemplate, Span, TemplateLimitError
from trainer.chat.vocabulary import Vocabulary
from trainer.errors import DataError, ModelError, TemplateError

DataFormat = Literal["jsonl", "text"]


class _RewrittenError(DataError):
    """An answer that is written otherwise where more follows it, or after another prompt."""


@dataclass(frozen=True, slots=True)
class Text:
    """``prompt`` is read and never learnt; of ``rest`` (n,) those tokens are whose ``learnt`` (n,)
    is true, the first always. ``line`` counts from 1 in the data file."""

    line: int
    prompt: tuple[int, ...]
    rest: npt.NDArray[np.int32]
    learnt: npt.NDArray[np.bool_]

    @property
    def length(self) -> int:
        """In tokens, all of them counted."""
        return len(self.prompt) + len(self.rest)

    @property
    def tokens(self) -> int:
        """How many are learnt."""
        return int(self.learnt.sum())


def read_data(path: Path, data_format: DataFormat) -> list[DataLine]:
    """The lines of a data file: conversations that end with an assistant message, or plain text,
    where each line is a text of its own. Raises DataError with the file and its lines."""
    return read_conversations(path) if data_format == "jsonl" else read_plain(path)


def prepare_texts(
    path: Path,
    lines: Sequence[DataLine],
    template: ChatTemplate | None,
    vocabulary: Vocabulary,
    *,
    ctx: int,
) -> list[Text]:
    """The texts of a data file, of at most ``ctx`` tokens each. ``template`` is for conversations.

    A line is one text. Where the template writes earlier answers otherwise than it did when they
    were the last ones (it takes out the thinking, say), each answer of the line is a text of its
    own, after what a run would sample it from.

    Raises:
        DataError: texts that the template refuses or that cannot be told apart into what is learnt
            and what is not, or that are longer; the first twenty are named with line and reason.
        TemplateLimitError: the template takes too much time or memory.
        ModelError: the vocabulary has no end token for plain text.
    """
    texts, errors = [], []
    for line in lines:
        where = f"{path}:{line.number}"
        try:
            if isinstance(line.content, str):
                made = [_plain_text(line.number, line.content, vocabulary)]
            else:
                assert template is not None
                made = _conversation(line.number, line.content, template, vocabulary)
        except TemplateLimitError as error:
            raise TemplateLimitError(f"{where}: {error}") from error
        except (DataError, TemplateError) as error:
            errors.append(f"{where}: {error}")
            continue
        texts += made
        errors += [
            f"{where}: the text has {text.length} tokens, which do not fit in ctx = {ctx}"
            for text in made
            if text.length > ctx
        ]
    if errors:
        longest = max((text.length for text in texts), default=0)
        advice = (
            f"\nSet ctx in [training] to {longest} or more, or shorten these texts; they are never "
            "cut."
        )
        raise DataError(listing(errors) + (advice if longest > ctx else ""))
    return texts


def _plain_text(number: int, content: str, vocabulary: Vocabulary) -> Text:
    """All of the text and the end token after it. The first token has nothing that it could be
    foretold from, unless the vocabulary puts its BOS before."""
    if vocabulary.eos is None:
        raise ModelError(
            f"{vocabulary.owner.path}: the vocabulary has no end token "
            "(tokenizer.ggml.eos_token_id), so plain text cannot be ended: use conversations"
        )
    ids = with_bos(encode([Span(content, user=True)], vocabulary), vocabulary)
    rest = np.array([*ids[1:], vocabulary.eos], np.int32)
    return Text(number, (ids[0],), rest, np.ones(len(rest), np.bool_))


def _conversation(
    number: int, messages: tuple[Message, ...], template: ChatTemplate, vocabulary: Vocabulary
) -> list[Text]:
    """A conversation as it would go token by token: each answer begins where a prompt ends."""
    answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
    try:
        parts = _parts(messages, answers, template, vocabulary)
    except _RewrittenError:
        alone = [_alone(messages[: i + 1], template, vocabulary) for i in answers]
        return [_learnt(number, parts, template, vocabulary) for parts in alone]
    return [_learnt(number, parts, template, vocabulary)]


def _alone(
    messages: tuple[Message, ...], template: ChatTemplate, vocabulary: Vocabulary
) -> list[tuple[list[Span], bool]]:
    """The parts of a conversation of which only the last answer is learnt.

    Some templates put a system message before a question that is the last message, and nowhere
    once it is answered. Then the answer is taken from the conversation without that message, and
    follows the prompt with it.
    """
    try:
        return _parts(messages, [len(messages) - 1], template, vocabulary)
    except _RewrittenError:
        if messages[0].role != "system":
            raise
        *_, answer = _parts(messages[1:], [len(messages) - 2], template, vocabulary)
        prompt = template.render(messages[:-1])
        if not any(span.user for span in prompt):
            see_special_names(prompt, messages[:-1], template, vocabulary)
        return [(prompt, False), answer]


def _learnt(
    number: int,
    parts: Sequence[tuple[list[Span], bool]],
    template: ChatTemplate,
    vocabulary: Vocabulary,
) -> Text:
    tokens: list[int] = []
    learnt: list[bool] = []
    for part, is_answer in parts:
        ids = _going_on(part, tokens, vocabulary)
        end = _answer_length(ids, template, vocabulary) if is_answer else 0
        tokens += ids
        learnt += [True] * end + [False] * (len(ids) - end)
    if not any(learnt):
        raise DataError(
            f"the chat template of {template.name} writes nothing for its answers, so there is "
            "nothing to learn from it"
        )
    # What the template writes after the last answer's end (a line break, say) teaches nothing.
    last = len(learnt) - learnt[::-1].index(True)
    first = learnt.index(True)
    if first == 0:
        raise DataError(
            f"the chat template of {template.name} writes nothing before the answer, so there is "
            "nothing that its first token could follow"
        )
    rest = np.array(tokens[first:last], np.int32)
    return Text(number, tuple(tokens[:first]), rest, np.array(learnt[first:last], np.bool_))


def _going_on(part: Sequence[Span], before: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """The ids of a part of the conversation after those ``before`` it."""
    if not before:
        return with_bos(encode(part, vocabulary), vocabulary)
    # After a control token llama.cpp begins a text as it does at the very start.
    fresh = vocabulary.is_control(before[-1])
    return encode(part, vocabulary) if fresh else encode_rest(part, vocabulary)


def _answer_length(ids: Sequence[int], template: ChatTemplate, vocabulary: Vocabulary) -> int:
    """The tokens of an answer, its end token included; the template may write more after it."""
    end = next((i for i, token in enumerate(ids) if vocabulary.is_end(token)), None)
    if end is None:
        raise DataError(
            f"the chat template of {template.name} ends an assistant message without a token that "
            "ends a generation, so the model would not learn to stop: use a model with another "
            "template"
        )
    return end + 1


def _parts(
    messages: tuple[Message, ...],
    answers: Sequence[int],
    template: ChatTemplate,
    vocabulary: Vocabulary,
) -> list[tuple[list[Span], bool]]:
    """The rendered conversation cut where ``answers`` begin and end, with whether it is an answer.

    An answer is what the text up to and with an assistant message has beyond the prompt before it,
    the generation prompt included. The last message is among them.
    """
    spans = template.render(messages, add_generation_prompt=False)
    if not any(span.user for span in spans):
        see_special_names(spans, messages, template, vocabulary, add_generation_prompt=False)
    whole = _joined(spans)
    *earlier, _ = [(messages[: i + 1], False) for i in answers]
    rendered = template.texts([*((messages[:i], True) for i in answers), *earlier])
    prompts, so_far = rendered[: len(answers)], [*rendered[len(answers) :], whole]
    cuts = [0]
    for i, prompt, text in zip(answers, prompts, so_far, strict=True):
        if not whole.startswith(text):
            text = _without_eos(prompt, text, template, vocabulary)
        if not (text.startswith(prompt) and whole.startswith(text)):
            raise _RewrittenError(
                f"the chat template of {template.name} writes message {i + 1} (assistant) "
                "differently than as the answer to the prompt before it, so what the model would "
                "have to say cannot be told: use a model with another template"
            )
        _see_whole(messages[: i + 1], prompt, text, template)
        cuts += [len(prompt), len(text)]
    return [
        (_cut(spans, start, stop), index % 2 == 1)
        for index, (start, stop) in enumerate(pairwise(cuts))
        if start < stop
    ]


def _without_eos(prompt: str, text: str, template: ChatTemplate, vocabulary: Vocabulary) -> str:
    """``text`` without an EOS that ends the conversation after its last turn has ended already."""
    shorter = text.removesuffix(template.eos)
    answer = vocabulary.tokenize(shorter[len(prompt) :], special=True)
    return shorter if any(vocabulary.is_end(token) for token in answer) else text


def _see_whole(messages: Sequence[Message], prompt: str, text: str, template: ChatTemplate) -> None:
    """See that all of the last message was written, in any order and any case.

    Some templates take the thinking out of every answer, also of the one to be learnt.
    """
    missing = _letters(messages[-1].content) - _letters(text[len(prompt) :])
    if not missing:
        return
    # What the generation prompt begins, say a tag for thinking, the answer need not repeat.
    (before,) = template.texts([(messages[:-1], False)])
    begun = prompt[len(before) :] if prompt.startswith(before) else ""
    if missing - _letters(begun):
        raise DataError(
            f"the chat template of {template.name} leaves out a part of message {len(messages)} "
            "(assistant), so the model would not learn it. Templates do this with thinking: write "
            "the answers without it, or use a model with another template"
        )


def _letters(text: str) -> Counter[str]:
    return Counter("".join(text.casefold().split()))


def _joined(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


def _cut(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    """What of the spans lies in [start, stop) of their joined text."""
    parts, place = [], 0
    for span in spans:
        text = span.text[max(0, start - place) : max(0, stop - place)]
        if text:
            parts.append(replace(span, text=text))
        place += len(span.text)
    return parts
