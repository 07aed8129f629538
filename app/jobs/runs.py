"""The folders of the browser's runs, and their rows: made as drafts, cloned, started, deleted."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sqlalchemy import delete, select

from app.jobs import queue
from app.jobs.checks import read_checks, stop_checks
from app.jobs.commands import Trust
from app.jobs.draft import (
    Limits,
    Reading,
    Record,
    add_uploads,
    copied_names,
    placed_config,
    read_draft,
    save_text,
    settle,
)
from app.jobs.queue import HERE, QueueError
from app.jobs.uploads import Upload
from app.jobs.workspace import LOG, RECORD, RESERVED, Workspace
from app.server.settings import ServerSettings
from app.store.database import Store, default_path
from app.store.deletion import delete_run
from app.store.models import Run
from app.store.registry import new_run
from app.store.values import text as storable

PASTED = "run.toml"


@dataclass(frozen=True, slots=True)
class Jobs:
    """What the pages do with runs, under the rules of one server."""

    store: Store
    settings: ServerSettings

    @property
    def data_folder(self) -> Path:
        """Where the runs' folders are: as configured, or beside the store."""
        if self.settings.data_folder is not None:
            return self.settings.data_folder.absolute()
        if self.store.is_sqlite and self.store.place != ":memory:":
            return Path(self.store.place).absolute().parent
        return default_path().parent

    @property
    def workspace(self) -> Workspace:
        return Workspace(
            self.settings.workspace.absolute(),
            private=(self.data_folder / "runs",),
            copy_limit=self.settings.max_upload_bytes,
        )

    @property
    def trust(self) -> Trust:
        return Trust.of(self.settings)

    def create(
        self,
        text: str,
        uploads: Iterable[Upload] = (),
        *,
        name: str = PASTED,
        clone: int | None = None,
    ) -> int:
        """A draft of ``text``, which is kept as the file ``name``; its id. Raises UploadError, and
        then there is no draft."""
        uploads = list(uploads)
        run_id, folder = self._new_row(name, text)
        try:
            folder.mkdir(mode=0o700, parents=True)
            record = Record(name)
            record.write(folder)
            if clone is not None:
                self._copy_files(clone, folder)
            add_uploads(folder, uploads, self.trust, self._limits)
            self.save(run_id, text)
        except BaseException:
            self.discard(run_id)
            raise
        return run_id

    def save(self, run_id: int, text: str, uploads: Iterable[Upload] = ()) -> None:
        """Another text of a draft, and further files. Raises UploadError and QueueError."""
        run = self.draft(run_id)
        folder = Path(run.folder)
        stop_checks(folder)
        add_uploads(folder, uploads, self.trust, self._limits)
        save_text(folder, text)
        with self.store.write() as session:
            kept = session.get(Run, run_id)
            assert kept is not None
            kept.config_text, kept.pulse = storable(text.replace("\r\n", "\n")), Run.pulse + 1
        reading = self.read(run_id)
        if reading.config is not None:
            settle(folder, reading)
            self._describe(run_id)

    def read(self, run_id: int) -> Reading:
        """What the server makes of a draft. Raises QueueError where there is none."""
        folder = Path(self.draft(run_id).folder)
        if not (folder / RECORD).is_file():
            raise QueueError(f"The folder of draft {run_id}, {folder}, is not there any more.")
        return read_draft(folder, self.workspace, self.trust)

    def why_not(self, run_id: int) -> str:
        """What keeps a draft from being started, or nothing."""
        reading = self.read(run_id)
        if not reading.can_start:
            return "The configuration has to be mended first."
        checks = read_checks(Path(self.draft(run_id).folder))
        if checks.errors:
            return "The checks found what would stop the run."
        return ""

    def start(self, run_id: int) -> None:
        """Put a draft into the queue. Raises QueueError where it cannot work."""
        if why := self.why_not(run_id):
            raise QueueError(f"This run was not started. {why}")
        folder = Path(self.draft(run_id).folder)
        stop_checks(folder)
        self._describe(run_id)
        queue.enqueue(self.store, run_id, created_at=time.time())

    def remove_upload(self, run_id: int, name: str) -> None:
        """Raises QueueError."""
        folder = Path(self.draft(run_id).folder)
        record = Record.read(folder)
        if name in record.uploads:
            record.uploads.remove(name)
            record.write(folder)
            (folder / name).unlink(missing_ok=True)
        self.save(run_id, self.draft(run_id).config_text)

    def discard(self, run_id: int) -> None:
        """Remove a draft with its folder. Raises QueueError."""
        folder = Path(self.draft(run_id).folder)
        stop_checks(folder)
        with self.store.write() as session:
            # Only if it is one still: it may have been started a moment ago.
            still = (Run.id == run_id, Run.status == "draft")
            if session.scalars(select(Run.id).where(*still)).first() is None:
                raise QueueError(f"Run {run_id} has started meanwhile, and was not discarded.")
            session.execute(delete(Run).where(*still))
        shutil.rmtree(folder, ignore_errors=True)

    def delete(self, run_id: int) -> None:
        """Remove a run that has ended: its rows, and the folder if it is one of this server's. What
        a run of a terminal wrote stays where its user put it. Raises QueueError and StoreError."""
        with self.store.read() as session:
            run = session.get(Run, run_id)
        if run is None or run.status in (*queue.OPEN, "draft"):
            status = "not there" if run is None else run.status
            raise QueueError(f"Run {run_id} cannot be deleted, because it is {status}.")
        delete_run(self.store, run_id)
        shutil.rmtree(self.data_folder / "runs" / str(run_id), ignore_errors=True)

    def owns(self, run: Run) -> bool:
        """Whether the folder of ``run`` is one that this server made."""
        return Path(run.folder) == self.data_folder / "runs" / str(run.id)

    def log_folder(self, run_id: int) -> Path:
        """Where what the run's process prints is kept, also that of a run of a terminal which goes
        on here."""
        folder = self.data_folder / "runs" / str(run_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def draft(self, run_id: int) -> Run:
        """Raises QueueError where there is no such draft (any more)."""
        with self.store.read() as session:
            run = session.get(Run, run_id)
        if run is None or run.status != "draft":
            raise QueueError(
                f"There is no draft {run_id}: it was discarded, or the run has started."
            )
        return run

    @property
    def _limits(self) -> Limits:
        return Limits(self.settings.max_upload_bytes, self.settings.max_upload_files)

    def _new_row(self, name: str, text: str) -> tuple[int, Path]:
        with self.store.write() as session:
            run = new_run(time.time())
            run.name, run.source, run.status, run.host = Path(name).stem, "browser", "draft", HERE
            run.algorithm = run.model = run.folder = run.config_path = ""
            run.config_text = storable(text)
            session.add(run)
            session.flush()
            folder = self.data_folder / "runs" / str(run.id)
            run.folder, run.config_path = str(folder), str(folder / name)
            return run.id, folder

    def _describe(self, run_id: int) -> None:
        """What the list of runs says of it before it has begun."""
        config = placed_config(Path(self.draft(run_id).folder))
        with self.store.write() as session:
            run = session.get(Run, run_id)
            assert run is not None
            run.name, run.algorithm = storable(config.run.name), config.run.algorithm
            run.model, run.output = storable(config.model.path.name), str(config.output.path)
            run.planned = getattr(getattr(config, "rollout", None), "updates", 0)
            run.pulse = Run.pulse + 1

    def _copy_files(self, run_id: int, folder: Path) -> None:
        """Give a clone the files of the run that it is made from."""
        with self.store.read() as session:
            run = session.get(Run, run_id)
        if run is None:
            return
        old, record = Path(run.folder), Record.read(folder)
        if self.owns(run) and (old / RECORD).is_file():
            before = Record.read(old)
            record.base = before.base
            record.uploads = _copied(old, folder, before.uploads, record)
            record.kept = _copied(old, folder, copied_names(old), record)
        else:
            record.base = self._base(old)
        record.write(folder)

    def _base(self, folder: Path) -> str:
        """Where in the workspace a terminal's run has its files, if it is there."""
        top = self.workspace.folder.resolve()
        inside = folder.resolve()
        return str(PurePosixPath(inside.relative_to(top))) if inside.is_relative_to(top) else ""


def text_of(store: Store, run_id: int) -> tuple[str, str, str] | None:
    """The configuration of a run, the name of its file, and its own, to start another one from."""
    with store.read() as session:
        run = session.get(Run, run_id)
    if run is None:
        return None
    name = re.sub(r"[^\w.-]", "_", Path(run.config_path).name).lstrip(".-") or PASTED
    return run.config_text, name, run.name


def log_tail(folder: Path, limit: int = 3000) -> str:
    """The end of what a run's process has printed."""
    try:
        with (folder / LOG).open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - limit))
            return log.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _copied(old: Path, new: Path, names: list[str], record: Record) -> list[str]:
    """The names that could be copied: regular files that are still inside ``old``."""
    done = []
    for name in names:
        source, target = old / name, new / name
        inside = source.resolve().is_relative_to(old.resolve())
        if not (inside and source.is_file()) or name in (record.config, *RESERVED):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        done.append(name)
    return done
