"""How an open run comes to its end, and what it leaves behind: an adapter, or a merged model."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from trainer.agreement import Agreement
from trainer.config import RunConfig
from trainer.errors import RetrogradError
from trainer.export import ExportRefusedError, write_checked
from trainer.inputs import AnyInputs
from trainer.merge.merging import merge
from trainer.merge.plan import check_disk, make_plan
from trainer.monitor.protocol import Event, Monitor, Outcome
from trainer.opening.model import open_checking_engine, threads_of
from trainer.opening.parts import Session
from trainer.rollout.continuous import RolloutStopped


@dataclass(frozen=True, slots=True)
class Ending:
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
            done = self._ended()
        except RetrogradError as error:
            return self._failed(error), None
        except BaseException as error:  # noqa: BLE001  (kept, and raised by the caller)
            return self._failed(error), error
        if self.config.output.kind == "adapter" or done.output is None:
            return done, None
        return self._merged(done)

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
        return Outcome(status, updates, path, f"{status} after {_counted(updates)}")

    def _merged(self, done: Outcome) -> tuple[Outcome, BaseException | None]:
        """The outcome with the model that is made of the exported adapter, and what has to be
        raised; where it cannot be made the run has failed, and the adapter is there nevertheless:
        exported and compared, which is not done a second time."""
        output = self.config.output
        adapter = str(output.adapter_path)
        self.monitor.event(
            Event("info", "merging", f"merging the adapter, {adapter}, into {output.path}")
        )
        self.monitor.progress("merge", 0, 0)
        try:
            agreement = self._merge()
        except RetrogradError as error:
            message = f"the model could not be written: {error}\n{self._saved(done.updates)}"
            return Outcome("failed", done.updates, None, message, adapter=adapter), None
        except BaseException as error:  # noqa: BLE001  (kept, and raised by the caller)
            message = f"{words_of(error)}\n{self._saved(done.updates)}"
            return Outcome(status_of(error), done.updates, None, message, adapter=adapter), error
        self.monitor.event(
            Event(
                "info",
                "merge_checked",
                f"llama.cpp computes with the merged model what torch computes with base and "
                f"adapter: log-probabilities differ by {agreement.gap:.2g} nats, and by "
                f"{agreement.change:.2g} from the base",
                data={"change": agreement.change, "gap": agreement.gap},
            )
        )
        return replace(done, adapter=adapter), None

    def _merge(self) -> Agreement:
        """Write the merged model to the output's path once llama.cpp computes with it what torch
        does with the two."""
        config, session = self.config, self.session

        def check(candidate: Path) -> Agreement:
            inputs = self.inputs
            with open_checking_engine(config, inputs, candidate, beside=True) as engine:
                return session.parity.compare_merged(session.adapter, engine)

        plan = make_plan(config.model.path, config.output.adapter_path)
        check_disk(plan.disk_bytes, config.output.path.parent)
        return merge(plan, config.output.path, check, threads=threads_of(config))

    def _failed(self, error: BaseException) -> Outcome:
        updates, message = self.session.loop.completed, words_of(error)
        status = status_of(error)
        if self.session.loop.trained == 0 or isinstance(error, ExportRefusedError):
            return Outcome(status, updates, None, message)
        try:
            self._export()
        except RetrogradError as second:
            return Outcome(status, updates, None, f"{message}\n{second}")
        output = self.config.output
        message = f"{message}\n{self._saved(updates)}"
        if output.kind == "adapter":
            return Outcome(status, updates, str(output.path), message)
        # Merging takes time, which whoever interrupts does not want to wait for.
        return Outcome(status, updates, None, message, adapter=str(output.adapter_path))

    def _saved(self, updates: int) -> str:
        """Where the work is, and what to do where a model was wanted."""
        output, base = self.config.output, self.config.model.path
        saved = f"The adapter of update {updates}, the last completed one, is in "
        saved += f"{output.adapter_path}."
        if output.kind == "adapter":
            return saved
        command = ["retrograd", "merge", base, output.adapter_path, "--to", output.path]
        if output.path.exists():  # of an earlier run
            command.append("--force")
        return f"{saved} It is merged by: {shlex.join(map(str, command))}"

    def _export(self) -> Agreement:
        """Write the adapter to its path once llama.cpp computes with it what torch does."""
        adapter, parity = self.session.adapter, self.session.parity
        return write_checked(
            self.config.output.adapter_path,
            adapter,
            dtype=self.inputs.lora.dtype,
            check=lambda candidate: parity.compare(adapter, candidate),
        )


def status_of(error: BaseException) -> Literal["stopped", "failed"]:
    return "stopped" if isinstance(error, KeyboardInterrupt) else "failed"


def words_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, RetrogradError) else f"{type(error).__name__}: {error}"


def _counted(updates: int) -> str:
    return "1 update" if updates == 1 else f"{updates} updates"
