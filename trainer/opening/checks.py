"""What is seen about a run's files and settings before anything heavy is opened."""

from __future__ import annotations

from trainer.config.models import RolloutConfig, RunConfig, SftConfig
from trainer.errors import ConfigError
from trainer.export import check_writable
from trainer.inputs import AnyInputs, Inputs, data_files
from trainer.memory import micro_batch_of
from trainer.merge.plan import check_disk, merged_bytes
from trainer.model.passes import plan_passes
from trainer.opening.scoring import check_reward_model


def check_before_run(config: RunConfig, inputs: AnyInputs) -> None:
    """All that is looked at here. Raises ConfigError."""
    if not isinstance(config, SftConfig):
        assert isinstance(inputs, Inputs)
        check_fanout(config, inputs)
        check_reward_model(config)
    check_output(config, inputs)


def check_output(config: RunConfig, inputs: AnyInputs | None) -> None:
    """See before the run that its result has a place of its own, and room. Raises ConfigError."""
    output, observe = config.output, config.observe
    taken = [*data_files(config).values(), config.source, config.model.path]
    if observe is not None and observe.directory is not None:
        taken.append(observe.directory / "observe.jsonl")
    try:
        for path in dict.fromkeys((output.path, output.adapter_path)):
            if path.resolve() in [other.resolve() for other in taken]:
                raise ConfigError(f"{path}: the run reads or writes this file itself. Set another.")
            check_writable(path)
        if output.kind == "model" and inputs is not None:
            check_disk(merged_bytes(inputs.file, inputs.lora.targets), output.path.parent)
    except ConfigError as error:
        raise ConfigError(f"{config.where('output.path')}: {error}") from error


def check_fanout(config: RolloutConfig, inputs: Inputs) -> None:
    """See before the run that an explicit fan-out can be met by the longest answers to the longest
    prompt. Raises ConfigError when it cannot."""
    longest = [config.rollout.sampling.max_new_tokens] * config.rollout.group_size
    try:
        plan_passes(
            inputs.longest_prompt,
            longest,
            micro_batch=micro_batch_of(config, inputs.architecture),
            fanout=config.training.shared_prefix_fanout,
        )
    except ConfigError as error:
        where = config.where("training.shared_prefix_fanout")
        raise ConfigError(f"{where}: {error}") from error
