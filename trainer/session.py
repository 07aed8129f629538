"""What a run holds open while it trains, whatever it learns from."""

from __future__ import annotations

from contextlib import ExitStack

import torch

from trainer.config.models import RunConfig, SftConfig
from trainer.device import keep_freed_pages
from trainer.inputs import AnyInputs, Inputs, TextInputs
from trainer.monitor.protocol import Monitor
from trainer.opening.model import threads_of
from trainer.opening.parts import Session
from trainer.opening.rollouts import open_rollouts
from trainer.opening.texts import open_texts
from trainer.resume import Resumed


def open_session(
    config: RunConfig,
    inputs: AnyInputs,
    monitor: Monitor,
    stack: ExitStack,
    run_id: str,
    resumed: Resumed | None = None,
) -> Session:
    """Open everything, where ``resumed`` left it; ``stack`` closes it, and checkpoints are those of
    ``run_id``. Raises ConfigError, ModelError, RewardError, or TrainingError when llama.cpp and
    torch disagree."""
    torch.set_num_threads(threads_of(config))
    keep_freed_pages()
    if isinstance(config, SftConfig):
        assert isinstance(inputs, TextInputs)
        session = open_texts(config, inputs, monitor, stack, run_id)
    else:
        assert isinstance(inputs, Inputs)
        session = open_rollouts(config, inputs, monitor, stack, run_id)
    if resumed is not None:
        session.loop.load_state(resumed.loop)
    return session
