"""Makes a prompt file of the word problems of GSM8K, from that data set's own files.

    python3 gsm8k_to_prompts.py train.jsonl > prompts.jsonl
    python3 gsm8k_to_prompts.py --texts train.jsonl > texts.jsonl

A line of those files is `{"question": …, "answer": …}`; the answer is worked out in sentences, with
sums between << and >>, and its last line is `#### number`. From each comes a prompt whose `answer`
is the number, for `gsm8k.py`. With --texts the whole solution is the assistant's turn, without what
stands between << and >>: an example to learn the form from, by SFT.

    --limit N      only the first N problems
    --system TEXT  what the model is told first; "" leaves it out
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

SYSTEM = (
    "Solve the problem step by step. Then write #### and the number on a line of its own, "
    "for example: #### 12"
)
SUM = re.compile(r"<<[^<>]*>>")
NUMBER = re.compile(r"-?[0-9][0-9,]*(?:\.[0-9]+)?")


def fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


def problems(path: Path) -> Iterator[tuple[str, str, str]]:
    """Question, solution without its last line, and number, of each line of a file."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}")
    for count, line in enumerate(lines, start=1):
        if line.strip():
            yield problem(line, f"{path}:{count}")


def problem(line: str, where: str) -> tuple[str, str, str]:
    try:
        row = json.loads(line)
    except ValueError as error:
        fail(f"{where}: this line is not JSON: {error}")
    fields = [row.get(name) for name in ("question", "answer")] if isinstance(row, dict) else []
    if not fields or not all(isinstance(field, str) and field.strip() for field in fields):
        fail(f"{where}: `question` and `answer` have to be texts")
    solution, mark, number = fields[1].rpartition("####")
    number = number.strip()
    if not mark or not NUMBER.fullmatch(number):
        end = fields[1][-40:]
        fail(f"{where}: `answer` has to end with #### and a number, and ends with {end!r}")
    return fields[0].strip(), solution.strip(), number.replace(",", "")


def line_of(question: str, solution: str, number: str, system: str, texts: bool) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": question})
    if not texts:
        return {"messages": messages, "answer": number}
    worked = f"{SUM.sub('', solution)}\n#### {number}"
    return {"messages": [*messages, {"role": "assistant", "content": worked}]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes a prompt file of GSM8K's own files.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--texts", action="store_true")
    parser.add_argument("--limit", type=int, metavar="N")
    parser.add_argument("--system", default=SYSTEM, metavar="TEXT")
    given = parser.parse_args()
    sys.stdout.reconfigure(encoding="utf-8")
    for count, found in enumerate(problems(given.file)):
        if given.limit is not None and count >= given.limit:
            break
        print(json.dumps(line_of(*found, given.system, given.texts), ensure_ascii=False))


if __name__ == "__main__":
    main()
