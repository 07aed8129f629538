from __future__ import annotations

from itertools import product

from trainer.rollout.seeds import answer_seed, mix64


def test_mix64_gives_the_published_splitmix64_sequence():
    # The first outputs of SplitMix64 from state 0, from the reference implementation by Vigna.
    golden = 0x9E3779B97F4A7C15
    assert mix64(golden) == 0xE220A8397B1DCDAF
    assert mix64(2 * golden) == 0x6E789E6AA1B965F4


def test_seeds_of_a_run_are_distinct_64_bit_numbers():
    seeds = [answer_seed(*place) for place in product(range(3), range(20), range(20), range(20))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_each_of_the_four_numbers_counts_and_so_does_their_order():
    places = [(1, 2, 3, 4), (0, 2, 3, 4), (1, 0, 3, 4), (1, 2, 0, 4), (1, 2, 3, 0), (4, 3, 2, 1)]
    assert len({answer_seed(*place) for place in places}) == len(places)


def test_a_seed_is_the_same_in_every_process():
    assert answer_seed(42, 7, 3, 1) == 0x208A8D5690623304
