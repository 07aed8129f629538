"""Strangers' text on its way to a judge: cut to a length, and unable to pass for anything else."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from trainer.chat.messages import Message
from trainer.config.judge import ContextSection

# Names under which tokenizers know turns, roles and the ends of texts. A judge's server reads them
# as those tokens, wherever they stand.
_CONTROL_NAMES = re.compile(
    r"<[|｜][^<>\n]{1,64}[|｜]>"
    r"|</?(?:s|bos|eos|pad|unk|cls|sep|mask|start_of_turn|end_of_turn|turn)\d*>"
    r"|<{1,2}/?SYS>{1,2}"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|gMASK)\]",
    re.IGNORECASE,
)


def cut(text: str, limit: int, head_ratio: float) -> str:
    """``text`` with at most ``limit`` characters: where it has more, a mark takes the place of its
    middle, and ``head_ratio`` of what is left of it stands before the mark."""
    if len(text) <= limit:
        return text
    # The mark is as long as the number in it, which is nearly the whole length when all goes.
    room = limit - len(_mark(len(text)))
    if room <= 0:
        return text[:limit]
    head = round(room * head_ratio)
    tail = room - head
    return text[:head] + _mark(len(text) - room) + text[len(text) - tail :]


def _mark(count: int) -> str:
    return f"\n[… {count} characters cut …]\n"


def excerpt(messages: Sequence[Message], context: ContextSection) -> tuple[Message, ...]:
    """A conversation of which at most about half a request is made.

    Each message is cut, and where there are still too many, those in the middle are left out: a
    system message and the last ones stay.
    """
    short = [
        replace(m, content=cut(m.content, context.max_message_chars, context.head_ratio))
        for m in messages
    ]
    first = [short.pop(0)] if short[0].role == "system" and len(short) > 1 else []
    room = context.max_request_chars // 2 - sum(len(m.content) for m in first)
    kept = [short.pop()]
    room -= len(kept[0].content)
    while short and len(short[-1].content) <= room:
        room -= len(short[-1].content)
        kept.insert(0, short.pop())
    if short:
        mark = f"[… {len(short)} earlier messages left out …]\n"
        kept[0] = replace(kept[0], content=mark + kept[0].content)
    return (*first, *kept)


def harmless(text: str) -> str:
    """``text`` in which names of control tokens are parted by a space after their first character,
    so that no tokenizer finds them."""
    return _CONTROL_NAMES.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)


def unguessable_tag(texts: Iterable[str]) -> str:
    """Twelve characters that stand in none of ``texts``, for the marks around them.

    They follow from all of the texts, so the same request is written in the same way each time, and
    nobody can write a text that contains them: it would change them.
    """
    texts = list(texts)
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8) + data)
    while True:
        tag = digest.hexdigest()[:12]
        if not any(tag in text for text in texts):
            return tag
        digest.update(b"again")
