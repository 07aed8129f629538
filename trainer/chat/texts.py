"""From lines of a data file to the texts that supervised fine-tuning learns.

A text is token ids with a mark at each that is learnt: what the assistant said and the end token of
its turn, or all of a plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
                text = _plain_text(line.number, line.content, vocabulary)
            else:
                assert template is not None
                text = _conversation(line.number, line.content, template, vocabulary)
        except TemplateLimitError as error:
            raise TemplateLimitError(f"{where}: {error}") from error
        except (DataError, TemplateError) as error:
            errors.append(f"{where}: {error}")
            continue
        texts.append(text)
        if text.length > ctx:
            errors.append(
                f"{where}: the text has {text.length} tokens, which do not fit in ctx = {ctx}"
            )
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
) -> Text:
    """A conversation as it would go token by token: each answer begins where a prompt ends."""
    tokens: list[int] = []
    learnt: list[bool] = []
    for part, is_answer in _parts(messages, template, vocabulary):
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
    messages: tuple[Message, ...], template: ChatTemplate, vocabulary: Vocabulary
) -> Iterator[tuple[list[Span], bool]]:
    """The rendered conversation cut where answers begin and end, with whether it is an answer.

    An answer is what the text up to and with an assistant message has beyond the prompt before it,
    the generation prompt included.
    """
    spans = template.render(messages, add_generation_prompt=False)
    if not any(span.user for span in spans):
        see_special_names(spans, messages, template, vocabulary, add_generation_prompt=False)
    whole = _joined(spans)
    answers = [i for i, message in enumerate(messages) if message.role == "assistant"]
    *earlier, _ = [(messages[: i + 1], False) for i in answers]
    rendered = template.texts([*((messages[:i], True) for i in answers), *earlier])
    prompts, so_far = rendered[: len(answers)], [*rendered[len(answers) :], whole]
    cuts = [0]
    for i, prompt, text in zip(answers, prompts, so_far, strict=True):
        if not (text.startswith(prompt) and whole.startswith(text)):
            raise DataError(
                f"the chat template of {template.name} writes message {i + 1} (assistant) "
                "differently in this conversation than as the answer to a prompt, so what the "
                "model would have to say cannot be told. Split the conversation into one for each "
                "answer, or use a model with another template"
            )
        cuts += [len(prompt), len(text)]
    for index, (start, stop) in enumerate(pairwise(cuts)):
        if start < stop:
            yield _cut(spans, start, stop), index % 2 == 1


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
