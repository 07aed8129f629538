"""What was said, and how its end is told."""

from __future__ import annotations

import asyncio

import pytest

from app.chat.conversations import Chat, Draws, Exchange, Spoken
from app.chat.process import Partners

DRAWS = Draws(1.0, 1.0, 5, 24)


def a_chat():
    return Chat(1, Partners("base.gguf", "adapter.gguf", 64))


def said(question, *answers):
    """An exchange that is over."""
    exchange = Exchange(question, DRAWS, phase="over")
    for spoken, text in zip(exchange.answers, answers, strict=True):
        spoken.text = text
    return exchange


def test_each_voice_remembers_its_own_words_and_an_empty_answer_leaves_nothing():
    chat = a_chat()
    chat.exchanges += [said("one", "1", "I"), said("two", "", "II"), said("three", "3", "III")]
    last = chat.exchanges[-1]
    assert chat.before(last, 0) == [("user", "one"), ("assistant", "1")]
    assert chat.before(last, 1) == [
        ("user", "one"), ("assistant", "I"), ("user", "two"), ("assistant", "II")
    ]  # fmt: skip
    assert chat.before(chat.exchanges[0], 0) == []


@pytest.mark.parametrize(
    ("text", "told", "note"),
    [
        ("5", {"ending": "end", "dropped": 0}, ""),
        ("5", {"ending": "length", "dropped": 0}, "cut off after 7 tokens"),
        ("5", {"ending": "context", "dropped": 0}, "cut off: the context of 64 tokens is full"),
        ("5", {"ending": "stopped", "dropped": 0}, "stopped"),
        ("", {"ending": "end", "dropped": 0}, "an empty answer, which is not kept"),
        (
            "5",
            {"ending": "stopped", "dropped": 2},
            "stopped; without the oldest 2 exchanges, which the context of 64 tokens has no room "
            "for",
        ),
    ],
)
def test_an_answer_ends_with_what_is_not_plain_about_it(text, told, note):
    spoken = Spoken(text)
    spoken.end_as({"tokens": 7} | told, ctx=64)
    assert (spoken.note, spoken.over, spoken.failed) == (note, True, False)


def test_a_chat_is_busy_until_its_last_exchange_is_over():
    chat = a_chat()
    assert not chat.busy
    chat.exchanges += [said("one", "1", "I"), Exchange("two", DRAWS)]
    assert chat.busy
    chat.exchanges[-1].phase = "over"
    assert not chat.busy


def test_who_reads_is_woken_and_counts_as_long_as_it_reads():
    async def drive():
        chat = a_chat()
        before = chat.touched
        with chat.reading() as one, chat.reading() as other:
            assert chat.watched
            chat.tell()
            await asyncio.wait_for(asyncio.gather(one.wait(), other.wait()), 1)
        assert chat.touched >= before
        assert not chat.watched

    asyncio.run(drive())


def test_no_two_conversations_have_the_same_name():
    assert len({a_chat().id for _ in range(50)}) == 50
