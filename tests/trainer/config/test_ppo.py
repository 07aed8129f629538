import pytest

from trainer.config import PpoConfig

KL_CONTROL = {"ppo.kl_control.target": "6.0", "ppo.kl_control.horizon": "10000"}


def test_every_value_of_the_file_arrives(load):
    config = load(base="ppo")
    assert isinstance(config, PpoConfig)
    ppo = config.ppo
    assert ppo.prompts == config.folder / "prompts.jsonl"
    assert ppo.reward_command == ["python3", "reward.py"]
    assert (ppo.updates, ppo.rollout_batch_size, ppo.ppo_epochs) == (30, 8, 3)
    assert (ppo.clip_range, ppo.kl_coefficient) == (0.1, 0.02)
    assert (ppo.sampling.temperature, ppo.sampling.top_p) == (0.9, 0.95)
    assert (ppo.sampling.max_new_tokens, ppo.sampling.seed) == (128, 7)


def test_defaults_are_the_documented_ones(load):
    ppo = load(base="ppo").ppo
    assert (ppo.reward_mode, ppo.reward_timeout_seconds) == ("persistent", 300)
    assert (ppo.kl_anchor, ppo.entropy_coefficient) == ("rollout", 0.0)
    assert (ppo.minibatches, ppo.prompt_order) == (8, "sequential")
    assert (ppo.kl_control, ppo.reward_model) == (None, None)
    assert ppo.critic.model_dump() == {
        "enabled": True,
        "kind": "probe",
        "gamma": 1.0,
        "gae_lambda": 0.95,
        "value_lr": 0.01,
        "value_epochs": 8,
        "value_loss_coefficient": 0.1,
        "value_clip_range": 0.2,
        "feature_dtype": "f32",
    }


@pytest.mark.parametrize(
    "key",
    [
        "prompts",
        "reward_command",
        "updates",
        "rollout_batch_size",
        "ppo_epochs",
        "clip_range",
        "kl_coefficient",
        "sampling.temperature",
        "sampling.top_p",
        "sampling.max_new_tokens",
        "sampling.seed",
    ],
)
def test_required_keys_are_asked_for(refusal, key):
    assert f"ppo.{key} is required" in refusal({f"ppo.{key}": None}, "ppo")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rollout_batch_size", "1"),
        ("clip_range", "0.999"),
        ("kl_coefficient", "0"),
        ("kl_anchor", '"reference"'),
        ("entropy_coefficient", "0"),
        ("minibatches", "1"),
        ("minibatches", "8"),
        ("sampling.temperature", "0.01"),
        ("sampling.top_p", "1"),
        ("critic.enabled", "false"),
        ("critic.kind", '"shared"'),
        ("critic.gamma", "0"),
        ("critic.gamma", "1"),
        ("critic.gae_lambda", "0"),
        ("critic.gae_lambda", "1"),
        ("critic.value_epochs", "1"),
        ("critic.feature_dtype", '"bf16"'),
        ("reward_mode", '"oneshot"'),
    ],
)
def test_values_inside_the_range_are_accepted(load, key, value):
    section = load({f"ppo.{key}": value}, "ppo").ppo
    for part in key.split("."):
        section = getattr(section, part)
    if value in ("true", "false"):
        assert section is (value == "true")
    else:
        assert section == (value.strip('"') if value.startswith('"') else float(value))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("updates", "0", "an integer of at least 1"),
        ("rollout_batch_size", "0", "an integer of at least 1"),
        ("ppo_epochs", "0", "an integer of at least 1"),
        ("clip_range", "0", "a number above 0 and below 1"),
        ("clip_range", "1", "a number above 0 and below 1"),
        ("kl_coefficient", "-1", "a number of at least 0"),
        ("kl_anchor", '"base"', '"rollout" or "reference"'),
        ("entropy_coefficient", "-1", "a number of at least 0"),
        ("minibatches", "0", "an integer of at least 1"),
        ("minibatches", "9", "at most ppo.rollout_batch_size (8)"),
        ("sampling.temperature", "0", "a number from 0.01 to 100"),
        ("sampling.temperature", "1e-320", "a number from 0.01 to 100"),
        ("sampling.temperature", "101", "a number from 0.01 to 100"),
        ("sampling.top_p", "0", "a number above 0 and at most 1"),
        ("sampling.top_p", "1.1", "a number above 0 and at most 1"),
        ("sampling.max_new_tokens", "512", "less than training.ctx (512)"),
        ("critic.kind", '"value"', '"probe" or "shared"'),
        ("critic.gamma", "1.1", "a number from 0 to 1"),
        ("critic.gae_lambda", "-0.1", "a number from 0 to 1"),
        ("critic.value_lr", "0", "a number above 0"),
        ("critic.value_epochs", "0", "an integer of at least 1"),
        ("critic.value_loss_coefficient", "0", "a number above 0"),
        ("critic.value_clip_range", "0", "a number above 0"),
        ("critic.feature_dtype", '"q8"', '"f32", "f16" or "bf16"'),
    ],
)
def test_values_outside_the_range_are_refused(refusal, key, value, allowed):
    message = refusal({f"ppo.{key}": value}, "ppo")
    assert f"ppo.{key} = {value} must be {allowed}" in message


def test_a_fault_in_the_batch_size_is_not_blamed_on_the_minibatches(refusal):
    message = refusal({"ppo.rollout_batch_size": '"8"', "ppo.ppo_epochs": "0"}, "ppo")
    batch, epochs = message.split("\n\n")
    assert 'ppo.rollout_batch_size = "8" must be an integer of at least 1' in batch
    assert "ppo.ppo_epochs = 0 must be" in epochs


def test_one_answer_without_a_critic_has_no_baseline(refusal):
    message = refusal({"ppo.rollout_batch_size": "1", "ppo.critic.enabled": "false"}, "ppo")
    assert "ppo.rollout_batch_size = 1 leaves a single reward" in message


def test_kl_control_needs_the_reference_anchor(load, refusal):
    assert '[ppo.kl_control] needs ppo.kl_anchor = "reference"' in refusal(KL_CONTROL, "ppo")
    ppo = load(KL_CONTROL | {"ppo.kl_anchor": '"reference"'}, "ppo").ppo
    assert (ppo.kl_control.target, ppo.kl_control.horizon) == (6.0, 10000)


def test_kl_control_needs_a_coefficient_to_multiply(refusal):
    changes = {"ppo.kl_anchor": '"reference"', "ppo.kl_coefficient": "0"}
    assert "[ppo.kl_control] multiplies ppo.kl_coefficient" in refusal(KL_CONTROL | changes, "ppo")


@pytest.mark.parametrize(("key", "value"), [("target", "0"), ("horizon", "0")])
def test_kl_control_outside_its_range_is_refused(refusal, key, value):
    changes = KL_CONTROL | {"ppo.kl_anchor": '"reference"', f"ppo.kl_control.{key}": value}
    assert f"ppo.kl_control.{key} = {value} must be" in refusal(changes, "ppo")
