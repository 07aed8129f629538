"""Token ids of a rendered conversation, in which nothing that people typed is a control token."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from trainer.chat.template import Span
from trainer.chat.vocabulary import Vocabulary, any_of
from trainer.errors import DataError


def encode(spans: Sequence[Span], vocabulary: Vocabulary) -> list[int]:
    """The ids of the spans' joined text, with special tokens parsed outside of user spans only.

    Where no content holds the name of a special token, this is llama.cpp's own reading of the whole
    text. Otherwise the text is parted at the special tokens of the scaffolding, as llama.cpp does
    it, and each stretch between two of them is read in one call without special tokens, so that
    merges across the borders of a content stay what they are.

    Guarded are control tokens, and those added tokens (which llama.cpp parses in any text) that the
    scaffolding itself uses: in some files the turn markers are added tokens.

    Raises:
        DataError: a name in a content cannot be read as anything but the token.
    """
    text = "".join(span.text for span in spans)
    if not _typed(spans, text, vocabulary.special_names):
        return vocabulary.tokenize(text, special=True)
    guarded = guarded_names(spans, vocabulary)
    tokens: list[int] = []
    for part in _parts(spans, text, guarded, vocabulary):
        if isinstance(part, int):
            tokens.append(part)
        else:
            tokens += _as_text(part, guarded, vocabulary)
    return tokens


def encode_rest(spans: Sequence[Span], vocabulary: Vocabulary) -> list[int]:
    """As `encode`, of spans that go on from text before them: without the space that some
    vocabularies put before any text that starts a call. Raises DataError as `encode` does."""
    if vocabulary.adds_space:
        anchor = vocabulary.tokenize("\n", special=False)
        tokens = encode([Span("\n", user=False), *spans], vocabulary)
        # A special token that swallows white space before it has swallowed the anchor.
        if tokens[: len(anchor)] == anchor:
            return tokens[len(anchor) :]
    return encode(spans, vocabulary)


def guarded_names(spans: Sequence[Span], vocabulary: Vocabulary) -> dict[str, int]:
    """The names that content must not turn into tokens, given what the scaffolding uses."""
    pattern = any_of(vocabulary.added_names)
    used = {name for span in spans if not span.user for name in pattern.findall(span.text)}
    added = {name: vocabulary.added_names[name] for name in used}
    return {**vocabulary.control_names, **added}


def names_in(text: str, names: Mapping[str, int]) -> list[str]:
    """The special tokens named in ``text``, in order."""
    return any_of(names).findall(text)


def _occurrences(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    """Every place of a name, overlapping ones included."""
    match = pattern.search(text)
    while match:
        yield match.span()
        match = pattern.search(text, match.start() + 1)


def _typed(spans: Sequence[Span], text: str, pattern: re.Pattern[str]) -> bool:
    """Whether a name in ``text`` lies in a user span, or reaches into one."""
    typed = [place for place, span in _places(spans) if span.user]
    return any(
        begin < last and first < end
        for begin, end in _occurrences(pattern, text)
        for first, last in typed
    )


def _places(spans: Sequence[Span]) -> Iterator[tuple[tuple[int, int], Span]]:
    start = 0
    for span in spans:
        yield (start, start + len(span.text)), span
        start += len(span.text)


def _parts(
    spans: Sequence[Span], text: str, names: Mapping[str, int], vocabulary: Vocabulary
) -> Iterator[int | str]:
    """``text`` as the special tokens of its scaffolding and the stretches between them."""
    pattern = any_of(names)
    start, swallows = 0, False
    for (first, last), span in _places(spans):
        if span.user:
            continue
        for match in pattern.finditer(text, first, last):
            token = names[match.group()]
            before, after = vocabulary.strips(token)
            yield from _stretch(text[start : match.start()], swallows, before)
            yield token
            start, swallows = match.end(), after
    yield from _stretch(text[start:], swallows, False)


def _stretch(text: str, strip_start: bool, strip_end: bool) -> Iterator[str]:
    # The white space of C's isspace: no other is swallowed.
    text = text.lstrip(" \t\n\v\f\r") if strip_start else text
    text = text.rstrip(" \t\n\v\f\r") if strip_end else text
    if text:
        yield text


def _as_text(text: str, names: Mapping[str, int], vocabulary: Vocabulary) -> list[int]:
    """The ids of ``text`` with none of ``names``' tokens among them.

    Reading without special tokens nearly always does it. Added tokens are parsed all the same, and
    merges can spell a control token: then each name is cut after its first character.
    """
    tokens = vocabulary.tokenize(text, special=False)
    if not _has_special(tokens, names, vocabulary):
        return tokens
    cuts = sorted({begin + 1 for begin, _ in _occurrences(any_of(names), text)})
    starts, ends = [0, *cuts], [*cuts, len(text)]
    first, *rest = (text[start:end] for start, end in zip(starts, ends, strict=True))
    tokens = vocabulary.tokenize(first, special=False)
    for piece in rest:
        tokens += vocabulary.tokenize_rest(piece)
    if _has_special(tokens, names, vocabulary):
        raise DataError(
            f"the content holds {names_in(text, names)}, which this model's vocabulary cannot read "
            "as anything but its special tokens: take it out of the prompt"
        )
    return tokens


def _has_special(tokens: Sequence[int], names: Mapping[str, int], vocabulary: Vocabulary) -> bool:
    # The unknown token is not looked for: some vocabularies give it for any character they lack.
    added = set(names.values()) & set(vocabulary.added_names.values())
    return any(token in added or vocabulary.is_control(token) for token in tokens)
