import pytest

DEFAULTS = {
    "lr": 1e-4,
    "lr_scheduler": "constant",
    "warmup_steps": 0,
    "optimizer": "adamw",
    "weight_decay": 0.0,
    "max_grad_norm": 1.0,
    "epochs": 1,
    "ctx": 512,
    "micro_batch": "auto",
    "generation_concurrency": "auto",
    "shared_prefix_fanout": "auto",
    "rollout_weights": "auto",
    "fast_sampling_context": True,
    "importance_correction": "token",
    "importance_cap": 2.0,
    "gradient_checkpointing": False,
    "chunked_cross_entropy": True,
    "ce_chunk_tokens": 512,
    "threads": None,
}


def test_defaults_are_the_documented_ones(load):
    training = load({"training.lr": None, "training.ctx": None}).training
    assert training.model_dump() == DEFAULTS


@pytest.mark.parametrize(
    ("key", "value", "loaded"),
    [
        ("lr", "1", 1.0),
        ("lr", "1e-7", 1e-7),
        ("lr_scheduler", '"cosine"', "cosine"),
        ("warmup_steps", "10", 10),
        ("optimizer", '"sgd"', "sgd"),
        ("weight_decay", "0", 0.0),
        ("max_grad_norm", "0.1", 0.1),
        ("epochs", "1", 1),
        ("ctx", "129", 129),
        ("micro_batch", "1", 1),
        ("micro_batch", '"auto"', "auto"),
        ("generation_concurrency", "1", 1),
        ("generation_concurrency", "256", 256),
        ("shared_prefix_fanout", '"off"', "off"),
        ("shared_prefix_fanout", '"max"', "max"),
        ("shared_prefix_fanout", "2", 2),
        ("shared_prefix_fanout", "8", 8),
        ("rollout_weights", '"file"', "file"),
        ("rollout_weights", '"f16"', "f16"),
        ("rollout_weights", '"f32"', "f32"),
        ("fast_sampling_context", "false", False),
        ("importance_correction", '"off"', "off"),
        ("importance_cap", "1", 1.0),
        ("gradient_checkpointing", "true", True),
        ("chunked_cross_entropy", "false", False),
        ("ce_chunk_tokens", "1", 1),
        ("threads", "1", 1),
        ("threads", "512", 512),
    ],
)
def test_values_inside_the_range_are_accepted(load, key, value, loaded):
    result = getattr(load({f"training.{key}": value}).training, key)
    assert result == loaded
    assert type(result) is type(loaded)


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("lr", "0", "a number above 0"),
        ("lr", "-1e-5", "a number above 0"),
        ("lr", "inf", "a number above 0"),
        ("lr", "nan", "a number above 0"),
        ("lr", "true", "a number above 0"),
        ("lr", '"1e-5"', "a number above 0, without quotes"),
        ("lr", "2020-01-01", "a number above 0"),
        ("lr_scheduler", '"cosin"', '"constant", "linear" or "cosine"; did you mean "cosine"?'),
        ("warmup_steps", "-1", "an integer of at least 0"),
        ("optimizer", '"AdamW"', '"adamw" or "sgd"; did you mean "adamw"?'),
        ("weight_decay", "-0.1", "a number of at least 0"),
        ("max_grad_norm", "0", "a number above 0"),
        ("epochs", "0", "an integer of at least 1"),
        ("ctx", "1", "an integer of at least 2"),
        ("ctx", "512.0", "an integer of at least 2"),
        ("micro_batch", "0", '"auto" or an integer of at least 1'),
        ("micro_batch", "true", '"auto" or an integer of at least 1'),
        ("micro_batch", '"8"', '"auto" or an integer of at least 1, without quotes'),
        ("micro_batch", '"max"', '"auto" or an integer of at least 1'),
        ("generation_concurrency", "0", '"auto" or an integer from 1 to 256'),
        ("generation_concurrency", "257", '"auto" or an integer from 1 to 256'),
        ("shared_prefix_fanout", "1", '"auto", "off", "max" or an integer of at least 2'),
        ("shared_prefix_fanout", "2.0", '"auto", "off", "max" or an integer of at least 2'),
        ("rollout_weights", '"q8_0"', '"auto", "file", "f16" or "f32"'),
        ("fast_sampling_context", "0", "true or false"),
        ("importance_correction", '"sequence"', '"off" or "token"'),
        ("importance_cap", "0.9", "a number of at least 1"),
        ("ce_chunk_tokens", "0", "an integer of at least 1"),
        ("threads", "0", "an integer from 1 to 512"),
        ("threads", "513", "an integer from 1 to 512"),
        ("threads", '"auto"', "an integer from 1 to 512"),
    ],
)
def test_values_outside_the_range_are_refused(refusal, key, value, allowed):
    message = refusal({f"training.{key}": value})
    assert f"training.{key} = {value} must be {allowed}" in message
    assert message.count("\n") == 0
