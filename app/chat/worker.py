"""``python -m app.chat.worker``: answers what it is asked on standard input, until that ends.

One JSON object a line. The first one says with whom (the fields of ``Partners``); what follows are
questions (``id``, ``voice``, ``messages``, ``text``, ``seed``, ``temperature``, ``top_p``,
``max_new_tokens``, ``system``) and requests to ``stop`` the question of an id. Each line of
its output has a ``kind``: ready, or of a question ``id`` text, done, error; failed where it cannot
be begun.

It lives no longer than the server: when its input ends it is gone, whatever it was about.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from trainer.chat.messages import Message
from trainer.conversation import Conversation, Partner, TooLongError
from trainer.errors import RetrogradError
from trainer.rollout.answers import SamplingSettings

_NICENESS = 15

Question = dict[str, Any]


def main() -> None:
    _give_way()
    desk = _Desk()
    given = json.loads(sys.stdin.readline() or "null")
    if given is None:
        return
    threading.Thread(target=desk.listen, name="questions", daemon=True).start()
    try:
        with _open(given) as partner:
            _tell(kind="ready")
            for question in desk.questions():
                _answer(partner, desk, question)
    except RetrogradError as error:
        _tell(kind="failed", message=str(error))


def _give_way() -> None:
    """To a run that trains on this machine: it goes first, and where memory ends, this process does
    and not that one."""
    with suppress(OSError):
        os.nice(_NICENESS)
    with suppress(OSError):  # where there is no /proc
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


class _Desk:
    """What was asked and not answered yet, and which questions nobody wants answered any more."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Question] = SimpleQueue()
        self._stopped: set[int] = set()

    def listen(self) -> None:
        for line in sys.stdin:
            message = json.loads(line)
            if "stop" in message:
                self._stopped.add(message["stop"])
            else:
                self._waiting.put(message)
        os._exit(0)  # native code may be at work for long, and nobody reads what comes of it

    def questions(self) -> Iterator[Question]:
        while True:
            yield self._waiting.get()

    def is_stopped(self, number: int) -> bool:
        return number in self._stopped

    def forget(self, number: int) -> None:
        self._stopped.discard(number)


def _open(given: Question) -> Partner:
    return Partner(
        Path(given["model"]),
        [None, Path(given["adapter"])],
        ctx=given["ctx"],
        exact=given["exact"],
        use_gpu=given["use_gpu"],
        variables=given["variables"],
        merge_system=given["merge_system"],
    )


def _answer(partner: Partner, desk: _Desk, question: Question) -> None:
    number = question["id"]
    conversation = Conversation(
        partner,
        partner.voices[question["voice"]],
        question["system"],
        messages=[Message(role, content) for role, content in question["messages"]],
    )
    settings = SamplingSettings(
        question["temperature"], question["top_p"], question["max_new_tokens"]
    )
    try:
        said = conversation.say(
            question["text"],
            question["seed"],
            settings,
            on_text=lambda text: _tell(kind="text", id=number, text=text),
            should_stop=lambda: desk.is_stopped(number),
        )
    except TooLongError as error:
        # The context is the run's, and nothing that a page could change.
        advice = "shorten it. A run with a larger ctx has more room"
        _tell(kind="error", id=number, message=f"{error.fact}: {advice}")
        return
    except RetrogradError as error:
        _tell(kind="error", id=number, message=str(error))
        return
    desk.forget(number)
    reply = said.reply
    _tell(
        kind="done",
        id=number,
        ending=reply.ending,
        tokens=len(reply.tokens),
        dropped=said.dropped,
    )


def _tell(**message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
