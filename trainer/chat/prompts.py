"""From lines of a prompt file to the token ids that the sampler and the trainer read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainer.chat.dataset import listing
from trainer.chat.encode import encode, guarded_names, names_in
from trainer.chat.messages import Message, Prompt, PromptLine
from trainer.chat.template import ChatTemplate, Span, TemplateLimitError
from trainer.chat.vocabulary import Vocabulary
from trainer.errors import DataError, NoTemplateError, TemplateError


def open_template(
    vocabulary: Vocabulary,
    path: Path,
    variables: Mapping[str, Any] | None = None,
    *,
    merge_system: bool = False,
) -> ChatTemplate:
    """The chat template that the model of ``path`` carries, with further ``variables`` for it.

    A system message that it does not take goes before the first user message if ``merge_system``,
    and is refused otherwise.

    A model without one is refused: what it was trained to read as a conversation cannot be guessed,
    and a made-up format trains against the wrong text without a sign of it.

    Raises:
        NoTemplateError: there is no chat template in the file.
        TemplateError: it is not a Jinja template.
        VariableError: it never reads one of ``variables``, or one is not to be set.
    """
    source = vocabulary.chat_template
    if not source:
        raise NoTemplateError(
            f"{path}: the model has no chat template (tokenizer.chat_template), so there is no "
            "telling how its conversations are written: use an instruct model, or add the template "
            "of the model it comes from with gguf-new-metadata --chat-template"
        )
    return ChatTemplate(
        source,
        bos=vocabulary.name(vocabulary.bos),
        eos=vocabulary.name(vocabulary.eos),
        name=str(path),
        variables=variables,
        system="merge" if merge_system else "refuse",
    )


def render_prompt(
    line: PromptLine, template: ChatTemplate, vocabulary: Vocabulary
) -> tuple[int, ...]:
    """The ids of a conversation up to where the model's answer begins.

    A vocabulary that adds its BOS gets exactly one, whether or not the template writes it too. No
    end token follows the prompt.

    Raises:
        TemplateError: the template refuses the messages, or leaves the last of them out.
        DataError: a content holds the name of a special token that cannot be kept apart.
    """
    spans = template.render(line.messages)
    _check_question(spans, line, template)
    if not any(span.user for span in spans):
        see_special_names(spans, line.messages, template, vocabulary)
    return tuple(with_bos(encode(spans, vocabulary), vocabulary))


def with_bos(tokens: Sequence[int], vocabulary: Vocabulary) -> list[int]:
    """``tokens`` with exactly one BOS before them, where the vocabulary adds its BOS."""
    if not vocabulary.adds_bos or vocabulary.bos is None:
        return list(tokens)
    written = next((i for i, t in enumerate(tokens) if t != vocabulary.bos), len(tokens))
    return [vocabulary.bos, *tokens[written:]]


def _check_question(spans: Sequence[Span], line: PromptLine, template: ChatTemplate) -> None:
    """See that the text depends on the last message.

    Mostly its content is found as a span. A template that alters it is told from one that drops
    it by another content in its place.
    """
    question = line.question.strip()
    if any(span.user and span.text.strip() == question for span in spans):
        return
    other = replace(line.messages[-1], content="y" if question == "x" else "x")
    changed = template.render([*line.messages[:-1], other])
    if "".join(span.text for span in changed) == "".join(span.text for span in spans):
        raise TemplateError(
            f"the chat template of {template.name} leaves out the message: the model would answer "
            f"without reading {question[:60]!r}; use a model with another template"
        )


def see_special_names(
    spans: Sequence[Span],
    messages: Sequence[Message],
    template: ChatTemplate,
    vocabulary: Vocabulary,
    *,
    add_generation_prompt: bool = True,
) -> None:
    """Let a text pass in which content cannot be told from scaffolding.

    Such a text can be read as a whole if it names the same special tokens, in the same order, as
    the conversation does with each content replaced by a letter. Raises DataError where it does
    not.
    """
    text = "".join(span.text for span in spans)
    letters = [replace(message, content="x") for message in messages]
    harmless = template.render(letters, add_generation_prompt)
    names = guarded_names([replace(span, user=False) for span in harmless], vocabulary)
    expected = names_in("".join(span.text for span in harmless), names)
    if names_in(text, names) != expected:
        raise DataError(
            f"the chat template of {template.name} rewrites the messages, and with them the text "
            f"names other special tokens ({names_in(text, names)}) than without ({expected}): take "
            "the names of special tokens out of the prompt"
        )


def prepare_prompts(
    path: Path,
    lines: Sequence[PromptLine],
    template: ChatTemplate,
    vocabulary: Vocabulary,
    *,
    ctx: int,
    max_new_tokens: int,
) -> list[Prompt]:
    """Render every line of the prompt file ``path``, and see that its answer will fit.

    ``ctx`` is the most tokens that a prompt and its answer may have together, and
    ``max_new_tokens`` the most of the answer.

    Raises:
        DataError: prompts that the template refuses, or that do not fit; the first twenty are
            named with line, reason and token count.
        TemplateLimitError: the template takes too much time or memory.
    """
    prompts, errors = [], []
    for line in lines:
        where = f"{path}:{line.line}"
        try:
            prompt = Prompt(line, render_prompt(line, template, vocabulary))
        except TemplateLimitError as error:
            raise TemplateLimitError(f"{where}: {error}") from error
        except (DataError, TemplateError) as error:
            roles = ", ".join(message.role for message in line.messages)
            errors.append(f"{where} (roles: {roles}): {error}")
            continue
        if not prompt.tokens:
            errors.append(
                f"{where}: the prompt has no tokens: the chat template of {template.name} makes "
                "nothing of these messages"
            )
            continue
        prompts.append(prompt)
        if len(prompt.tokens) + max_new_tokens > ctx:
            errors.append(
                f"{where}: the prompt has {len(prompt.tokens)} tokens, and with max_new_tokens = "
                f"{max_new_tokens} does not fit in ctx = {ctx}"
            )
    if errors:
        raise DataError(listing(errors) + _advice(prompts, ctx, max_new_tokens))
    return prompts


def _advice(prompts: Sequence[Prompt], ctx: int, max_new_tokens: int) -> str:
    needed = max((len(prompt.tokens) for prompt in prompts), default=0) + max_new_tokens
    if needed <= ctx:
        return ""
    return (
        f"\nSet ctx in [training] to {needed} or more, lower max_new_tokens, or shorten these "
        "prompts; prompts are never cut."
    )
