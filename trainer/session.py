"""What a run holds open while it trains: weights, sampler, reward program, learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from trainer.agreement import Parity
from trainer.algorithms.collect import Collector, Form
from trainer.algorithms.episodes import form_episodes
from trainer.algorithms.evaluation import Evaluator
from trainer.algorithms.forming import GroupForming
from trainer.algorithms.grpo import Grpo
from trainer.algorithms.loop import Loop
from trainer.algorithms.method import Tools
from trainer.algorithms.order import PromptOrder
from trainer.algorithms.ppo import Ppo
from trainer.checkpoint.keeper import Keeper
from trainer.config.availability import resolved_params
from trainer.config.models import GrpoConfig, PpoConfig, RolloutConfig
from trainer.device import choose_device, keep_freed_pages
from trainer.errors import ConfigError
from trainer.export import check_writable
from trainer.health.audit import Audit
from trainer.health.findings import Watch
from trainer.inputs import Inputs
from trainer.judge.judge import open_judge
from trainer.llama.native import gpu_available
from trainer.memory import chunk_of, concurrency_of, micro_batch_of
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.learner import Learner, OptimizerSettings, PassSettings
from trainer.model.passes import plan_passes
from trainer.monitor.protocol import Event, Monitor
from trainer.resume import Resumed, identity_of, open_store
from trainer.reward.combined import open_reward as reward_of
from trainer.reward.exchange import ExchangeLog
from trainer.reward.model_folder import check_folder
from trainer.reward.program import RewardProgram
from trainer.rollout.answers import SamplingSettings
from trainer.rollout.copies import cache_folder
from trainer.rollout.engine import RolloutEngine
from trainer.rollout.weights import RolloutWeights, weights_for_rollout
from trainer.sizing import default_threads, trained_weights_bytes


@dataclass(frozen=True, slots=True)
class Session:
    """The open parts of a run, and the loop over them."""

    loop: Loop[Any]
    adapter: Adapter
    parity: Parity


def open_session(
    config: RolloutConfig,
    inputs: Inputs,
    monitor: Monitor,
    stack: ExitStack,
    resumed: Resumed | None = None,
) -> Session:
    """Open everything, where ``resumed`` left it; ``stack`` closes it. Raises ConfigError,
    ModelError, RewardError, or TrainingError when llama.cpp and torch disagree."""
    torch.set_num_threads(threads_of(config))
    keep_freed_pages()
    monitor.progress("prepare", 0, 3)
    # First, so that a program that loads something does so while the model is made ready.
    device = choose_device(config.model.device)
    reward = stack.enter_context(open_reward(config, device, on_note=_note(monitor)))
    weights = rollout_weights(config, inputs)
    monitor.progress("prepare", 1, 3)
    engine = stack.enter_context(open_engine(config, inputs, weights))
    monitor.progress("prepare", 2, 3)
    decoder = Decoder(inputs.file, device, context=config.training.ctx)
    adapter = new_adapter(config, inputs, decoder.device)
    parity = Parity(inputs.prompts[0].tokens, decoder, engine, weights.kind)
    parity.probe(adapter)
    learner = open_learner(config, decoder, adapter, _say_once(monitor))
    monitor.progress("prepare", 3, 3)
    monitor.event(_settings(config, learner, engine, weights))
    loop = _open_loop(config, inputs, engine, reward, learner, monitor)
    if resumed is not None:
        loop.load_state(resumed.loop)
    return Session(loop, adapter, parity)


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
) -> Loop[Any]:
    keeper = _open_keeper(config, inputs, monitor)
    watch = Watch(config.run.algorithm, resolved_params(config))
    audit = Audit(config.audit)
    if isinstance(config, GrpoConfig):
        forming = open_forming(config, monitor)
        tools = Tools(
            config, open_collector(config, inputs, engine, reward, forming), learner, monitor
        )
        loop = Loop(Grpo(config, tools, forming), tools, audit, watch, keeper)
    else:
        tools = Tools(
            config, open_collector(config, inputs, engine, reward, form_episodes), learner, monitor
        )
        loop = Loop(Ppo(config, tools), tools, audit, watch, keeper)
    if config.evaluation is not None:
        seed = config.rollout.sampling.seed
        loop.evaluator = Evaluator(
            config.evaluation, seed, inputs.held_out, engine, reward, monitor
        )
    return loop


def _open_keeper(config: RolloutConfig, inputs: Inputs, monitor: Monitor) -> Keeper:
    mode = config.checkpoint.mode if config.checkpoint else "steps"
    return Keeper(
        open_store(config),
        identity_of(config, inputs),
        monitor,
        with_steps=mode != "best_eval",
        with_best=mode != "steps",
    )


def threads_of(config: RolloutConfig) -> int:
    return config.training.threads or default_threads()


def prompt_order(config: RolloutConfig, inputs: Inputs) -> PromptOrder:
    return PromptOrder(inputs.prompts, config.rollout.prompt_order, config.rollout.sampling.seed)


def check_reward_model(config: RolloutConfig) -> None:
    """See before the run that there is a model where one is named. Raises ConfigError."""
    section = config.rollout.reward_model
    if section is not None:
        with _located(config):
            check_folder(section.path)


@contextmanager
def _located(config: RolloutConfig) -> Iterator[None]:
    """Errors about the reward model, with the line and the path that they are about."""
    section = config.rollout.reward_model
    try:
        yield
    except ConfigError as error:
        where = config.where(f"{config.run.algorithm}.reward_model.path")
        path = f"{section.path}: " if section and str(section.path) not in str(error) else ""
        raise ConfigError(f"{where}: {path}{error}") from error


def open_reward(
    config: RolloutConfig,
    device: torch.device,
    *,
    on_note: Callable[[str], None] | None = None,
    exchange: ExchangeLog | None = None,
) -> RewardProgram:
    """What scores answers: the program, the reward model, or both. Raises RewardError for the
    program, ConfigError for the model."""
    with _located(config):
        return reward_of(
            config.rollout,
            folder=config.folder,
            device=device,
            judge_allowed=isinstance(config, GrpoConfig) and config.grpo.judge is not None,
            on_note=on_note,
            exchange=exchange,
        )


def check_output(config: RolloutConfig) -> None:
    """See before the run that its result has a place of its own. Raises ConfigError."""
    path, observe = config.output.path, config.observe
    taken = [config.rollout.prompts, config.source]
    if observe is not None and observe.directory is not None:
        taken.append(observe.directory / "observe.jsonl")
    try:
        if path.resolve() in [other.resolve() for other in taken]:
            raise ConfigError(f"{path}: the run reads or writes this file itself. Set another.")
        check_writable(path)
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


def rollout_weights(config: RolloutConfig, inputs: Inputs) -> RolloutWeights:
    choice = config.training.rollout_weights
    return weights_for_rollout(
        choice,
        inputs.file.path,
        cache=cache_folder(),
        # Hashing reads the whole file, and only a copy needs a name.
        digest="" if choice == "file" else inputs.file.digest(),
        reserved_bytes=trained_weights_bytes(inputs.architecture),
        threads=threads_of(config),
    )


def open_engine(config: RolloutConfig, inputs: Inputs, weights: RolloutWeights) -> RolloutEngine:
    section, training = config.rollout, config.training
    return RolloutEngine(
        weights.path,
        ctx=training.ctx,
        concurrency=concurrency_of(config, inputs),
        max_prompt_tokens=inputs.longest_prompt,
        group_size=section.group_size,
        settings=SamplingSettings(
            section.sampling.temperature, section.sampling.top_p, section.sampling.max_new_tokens
        ),
        exact=not training.fast_sampling_context,
        threads=threads_of(config),
        # A GPU that only torch sees still trains; sampling then stays on the CPU.
        use_gpu=config.model.device != "cpu" and gpu_available(),
    )


def new_adapter(config: RolloutConfig, inputs: Inputs, device: torch.device) -> Adapter:
    return Adapter(
        inputs.architecture,
        inputs.targets,
        rank=config.lora.rank,
        alpha=config.lora.alpha,
        seed=config.lora.seed,
        device=device,
    )


def open_learner(
    config: RolloutConfig, decoder: Decoder, adapter: Adapter, on_fallback: Callable[[str], None]
) -> Learner:
    training = config.training
    return Learner(
        decoder,
        adapter,
        PassSettings(
            micro_batch=micro_batch_of(config, decoder.architecture),
            fanout=training.shared_prefix_fanout,
            recompute=training.gradient_checkpointing,
            chunk=chunk_of(config),
            temperature=config.rollout.sampling.temperature,
            entropy_gradient=isinstance(config, PpoConfig) and config.ppo.entropy_coefficient > 0,
        ),
        OptimizerSettings(training.optimizer, training.weight_decay, training.max_grad_norm),
        on_fallback=on_fallback,
    )


def _note(monitor: Monitor) -> Callable[[str], None]:
    return lambda text: monitor.event(Event("warning", "reward_model", text))


def _settings(
    config: RolloutConfig, learner: Learner, engine: RolloutEngine, weights: RolloutWeights
) -> Event:
    """What the automatic settings came to."""
    data = {
        "threads": threads_of(config),
        "device": str(learner.decoder.device),
        "micro_batch": learner.settings.micro_batch,
        "generation_concurrency": engine.concurrency,
        "rollout_weights": weights.kind,
    }
    words = ", ".join(f"{key} {value}" for key, value in data.items())
    return Event("info", "settings", f"settings: {words} ({weights.reason})", data=data)


def _say_once(monitor: Monitor) -> Callable[[str], None]:
    """Report the first reason for packing less than was wished; others differ in numbers only."""
    said = False

    def say(reason: str) -> None:
        nonlocal said
        if not said:
            said = True
            monitor.event(
                Event("info", "packing", f"Packing fewer answers in a pass than a group: {reason}.")
            )

    return say
