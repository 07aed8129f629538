"""What a reward model reads: a conversation and its answer, as the ids of the model's tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.chat.messages import Message
from trainer.chat.template import ChatTemplate
from trainer.errors import ConfigError, TemplateError
from trainer.reward.exchange import RewardRequest

# Tokenizers without a limit of their own carry one of about 1e30.
_NO_LIMIT = 1_000_000_000


class AnswerTooLongError(Exception):
    """An answer that fills the model's whole window; the message names both sizes."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """``ids`` of one conversation with its answer; ``types`` is 0 for the conversation and 1 for
    the answer, where the model tells them apart so. ``cut`` is true where the beginning of the
    conversation did not fit."""

    ids: list[int]
    types: list[int] | None
    cut: bool


class ConversationReader:
    """Writes a conversation and an answer the way the reward model was trained to read them.

    That is known in two cases only: the tokenizer carries a chat template, or its model has a form
    for pairs of texts. What does not fit into ``window`` tokens is cut from the beginning of the
    conversation, so that the end of the question and the answer stay.

    Raises:
        ConfigError: the form cannot be known, or the template leaves the answer out.
        TemplateError: the template is not one.
    """

    def __init__(self, tokenizer: Any, *, window: int | None, name: str) -> None:  # noqa: ANN401  transformers is untyped
        self._tokenizer = tokenizer
        self._tokenizer.truncation_side = "left"
        self._window = min(window or _NO_LIMIT, tokenizer.model_max_length, _NO_LIMIT)
        self._names = _names_of_tokens(tokenizer)
        self._template: ChatTemplate | None = None
        if tokenizer.chat_template:
            self._template = _open_template(tokenizer, name)
        elif not _parts_pairs(tokenizer):
            raise ConfigError(
                "its tokenizer has neither a chat template nor a separator for pairs of texts, and "
                "what else the model was trained to read cannot be guessed: write that form as a "
                "Jinja chat template into the file chat_template.jinja of the folder"
            )

    def read(self, request: RewardRequest) -> ModelInput:
        """Raises TemplateError when the template refuses the conversation, and
        AnswerTooLongError."""
        messages = [
            Message(message.role, self._as_text(message.content))
            for message in request.prompt.messages
        ]
        answer = self._as_text(request.completion)
        if self._template is None:
            return self._read_pair(messages, answer)
        return self._read_rendered(self._template, messages, answer)

    def close(self) -> None:
        if self._template is not None:
            self._template.close()

    def _as_text(self, content: str) -> str:
        """``content`` with each name of a special token parted by a space, which keeps the
        tokenizer from making the token of it: nobody can end a turn from within a message."""
        return self._names.sub(lambda name: f"{name[0][0]} {name[0][1:]}", content)

    def _read_rendered(
        self, template: ChatTemplate, messages: Sequence[Message], answer: str
    ) -> ModelInput:
        ids = self._rendered_ids(template, [*messages, Message("assistant", answer)])
        if len(ids) <= self._window:
            return ModelInput(ids, None, cut=False)
        # The template writes the special tokens, so at most the first id is a start to be kept.
        start = ids[:1] if ids[0] in self._starts() else []
        opened = self._rendered_ids(template, messages, add_generation_prompt=True)
        self._refuse_overlong(len(ids) - len(opened), len(start))
        return ModelInput(start + ids[len(start) - self._window :], None, cut=True)

    def _rendered_ids(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
    ) -> list[int]:
        spans = template.render(messages, add_generation_prompt)
        return self._ids("".join(span.text for span in spans))

    def _read_pair(self, messages: Sequence[Message], answer: str) -> ModelInput:
        conversation = "\n\n".join(message.content for message in messages)
        added = int(self._tokenizer.num_special_tokens_to_add(pair=True))
        length, answer_length = len(self._ids(conversation)), len(self._ids(answer))
        cut = length + answer_length + added > self._window
        if cut:
            self._refuse_overlong(answer_length, added)
        encoded = self._tokenizer(
            conversation,
            answer,
            truncation="only_first" if cut else False,
            max_length=self._window if cut else None,
            verbose=False,
        )
        return ModelInput(encoded["input_ids"], encoded.get("token_type_ids"), cut)

    def _ids(self, text: str) -> list[int]:
        encoded = self._tokenizer(text, add_special_tokens=False, verbose=False)
        ids: list[int] = encoded["input_ids"]
        return ids

    def _refuse_overlong(self, answer: int, around: int) -> None:
        if answer + around >= self._window:
            raise AnswerTooLongError(
                f"the answer has {answer} tokens, and the model reads {self._window} at most, "
                "those of the question included"
            )

    def _starts(self) -> set[int | None]:
        return {self._tokenizer.bos_token_id, self._tokenizer.cls_token_id} - {None}


def _names_of_tokens(tokenizer: Any) -> re.Pattern[str]:  # noqa: ANN401
    """Finds the names of special tokens, in any case, since some tokenizers ignore it. A single
    character cannot be parted, and is left alone."""
    added = tokenizer.added_tokens_decoder.values()
    names = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
    longest_first = sorted((name for name in names if len(name) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)", re.IGNORECASE)


def _parts_pairs(tokenizer: Any) -> bool:  # noqa: ANN401
    """Whether something stands between the texts of a pair that does not stand around one text."""
    count: Callable[..., int] = tokenizer.num_special_tokens_to_add
    return count(pair=True) > count(pair=False)


def _open_template(tokenizer: Any, name: str) -> ChatTemplate:  # noqa: ANN401
    try:
        source = tokenizer.get_chat_template()
    except ValueError as error:
        raise ConfigError(
            "its tokenizer has several chat templates and none is called default: keep one"
        ) from error
    template = ChatTemplate(
        source, bos=tokenizer.bos_token or "", eos=tokenizer.eos_token or "", name=name
    )
    try:
        _require_answer(template)
    except BaseException:
        template.close()
        raise
    return template


def _require_answer(template: ChatTemplate) -> None:
    """See that the rendered text depends on the question and on the answer."""
    texts = set()
    for question, answer in (("x", "x"), ("x", "y"), ("y", "x")):
        spans = template.render([Message("user", question), Message("assistant", answer)], False)
        texts.add("".join(span.text for span in spans))
    if len(texts) < 3:
        raise TemplateError(
            f"the chat template of {template.name} leaves out the question or the answer: every "
            "answer would get the same score"
        )
