"""Whole updates of small runs, against the method written out in plain torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from small_runs import SMALL, end_often, exported, rewards, train, write_run

from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.inputs import read_inputs
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.packing import pack_text

CPU = torch.device("cpu")
LIVE, DEAD = [0.0, 1.0, 0.0, 2.0], [1.0] * 4
MASK = {"grpo.mask_truncated": True}
TWO = {"grpo.prompts_per_update": 2}
DESCENT = {"training.optimizer": "sgd", "training.max_grad_norm": 1e9}


@pytest.fixture(scope="module")
def ending_model(random_llama):
    return end_often(random_llama(**SMALL))


# -- one group, step by step ---------------------------------------------------------------------


def reference_run(config, trajectories, advantages):
    """The adapter after one update on one group, by plain descent on whole texts, one by one."""
    decoder = Decoder(GgufFile(config.model.path), CPU, context=48)
    names = select_targets(decoder.architecture, config.lora.targets)
    options = {"rank": config.lora.rank, "alpha": config.lora.alpha, "seed": config.lora.seed}
    adapter = Adapter(decoder.architecture, names, **options, device=CPU)
    prompt = read_inputs(config).prompts[0].tokens
    grpo, divisor = config.grpo, config.grpo.group_size * config.grpo.sampling.max_new_tokens

    def logprobs(answer, adapter):
        text = [*prompt, *answer.tokens.tolist()]
        logits = decoder.states(pack_text(text, CPU), adapter) @ decoder.head.T
        rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
        return rows[torch.arange(len(answer.tokens)), torch.from_numpy(answer.tokens).long()]

    with torch.no_grad():
        old = [logprobs(t.answer, adapter) for t in trajectories]
        initial = [logprobs(t.answer, None) for t in trajectories]
    norms = []
    for _ in range(grpo.grpo_epochs):
        loss = torch.zeros(())
        for i, t in enumerate(trajectories):
            if advantages[i] is None:
                continue
            now = logprobs(t.answer, adapter)
            ratio = (now - old[i]).exp()
            if grpo.importance_sampling_level == "sequence":
                ratio = (now - old[i]).mean().exp().expand(len(now))
            low, high = 1 - grpo.clip_range_low, 1 + grpo.clip_range_high
            terms = torch.minimum(ratio * advantages[i], ratio.clamp(low, high) * advantages[i])
            delta = initial[i] - now
            penalty = grpo.kl_coefficient * (delta.exp() - 1 - delta)
            loss = loss + (penalty - terms).sum() / divisor
        parameters = list(adapter.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        norms.append(math.sqrt(sum(float(g.square().sum()) for g in gradients)))
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p -= config.training.lr * g
    return adapter.state(), float(np.mean(norms))


SCORES = [0.0, 3.0, 3.0, 6.0]
CASES = {
    "one epoch": ({}, [-3.0, 0.0, 0.0, 3.0]),
    "three epochs, some tokens clipped": ({"grpo.grpo_epochs": 3}, [-3.0, 0.0, 0.0, 3.0]),
    "leave one out": (
        {"grpo.baseline": "leave_one_out", "grpo.grpo_epochs": 2},
        [-4.0, 0.0, 0.0, 4.0],
    ),
    "one ratio an answer": (
        {"grpo.importance_sampling_level": "sequence", "grpo.grpo_epochs": 3},
        [-3.0, 0.0, 0.0, 3.0],
    ),
    "a penalty toward the initial policy": (
        {"grpo.kl_coefficient": 2.0, "grpo.grpo_epochs": 3},
        [-3.0, 0.0, 0.0, 3.0],
    ),
}


@pytest.mark.parametrize(
    ("changes", "advantages"), [pytest.param(*case, id=name) for name, case in CASES.items()]
)
def test_an_update_equals_the_method_in_plain_torch(model, tmp_path, changes, advantages):
    changes = DESCENT | {"training.lr": 0.3} | changes
    recorder = train(tmp_path, model, rewards(SCORES), changes)
    assert recorder.advantages(1) == [advantages]
    config = write_run(tmp_path, model, rewards(SCORES), changes)
    expected, norm = reference_run(config, recorder.groups[1][0].trajectories, advantages)
    result = exported(recorder.outcome.output)
    for name, value in expected.items():
        np.testing.assert_allclose(result[name], value.numpy(), atol=2e-6)
    values = recorder.values[1]
    assert values["optimizer/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert (values["policy/clip_fraction"] > 0) == (config.grpo.grpo_epochs > 1)
    assert max(np.abs(result[name]).max() for name in result if name.endswith("lora_b")) > 0.01


def test_truncated_answers_leave_before_the_mean_and_keep_the_divisor(ending_model, tmp_path):
    scores = [0.0, 1.0, 2.0, 4.0, 3.0, 8.0, 5.0, 6.0]
    changes = DESCENT | MASK | {"grpo.group_size": 8, "training.lr": 0.3, "grpo.grpo_epochs": 2}
    recorder = train(tmp_path, ending_model, rewards(scores), changes)
    trajectories = recorder.groups[1][0].trajectories
    whole = [t.answer.finished for t in trajectories]
    assert 2 <= sum(whole) < 8, "the case needs both kinds"
    mean = np.mean([s for s, kept in zip(scores, whole, strict=True) if kept])
    advantages = [s - mean if kept else None for s, kept in zip(scores, whole, strict=True)]
    config = write_run(tmp_path, ending_model, rewards(scores), changes)
    expected, _ = reference_run(config, trajectories, advantages)
    for name, value in exported(recorder.outcome.output).items():
        np.testing.assert_allclose(value, expected[name].numpy(), atol=2e-6)
    assert [t.skip_reason for t in trajectories] == [None if w else "truncated" for w in whole]
    # masked answers stay in the numbers about answers
    values = recorder.values[1]
    assert values["completions/truncation_fraction"] == pytest.approx(1 - np.mean(whole))
    assert values["batch/trained_fraction"] == pytest.approx(np.mean(whole))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_every_ratio_is_exactly_one_before_the_first_step(model, tmp_path, level):
    changes = {"grpo.importance_sampling_level": level, "grpo.updates": 3}
    recorder = train(tmp_path, model, rewards([0.0, 1.0, 2.0, 3.0]), changes)
    for values in recorder.values.values():
        assert values["policy/ratio_max"] == 1.0
        assert values["policy/clip_fraction"] == 0.0
        assert values["policy/approx_kl"] == 0.0
        # with one step a batch and centred advantages the loss is zero by construction
        assert values["policy/surrogate_loss"] == pytest.approx(0.0, abs=1e-7)
        assert values["optimizer/grad_norm"] > 0.01


def test_answers_of_one_token_train(model, tmp_path):
    changes = DESCENT | {"grpo.sampling.max_new_tokens": 1, "training.lr": 0.3}
    recorder = train(tmp_path, model, rewards(SCORES), changes)
    config = write_run(tmp_path, model, rewards(SCORES), changes)
    trajectories = recorder.groups[1][0].trajectories
    expected, _ = reference_run(config, trajectories, [-3.0, 0.0, 0.0, 3.0])
    for name, value in exported(recorder.outcome.output).items():
        np.testing.assert_allclose(value, expected[name].numpy(), atol=2e-6)


# -- the course of an update ---------------------------------------------------------------------


def test_sample_score_train_in_this_order(model, tmp_path):
    changes = TWO | {"grpo.updates": 2, "grpo.grpo_epochs": 2}
    recorder = train(tmp_path, model, rewards([0.0, 1.0]), changes, prompts=["a", "b"])
    update = ["generate", "reward", "trajectories", "score", "train", "metrics"]
    stages = [c.split()[0] for c in recorder.calls if c.split()[0] in update]
    kept = [s for i, s in enumerate(stages) if i == 0 or stages[i - 1] != s]
    assert kept == [*update, *update]
    for end in ("generate 8/8", "reward 8/8", "score 2/2", "train 4/4"):
        assert recorder.calls.count(end) == 2


def test_prompts_are_taken_in_order_and_over_again(model, tmp_path):
    recorder = train(
        tmp_path, model, rewards([0.0, 1.0]), TWO | {"grpo.updates": 3}, prompts=["a", "b", "c"]
    )
    lines = {u: [g.prompt.question for g in groups] for u, groups in recorder.groups.items()}
    assert lines == {1: ["a", "b"], 2: ["c", "a"], 3: ["b", "c"]}
    assert [g.group for g in recorder.groups[2]] == [0, 1]


def test_shuffled_prompts_are_each_taken_once_a_round(model, tmp_path):
    changes = {"grpo.updates": 6, "grpo.prompt_order": "shuffled", "grpo.sampling.seed": 1}
    recorder = train(tmp_path, model, rewards(DEAD), changes, prompts=["a", "b", "c"])
    questions = [groups[0].prompt.question for groups in recorder.groups.values()]
    assert sorted(questions[:3]) == sorted(questions[3:]) == ["a", "b", "c"]
    assert questions != ["a", "b", "c"] * 2


def test_the_same_prompt_on_two_lines_makes_two_groups(model, tmp_path):
    scores = rewards([0.0, 0.0, 0.0, 1.0, 10.0, 10.0, 10.0, 11.0])
    recorder = train(tmp_path, model, scores, TWO, prompts=["hi", "hi"])
    assert recorder.advantages(1) == [[-0.25, -0.25, -0.25, 0.75]] * 2
    texts = [[t.answer.tokens.tolist() for t in g.trajectories] for g in recorder.groups[1]]
    assert texts[0] != texts[1]


def test_each_epoch_makes_one_step_a_group(model, tmp_path):
    recorder = train(
        tmp_path,
        model,
        rewards([0.0, 1.0]),
        TWO | {"grpo.updates": 2, "grpo.grpo_epochs": 3},
        prompts=["a", "b"],
    )
    assert [v["optimizer/step"] for v in recorder.values.values()] == [6.0, 12.0]
    assert [v["packing/passes"] for v in recorder.values.values()] == [6.0, 6.0]


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.5])
def test_a_group_without_signal_takes_no_part_in_any_step(model, tmp_path, kl_coefficient):
    """The second update has a dead group beside a live one, with a penalty and without: the result
    is that of the live group alone."""
    changes = {"grpo.updates": 2, "grpo.grpo_epochs": 2, "grpo.kl_coefficient": kl_coefficient}
    prompts = ["a", "a"]  # slot 0 samples the same answers in both runs
    both = train(tmp_path / "2", model, rewards(LIVE + DEAD), changes | TWO, prompts=prompts)
    alone = train(tmp_path / "1", model, rewards(LIVE), changes, prompts=prompts)
    with_dead, without = (exported(r.outcome.output) for r in (both, alone))
    for name, value in without.items():
        np.testing.assert_array_equal(with_dead[name], value)
    assert both.values[2]["batch/zero_std_group_fraction"] == 0.5
    assert both.values[2]["optimizer/step"] == alone.values[2]["optimizer/step"] == 4.0
    assert [t.skip_reason for t in both.groups[1][1].trajectories] == ["zero_signal"] * 4


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.5])
def test_an_update_without_signal_is_skipped_and_changes_nothing(model, tmp_path, kl_coefficient):
    kl = {"grpo.kl_coefficient": kl_coefficient}
    longer = train(tmp_path / "2", model, rewards(LIVE, DEAD), kl | {"grpo.updates": 2})
    shorter = train(tmp_path / "1", model, rewards(LIVE), kl)
    assert longer.status == {1: "trained", 2: "skipped"}
    assert longer.advantages(2) == [[0.0] * 4]
    assert exported(longer.outcome.output).keys() == exported(shorter.outcome.output).keys()
    for name, value in exported(shorter.outcome.output).items():
        np.testing.assert_array_equal(exported(longer.outcome.output)[name], value)
    assert not any(name.startswith("policy/") for name in longer.values[2])
    assert longer.messages("update_skipped") == ["no group carried signal; rewards from 1 to 1"]


def test_with_every_answer_truncated_and_masked_the_update_is_skipped(model, tmp_path):
    recorder = train(tmp_path, model, rewards(LIVE), MASK)
    assert recorder.status == {1: "skipped"}
    assert [t.skip_reason for t in recorder.groups[1][0].trajectories] == ["truncated"] * 4
    assert recorder.values[1]["completions/truncation_fraction"] == 1.0
    assert recorder.values[1]["batch/zero_std_group_fraction"] == 1.0
    assert recorder.outcome.output is None


def test_the_sampler_writes_with_the_adapter_that_was_trained_last(model, tmp_path):
    """Large steps: were the adapter of an earlier update used, whole nats would lie between."""
    changes = {"grpo.updates": 4, "training.lr": 0.05}
    recorder = train(tmp_path, model, rewards(LIVE), changes)
    for values in recorder.values.values():
        assert values["sampler/logprob_gap_max"] < 1e-4


def test_the_seed_decides_a_run(model, tmp_path):
    def result(folder, seed):
        changes = {"grpo.sampling.seed": seed, "grpo.updates": 2}
        return exported(train(tmp_path / folder, model, rewards(LIVE), changes).outcome.output)

    one, same, other = result("1", 1), result("2", 1), result("3", 2)
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert any(not np.array_equal(one[name], other[name]) for name in one)


# -- stall ---------------------------------------------------------------------------------------


def test_updates_without_signal_in_a_row_stop_the_run(model, tmp_path):
    changes = {"grpo.updates": 9, "grpo.max_stalled_updates": 2}
    recorder = train(tmp_path, model, rewards([0.25] * 4), changes)
    assert (recorder.outcome.status, recorder.outcome.updates) == ("failed", 2)
    assert "no group of the last 2 updates carried signal" in recorder.outcome.message
    assert "grpo.max_stalled_updates = 2" in recorder.outcome.message
    assert "rewards went from 0.25 to 0.25" in recorder.outcome.message
    assert recorder.outcome.output is None


def test_an_update_with_signal_starts_the_count_again(model, tmp_path):
    changes = {"grpo.updates": 6, "grpo.max_stalled_updates": 3}
    recorder = train(tmp_path, model, rewards(DEAD, DEAD, LIVE), changes)
    assert recorder.outcome.status == "completed"
    assert list(recorder.status.values()) == ["skipped", "skipped", "trained"] * 2


def test_zero_never_stops(model, tmp_path):
    changes = {"grpo.updates": 30, "grpo.max_stalled_updates": 0}
    recorder = train(tmp_path, model, rewards(DEAD), changes)
    assert recorder.outcome.updates == 30
    assert recorder.outcome.message == (
        "no answer carried signal in any update, so there is nothing to export"
    )
    assert recorder.outcome.output is None
