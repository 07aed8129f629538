"""What the opening of every run shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer.agreement import Parity
from trainer.algorithms.course import Course
from trainer.checkpoint.keeper import Keeper
from trainer.config.models import RunConfig
from trainer.health.findings import Watch
from trainer.inputs import AnyInputs, ModelInputs
from trainer.model.adapter import Adapter
from trainer.model.learner import Learner
from trainer.monitor.protocol import Event, Monitor
from trainer.opening.model import threads_of
from trainer.resume import identity_of, open_store
from trainer.rollout.weights import RolloutWeights


@dataclass(frozen=True, slots=True)
class Session:
    """The open parts of a run, and its course through the updates."""

    loop: Course
    adapter: Adapter
    parity: Parity


def open_watch(config: RunConfig, inputs: ModelInputs) -> Watch:
    return Watch(config.run.algorithm, inputs.params(config))


def open_keeper(config: RunConfig, inputs: AnyInputs, monitor: Monitor, run_id: str) -> Keeper:
    mode = config.checkpoint.mode if config.checkpoint else "steps"
    return Keeper(
        open_store(config, run_id),
        identity_of(config, inputs),
        monitor,
        with_steps=mode != "best_eval",
        with_best=mode != "steps",
    )


def settings_event(
    config: RunConfig, learner: Learner, weights: RolloutWeights, own: Mapping[str, object]
) -> Event:
    """What the automatic settings came to, ``own`` among them."""
    data = {
        "threads": threads_of(config),
        "device": str(learner.decoder.device),
        "micro_batch": learner.settings.micro_batch,
        **own,
        "rollout_weights": weights.kind,
    }
    words = ", ".join(f"{key} {value}" for key, value in data.items())
    return Event("info", "settings", f"settings: {words} ({weights.reason})", data=data)


def say_once(monitor: Monitor) -> Callable[[str], None]:
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
