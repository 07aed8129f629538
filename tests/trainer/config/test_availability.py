import pytest

from trainer.config import load_config, refuse_unavailable
from trainer.errors import ConfigError

RULER = {
    "grpo.judge_weight": "0.35",
    "grpo.judge_failure": '"fail"',
    "grpo.max_judge_dropped_fraction": "0.2",
    "grpo.judge.type": '"ruler"',
    "grpo.judge.base_url": '"http://127.0.0.1:8080/v1"',
    "grpo.judge.model": '"small"',
}
INIT = {"lora.rank": None, "lora.alpha": None, "lora.init_adapter": '"start.gguf"'}


def refused(config) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        refuse_unavailable(config)
    return str(caught.value).split("\n\n")


def test_the_documented_grpo_example_is_available(load):
    refuse_unavailable(load())


def test_every_available_control_passes(load):
    refuse_unavailable(
        load(
            {
                "run.verbose": "true",
                "observe.directory": '"seen"',
                "grpo.kl_coefficient": "0.01",
                "grpo.importance_sampling_level": '"sequence"',
                "grpo.overlong_penalty.buffer_tokens": "16",
                "grpo.overlong_penalty.max_penalty": "1.0",
                "grpo.kl_schedule.warmup_updates": "10",
                "grpo.kl_schedule.target": "0.05",
                "output.kind": '"model"',
                "audit.enabled": "false",
                "metrics.tensorboard_dir": '"boards"',
                "evaluation.data": '"held.jsonl"',
                "checkpoint.mode": '"steps_and_best_eval"',
                "grpo.dynamic_sampling.max_resample_factor": "3",
                **RULER,
            }
        )
    )


def test_sft_and_an_adapter_to_begin_with_are_available(load):
    refuse_unavailable(load(base="sft"))
    refuse_unavailable(load(INIT))


@pytest.mark.parametrize(
    ("changes", "subject"),
    [
        ({"reference.model": '"other.gguf"'}, "reference"),
    ],
)
def test_what_comes_later_is_refused_by_name(load, changes, subject):
    (message,) = refused(load(changes))
    assert f": {subject} is not available yet" in message


def test_an_inline_section_is_found_too(write, text_of):
    text = 'reference = { model = "other.gguf" }\n' + text_of["grpo"]
    (message,) = refused(load_config(write(text)))
    assert ":1: reference is not available yet" in message
