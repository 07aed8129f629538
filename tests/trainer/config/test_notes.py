import pytest

from trainer.config import notes


@pytest.mark.parametrize("base", ["grpo", "ppo", "sft"])
def test_a_plain_configuration_has_none(load, base):
    assert notes(load(base=base)) == []


@pytest.mark.parametrize(("base", "name"), [("grpo", "GRPO"), ("ppo", "PPO")])
def test_epochs_are_not_used_outside_sft(load, base, name):
    (note,) = notes(load({"training.epochs": "1"}, base))
    assert note.startswith(f"training.epochs is not used by {name}")


def test_observing_into_a_folder_has_none(load):
    assert notes(load({"observe.directory": '"seen"'})) == []


def test_epochs_are_used_by_sft(load):
    assert notes(load({"training.epochs": "3"}, "sft")) == []


@pytest.mark.parametrize(("high", "count"), [("0.05", 0), ("0.051", 1)])
def test_wide_ranges_are_remarked_on_for_sequences(load, high, count):
    found = notes(
        load(
            {
                "grpo.importance_sampling_level": '"sequence"',
                "grpo.clip_range_low": "0.0003",
                "grpo.clip_range_high": high,
            }
        )
    )
    assert len([note for note in found if f"a clip range of {high}" in note]) == count
    assert len(found) == count


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"training.importance_cap": "2.0", "training.importance_correction": '"off"'},
            "training.importance_cap is not used",
        ),
        (
            {"training.ce_chunk_tokens": "64", "training.chunked_cross_entropy": "false"},
            "training.ce_chunk_tokens is not used",
        ),
        (
            {
                "grpo.overlong_penalty.buffer_tokens": "16",
                "grpo.overlong_penalty.max_penalty": "1",
            },
            "mask_truncated leaves out the very answers",
        ),
        ({"reference.model": '"other.gguf"'}, "[reference] is not used"),
        ({"training.warmup_steps": "400"}, "at most 400 optimizer steps"),
        (
            {"evaluation.data": '"held.jsonl"', "evaluation.min_delta": "0.1"},
            "evaluation.min_delta is not used",
        ),
        (
            {
                "evaluation.data": '"held.jsonl"',
                "checkpoint.mode": '"best_eval"',
                "checkpoint.keep": "2",
            },
            "checkpoint.keep is not used",
        ),
    ],
)
def test_keys_without_effect_are_remarked_on(load, changes, words):
    (note,) = notes(load(changes))
    assert words in note


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"critic.kind": '"shared"', "critic.value_lr": "0.1"}, 'value_lr is not used by kind = "'),
        ({"critic.value_clip_range": "0.1"}, "value_clip_range is not used by kind"),
        ({"critic.enabled": "false", "critic.gamma": "0.9"}, "gamma is not used while the critic"),
    ],
)
def test_critic_keys_without_effect_are_remarked_on(load, changes, words):
    (note,) = notes(load({f"ppo.{key}": value for key, value in changes.items()}, "ppo"))
    assert words in note


def test_a_reference_without_a_penalty_toward_it_is_remarked_on(load):
    changes = {"reference.model": '"other.gguf"'}
    assert "[reference] is only used" in notes(load(changes, "ppo"))[0]
    assert notes(load(changes | {"ppo.kl_anchor": '"reference"'}, "ppo")) == []
    assert "[reference] is not used by SFT" in notes(load(changes, "sft"))[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [("generation_concurrency", "4"), ("importance_correction", '"off"')],
)
def test_what_only_sampling_needs_is_not_used_by_sft(load, key, value):
    (note,) = notes(load({f"training.{key}": value}, "sft"))
    assert note == f"training.{key} is not used by SFT, which samples no answers."


def test_the_audit_is_not_used_by_sft(load):
    (note,) = notes(load({"audit.max_words": "5"}, "sft"))
    assert note == "[audit] is not used by SFT, which samples no answers."
