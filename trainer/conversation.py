"""A conversation with a model, or with one under an adapter, as its own chat template writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trainer.chat.encode import encode
from trainer.chat.messages import Message, PromptLine
from trainer.chat.prompts import open_template, render_prompt, with_bos
from trainer.chat.template import Span
from trainer.chat.vocabulary import Vocabulary
from trainer.closing import Closing
from trainer.errors import ConfigError, DataError
from trainer.gguf.architecture import describe, forced_metadata
from trainer.gguf.file import GgufFile
from trainer.gguf.fitting import check_fits
from trainer.gguf.tensors import check_tensors
from trainer.llama.model import LlamaModel
from trainer.llama.native import gpu_available
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.voice import Reply, Voice
from trainer.sizing import default_threads

USUAL_CTX: Final = 4096
"""The context where none is asked for, and the model was trained for as much."""
_SHARE_TO_ANSWER = 4
"""A quarter of the context, or ``max_new_tokens`` where that is less, is kept free for an answer;
what was said earlier gives way."""


class TooLongError(DataError):
    """A message that leaves no room for an answer; ``fact`` is that alone, without advice."""

    def __init__(self, tokens: int, ctx: int) -> None:
        self.fact = (
            f"the message has {tokens} tokens with what stands around it, and the context of {ctx} "
            "leaves no room for an answer"
        )
        super().__init__(f"{self.fact}: shorten it, or take a larger ctx")


@dataclass(frozen=True, slots=True)
class Said:
    """A reply, and how many exchanges at the beginning of the conversation were left out before it,
    because they did not fit into the context any more."""

    reply: Reply
    dropped: int


class Partner(Closing):
    """A model to talk to, opened once, with a voice for each of ``adapters`` (None: the base).

    ``ctx`` bounds a conversation, in tokens; without one it is what the model was trained for, at
    most `USUAL_CTX`. With ``raw`` no chat template is used: see `Conversation`. ``exact`` trades
    speed for float32 keys and values. ``variables`` are for the chat template, and ``merge_system``
    puts a system message that it does not take before the first user message.

    Raises:
        ModelError: a file cannot be opened, is damaged, or an adapter was made for another model.
        NoTemplateError: the model has no chat template, which ``raw`` does without.
        TemplateError: its chat template is not one.
        ConfigError: ``ctx`` is more than the model was trained for.
    """

    def __init__(
        self,
        path: Path,
        adapters: Sequence[Path | None] = (None,),
        *,
        ctx: int | None = None,
        raw: bool = False,
        exact: bool = False,
        threads: int | None = None,
        use_gpu: bool = True,
        variables: Mapping[str, Any] | None = None,
        merge_system: bool = False,
    ) -> None:
        file = GgufFile(path)
        architecture = describe(file)
        check_tensors(file, architecture)
        self.ctx = context_of(path, ctx, architecture.trained_context)
        for adapter in adapters:
            if adapter is not None:
                check_fits(GgufFile(adapter), file)
        with ExitStack() as opened:
            model = opened.enter_context(
                LlamaModel.open(
                    path,
                    use_gpu=use_gpu and gpu_available(),
                    forced=forced_metadata(architecture, self.ctx),
                )
            )
            self.vocabulary = Vocabulary(model.vocab, model)
            self.template = None
            if not raw:
                self.template = opened.enter_context(
                    open_template(self.vocabulary, path, variables, merge_system=merge_system)
                )
            self.voices = [
                opened.enter_context(
                    Voice(
                        model,
                        self.vocabulary,
                        adapter,
                        ctx=self.ctx,
                        exact=exact,
                        threads=threads or default_threads(),
                    )
                )
                for adapter in adapters
            ]
            self._opened = opened.pop_all()

    def conversation(self, voice: int = 0, system: str = "") -> Conversation:
        """A new one with the voice of this number, after a system message where there is one."""
        return Conversation(self, self.voices[voice], system)

    def close(self) -> None:
        self._opened.close()


@dataclass(slots=True)
class Conversation:
    """What was said, and what it goes on from. With a raw partner each text stands alone: the model
    goes on from it, and reads neither a template nor what was before.

    ``messages`` may be set, to go on from what was said elsewhere; ``first`` is where the part of
    them begins that is still read.
    """

    partner: Partner
    voice: Voice
    system: str = ""
    messages: list[Message] = field(default_factory=list)
    first: int = 0

    def say(
        self,
        text: str,
        seed: int,
        settings: SamplingSettings,
        *,
        on_text: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> Said:
        """Say ``text`` and draw the answer with ``seed``; the callbacks are those of `Voice`.

        Where the context is too small for all of it and an answer, the oldest exchanges are left
        out, for this answer and those after it. An empty answer is not kept, nor is ``text`` then.

        Raises:
            DataError: ``text`` alone does not fit, or holds the name of a special token that cannot
                be kept apart.
            TemplateError: the chat template refuses the messages.
            DecodeError, TrainingError: as `Voice.answer` does. The conversation is as before.
        """
        first, tokens = self._fitting(text, settings)
        dropped = (first - self.first) // 2
        reply = self.voice.answer(tokens, seed, settings, on_text=on_text, should_stop=should_stop)
        self.first = first
        if reply.text and self.partner.template is not None:
            self.messages += [Message("user", text), Message("assistant", reply.text)]
        return Said(reply, dropped)

    def reset(self) -> None:
        """Forget all but the system message."""
        self.messages.clear()
        self.first = 0

    def prompt(self, text: str, first: int | None = None) -> tuple[int, ...]:
        """The ids that the model reads before it answers ``text``, with what was said from
        ``first`` on. Raises DataError, TemplateError."""
        vocabulary, template = self.partner.vocabulary, self.partner.template
        if template is None:
            return tuple(with_bos(encode([Span(text, user=True)], vocabulary), vocabulary))
        start = self.first if first is None else first
        before = (Message("system", self.system),) if self.system else ()
        messages = (*before, *self.messages[start:], Message("user", text))
        return render_prompt(PromptLine(1, messages, {}, None, ""), template, vocabulary)

    def _fitting(self, text: str, settings: SamplingSettings) -> tuple[int, tuple[int, ...]]:
        """Where the part of the messages begins that leaves room for an answer, and its ids."""
        ctx = self.partner.ctx
        room = min(settings.max_new_tokens, ctx // _SHARE_TO_ANSWER)
        first = self.first
        tokens = self.prompt(text, first)
        while len(tokens) + room > ctx and first < len(self.messages):
            first += 2
            tokens = self.prompt(text, first)
        if not tokens:
            raise DataError("the message has no tokens, so there is nothing to go on from")
        if len(tokens) >= ctx:
            raise TooLongError(len(tokens), ctx)
        return first, tokens


def context_of(path: Path, asked: int | None, trained: int) -> int:
    """The context for a conversation with the model of ``path``, which was ``trained`` for as many
    tokens. Raises ConfigError where more are ``asked`` for."""
    if asked is None:
        return min(trained, USUAL_CTX)
    if asked > trained:
        raise ConfigError(
            f"ctx = {asked} is longer than the {trained} tokens that {path.name} was trained for. "
            f"Lower it."
        )
    return asked
