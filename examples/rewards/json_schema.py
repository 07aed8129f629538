"""Pays for an answer that is one JSON value of a given shape, and holds the right values.

    python3 json_schema.py [--schema FILE] [--fenced]

The shape is a JSON schema, of the run (FILE) or of a line of the prompt file (`schema`, which goes
first). A line may also have `answer`, a value that the answer should be equal to; of two objects,
each member that is equal counts.

    --fenced  the answer may stand in one block between ``` and ```, with text around it; else it is
              the JSON and nothing else

    0.2  it is JSON, in which no key of an object stands twice
    0.3  it has the shape
    0.5  the share of `answer` that it holds; without `answer` these are for the shape as well. What
         does not have the shape gets nothing for its values

Only Python's standard library is used, so of JSON schema these keywords are known, and a schema
with any other ends the program instead of being half obeyed:

    type enum const properties required additionalProperties items minItems maxItems minLength
    maxLength minimum maximum exclusiveMinimum exclusiveMaximum
    title description $schema (which say nothing about the value)

`additionalProperties` is true or false. `1.0` is an integer, as the standard has it, and `true` is
no number.

parts: `json`, `shape` and `right`, each from 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROTOCOL = "retrograd-reward/1"
ECHOED = ("_retrograd_batch", "_retrograd_index")
MOST_CHARACTERS = 20_000
"""A longer answer gets 0 unread."""
FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n[ \t]*```", re.DOTALL)
SILENT = {"title", "description", "$schema"}
ABSENT = object()
"""What stands for a value where there is none; None is JSON's null."""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "number": is_number,
    "integer": lambda value: is_number(value) and value == int(value),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def equal(one: Any, other: Any) -> bool:
    """As JSON: 1 is 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return bool(one == other)


def is_type(value: Any, names: str | list[str]) -> bool:
    return any(TYPES[name](value) for name in ([names] if isinstance(names, str) else names))


# Each keyword: whether a value keeps it. One that is about another type is kept by all values.
KEYWORDS: dict[str, Callable[[Any, Any], bool]] = {
    "type": is_type,
    "enum": lambda value, allowed: any(equal(value, one) for one in allowed),
    "const": equal,
    "properties": lambda value, shapes: (
        not isinstance(value, dict)
        or all(fits(value[key], shape) for key, shape in shapes.items() if key in value)
    ),
    "required": lambda value, keys: not isinstance(value, dict) or all(k in value for k in keys),
    "items": lambda value, shape: (
        not isinstance(value, list) or all(fits(one, shape) for one in value)
    ),
    "minItems": lambda value, least: not isinstance(value, list) or len(value) >= least,
    "maxItems": lambda value, most: not isinstance(value, list) or len(value) <= most,
    "minLength": lambda value, least: not isinstance(value, str) or len(value) >= least,
    "maxLength": lambda value, most: not isinstance(value, str) or len(value) <= most,
    "minimum": lambda value, least: not is_number(value) or value >= least,
    "maximum": lambda value, most: not is_number(value) or value <= most,
    "exclusiveMinimum": lambda value, least: not is_number(value) or value > least,
    "exclusiveMaximum": lambda value, most: not is_number(value) or value < most,
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether `value` has the shape. The schema has been looked at by `refuse_unknown`."""
    if schema.get("additionalProperties") is False and isinstance(value, dict):
        known = schema.get("properties", {})
        if any(key not in known for key in value):
            return False
    return all(KEYWORDS[word](value, want) for word, want in schema.items() if word in KEYWORDS)


