import time

import pytest
from honest_answers import ADDITION, CHINESE, CODE, LIST, NUMBERS, PROSE, TABLE

from trainer.health.repetition import is_repetitive
from trainer.health.words import normal, pieces


def repeats(text: str) -> bool:
    return is_repetitive(pieces(normal(text)))


@pytest.mark.parametrize("text", ["", "yes", "8 + 2 = 10", ADDITION, PROSE, CODE, LIST, CHINESE])
def test_honest_answers(text):
    assert not repeats(text)


@pytest.mark.parametrize("text", [TABLE, NUMBERS])
def test_tables_of_numbers_are_honest(text):
    assert not repeats(text)


@pytest.mark.parametrize(
    "text",
    [
        "7777777777777777",
        "aaaa aaaa",
        "no no no no no no",
        "The answer is 10. The answer is 10. The answer is 10.",
        "It is 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7 7",
        "8 + 2 = 1000000000000000000000000",
        "这个问题非常重要。" * 3,
        "ฉันชอบกินข้าวผัดมาก" * 4,
        "Good point! good point — GOOD POINT, good point good point good point",
    ],
)
def test_one_thing_again_and_again(text):
    assert repeats(text)


def test_four_words_have_to_come_three_times():
    # "a b c d" twice is not enough; with a third it is
    assert not repeats("a b c d x a b c d y")
    assert repeats("a b c d x a b c d y a b c d")


def test_overlaps_count():
    assert not repeats("go go go go go")  # 2 stretches of four
    assert repeats("go go go go go go")  # 3


def test_and_make_up_a_fifth_of_the_answer():
    # three times four words are 12: a fifth of 60
    for fillers, expected in ((48, True), (49, False)):
        rest = [f"w{i}" for i in range(fillers)]
        parts = [" ".join(part) for part in (rest[:16], rest[16:32], rest[32:])]
        assert repeats(" ".join(f"for i in range {part}" for part in parts)) is expected


def test_stretches_that_overlap_cover_their_words_once():
    # "k k k k k k" covers 6 words, 3 stretches of four: a fifth of 30, not of 31
    assert repeats("k " * 6 + " ".join(f"w{i}" for i in range(24)))
    assert not repeats("k " * 6 + " ".join(f"w{i}" for i in range(25)))


def test_a_name_of_few_characters_is_not_a_stretch_of_four_words():
    # 人工智能 is four characters, two words: three times in a text is honest
    assert not repeats("人工智能改变世界。很多人害怕人工智能。我们应当学习人工智能的知识。")


def test_a_huge_answer_is_linear():
    begun = time.perf_counter()
    assert repeats("the quick brown fox " * 60_000)
    assert time.perf_counter() - begun < 10
