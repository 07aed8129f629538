"""Settings that change how the work is done: whole runs with and without them end alike."""

from __future__ import annotations

import numpy as np
import pytest
from small_runs import SMALL, exported, rewards, train

from trainer.errors import ConfigError

PROMPTS = ["one", "two words", "and three of them"]
SCORES = rewards([0.0, 1.0, 0.0, 3.0, 2.0, 2.0, 2.0, 4.0], [1.0, 0.0, 0.5, 0.0, 1.0, 1.0, 1.0, 1.0])
PLAN = {
    "grpo.updates": 3,
    "grpo.prompts_per_update": 2,
    "grpo.grpo_epochs": 2,
    "grpo.kl_coefficient": 0.1,
    "grpo.sampling.max_new_tokens": 8,
}
# The default packs each group into one pass of at most 22 + 4 x 7 rows.
SETTINGS = [
    {"training.generation_concurrency": 1},
    {"training.generation_concurrency": 3},
    {"training.generation_concurrency": 32},
    {"training.shared_prefix_fanout": "off"},
    {"training.shared_prefix_fanout": 2},
    {"training.shared_prefix_fanout": "max"},
    {"training.micro_batch": 32},
    {"training.micro_batch": 1},
    {"training.gradient_checkpointing": True},
    {"training.chunked_cross_entropy": False},
    {"training.ce_chunk_tokens": 3},
]


@pytest.fixture(scope="module")
def deep(random_llama):
    return random_llama(**SMALL | {"layers": 2})


@pytest.fixture(scope="module")
def plain(deep, tmp_path_factory):
    return train(tmp_path_factory.mktemp("plain"), deep, SCORES, PLAN, prompts=PROMPTS)


def sampled(recorder):
    return [
        [t.answer.tokens.tolist() for t in group.trajectories]
        for groups in recorder.groups.values()
        for group in groups
    ]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "=".join(map(str, *s.items())))
def test_the_result_is_the_same(deep, plain, tmp_path, setting):
    changed = train(tmp_path, deep, SCORES, PLAN | setting, prompts=PROMPTS)
    assert sampled(changed) == sampled(plain)
    expected = exported(plain.outcome.output)
    for name, value in exported(changed.outcome.output).items():
        assert np.abs(expected[name]).max() > 0.02
        np.testing.assert_allclose(value, expected[name], atol=2e-5)
    for update, values in plain.values.items():
        for name in ("policy/total_loss", "policy/kl", "policy/entropy", "optimizer/grad_norm"):
            assert changed.values[update][name] == pytest.approx(values[name], abs=1e-5), name


def test_packing_is_what_the_settings_ask_for(deep, tmp_path):
    def passes(folder, **training):
        changes = {f"training.{key}": value for key, value in training.items()}
        recorder = train(tmp_path / folder, deep, SCORES, PLAN | changes, prompts=PROMPTS)
        values = recorder.values[1]
        return values["packing/passes"], values["packing/fanout"]

    # two groups of four answers in two epochs
    assert passes("auto", shared_prefix_fanout="auto") == (4.0, 4.0)
    assert passes("two", shared_prefix_fanout=2) == (8.0, 2.0)
    assert passes("off", shared_prefix_fanout="off") == (16.0, 1.0)


def test_auto_falls_back_and_logs_why_once(deep, tmp_path):
    changes = {"training.micro_batch": 32, "training.shared_prefix_fanout": "auto"}
    recorder = train(tmp_path, deep, SCORES, PLAN | changes, prompts=PROMPTS)
    [message] = recorder.messages("packing")
    # the first prompt is 3 letters in 3 control tokens: 6 + 4 x 7 rows
    assert message == (
        "Packing fewer answers in a pass than a group: 4 answers on a prompt of 6 tokens need a "
        "pass of 34 tokens, and training.micro_batch allows 32."
    )
    assert recorder.outcome.status == "completed"


@pytest.mark.parametrize("fanout", [4, "max"])
def test_an_explicit_fanout_that_cannot_be_met_is_an_error(deep, tmp_path, fanout):
    changes = {"training.micro_batch": 32, "training.shared_prefix_fanout": fanout}
    words = f"shared_prefix_fanout = {fanout!r} cannot be met.*Raise micro_batch"
    with pytest.raises(ConfigError, match=words):
        train(tmp_path, deep, SCORES, PLAN | changes, prompts=PROMPTS)
