"""What is seen about a run's files and settings before anything heavy is opened."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.config.models import RolloutConfig, RunConfig, SftConfig
from trainer.errors import ConfigError
from trainer.export import check_writable
from trainer.inputs import AnyInputs, Inputs, data_files
from trainer.memory import micro_batch_of
from trainer.merge.plan import check_disk, merged_bytes
from trainer.model.passes import plan_passes
from trainer.monitor.jsonl import FILE_NAME
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
        taken.append(observe.directory / FILE_NAME)
    try:
        for path in dict.fromkeys((output.path, output.adapter_path)):
            if path.resolve() in [other.resolve() for other in taken]:
                raise ConfigError(f"{path}: the run reads or writes this file itself. Set another.")
            check_writable(path)
        if output.kind == "model" and inputs is not None:
            check_disk(merged_bytes(inputs.file, inputs.lora.targets), output.path.parent)
    except ConfigError as error:
        raise ConfigError(f"{config.where('output.path')}: {error}") from error
    _check_folders(config)


def _check_folders(config: RunConfig) -> None:
    """See that what the run leaves beside its result has a place; nothing is made yet."""
    folders = [("metrics.tensorboard_dir", config.metrics.tensorboard_dir)]
    if config.observe is not None:
        folders.append(("observe.directory", config.observe.directory))
    if config.checkpoint is not None:
        folders.append(("checkpoint.directory", config.checkpoint.directory))
    for key, folder in folders:
        if folder is not None and (why := _unwritable(folder)):
            section, name = key.split(".")
            raise ConfigError(
                f"{config.where(key)}: {folder} cannot be written ({why}). Name a folder that can "
                f"be written with [{section}].{name}, or leave that key out."
            )


def _unwritable(folder: Path) -> str:
    """Why no file can be made in ``folder``, which may not be there yet; else nothing."""
    # lexists: a link to nowhere is there, and in its place no folder can be made.
    there = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not there.is_dir():
        return f"{there} is no folder"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} does not allow it"


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
