"""Opening a run that learns from rewards: its sampler, what scores, and the loop over them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from trainer.agreement import Parity
from trainer.algorithms.collect import Collector, Form
from trainer.algorithms.episodes import form_episodes
from trainer.algorithms.evaluation import Evaluator
from trainer.algorithms.forming import GroupForming
from trainer.algorithms.grpo import Grpo
from trainer.algorithms.held_out_reward import HeldOutReward
from trainer.algorithms.loop import Loop
from trainer.algorithms.method import Tools
from trainer.algorithms.order import PromptOrder
from trainer.algorithms.ppo import Ppo
from trainer.checkpoint.keeper import Keeper
from trainer.config.models import GrpoConfig, RolloutConfig
from trainer.device import choose_device
from trainer.health.audit import Audit
from trainer.inputs import Inputs
from trainer.judge.judge import open_judge
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner
from trainer.monitor.protocol import Event, Monitor
from trainer.opening.model import (
    hand_over_start,
    new_adapter,
    open_engine,
    open_learner,
    rollout_weights,
)
from trainer.opening.parts import Session, open_keeper, open_watch, say_once, settings_event
from trainer.opening.scoring import open_reward
from trainer.reward.program import RewardProgram
from trainer.rollout.engine import RolloutEngine


def open_rollouts(
    config: RolloutConfig, inputs: Inputs, monitor: Monitor, stack: ExitStack, run_id: str
) -> Session:
    """Open everything; ``stack`` closes it, and ``run_id`` is whose checkpoints are kept. Raises
    ConfigError, ModelError, RewardError, JudgeError, or TrainingError when llama.cpp and torch
    disagree."""
    monitor.progress("prepare", 0, 3)
    # First, so that a program that loads something does so while the model is made ready.
    device = choose_device(config.model.device)
    reward = stack.enter_context(listened_reward(config, device, monitor))
    weights = rollout_weights(config, inputs)
    monitor.progress("prepare", 1, 3)
    engine = stack.enter_context(open_engine(config, inputs, weights))
    monitor.progress("prepare", 2, 3)
    decoder = Decoder(inputs.file, device, context=config.training.ctx)
    adapter = new_adapter(config, inputs, decoder.device)
    parity = Parity(inputs.prompts[0].tokens, decoder, engine, weights.kind)
    parity.probe(adapter)
    hand_over_start(inputs, engine, adapter)
    learner = open_learner(config, inputs, decoder, adapter, say_once(monitor))
    monitor.progress("prepare", 3, 3)
    own = {"generation_concurrency": engine.concurrency}
    monitor.event(settings_event(config, learner, weights, own))
    keeper = open_keeper(config, inputs, monitor, run_id)
    loop = _open_loop(config, inputs, engine, reward, learner, monitor, keeper)
    return Session(loop, adapter, parity)


def listened_reward(config: RolloutConfig, device: torch.device, monitor: Monitor) -> RewardProgram:
    """What scores answers; ``monitor`` hears what it has to say. Raises as `open_reward`."""
    return open_reward(config, device, on_note=_note(monitor), on_stderr=_said(monitor))


def open_collector(
    config: RolloutConfig,
    inputs: Inputs,
    engine: RolloutEngine,
    reward: RewardProgram,
    form: Form[Any],
) -> Collector[Any]:
    return Collector(config.rollout, prompt_order(config, inputs), engine, reward, form)


def open_forming(config: GrpoConfig, monitor: Monitor) -> GroupForming:
    """Raises ConfigError and JudgeError where the judge cannot be asked."""
    section = config.grpo
    judge = None
    if section.judge is not None:
        judge = open_judge(
            section.judge,
            folder=config.folder,
            seed=section.sampling.seed,
            on_note=lambda text: monitor.event(Event("warning", "judge", text)),
        )
    return GroupForming(section, judge, monitor)


def _open_loop(
    config: RolloutConfig,
    inputs: Inputs,
    engine: RolloutEngine,
    reward: RewardProgram,
    learner: Learner,
    monitor: Monitor,
    keeper: Keeper,
) -> Loop[Any]:
    guide = open_watch(config, inputs)
    audit = Audit(config.audit)
    loop: Loop[Any]
    if isinstance(config, GrpoConfig):
        forming = open_forming(config, monitor)
        tools = Tools(
            config, open_collector(config, inputs, engine, reward, forming), learner, monitor
        )
        loop = Loop(Grpo(config, tools, forming), tools, audit, guide=guide, keeper=keeper)
    else:
        episodes = Tools(
            config, open_collector(config, inputs, engine, reward, form_episodes), learner, monitor
        )
        loop = Loop(Ppo(config, episodes), episodes, audit, guide=guide, keeper=keeper)
    if config.evaluation is not None:
        seed = config.rollout.sampling.seed
        subject = HeldOutReward(seed, inputs.held_out, engine, reward, monitor)
        loop.evaluator = Evaluator(config.evaluation, subject, monitor)
    return loop


def prompt_order(config: RolloutConfig, inputs: Inputs) -> PromptOrder:
    return PromptOrder(inputs.prompts, config.rollout.prompt_order, config.rollout.sampling.seed)


def _said(monitor: Monitor) -> Callable[[str], None]:
    return lambda text: monitor.event(Event("info", "reward_stderr", text.rstrip()))


def _note(monitor: Monitor) -> Callable[[str], None]:
    return lambda text: monitor.event(Event("warning", "reward_model", text))
