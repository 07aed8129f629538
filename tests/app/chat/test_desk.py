"""The desk with the real process at work behind it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import psutil
import pytest
from talking import sampled, write_random_adapter

from app.chat import desk as desks
from app.chat import process
from app.chat.conversations import ChatError, Draws
from app.chat.desk import Desk
from app.chat.process import Partners, stamp

QUESTION = "Add 2 and 3."
SHORT = Draws(1.0, 1.0, 5, 24)
ENDLESS = Draws(0.0, 1.0, 5, 40_000)
pytestmark = pytest.mark.usefixtures("quickly")


@pytest.fixture(scope="module")
def short(tiny, tmp_path_factory):
    adapter = write_random_adapter(tmp_path_factory.mktemp("short") / "adapter.gguf", tiny)
    return Partners(str(tiny), str(adapter), 256, use_gpu=False)


@pytest.fixture(scope="module")
def endless(random_llama, tmp_path_factory):
    """Asked for the likeliest token it goes on and on."""
    model = random_llama(context=60_000)
    adapter = write_random_adapter(tmp_path_factory.mktemp("endless") / "a.gguf", model)
    return Partners(str(model), str(adapter), 50_000, use_gpu=False)


@pytest.fixture
def quickly(monkeypatch):
    """A page that has gone is missed at once."""
    monkeypatch.setattr(desks, "LEFT_SECONDS", 0.05)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def at_a_desk(drive, **options):
    """Run ``drive(desk)`` on an event loop; no process may be left."""

    async def main():
        desk = Desk(**options)
        try:
            return await drive(desk)
        finally:
            desk.close()

    found = asyncio.run(main())
    assert not [p for p in psutil.Process().children() if "app.chat.worker" in command_of(p)]
    return found


def command_of(process):
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


async def until(look, what, seconds=60):
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.01)


def test_both_voices_answer_as_the_sampler_does_and_remember_their_own_words(short, tiny):
    async def drive(desk):
        chat = desk.open(1, short)
        await desk.ask(chat, QUESTION, SHORT)
        await desk.ask(chat, "And 1?", SHORT)
        first, second = chat.exchanges
        return [a.text for a in first.answers], [chat.before(second, v) for v in (0, 1)], second

    texts, before, second = at_a_desk(drive)
    adapter = Path(short.adapter)
    assert texts == [sampled(tiny, QUESTION, 5), sampled(tiny, QUESTION, 5, adapter=adapter)]
    assert texts[0] != texts[1]
    assert before == [[("user", QUESTION), ("assistant", text)] for text in texts]
    assert (second.phase, [a.over for a in second.answers]) == ("over", [True, True])


def test_one_is_answered_at_a_time_and_one_in_line_can_be_stopped(endless, short):
    async def drive(desk):
        first, second, third = (desk.open(n, p) for n, p in ((1, endless), (2, short), (3, short)))
        going = desk.ask(first, QUESTION, ENDLESS)
        waiting = [desk.ask(chat, QUESTION, SHORT) for chat in (second, third)]
        words = first.exchanges[0].answers[0]
        await until(lambda: len(words.text) > 20, "an answer that grows")
        assert [desk.ahead(c.exchanges[0]) for c in (first, second, third)] == [0, 1, 2]
        with pytest.raises(ChatError, match="still being written"):
            desk.ask(first, QUESTION, SHORT)
        desk.stop(second)
        pid = desk.worker()
        desk.stop(first)
        await asyncio.gather(going, *waiting)
        # Another adapter is another process.
        assert desk.worker() != pid
        return [
            [(a.note, bool(a.text)) for a in c.exchanges[0].answers] for c in (first, second, third)
        ]

    first, second, third = at_a_desk(drive)
    assert first == [("stopped", True), ("stopped", False)]
    assert second == [("stopped", False)] * 2
    assert third == [("", True)] * 2


def test_the_process_ends_with_the_last_page_in_the_middle_of_an_answer(endless):
    async def drive(desk):
        chat = desk.open(1, endless)
        with chat.reading():
            desk.ask(chat, QUESTION, ENDLESS)
            await until(lambda: chat.exchanges[0].answers[0].text, "an answer that grows")
            assert chat.watched
        desk.left(chat)
        await until(lambda: not chat.busy, "its end")
        await until(lambda: desk.worker() is None, "the end of the process")

    at_a_desk(drive)


def test_the_process_ends_when_nothing_is_asked_for_a_while(short):
    async def drive(desk):
        chat = desk.open(1, short)
        await desk.ask(chat, QUESTION, SHORT)
        assert desk.worker() is not None
        await until(lambda: desk.worker() is None, "the end of the process")
        await desk.ask(chat, QUESTION, SHORT)
        assert chat.exchanges[1].answers[0].text

    at_a_desk(drive, idle_seconds=0.3)


def test_a_process_that_dies_or_cannot_begin_is_told_and_the_next_one_answers(short, tiny):
    async def drive(desk):
        chat = desk.open(1, short)
        task = desk.ask(chat, QUESTION, SHORT)
        await until(lambda: desk.worker() is not None, "a process")
        psutil.Process(desk.worker()).kill()
        await task
        other = desk.open(1, Partners(str(tiny), str(tiny), 256, use_gpu=False))
        await desk.ask(other, QUESTION, SHORT)
        await desk.ask(chat, QUESTION, SHORT)
        return [a.note for a in (*chat.exchanges[0].answers, *other.exchanges[0].answers)], chat

    notes, chat = at_a_desk(drive)
    assert all("has ended (by SIGKILL). If the machine has no memory" in n for n in notes[:2])
    assert all("this is a model, and an adapter is expected" in note for note in notes[2:])
    assert [a.failed for a in chat.exchanges[0].answers] == [True, True]
    assert chat.exchanges[1].answers[0].text


def test_each_in_line_hears_why_its_files_cannot_be_read(tiny):
    async def drive(desk):
        wrong = Partners(str(tiny), str(tiny), 256, use_gpu=False)
        chats = [desk.open(n, wrong) for n in range(3)]
        await asyncio.gather(*(desk.ask(chat, QUESTION, SHORT) for chat in chats))
        return [answer.note for chat in chats for answer in chat.exchanges[0].answers]

    notes = at_a_desk(drive)
    assert len(notes) == 6
    assert all("this is a model, and an adapter is expected" in note for note in notes)


def test_one_that_is_read_stays_and_a_refused_one_takes_no_place(endless, short, monkeypatch):
    monkeypatch.setattr(desks, "MOST_CHATS", 2)
    monkeypatch.setattr(desks, "MOST_WAITING", 1)

    async def drive(desk):
        first, second = desk.open(1, short), desk.open(2, endless)
        task = desk.ask(second, QUESTION, ENDLESS)
        with pytest.raises(ChatError, match="Too many conversations wait"):
            desk.open(3, short)
        assert desk.find(first.id) is first
        desk.stop(second)
        await task
        with first.reading():
            third = desk.open(4, short)
        assert [desk.find(c.id) for c in (first, second, third)] == [first, None, third]

    at_a_desk(drive)


def test_there_are_not_endlessly_many_conversations(short, monkeypatch):
    monkeypatch.setattr(desks, "MOST_CHATS", 2)

    async def drive(desk):
        first, second, third = (desk.open(n, short) for n in range(3))
        assert [desk.find(c.id) for c in (first, second, third)] == [None, second, third]
        assert first.id != second.id

    at_a_desk(drive)


def test_who_is_stopped_in_line_makes_room_for_the_others(endless, short, monkeypatch):
    monkeypatch.setattr(desks, "MOST_WAITING", 3)

    async def drive(desk):
        first, second, third, fourth = (desk.open(n, endless) for n in range(4))
        tasks = [desk.ask(chat, QUESTION, ENDLESS) for chat in (first, second, third)]
        with pytest.raises(ChatError, match="Too many conversations wait"):
            desk.ask(fourth, QUESTION, SHORT)
        with third.reading() as moved:
            desk.stop(second)
            assert moved.is_set()
        assert desk.ahead(third.exchanges[0]) == 1
        tasks.append(desk.ask(fourth, QUESTION, SHORT))
        assert desk.ahead(fourth.exchanges[0]) == 2
        for chat in (fourth, third, first):
            desk.stop(chat)
        await asyncio.gather(*tasks)

    at_a_desk(drive)


def test_a_process_that_cannot_be_started_is_told(short, monkeypatch):
    async def drive(desk):
        chat = desk.open(1, short)
        with monkeypatch.context() as patched:
            patched.setattr(process, "COMMAND", ("/no/such/program",))
            await desk.ask(chat, QUESTION, SHORT)
        await desk.ask(chat, QUESTION, SHORT)
        return chat.exchanges

    refused, answered = at_a_desk(drive)
    for answer in refused.answers:
        assert answer.failed
        assert "cannot be started" in answer.note
        assert "/no/such/program" in answer.note
    assert all(answer.text for answer in answered.answers)


def test_a_process_that_writes_rubbish_holds_nobody_up(short, in_its_place):
    async def drive(desk):
        first, second = desk.open(1, short), desk.open(2, short)
        in_its_place("import sys; print('ggml: hello', flush=True); sys.stdin.read()")
        await asyncio.wait_for(desk.ask(first, QUESTION, SHORT), 30)
        return await asyncio.wait_for(desk.ask(second, QUESTION, SHORT), 30), first, second

    _, *chats = at_a_desk(drive)
    for chat in chats:
        assert "is no message ('ggml: hello')" in chat.exchanges[0].answers[0].note


def test_the_loop_goes_on_while_a_process_does_not_read(short, in_its_place):
    """What it is asked is more than fits into the pipe."""
    in_its_place('import time; print(\'{"kind": "ready"}\', flush=True); time.sleep(60)')

    async def drive(desk):
        chat = desk.open(1, short)
        task = desk.ask(chat, "x" * 1_000_000, SHORT)
        await until(lambda: chat.exchanges[0].phase == "answering", "a process that is ready")
        start = time.monotonic()
        await asyncio.sleep(0.05)
        desk.stop(chat)
        assert time.monotonic() - start < 1
        psutil.Process(desk.worker()).kill()
        await asyncio.wait_for(task, 30)

    at_a_desk(drive)


@pytest.mark.parametrize("end", ["stop", "close"])
def test_what_is_stopped_while_its_process_starts_leaves_none(short, monkeypatch, end):
    begun, go_on = threading.Event(), threading.Event()

    def slowly(*arguments):
        begun.set()
        go_on.wait(10)
        return process.Answering(*arguments)

    monkeypatch.setattr(desks, "Answering", slowly)

    async def drive(desk):
        chat = desk.open(1, short)
        task = desk.ask(chat, QUESTION, SHORT)
        await until(begun.is_set, "a process that is being started")
        if end == "stop":
            desk.stop(chat)
            go_on.set()
        else:
            threading.Timer(0.1, go_on.set).start()
            await asyncio.to_thread(desk.close)
        await asyncio.wait_for(task, 30)
        assert desk.worker() is None
        return chat.exchanges[0].answers

    assert [a.note for a in at_a_desk(drive)] == ["stopped"] * 2


def test_an_adapter_that_was_written_anew_is_read_anew(tiny, tmp_path):
    """As a run does that goes on: other numbers under the same name."""
    path = tmp_path / "adapter.gguf"

    def partners(size):
        write_random_adapter(path, tiny, size=size)
        stamps = (stamp(str(tiny)), stamp(str(path)))
        return Partners(str(tiny), str(path), 256, use_gpu=False, stamps=stamps)

    async def drive(desk):
        said = []
        for size in (0.05, 0.1):
            chat = desk.open(1, partners(size))
            await desk.ask(chat, QUESTION, SHORT)
            said.append(
                (chat.exchanges[0].answers[1].text, sampled(tiny, QUESTION, 5, adapter=path))
            )
        return said

    said = at_a_desk(drive)
    assert [ours for ours, _ in said] == [theirs for _, theirs in said]
    assert said[0] != said[1]
