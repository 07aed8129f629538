"""The keys of rewards, which mean the same for both algorithms."""

import pytest


@pytest.fixture(params=["grpo", "ppo"])
def algorithm(request):
    return request.param


def test_a_reward_model_stands_beside_the_program(load, algorithm):
    changes = {f"{algorithm}.reward_model.path": '"scorer"'}
    section = load(changes, algorithm).rollout
    assert section.reward_command == ["python3", "reward.py"]
    assert section.reward_model.weight == 1.0


def test_a_reward_model_can_score_alone(load, algorithm):
    changes = {
        f"{algorithm}.reward_command": None,
        f"{algorithm}.reward_model.path": '"scorer"',
        f"{algorithm}.reward_model.weight": "0.25",
    }
    config = load(changes, algorithm)
    assert config.rollout.reward_command is None
    assert config.rollout.reward_model.path == config.folder / "scorer"
    assert config.rollout.reward_model.weight == 0.25


def test_without_either_a_program_is_asked_for(refusal, algorithm):
    message = refusal({f"{algorithm}.reward_command": None}, algorithm)
    assert f"{algorithm}.reward_command is required. It takes a program" in message
    assert "or add the section reward_model" in message


def test_a_reward_model_needs_its_path(refusal, algorithm):
    message = refusal({f"{algorithm}.reward_model.weight": "0.5"}, algorithm)
    assert f"{algorithm}.reward_model.path is required" in message


@pytest.mark.parametrize("weight", ["0", "-1"])
def test_a_weight_is_above_zero(refusal, algorithm, weight):
    changes = {
        f"{algorithm}.reward_model.path": '"scorer"',
        f"{algorithm}.reward_model.weight": weight,
    }
    message = refusal(changes, algorithm)
    assert f"{algorithm}.reward_model.weight = {weight} must be a number above 0" in message


@pytest.mark.parametrize(
    ("key", "value"), [("reward_mode", '"oneshot"'), ("reward_timeout_seconds", "60")]
)
def test_keys_of_the_program_need_one(refusal, algorithm, key, value):
    changes = {
        f"{algorithm}.reward_command": None,
        f"{algorithm}.reward_model.path": '"scorer"',
        f"{algorithm}.{key}": value,
    }
    message = refusal(changes, algorithm)
    assert f"{algorithm}.{key} = {value} has no effect without reward_command" in message
