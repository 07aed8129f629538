"""One run, from a configuration to an exported adapter."""

from __future__ import annotations

import platform
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import torch

from trainer.config import GrpoConfig, RunConfig, notes, refuse_unavailable, resolved_params
from trainer.errors import ConfigError, RetrogradError
from trainer.export import verify, write
from trainer.inputs import Inputs, coverage, read_inputs
from trainer.monitor.protocol import Event, Monitor, Outcome, RunInfo
from trainer.rollout.continuous import RolloutStopped
from trainer.session import Session, open_session


def run(config: RunConfig, monitor: Monitor) -> Outcome:
    """Train as ``config`` says and report to ``monitor``.

    Raises ConfigError (and its kinds) for what is wrong before training. What goes wrong during
    training ends the run as ``failed``: the outcome says why, and the adapter of the last completed
    update is exported. An interrupt (KeyboardInterrupt) exports it too and is raised again.
    """
    refuse_unavailable(config)
    if not isinstance(config, GrpoConfig):
        raise ConfigError(f"{config.source}: only GRPO can be run.")
    inputs = read_inputs(config)
    monitor.run_started(_info(config, inputs))
    for note in notes(config):
        monitor.event(Event("warning", "config", note))
    with ExitStack() as stack:
        try:
            session = open_session(config, inputs, monitor, stack)
        except BaseException as error:
            monitor.run_finished(Outcome("failed", 0, None, _words(error)))
            raise
        outcome = _train(config, session, inputs, monitor)
    monitor.run_finished(outcome)
    return outcome


def _train(config: GrpoConfig, session: Session, inputs: Inputs, monitor: Monitor) -> Outcome:
    try:
        session.grpo.train()
    except RolloutStopped:
        pass
    except RetrogradError as error:
        return _failed(config, session, _words(error))
    except BaseException as error:
        monitor.run_finished(_failed(config, session, _words(error)))
        raise
    return _ended(config, session, inputs, monitor)


def _ended(config: GrpoConfig, session: Session, inputs: Inputs, monitor: Monitor) -> Outcome:
    """Export, and check what was exported."""
    updates = session.grpo.completed
    status: Literal["completed", "stopped"] = (
        "completed" if updates == config.grpo.updates else "stopped"
    )
    if session.grpo.trained == 0:
        return Outcome(
            status, updates, None, "no optimizer step was made, so there is nothing to export"
        )
    path = _export(config, session)
    try:
        check = verify(
            path,
            inputs.prompts[0].tokens,
            session.decoder,
            session.adapter,
            session.engine,
            session.weights.kind,
        )
    except RetrogradError as error:
        return Outcome("failed", updates, str(path), _words(error))
    monitor.event(
        Event(
            "info",
            "export_checked",
            f"llama.cpp computes what was trained: mean log-probability gap {check.gap:.2g}, "
            f"against a change of {check.change:.2g} from the base",
            data={"gap": check.gap, "change": check.change},
        )
    )
    return Outcome(status, updates, str(path), f"{status} after {updates} updates")


def _failed(config: GrpoConfig, session: Session, message: str) -> Outcome:
    updates = session.grpo.completed
    if session.grpo.trained == 0:
        return Outcome("failed", updates, None, message)
    path = _export(config, session)
    saved = f"The adapter of update {updates}, the last completed one, is in {path}."
    return Outcome("failed", updates, str(path), f"{message}\n{saved}")


def _export(config: GrpoConfig, session: Session) -> Path:
    path = config.output.path
    try:
        write(path, session.adapter, dtype=config.lora.dtype)
    except OSError as error:
        raise RetrogradError(
            f"{path}: the adapter cannot be written ({error.strerror}). Set another [output] path."
        ) from error
    return path


def _info(config: GrpoConfig, inputs: Inputs) -> RunInfo:
    a = inputs.architecture
    shapes = [inputs.file.tensors[name].shape for name in inputs.targets]
    size = sum(config.lora.rank * (rows + columns) for rows, columns in shapes)
    types = ", ".join(f"{n} × {t}" for t, n in inputs.file.type_counts().items())
    return RunInfo(
        name=config.run.name,
        algorithm=config.run.algorithm,
        model=str(config.model.path),
        output=str(config.output.path),
        updates=config.grpo.updates,
        params=resolved_params(config),
        facts={
            "model": f"{config.model.path.name}: {a.name}, {a.layers} layers of {a.width}, {types}",
            "adapter": f"rank {config.lora.rank} on {coverage(inputs)}: {size:,} parameters",
            "prompts": f"{len(inputs.prompts)}, at most {inputs.longest_prompt} tokens",
            "torch": f"{torch.__version__} on {platform.machine()}",
        },
    )


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, RetrogradError) else f"{type(error).__name__}: {error}"
