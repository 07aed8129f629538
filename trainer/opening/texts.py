"""Opening a run that learns given texts."""

from __future__ import annotations

from contextlib import ExitStack

from trainer.agreement import Parity
from trainer.algorithms.evaluation import Evaluator
from trainer.algorithms.held_out_loss import HeldOutLoss
from trainer.algorithms.sft import Sft
from trainer.chat.texts import Text
from trainer.config.models import SftConfig
from trainer.device import choose_device
from trainer.inputs import TextInputs
from trainer.model.decoder import Decoder
from trainer.monitor.protocol import Monitor
from trainer.opening.model import new_adapter, open_checking_engine, open_learner, rollout_weights
from trainer.opening.parts import Session, open_keeper, open_watch, say_once, settings_event


def parity_text(text: Text) -> list[int]:
    """What both sides are compared on."""
    return [*text.prompt, *text.rest.tolist()]


def open_texts(
    config: SftConfig, inputs: TextInputs, monitor: Monitor, stack: ExitStack, run_id: str
) -> Session:
    """Open everything; ``stack`` closes it, and ``run_id`` is whose checkpoints are kept. Raises
    ConfigError, ModelError, or TrainingError when llama.cpp and torch disagree."""
    monitor.progress("prepare", 0, 3)
    device = choose_device(config.model.device)
    weights = rollout_weights(config, inputs)
    monitor.progress("prepare", 1, 3)
    engine = stack.enter_context(open_checking_engine(config, inputs, weights.path))
    monitor.progress("prepare", 2, 3)
    decoder = Decoder(inputs.file, device, context=config.training.ctx)
    adapter = new_adapter(config, inputs, decoder.device)
    parity = Parity(parity_text(inputs.texts[0]), decoder, engine, weights.kind)
    parity.probe(adapter)
    learner = open_learner(config, inputs, decoder, adapter, say_once(monitor))
    monitor.progress("prepare", 3, 3)
    monitor.event(settings_event(config, learner, weights, {}))
    guide, keeper = open_watch(config, inputs), open_keeper(config, inputs, monitor, run_id)
    course = Sft(config, inputs.texts, learner, monitor, guide=guide, keeper=keeper)
    if config.evaluation is not None:
        subject = HeldOutLoss(inputs.held_out, learner, monitor)
        course.evaluator = Evaluator(config.evaluation, subject, monitor, course.order.steps)
    return Session(course, adapter, parity)
