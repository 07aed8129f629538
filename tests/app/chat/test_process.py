"""The process that answers, and what is told of its end."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from queue import Queue

import pytest
from talking import write_random_adapter

from app.chat import process
from app.chat.process import Answering, Partners

NOBODY = Partners("no model", "no adapter", 64)
READY = 'import sys, os; sys.stdin.readline(); print(\'{"kind": "ready"}\', flush=True); '


def told(partners=NOBODY):
    """A process, and its messages as they come."""
    messages: Queue[dict[str, object]] = Queue()
    answering = Answering(partners, messages.put)
    return answering, lambda: messages.get(timeout=30)


def end_of(message):
    assert message["kind"] == "gone"
    return message["message"]


def test_it_answers_what_it_is_asked_and_ends_with_its_input(tiny, tmp_path):
    adapter = write_random_adapter(tmp_path / "adapter.gguf", tiny)
    answering, following = told(Partners(str(tiny), str(adapter), 256, use_gpu=False))
    with closing(answering):
        assert following() == {"kind": "ready"}
        how = {"seed": 5, "temperature": 0.0, "top_p": 1.0, "max_new_tokens": 4, "system": ""}
        answering.send({"id": 7, "voice": 1, "messages": [], "text": "Add 2 and 3."} | how)
        while (message := following())["kind"] == "text":
            assert message["id"] == 7
        assert (message["kind"], message["id"]) == ("done", 7)
    assert not answering.alive
    assert "by SIGKILL" in end_of(following())
    answering.close()
    answering.send({"stop": 7})


@pytest.mark.parametrize(
    "line",
    ["llama: out of words", "[1]", "3", '{"kind": "other"}', '{"kind": "text", "id": 1}', "\\xff"],
)
def test_a_line_that_is_no_message_is_the_end_of_the_process(in_its_place, line):
    in_its_place(f"{READY}os.write(1, b'{line}\\n'); sys.stdin.read()")
    answering, following = told()
    with closing(answering):
        assert following() == {"kind": "ready"}
        why = end_of(following())
        assert "has sent what is no message (" in why
        assert "memory" not in why
        assert not answering.alive


def test_what_it_wrote_last_is_quoted(in_its_place):
    in_its_place("raise RuntimeError('the cause of it all')")
    answering, following = told()
    with closing(answering):
        why = end_of(following())
    assert why.startswith("The process that answers has ended (status 1). The last that it wrote:")
    assert why.endswith("RuntimeError: the cause of it all")


def test_of_much_that_it_wrote_the_end_is_quoted(in_its_place):
    in_its_place("import sys; sys.stderr.write('so it goes\\n' * 10_000 + 'the end')")
    answering, following = told()
    with closing(answering):
        words = end_of(following()).partition("wrote:\n")[2]
    assert words.splitlines()[0] == "so it goes"
    assert words.endswith("the end")
    assert len(words) <= 400


@pytest.mark.parametrize(("number", "speaks"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_memory_is_spoken_of_only_where_it_may_be_the_cause(in_its_place, number, speaks):
    in_its_place(f"{READY}sys.stdin.read()")
    answering, following = told()
    with closing(answering):
        following()
        os.kill(answering.pid, number)
        why = end_of(following())
    assert f"has ended (by {number.name})." in why
    assert ("memory" in why) is speaks


def test_one_that_closes_its_output_and_stays_is_ended(in_its_place, monkeypatch):
    monkeypatch.setattr(process, "_END_SECONDS", 0.1)
    in_its_place(f"{READY}os.close(1); sys.stdin.read()")
    answering, following = told()
    with closing(answering):
        following()
        assert "by SIGKILL" in end_of(following())


def test_one_that_cannot_be_started_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "COMMAND", (str(tmp_path / "gone"),))
    with pytest.raises(FileNotFoundError, match="gone"):
        told()
