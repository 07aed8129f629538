"""One run, from a configuration to what it leaves behind."""

from __future__ import annotations

import json
import platform
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from trainer.checkpoint.claim import claimed
from trainer.config import RunConfig, notes, refuse_unavailable
from trainer.ending import Ending, status_of, words_of
from trainer.inputs import AnyInputs, TextInputs, coverage, planned_updates, read_any
from trainer.monitor.protocol import Event, Monitor, Outcome, RunInfo
from trainer.opening.checks import check_before_run
from trainer.resume import Resumed, checkpoint_folder, new_run_id, resume
from trainer.session import open_session


def run(
    config: RunConfig,
    monitor: Monitor,
    *,
    resume_from: Path | None = None,
    run_id: str | None = None,
) -> Outcome:
    """Train as ``config`` says and report to ``monitor``.

    ``resume_from`` is a checkpoint, or a folder of them, to go on from: the same numbers follow as
    if the run had never stopped. ``run_id`` is the id that the run had before, where the caller
    knows: of a folder then only its own checkpoints are taken (`trainer.resume.resume`).

    Raises ConfigError (and its kinds) for what is wrong before training. What goes wrong during
    training ends the run as ``failed``: the outcome says why, and the adapter of the last completed
    update is exported. An interrupt (KeyboardInterrupt) exports it too and is raised again. However
    a run ends that has started, the monitor hears of it.
    """
    refuse_unavailable(config)
    inputs = read_any(config)
    check_before_run(config, inputs)
    with claimed(checkpoint_folder(config)):
        resumed = resume(config, inputs, resume_from, run_id)
        own = (resumed.run if resumed else run_id) or new_run_id()
        return _run(config, inputs, monitor, resumed, own)


def _run(
    config: RunConfig, inputs: AnyInputs, monitor: Monitor, resumed: Resumed | None, run_id: str
) -> Outcome:
    monitor.run_started(_info(config, inputs, resumed, run_id))
    outcome = Outcome("failed", 0, None, "ended before it could train")
    try:
        with ExitStack() as stack:
            for note in notes(config):
                monitor.event(Event("warning", "config", note))
            for remark in inputs.remarks:
                monitor.event(Event("warning", "template", remark))
            for remark in resumed.remarks if resumed else ():
                monitor.event(Event("warning", "resume", remark))
            session = open_session(config, inputs, monitor, stack, run_id, resumed)
            outcome, raised = Ending(config, inputs, session, monitor).train()
            outcome = replace(outcome, findings=session.loop.guide.findings())
    except BaseException as error:
        # Raised while opening or closing: what a training run brought is not lost by it.
        if outcome.updates == 0:
            outcome = replace(outcome, status=status_of(error), message=words_of(error))
        monitor.run_finished(outcome)
        raise
    monitor.run_finished(outcome)
    if raised is not None:
        raise raised
    return outcome


def _info(config: RunConfig, inputs: AnyInputs, resumed: Resumed | None, run_id: str) -> RunInfo:
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
        run_id=run_id,
    )
