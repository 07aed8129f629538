import time

import pytest

from trainer.health.words import normal, pieces, word_count


def words(text: str) -> float:
    return word_count(pieces(normal(text)))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        (" \n\t", 0),
        ("8 + 2 = 10", 3),
        ("Don't panic, it’s O'Brien's.", 4),
        ("3.14 is two numbers here", 6),  # 3, 14
        ("snake_case_name", 3),
        ("- one\n- two\n\n| a | b |\n|---|---|", 4),
        ("naïve cafe\u0301", 2),  # é as one character, and as two
        ("हिन्दी में लिखना", 3),  # vowel signs and viramas stay inside their words
        ("한국어 문장", 2),
        ("我喜欢苹果", 2.5),  # 5 characters, half a word each
        ("ひらがなとカタカナ", 4.5),
        ("ภาษา", 1),  # 4 letters, a quarter each
        ("GPT 很好", 2),  # 1 + 2 halves
    ],
)
def test_words_of_many_scripts(text, count):
    assert words(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7777777777777777", 16),
        ("aaaa aaaa", 8),
        ("hahahahahaha", 6),
        ("!!!!!!!!", 8),
        ("🙂🙂🙂🙂🙂🙂🙂🙂", 8),
        ("yes\n" * 6, 6),
        ("哈" * 20, 20),  # each time is a word where its letters would make fewer
        ("the cat " * 20, 40),  # and its words are where they make more
        ("8 + 2 = 1" + "0" * 16, 19),  # 8, 2, 1 and the loop
        ("sum: " + "12, " * 16, 17),
    ],
)
def test_each_time_of_a_loop_is_a_word(text, count):
    assert words(text) == count


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("111111", 1),  # an honest sum
        ("hahaha", 1),
        ("1000000000000000", 1),  # 15 zeros
        ("-" * 40 + " end", 1),  # a rule is no word
        ("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n| x |", 1),
    ],
)
def test_what_is_no_loop(text, count):
    assert words(text) == count


def test_a_cut_last_time_does_not_hide_that_the_whole_is_one_thing():
    assert words("banana split " * 5 + "banana") == 11  # five times: words as they stand
    assert words("ab" * 6 + "a") == 6


def test_a_nul_and_a_lone_surrogate_do_no_harm():
    assert words("one\0two") == 2
    assert words("\ud800 x") == 1


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "a" * 1_000_000 + "b",
        "ab" * 500_000 + "c",
        "".join("7 " * 20 + f"{i}" for i in range(20_000)),
        "'a" * 500_000,
        "哈ha" * 300_000,
        "e" + "\u0301" * 1_000_000,
    ],
)
def test_a_huge_answer_takes_no_more_than_seconds(text):
    begun = time.perf_counter()
    pieces(normal(text))
    assert time.perf_counter() - begun < 10  # quadratic time would be hours
