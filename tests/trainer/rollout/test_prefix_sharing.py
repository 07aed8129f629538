"""What prompts begin with alike is decoded once, and no answer notices."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.llama.context import LlamaContext
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.continuous import RolloutStopped
from trainer.rollout.engine import RolloutEngine, plan_layout
from trainer.rollout.seeds import answer_seed

SIZES = {"ctx": 128, "concurrency": 5, "max_prompt_tokens": 64, "group_size": 3}
MOST_TOKENS = 12
HEAD = list(b"<|user|>You add numbers. Answer with the number")  # 47 tokens, one for each byte
QUESTIONS = [HEAD + list(tail) for tail in (b": 2 + 2", b": 31 + 4 =", b"!", b": 2 + 9")]


def open_engine(weights, **sizes):
    return RolloutEngine(
        weights,
        **(SIZES | sizes),
        settings=SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=MOST_TOKENS),
        exact=True,
        threads=1,
    )


def seeds(prompts, members=3):
    return [[answer_seed(5, 0, i, j) for j in range(members)] for i in range(len(prompts))]


class Cache:
    """Follows what is decoded, and which sequences hold each cell of the cache."""

    def __init__(self, monkeypatch):
        self.decoded = self.most = 0
        self.cells: list[set[int]] = []
        for name in ("decode", "copy_sequence", "remove_sequence", "clear"):
            monkeypatch.setattr(LlamaContext, name, self._followed(name))

    def _followed(self, name):
        original, follow = getattr(LlamaContext, name), getattr(self, name)

        def call(context, *arguments):
            follow(*arguments)
            return original(context, *arguments)

        return call

    def decode(self, batch):
        self.cells += [{int(sequence)} for sequence in batch.arrays()[2]]
        self.decoded += len(batch)
        self.most = max(self.most, len(self.cells))

    def copy_sequence(self, source, target):
        for cell in self.cells:
            if source in cell:
                cell.add(target)

    def remove_sequence(self, sequence):
        self.cells = [left for cell in self.cells if (left := cell - {sequence})]

    def clear(self):
        self.cells = []


@pytest.fixture
def cache(monkeypatch):
    return Cache(monkeypatch)


@pytest.fixture(scope="module")
def weights(random_llama):
    return random_llama(context=2048)


@pytest.fixture(scope="module")
def alone(weights):
    """The groups of some prompts, each prompt sampled in a call of its own."""
    with open_engine(weights, ctx=1024, max_prompt_tokens=800, concurrency=3) as engine:

        def sample(prompts, members=3):
            calls = zip(prompts, seeds(prompts, members), strict=True)
            return [engine.sample([prompt], [row])[0] for prompt, row in calls]

        yield sample


def assert_same(groups, expected):
    assert [len(group) for group in groups] == [len(group) for group in expected]
    for group, others in zip(groups, expected, strict=True):
        for answer, other in zip(group, others, strict=True):
            assert answer.tokens.tolist() == other.tokens.tolist()
            assert answer.finished == other.finished
            np.testing.assert_allclose(answer.logprobs, other.logprobs, rtol=0, atol=1e-4)


def steps(groups):
    """Tokens decoded while answering: all of an answer but its last."""
    return sum(len(answer.tokens) - 1 for group in groups for answer in group)


CALLS = {
    "a long head": (QUESTIONS, 47),
    "one prompt is the head": ([*QUESTIONS[:2], HEAD, QUESTIONS[3]], 46),  # its last is its own
    "only equal prompts": ([HEAD] * 3, 46),
    "one prompt of one token": ([*QUESTIONS[:2], HEAD[:1], QUESTIONS[3]], 0),
    "one prompt of another token": ([QUESTIONS[0], [7], QUESTIONS[1]], 0),
    "one prompt": (QUESTIONS[:1], 0),
}


@pytest.mark.parametrize("concurrency", [1, 2, 5])
@pytest.mark.parametrize(("prompts", "common"), CALLS.values(), ids=list(CALLS))
def test_prompts_are_answered_as_each_would_be_alone(
    weights, alone, cache, prompts, common, concurrency
):
    expected = alone(prompts)
    with open_engine(weights, concurrency=concurrency) as engine:
        cache.decoded = 0
        groups = engine.sample(prompts, seeds(prompts))
    assert_same(groups, expected)
    own = sum(len(prompt) - common for prompt in prompts)
    assert cache.decoded == common + own + steps(groups)


def test_a_head_is_decoded_by_itself_where_that_saves_16_tokens(weights, alone, cache):
    def decoded(head, prompts):
        asked = [[*HEAD[:head], 200 + i] for i in range(prompts)]
        cache.decoded = 0
        groups = engine.sample(asked, seeds(asked))
        count = cache.decoded - steps(groups)
        assert_same(groups, alone(asked))
        return count

    with open_engine(weights) as engine:
        assert decoded(15, prompts=2) == 2 * 16
        assert decoded(16, prompts=2) == 16 + 2
        assert decoded(5, prompts=4) == 4 * 6  # saves 5 three times
        assert decoded(6, prompts=4) == 6 + 4


@pytest.mark.parametrize("common", [511, 512, 513, 700])
def test_a_head_longer_than_a_batch_is_decoded_in_parts(weights, alone, cache, common):
    head = np.random.default_rng(0).integers(0, 256, common).tolist()
    prompts = [[*head, *tail] for tail in ([1], [2, 3], [4, 5, 6])]
    expected = alone(prompts)
    with open_engine(weights, ctx=1024, max_prompt_tokens=703) as engine:
        cache.decoded = 0
        groups = engine.sample(prompts, seeds(prompts))
    assert_same(groups, expected)
    assert cache.decoded == common + 1 + 2 + 3 + steps(groups)


def test_a_context_with_room_for_one_answer_takes_one_after_the_other(weights, alone, cache):
    expected = alone(QUESTIONS)
    longest = max(map(len, QUESTIONS))
    sizes = SIZES | {"ctx": longest + MOST_TOKENS, "max_prompt_tokens": longest, "concurrency": 1}
    assert plan_layout(**sizes, max_new_tokens=MOST_TOKENS).cells == longest + MOST_TOKENS
    with open_engine(weights, **sizes) as engine:
        cache.most = 0
        groups = engine.sample(QUESTIONS, seeds(QUESTIONS))
    assert_same(groups, expected)
    assert cache.most <= longest + MOST_TOKENS


def test_cells_that_the_head_holds_are_not_given_to_answers(weights, alone, cache):
    tails = np.random.default_rng(0).integers(0, 256, (12, 24)).tolist()
    prompts = [HEAD[:40] + tail for tail in tails]
    expected = alone(prompts, members=1)
    # Groups of 64 are announced, so room is made for three prompts, and twelve come:
    # 8 · 12 + 3 · 64 = 288 cells. A prompt with its answer takes 24 + 12 beside the head's 40, so
    # six go at once. The last token of an answer is never decoded: 40 + 6 · 35 cells are filled.
    sizes = SIZES | {"concurrency": 8, "group_size": 64}
    assert plan_layout(**sizes, max_new_tokens=MOST_TOKENS).cells == 288
    with open_engine(weights, **sizes) as engine:
        cache.most = 0
        groups = engine.sample(prompts, seeds(prompts, members=1))
    assert_same(groups, expected)
    assert cache.most == 250


def test_a_call_leaves_nothing_but_the_head_which_the_next_call_forgets(weights, alone, cache):
    others = [list(b"Another head, which is as long: ") + list(tail) for tail in (b"1", b"22")]
    expected, expected_others = alone(QUESTIONS), alone(others)
    layout = plan_layout(**SIZES, max_new_tokens=MOST_TOKENS)
    with open_engine(weights) as engine:
        for prompts, answers, head in [
            (QUESTIONS, expected, 47),
            (QUESTIONS, expected, 47),
            (others, expected_others, 32),
            (QUESTIONS, expected, 47),
        ]:
            assert_same(engine.sample(prompts, seeds(prompts)), answers)
            assert cache.cells == [{layout.prefix_sequence}] * head


def test_a_call_that_was_stopped_leaves_the_next_one_whole(weights, alone, cache):
    expected = alone(QUESTIONS)
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) > 2

    with open_engine(weights) as engine:
        with pytest.raises(RolloutStopped):
            engine.sample(QUESTIONS, seeds(QUESTIONS), should_stop=should_stop)
        assert len(cache.cells) > len(HEAD)
        assert_same(engine.sample(QUESTIONS, seeds(QUESTIONS)), expected)
        assert len(cache.cells) == len(HEAD)
