"""The lines of the reward protocol: how a request is written and how a reply is judged.

Pure functions. What is wrong with a line is raised as ``ProgramError``; whoever holds the
conversation adds the line, the prompt and the answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from trainer.chat.messages import PromptLine
from trainer.reward.exchange import RewardReply, RewardRequest
from trainer.reward.report import ProgramError

PROTOCOL = "retrograd-reward/1"
MAX_LINE_BYTES = 8 * 2**20
_PROMPT_BYTES = MAX_LINE_BYTES - 2**20
"""What a request may have before its answer is put in, which gets the rest of the line."""

BATCH = "_retrograd_batch"
INDEX = "_retrograd_index"
BATCH_END = "_retrograd_batch_end"

STDOUT_ADVICE = (
    "Standard output carries the protocol and nothing else: send prints, logs and progress bars"
    " to stderr"
)


class JsonConstant(str):
    """NaN, Infinity or -Infinity, which some JSON writers produce and JSON does not have."""

    __slots__ = ()


def handshake_line() -> bytes:
    return encode_line({"protocol": PROTOCOL})


def batch_end_line(batch: int) -> bytes:
    return encode_line({BATCH_END: batch})


def request_line(request: RewardRequest, place: tuple[int, int] | None = None) -> bytes:
    """The line that asks for one reward. ``place`` is (batch, index) in persistent mode."""
    return encode_line(_request_fields(request, place))


def objection(prompt: PromptLine) -> str | None:
    """Why a program could not be asked about answers to ``prompt``, or None where it can."""
    # Without the place's digits and with an empty answer: the room left covers both.
    size = len(_encode(_request_fields(RewardRequest(prompt, ""), (0, 0)))) + 1
    if size <= _PROMPT_BYTES:
        return None
    return (
        f"as a request to the reward program this line has {size} bytes, and {_PROMPT_BYTES} is "
        "the limit: shorten its messages or extra fields"
    )


def _request_fields(request: RewardRequest, place: tuple[int, int] | None) -> dict[str, object]:
    fields: dict[str, object] = {
        "prompt": request.prompt.question,
        "completion": request.completion,
        "messages": [{"role": m.role, "content": m.content} for m in request.prompt.messages],
        "metadata": request.prompt.metadata,
    }
    if place is not None:
        fields[BATCH], fields[INDEX] = place
    return fields


def encode_line(fields: Mapping[str, object]) -> bytes:
    """One line of JSON with its newline.

    Everything outside ASCII is escaped: the line is valid UTF-8 whatever the answer holds, reads
    the same in every locale, and cannot be cut in two by readers that take U+2028 or U+0085 for
    the end of a line.
    """
    line = _encode(fields)
    if len(line) > MAX_LINE_BYTES:
        raise ProgramError(
            f"cannot be sent this request: its line has {len(line)} bytes, and"
            f" {MAX_LINE_BYTES} is the limit",
            advice="Shorten the extra fields of that prompt line",
        )
    return line + b"\n"


def _encode(fields: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(well_formed(fields), allow_nan=False).encode("ascii")
    except (ValueError, TypeError, RecursionError) as error:
        raise ProgramError(
            f"cannot be sent this request, which does not fit in JSON ({error})",
            advice="Look at the extra fields of that prompt line",
        ) from error


def well_formed(value: object) -> object:
    """``value`` with lone surrogates replaced by U+FFFD, and its mappings and sequences as the
    types that ``json`` writes."""
    if isinstance(value, str):
        return _without_lone_surrogates(value)
    if isinstance(value, Mapping):
        return {well_formed(key): well_formed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [well_formed(item) for item in value]
    return value


def _without_lone_surrogates(text: str) -> str:
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode_line(line: bytes) -> dict[str, object]:
    """The object on a line (without its newline). Raises ``ProgramError`` for anything else."""
    text = _decode_text(line)
    try:
        value = json.loads(
            text,
            parse_constant=JsonConstant,
            parse_int=_parse_integer,
            object_pairs_hook=_object_without_repeats,
        )
    except (ValueError, RecursionError) as error:
        raise ProgramError(
            f"wrote a line that is not JSON ({error})", advice=_stray_advice(text)
        ) from error
    if not isinstance(value, dict):
        raise ProgramError(
            f"wrote {describe(value)} where a JSON object was expected", advice=STDOUT_ADVICE
        )
    return value


def _decode_text(line: bytes) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProgramError(
            f"wrote a line that is not valid UTF-8 (byte 0x{line[error.start]:02x} at"
            f" position {error.start})",
            advice=STDOUT_ADVICE + ", and write the replies in UTF-8",
        ) from error
    if not text.strip():
        raise ProgramError("wrote a blank line", advice=STDOUT_ADVICE)
    return text


def _stray_advice(text: str) -> str:
    if "\r" in text.rstrip("\r"):
        return "The line holds carriage returns, as progress bars write them. " + STDOUT_ADVICE
    return STDOUT_ADVICE


def _parse_integer(digits: str) -> int | float:
    # int() refuses thousands of digits with an error of its own; no such number is finite here.
    return int(digits) if len(digits) <= 320 else float(digits)


def _object_without_repeats(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise ProgramError(f"wrote an object that repeats the field {', '.join(repeated)}")
    return fields


def check_handshake(fields: Mapping[str, object]) -> None:
    if fields.get("protocol") == PROTOCOL:
        return
    if "protocol" in fields:
        raise ProgramError(
            f"answered the handshake with protocol {describe(fields['protocol'])};"
            f' this retrograd speaks "{PROTOCOL}"'
        )
    raise ProgramError("did not answer the handshake, but wrote something else first")


def is_batch_end(fields: Mapping[str, object]) -> bool:
    return BATCH_END in fields


def check_batch_end(fields: Mapping[str, object], batch: int) -> None:
    if set(fields) != {BATCH_END} or not _is_integer(fields[BATCH_END], batch):
        raise ProgramError(
            f'echoed the end of the batch wrongly; {{"{BATCH_END}": {batch}}} was expected',
            advice="Write the marker's line back as it came",
        )


def reply_index(fields: Mapping[str, object], batch: int, count: int) -> int:
    """Which of the ``count`` requests of ``batch`` a reply belongs to."""
    missing = [name for name in (BATCH, INDEX) if name not in fields]
    if missing:
        if "reward" in fields:
            raise ProgramError(
                f"sent a reply without {' and '.join(missing)}",
                advice="Copy both fields from the request into its reply",
            )
        raise ProgramError("wrote a line that is not a reply", advice=STDOUT_ADVICE)
    if not _is_integer(fields[BATCH], batch):
        raise ProgramError(
            f"sent a reply with {BATCH} {describe(fields[BATCH])}; {batch} was expected",
            advice=f"Copy {BATCH} from the request into its reply",
        )
    index = fields[INDEX]
    if type(index) is not int or not 0 <= index < count:
        raise ProgramError(
            f"sent a reply with {INDEX} {describe(index)}; expected were 0 to {count - 1}",
            advice=f"Copy {INDEX} from the request into its reply",
        )
    return index


def _is_integer(value: object, expected: int) -> bool:
    return type(value) is int and value == expected


def parse_reply(fields: Mapping[str, object], judge_allowed: bool) -> RewardReply:
    """The reward on a line. Fields that the protocol does not know are left alone."""
    if "reward" not in fields:
        raise ProgramError(
            "sent a reply without a reward", advice='Each reply needs {"reward": NUMBER}'
        )
    return RewardReply(
        reward=_finite(fields["reward"], "reward"),
        parts=_parse_parts(fields),
        judge_weight=_parse_judge_weight(fields, judge_allowed),
    )


def _parse_parts(fields: Mapping[str, object]) -> dict[str, float]:
    parts = fields.get("parts", {})
    if not isinstance(parts, dict):
        raise ProgramError(
            f"sent a reply whose parts are {describe(parts)}; they must be an object that maps"
            " names to finite numbers"
        )
    if "" in parts:
        raise ProgramError("sent a reply with a part that has no name")
    return {name: _finite(value, f'part "{name}"') for name, value in parts.items()}


def _parse_judge_weight(fields: Mapping[str, object], judge_allowed: bool) -> float | None:
    if "judge_weight" not in fields:
        return None
    if not judge_allowed:
        raise ProgramError(
            "sent a reply with judge_weight, and this run has no judge",
            advice="Leave the field out, or configure a judge",
        )
    weight = _finite(fields["judge_weight"], "judge_weight")
    if weight < 0:
        raise ProgramError(f"sent a reply whose judge_weight is {weight:g}; it must be at least 0")
    return weight


def _finite(value: object, name: str) -> float:
    wanted = "it must be a finite JSON number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ProgramError(f"sent a reply whose {name} is {describe(value)}; {wanted}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ProgramError(f"sent a reply whose {name} is too large for a float; {wanted}")
    return number


def describe(value: object) -> str:
    """A JSON value in a few words, for an error."""
    match value:
        case JsonConstant():
            return f"{value}, which JSON does not have"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return f"the text {json.dumps(value[:60])}"
        case _:
            return json.dumps(value)
