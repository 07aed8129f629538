import pytest

from trainer.config import GrpoConfig

SCHEDULE = {"grpo.kl_schedule.warmup_updates": "10", "grpo.kl_schedule.target": "0.05"}


def test_every_value_of_the_file_arrives(load):
    config = load()
    assert isinstance(config, GrpoConfig)
    grpo = config.grpo
    assert grpo.prompts == config.folder / "prompts.jsonl"
    assert grpo.reward_command == ["python3", "reward.py"]
    assert (grpo.updates, grpo.prompts_per_update) == (20, 5)
    assert (grpo.group_size, grpo.grpo_epochs) == (8, 4)
    assert (grpo.clip_range_low, grpo.clip_range_high, grpo.kl_coefficient) == (0.2, 0.25, 0.0)
    assert grpo.mask_truncated is True
    assert grpo.sampling.model_dump() == {
        "temperature": 1.0,
        "top_p": 1.0,
        "max_new_tokens": 128,
        "seed": 7,
    }
    assert config.training.lr == 2e-5


def test_defaults_are_the_documented_ones(load):
    grpo = load({"grpo.mask_truncated": None}).grpo
    assert (grpo.reward_mode, grpo.reward_timeout_seconds) == ("persistent", 300)
    assert grpo.mask_truncated is False
    assert (grpo.baseline, grpo.importance_sampling_level) == ("mean", "token")
    assert (grpo.prompt_order, grpo.max_stalled_updates) == ("sequential", 25)
    assert (grpo.overlong_penalty, grpo.kl_schedule, grpo.dynamic_sampling) == (None,) * 3
    assert grpo.reward_model is None
    assert (grpo.judge, grpo.judge_weight, grpo.judge_failure) == (None, None, "drop_group")
    assert grpo.max_judge_dropped_fraction == 0.5


def test_every_documented_control_loads(load):
    grpo = load(
        SCHEDULE
        | {
            "grpo.kl_coefficient": "0.01",
            "grpo.importance_sampling_level": '"sequence"',
            "grpo.clip_range_low": "0.0003",
            "grpo.clip_range_high": "0.0004",
            "grpo.overlong_penalty.buffer_tokens": "16",
            "grpo.overlong_penalty.max_penalty": "1.0",
            "grpo.dynamic_sampling.max_resample_factor": "3",
        }
    ).grpo
    assert grpo.overlong_penalty.model_dump() == {"buffer_tokens": 16, "max_penalty": 1.0}
    assert grpo.kl_schedule.model_dump() == {"warmup_updates": 10, "target": 0.05}
    assert grpo.dynamic_sampling.max_resample_factor == 3
    assert (grpo.clip_range_low, grpo.clip_range_high) == (0.0003, 0.0004)


