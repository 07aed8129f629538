"""One run, from a configuration to an exported adapter."""

from __future__ import annotations

import json
import platform
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from trainer.agreement import Agreement
from trainer.checkpoint.claim import claimed
from trainer.config import RunConfig, notes, refuse_unavailable
from trainer.errors import RetrogradError
from trainer.export import ExportRefusedError, write_checked
from trainer.inputs import AnyInputs, TextInputs, coverage, planned_updates, read_any
from trainer.monitor.protocol import Event, Monitor, Outcome, RunInfo
from trainer.opening.checks import check_before_run
from trainer.opening.parts import Session
from trainer.resume import Resumed, checkpoint_folder, resume
from trainer.rollout.continuous import RolloutStopped
from trainer.session import open_session


def run(config: RunConfig, monitor: Monitor, *, resume_from: Path | None = None) -> Outcome:
    """Train as ``config`` says and report to ``monitor``.

    ``resume_from`` is a checkpoint, or a folder of them, to go on from: the same numbers follow as
    if the run had never stopped.

    Raises ConfigError (and its kinds) for what is wrong before training. What goes wrong during
    training ends the run as ``failed``: the outcome says why, and the adapter of the last completed
    update is exported. An interrupt (KeyboardInterrupt) exports it too and is raised again. However
    a run ends that has started, the monitor hears of it.
    """
    refuse_unavailable(config)
    inputs = read_any(config)
    check_before_run(config, inputs)
    with claimed(checkpoint_folder(config)):
        return _run(config, inputs, monitor, resume(config, inputs, resume_from))


def _run(
    config: RunConfig, inputs: AnyInputs, monitor: Monitor, resumed: Resumed | None
) -> Outcome:
    monitor.run_started(_info(config, inputs, resumed))
    outcome = Outcome("failed", 0, None, "ended before it could train")
    try:
        with ExitStack() as stack:
            for note in notes(config):
                monitor.event(Event("warning", "config", note))
            for remark in inputs.remarks:
                monitor.event(Event("warning", "template", remark))
            for remark in resumed.remarks if resumed else ():
                monitor.event(Event("warning", "resume", remark))
            session = open_session(config, inputs, monitor, stack, resumed)
            outcome, raised = _Ending(config, inputs, session, monitor).train()
            outcome = replace(outcome, findings=session.loop.guide.findings())
    except BaseException as error:
        # Raised while opening or closing: what a training run brought is not lost by it.
        if outcome.updates == 0:
            outcome = replace(outcome, status=_status(error), message=_words(error))
        monitor.run_finished(outcome)
        raise
    monitor.run_finished(outcome)
    if raised is not None:
        raise raised
    return outcome


@dataclass(frozen=True, slots=True)
class _Ending:
    """How an open run goes on to its end."""

    config: RunConfig
    inputs: AnyInputs
    session: Session
    monitor: Monitor

    def train(self) -> tuple[Outcome, BaseException | None]:
        """How the run ended, and what has to be raised once everything is closed: an interrupt, or
        an error that is retrograd's own."""
        try:
            # A wish that was met: the run then ends as one that stopped between updates.
            with suppress(RolloutStopped):
                self.session.loop.train()
            return self._ended(), None
        except RetrogradError as error:
            return self._failed(error), None
        except BaseException as error:  # noqa: BLE001  (kept, and raised by the caller)
            return self._failed(error), error

    def _ended(self) -> Outcome:
        """Export, and check what was exported."""
        updates = self.session.loop.completed
        whole = self.session.loop.finished
        if self.session.loop.trained == 0:
            why = "no answer carried signal in any update" if updates else "no update was completed"
            message = f"{why}, so there is nothing to export"
            return Outcome("failed" if whole else "stopped", updates, None, message)
        agreement = self._export()
        self.monitor.event(
            Event(
                "info",
                "export_checked",
                f"llama.cpp computes what was trained: log-probabilities changed by "
                f"{agreement.change:.2g} nats from the base, and the two sides differ by "
                f"{agreement.gap:.2g}",
                data={"change": agreement.change, "gap": agreement.gap},
            )
        )
        status: Literal["completed", "stopped"] = "completed" if whole else "stopped"
        path = str(self.config.output.path)
        return Outcome(status, updates, path, f"{status} after {updates} updates")

    def _failed(self, error: BaseException) -> Outcome:
        updates, message = self.session.loop.completed, _words(error)
        status = _status(error)
        if self.session.loop.trained == 0 or isinstance(error, ExportRefusedError):
            return Outcome(status, updates, None, message)
        path = self.config.output.path
        try:
            self._export()
        except RetrogradError as second:
            return Outcome(status, updates, None, f"{message}\n{second}")
        saved = f"The adapter of update {updates}, the last completed one, is in {path}."
        return Outcome(status, updates, str(path), f"{message}\n{saved}")

    def _export(self) -> Agreement:
        """Write the adapter to the output's path once llama.cpp computes with it what torch
        does."""
        adapter, parity = self.session.adapter, self.session.parity
        return write_checked(
            self.config.output.path,
            adapter,
            dtype=self.inputs.lora.dtype,
            check=lambda candidate: parity.compare(adapter, candidate),
        )


def _info(config: RunConfig, inputs: AnyInputs, resumed: Resumed | None) -> RunInfo:
    a, lora = inputs.architecture, inputs.lora
    types = ", ".join(f"{n} × {t}" for t, n in inputs.file.type_counts().items())
    if isinstance(inputs, TextInputs):
        learnt = sum(text.tokens for text in inputs.texts)
        data = {
            "texts": f"{len(inputs.texts)}, at most {inputs.longest_text} tokens; {learnt:,} "
            "tokens are learnt"
        }
    else:
        data = {"prompts": f"{len(inputs.prompts)}, at most {inputs.longest_prompt} tokens"}
    if config.model.template_variables:
        data["template variables"] = json.dumps(config.model.template_variables)
    start = {"begins with": str(config.lora.init_adapter)} if lora.start is not None else {}
    return RunInfo(
        name=config.run.name,
        algorithm=config.run.algorithm,
        model=str(config.model.path),
        output=str(config.output.path),
        updates=planned_updates(config, inputs),
        params=inputs.params(config),
        facts={
            "model": f"{config.model.path.name}: {a.name}, {a.layers} layers of {a.width}, {types}",
            "adapter": f"rank {lora.rank} on {coverage(inputs)}: {inputs.adapter_size:,} "
            "parameters",
            **start,
            **data,
            "torch": f"{torch.__version__} on {platform.machine()}",
        }
        | ({"resumed": f"after update {resumed.update}, from {resumed.path}"} if resumed else {}),
        resumed_from_update=resumed.update if resumed else None,
    )


def _status(error: BaseException) -> Literal["stopped", "failed"]:
    return "stopped" if isinstance(error, KeyboardInterrupt) else "failed"


def _words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, RetrogradError) else f"{type(error).__name__}: {error}"
