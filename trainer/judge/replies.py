"""Reading what a judge says, and refusing all that is not exactly a verdict on what was asked."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from trainer.judge.questions import Question, Reply, Verdict
from trainer.reward.protocol import describe, well_formed
from trainer.reward.report import shorten

EXPLANATION_CHARS = 1000
_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


class BadReplyError(Exception):
    """What is wrong with a reply: a clause without its full stop."""


def read_reply(text: str, question: Question) -> Reply:
    """The verdicts in the ``text`` that a language model wrote.

    Raises BadReplyError.
    """
    fields = find_object(text)
    return (
        read_better(fields, question) if question.kind == "pair" else read_scores(fields, question)
    )


def find_object(text: str) -> dict[str, object]:
    """The one JSON object that ``text`` is, or holds in a code fence.

    Thoughts that a model wrote first are left out. Two objects in fences are refused, because one
    of them may be quoted from an answer. Raises BadReplyError.
    """
    text = _THOUGHTS.sub("", text).strip()
    if not text:
        raise BadReplyError("it is empty")
    if text.startswith("{"):
        return _parse(text)
    fenced = [block for block in _FENCED.findall(text) if block.lstrip().startswith("{")]
    if not fenced:
        raise BadReplyError(f'it is not a JSON object, but begins with "{shorten(text, 80)}"')
    if len(fenced) > 1:
        raise BadReplyError(f"it holds {len(fenced)} JSON objects where one was asked for")
    return _parse(fenced[0])


def read_scores(fields: Mapping[str, object], question: Question) -> Reply:
    """The verdicts of ``{"scores": [{"id", "score", "explanation"}]}``, by id. Fields that are not
    known are left alone. Raises BadReplyError."""
    items = fields.get("scores")
    if not isinstance(items, list):
        found = describe(items) if "scores" in fields else "missing"
        raise BadReplyError(f'"scores" must be a list, and is {found}')
    found_verdicts: dict[str, Verdict] = {}
    for item in items:
        name, verdict = _read_item(item, question.ids)
        if name in found_verdicts:
            raise BadReplyError(f'the id "{name}" is scored twice')
        found_verdicts[name] = verdict
    missing = [name for name in question.ids if name not in found_verdicts]
    if missing:
        raise BadReplyError(f"no score is given for {', '.join(missing)}")
    return tuple(found_verdicts[name] for name in question.ids)


def read_better(fields: Mapping[str, object], question: Question) -> Reply:
    """The verdicts of ``{"better": id or "tie", "explanation"}``: 1 for the better text and 0 for
    the other, or a half each. Raises BadReplyError."""
    better = fields.get("better")
    if better not in (*question.ids, "tie"):
        allowed = ", ".join(f'"{name}"' for name in question.ids)
        found = describe(better) if "better" in fields else "missing"
        raise BadReplyError(f'"better" must be {allowed} or "tie", and is {found}')
    explanation = _explanation(fields)
    if better == "tie":
        return tuple(Verdict(0.5, explanation) for _ in question.ids)
    return tuple(Verdict(float(name == better), explanation) for name in question.ids)


def _read_item(item: object, ids: Sequence[str]) -> tuple[str, Verdict]:
    if not isinstance(item, dict):
        raise BadReplyError(f"a score must be an object, and one is {describe(item)}")
    name = item.get("id")
    if not isinstance(name, str) or name not in ids:
        found = describe(name) if "id" in item else "missing"
        raise BadReplyError(f"an id is {found}; those asked about are {', '.join(ids)}")
    score = item.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
        found = describe(score) if "score" in item else "missing"
        raise BadReplyError(f'the score of "{name}" must be a number from 0 to 1, and is {found}')
    return name, Verdict(float(score), _explanation(item))


def _explanation(fields: Mapping[str, object]) -> str:
    explanation = fields.get("explanation", "")
    if not isinstance(explanation, str):
        raise BadReplyError(f"an explanation must be text, and one is {describe(explanation)}")
    return str(well_formed(explanation[:EXPLANATION_CHARS]))


def _parse(text: str) -> dict[str, object]:
    try:
        value = json.loads(
            text,
            parse_constant=_no_constant,
            parse_int=_integer,
            object_pairs_hook=_without_repeats,
        )
    except (ValueError, RecursionError) as error:
        raise BadReplyError(f"it is not JSON ({error})") from None
    assert isinstance(value, dict), "text that begins with a brace"
    return value


def _no_constant(name: str) -> NoReturn:
    raise BadReplyError(f"it holds {name}, which JSON does not have")


def _integer(digits: str) -> int | float:
    # int() refuses thousands of digits; no such number is from 0 to 1.
    return int(digits) if len(digits) < 20 else math.inf


def _without_repeats(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise BadReplyError("an object in it has the same field twice")
    return fields