@pytest.mark.parametrize(
    "key",
    [
        "prompts",
        "reward_command",
        "updates",
        "prompts_per_update",
        "grpo_epochs",
        "group_size",
        "clip_range_low",
        "clip_range_high",
        "kl_coefficient",
        "sampling.temperature",
        "sampling.top_p",
        "sampling.max_new_tokens",
        "sampling.seed",
    ],
)
def test_required_keys_are_asked_for_at_their_section(refusal, key):
    message = refusal({f"grpo.{key}": None})
    assert f"grpo.{key} is required. It takes " in message
    assert "run.toml:" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("updates", "1"),
        ("prompts_per_update", "1"),
        ("grpo_epochs", "1"),
        ("group_size", "2"),
        ("group_size", "256"),
        ("clip_range_high", "0.2"),
        ("clip_range_high", "0.999"),
        ("kl_coefficient", "0"),
        ("kl_coefficient", "3"),
        ("reward_mode", '"oneshot"'),
        ("reward_timeout_seconds", "0.5"),
        ("baseline", '"leave_one_out"'),
        ("prompt_order", '"shuffled"'),
        ("max_stalled_updates", "0"),
        ("sampling.temperature", "1"),
        ("sampling.top_p", "1"),
        ("sampling.max_new_tokens", "1"),
        ("sampling.max_new_tokens", "511"),
        ("sampling.seed", "0"),
    ],
)
def test_values_inside_the_range_are_accepted(load, key, value):
    section = load({f"grpo.{key}": value}).grpo
    for part in key.split("."):
        section = getattr(section, part)
    assert section == (value.strip('"') if value.startswith('"') else float(value))


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("prompts", "[]", "a path, written as text in quotes"),
        ("reward_command", '"python3 reward.py"', 'a list of texts, for example ["python3"'),
        ("reward_command", "[]", "name a program"),
        ("reward_command", '["python3", ""]', "a list of texts"),
        ("reward_command", '["python3", 3]', "a list of texts"),
        ("updates", "0", "an integer of at least 1"),
        ("prompts_per_update", "0", "an integer of at least 1"),
        ("grpo_epochs", "0", "an integer of at least 1"),
        ("group_size", "1", "an integer from 2 to 256"),
        ("group_size", "257", "an integer from 2 to 256"),
        ("group_size", '"8"', "an integer from 2 to 256, without quotes"),
        ("clip_range_low", "0", "a number above 0 and below 1"),
        ("clip_range_low", "-0.2", "a number above 0 and below 1"),
        ("clip_range_high", "1", "a number above 0 and below 1"),
        ("kl_coefficient", "-0.1", "a number of at least 0"),
        ("kl_coefficient", "1" + "0" * 400, "a number of at least 0"),
        ("reward_mode", '"stream"', '"persistent" or "oneshot"'),
        ("reward_timeout_seconds", "0", "a number above 0"),
        ("mask_truncated", "1", "true or false"),
        ("baseline", '"median"', '"mean" or "leave_one_out"'),
        ("importance_sampling_level", '"answer"', '"token" or "sequence"'),
        ("prompt_order", '"random"', '"sequential" or "shuffled"'),
        ("max_stalled_updates", "-1", "an integer of at least 0"),
        ("sampling.temperature", "0.7", "1.0: GRPO trains on the policy's own distribution"),
        ("sampling.temperature", "true", "1.0: GRPO trains on the policy's own distribution"),
        ("sampling.top_p", "0.9", "1.0: GRPO trains on the policy's own distribution"),
        ("sampling.max_new_tokens", "0", "an integer of at least 1"),
        ("sampling.seed", "-1", "an integer from 0 to 9223372036854775807"),
    ],
)
def test_values_outside_the_range_are_refused(refusal, key, value, allowed):
    message = refusal({f"grpo.{key}": value})
    assert f"grpo.{key} = {value[:60]}" in message
    assert f"must {'' if allowed.startswith('name') else 'be '}{allowed}" in message


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"overlong_penalty.buffer_tokens": "0"}, "overlong_penalty.buffer_tokens"),
        ({"overlong_penalty.max_penalty": "0"}, "overlong_penalty.max_penalty"),
        ({"kl_schedule.warmup_updates": "-1"}, "kl_schedule.warmup_updates"),
        ({"kl_schedule.target": "0"}, "kl_schedule.target"),
        ({"dynamic_sampling.max_resample_factor": "1"}, "dynamic_sampling.max_resample_factor"),
        ({"dynamic_sampling.max_resample_factor": "2.5"}, "dynamic_sampling.max_resample_factor"),
    ],
)
def test_values_of_the_controls_outside_the_range_are_refused(refusal, changes, key):
    message = refusal({f"grpo.{name}": value for name, value in changes.items()})
    assert f"grpo.{key} = {changes[key]} must be" in message


@pytest.mark.parametrize("missing", ["buffer_tokens", "max_penalty"])
def test_a_control_needs_its_keys(refusal, missing):
    keys = {"buffer_tokens": "16", "max_penalty": "1.0"}
    del keys[missing]
    message = refusal({f"grpo.overlong_penalty.{key}": value for key, value in keys.items()})
    assert f"grpo.overlong_penalty.{missing} is required" in message


def test_the_upper_clip_range_is_not_below_the_lower(refusal):
    message = refusal({"grpo.clip_range_high": "0.1"})
    assert "grpo.clip_range_high = 0.1 must be at least clip_range_low (0.2)" in message


def test_a_kl_schedule_needs_a_coefficient(load, refusal):
    assert "[grpo.kl_schedule] has no penalty to schedule" in refusal(SCHEDULE)
    assert load(SCHEDULE | {"grpo.kl_coefficient": "0.1"}).grpo.kl_schedule.target == 0.05


def test_the_penalty_fits_in_the_answer(load, refusal):
    changes = {"grpo.overlong_penalty.max_penalty": "1.0"}
    key = "grpo.overlong_penalty.buffer_tokens"
    assert load(changes | {key: "128"}).grpo.overlong_penalty.buffer_tokens == 128
    message = refusal(changes | {key: "129"})
    assert f"{key} = 129 must be at most grpo.sampling.max_new_tokens (128)" in message


def test_an_answer_leaves_room_for_its_prompt(refusal):
    message = refusal({"grpo.sampling.max_new_tokens": "512"})
    assert "max_new_tokens = 512 must be less than training.ctx (512)" in message


def test_a_fanout_that_no_group_can_meet_is_refused(refusal):
    message = refusal({"training.shared_prefix_fanout": "9"})
    assert "shared_prefix_fanout = 9 cannot be met" in message


@pytest.mark.parametrize(
    ("key", "value"),
    [("judge_weight", "0.3"), ("judge_failure", '"fail"'), ("max_judge_dropped_fraction", "0.1")],
)
def test_judge_keys_need_a_judge(refusal, key, value):
    assert f"grpo.{key} = {value} has no effect without a judge" in refusal({f"grpo.{key}": value})
