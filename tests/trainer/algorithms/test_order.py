from __future__ import annotations

from collections import Counter

from trainer.algorithms.order import PromptOrder
from trainer.chat.messages import Message, Prompt, PromptLine


def prompts(count):
    return [
        Prompt(PromptLine(n, (Message("user", "Hi"),), {}, None, str(n)), (n,))
        for n in range(1, count + 1)
    ]


def walk(order, count, *, seed=0, size=5):
    place = PromptOrder(prompts(size), order, seed)
    return [place.at(position).line.line for position in range(count)]


def test_sequential_repeats_the_files_order():
    assert walk("sequential", 12) == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]


def test_shuffled_takes_every_prompt_once_a_round():
    lines = walk("shuffled", 15)
    assert [Counter(lines[i : i + 5]) for i in (0, 5, 10)] == [Counter(range(1, 6))] * 3


def test_each_round_is_shuffled_anew():
    lines = walk("shuffled", 60, size=20)
    assert lines[:20] != lines[20:40] != lines[40:]
    assert lines[:20] != sorted(lines[:20])


def test_the_seed_decides_the_shuffle():
    assert walk("shuffled", 20, seed=3, size=20) == walk("shuffled", 20, seed=3, size=20)
    assert walk("shuffled", 20, seed=3, size=20) != walk("shuffled", 20, seed=4, size=20)


def test_a_run_can_go_on_from_any_position():
    """Nothing is remembered: position 7 is the same prompt, whatever was asked before."""
    whole = walk("shuffled", 10)
    fresh = PromptOrder(prompts(5), "shuffled", 0)
    assert [fresh.at(p).line.line for p in (7, 3, 9)] == [whole[7], whole[3], whole[9]]


def test_one_prompt_is_a_file_too():
    assert walk("shuffled", 3, size=1) == [1, 1, 1]