def refuse_unknown(schema: Any, where: str = "schema") -> None:
    """Ends the program where a schema says what this program would not do."""
    if not isinstance(schema, dict):
        sys.exit(f"{where} has to be an object, and is {schema!r}")
    for word, want in schema.items():
        if word not in KEYWORDS and word not in SILENT | {"additionalProperties"}:
            sys.exit(
                f"{where}: this program does not know {word!r}; its first lines list what it does"
            )
        if word == "additionalProperties" and not isinstance(want, bool):
            sys.exit(f"{where}: additionalProperties has to be true or false")
        if word == "type":
            names = [want] if isinstance(want, str) else want
            if not names or any(name not in TYPES for name in names):
                sys.exit(f"{where}: {want!r} is no type of JSON; these are: {', '.join(TYPES)}")
    for key, shape in schema.get("properties", {}).items():
        refuse_unknown(shape, f"{where}.properties.{key}")
    if "items" in schema:
        refuse_unknown(schema["items"], f"{where}.items")


def parsed(text: str) -> Any:
    """The JSON value that `text` is, or `ABSENT`."""

    def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise ValueError("a key stands twice")
        return members

    def refused(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    def finite(digits: str) -> float:
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            raise ValueError("too large for a number")
        return number

    try:
        return json.loads(
            text, object_pairs_hook=unrepeated, parse_constant=refused, parse_float=finite
        )
    except (ValueError, RecursionError):  # ValueError also for an integer of thousands of digits
        return ABSENT


def value_in(completion: str, fenced: bool) -> Any:
    """The JSON value of an answer, or `ABSENT`. Several blocks are a list of guesses."""
    if len(completion) > MOST_CHARACTERS:
        return ABSENT
    blocks = FENCED.findall(completion) if fenced else []
    if len(blocks) > 1:
        return ABSENT
    return parsed(blocks[0] if blocks else completion)


def agreement(value: Any, answer: Any) -> float:
    """How much of `answer` is in `value`: of objects the share of members that are equal."""
    if not isinstance(answer, dict) or not answer or not isinstance(value, dict):
        return float(equal(value, answer))
    held = sum(equal(value.get(key, ABSENT), want) for key, want in answer.items())
    return held / len(answer.keys() | value.keys())


def score(
    completion: str,
    metadata: dict[str, Any],
    schema: dict[str, Any] | None = None,
    fenced: bool = False,
) -> dict[str, Any]:
    schema = metadata.get("schema", schema)
    if schema is None:
        sys.exit("no schema: give one with --schema, or `schema` in each line of the prompts")
    refuse_unknown(schema)
    value = value_in(completion, fenced)
    shape = right = 0.0
    try:
        if value is not ABSENT and fits(value, schema):
            shape = 1.0
            right = agreement(value, metadata["answer"]) if "answer" in metadata else 1.0
    except RecursionError:
        pass  # nested more deeply than anything that a schema describes
    parts = {"json": float(value is not ABSENT), "shape": shape, "right": round(right, 4)}
    reward = 0.2 * parts["json"] + 0.3 * shape + 0.5 * right
    return {"reward": round(reward, 4), "parts": parts}


def serve(score: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer retrograd's lines until they end; with `reward_mode = "oneshot"` as well.

    This function is the same in every program of this folder.
    """
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        message = json.loads(line)
        if "protocol" in message:
            if message["protocol"] != PROTOCOL:
                sys.exit(f"this program speaks {PROTOCOL}, not {message['protocol']}")
            reply = {"protocol": PROTOCOL}
        elif "_retrograd_batch_end" in message:
            reply = message
        else:
            if not isinstance(message.get("completion"), str):
                sys.exit(f"`completion` has to be text: {line[:200]}")
            reply = score(message) | {name: message[name] for name in ECHOED if name in message}
        print(json.dumps(reply), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pays for JSON of a given shape.")
    parser.add_argument("--schema", type=Path, metavar="FILE")
    parser.add_argument("--fenced", action="store_true")
    given = parser.parse_args()
    schema = None
    if given.schema is not None:
        schema = json.loads(given.schema.read_text(encoding="utf-8"))
        refuse_unknown(schema, str(given.schema))
    serve(lambda m: score(m["completion"], m.get("metadata", {}), schema, given.fenced))


if __name__ == "__main__":
    main()
