"""The process that answers, asked on its standard input as the server does."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import psutil
import pytest
from talking import sampled, write_random_adapter

from app.chat.process import Partners

QUESTION = "Add 2 and 3."


class Worker:
    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen

    def ask(self, number, **changes):
        usual = {
            "id": number, "voice": 0, "messages": [], "text": QUESTION, "seed": 5,
            "temperature": 1.0, "top_p": 1.0, "max_new_tokens": 24, "system": "",
        }  # fmt: skip
        self.write(usual | changes)

    def write(self, message):
        self.popen.stdin.write(json.dumps(message) + "\n")
        self.popen.stdin.flush()

    def told(self):
        return json.loads(self.popen.stdout.readline())

    def answer(self):
        """The text of an answer, and how it ended."""
        parts = []
        while (message := self.told())["kind"] == "text":
            parts.append(message["text"])
        return "".join(parts), message


@contextmanager
def worker(partners):
    popen = subprocess.Popen(
        [sys.executable, "-m", "app.chat.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with popen:
        try:
            one = Worker(popen)
            one.write(asdict(partners))
            yield one
        finally:
            popen.kill()


@pytest.fixture(scope="module")
def partners(tiny, tmp_path_factory):
    adapter = write_random_adapter(tmp_path_factory.mktemp("adapter") / "adapter.gguf", tiny)
    return Partners(str(tiny), str(adapter), 256, use_gpu=False)


@pytest.fixture(scope="module")
def endless(random_llama, tmp_path_factory):
    model = random_llama(context=60_000)
    adapter = write_random_adapter(tmp_path_factory.mktemp("endless") / "a.gguf", model)
    return Partners(str(model), str(adapter), 50_000, use_gpu=False)


def test_a_question_has_the_samplers_answer_and_one_that_fails_is_not_the_last(partners, tiny):
    with worker(partners) as one:
        assert one.told() == {"kind": "ready"}
        its, own = (psutil.Process(pid).nice() for pid in (one.popen.pid, None))
        assert its == min(own + 15, 19), "a run that trains goes first"
        one.ask(1)
        text, done = one.answer()
        assert text == sampled(tiny, QUESTION, 5)
        assert (done["kind"], done["id"], done["dropped"]) == ("done", 1, 0)
        one.ask(2, text="x" * 8000)
        _, refused = one.answer()
        assert (refused["kind"], refused["id"]) == ("error", 2)
        assert "leaves no room for an answer" in refused["message"]
        one.ask(3, voice=1)
        assert one.answer()[0] == sampled(tiny, QUESTION, 5, adapter=Path(partners.adapter))


def test_an_answer_is_stopped_by_its_number(endless):
    with worker(endless) as one:
        one.told()
        one.ask(7, temperature=0.0, max_new_tokens=40_000)
        assert one.told()["kind"] == "text"
        one.write({"stop": 6})
        assert one.told()["kind"] == "text"
        one.write({"stop": 7})
        _, done = one.answer()
        assert (done["ending"], done["id"]) == ("stopped", 7)


def test_it_is_gone_with_its_input_in_the_middle_of_an_answer(endless):
    with worker(endless) as one:
        one.told()
        one.ask(1, temperature=0.0, max_new_tokens=40_000)
        assert one.told()["kind"] == "text"
        one.popen.stdin.close()
        assert one.popen.wait(timeout=20) == 0


def test_who_cannot_be_talked_to_is_told_and_is_the_end(tiny):
    with worker(Partners(str(tiny), str(tiny), 256, use_gpu=False)) as one:
        failed = one.told()
        assert failed["kind"] == "failed"
        assert "this is a model, and an adapter is expected" in failed["message"]
        assert one.popen.wait(timeout=20) == 0
