"""The folders of the browser's runs, and their rows: made as drafts, cloned, started, deleted."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sqlalchemy import delete, select

from app.jobs import queue
from app.jobs.accepted import accept
from app.jobs.checks import read_checks, start_checks, stop_checks
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
from app.jobs.lock import locked
from app.jobs.queue import QueueError
from app.jobs.uploads import Upload
from app.jobs.workspace import RECORD, RESERVED, Workspace
from app.settings import ServerSettings
from app.store.alive import HERE
from app.store.database import Store, default_path
from app.store.deletion import delete_run
from app.store.models import Run
from app.store.registry import fill_from_config, new_run
from app.store.status import DRAFT
from app.store.values import text as storable

PASTED = "run.toml"
DRAFT_DAYS = 30


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
        run_id, folder = self._new_row(name, text)
        try:
            folder.mkdir(mode=0o700, parents=True)
            with self._mine(run_id):
                Record(name).write(folder)
                if clone is not None:
                    self._copy_files(clone, folder)
                self._save(run_id, folder, text, uploads)
        except BaseException:
            with suppress(QueueError):  # it may have been discarded
                self.discard(run_id)
            raise
        return run_id

    def save(self, run_id: int, text: str, uploads: Iterable[Upload] = ()) -> None:
        """Another text of a draft, and further files. Raises UploadError and QueueError."""
        with self._mine(run_id) as folder:
            self._save(run_id, folder, text, uploads)

    def begin_checks(self, run_id: int) -> None:
        """Check a draft anew, if there is nothing to mend in it first. Raises QueueError and
        OSError."""
        with self._mine(run_id) as folder:
            if self.read(run_id).can_start:
                accept(folder, self.trust)
                start_checks(folder)

    @contextmanager
    def _mine(self, run_id: int) -> Iterator[Path]:
        """The folder of a draft, which nobody else changes, checks or starts inside. Raises
        QueueError."""
        with locked(Path(self.draft(run_id).folder)):
            # Asked again: whoever had it before may have started or discarded it.
            yield Path(self.draft(run_id).folder)

    def _save(self, run_id: int, folder: Path, text: str, uploads: Iterable[Upload]) -> None:
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
        with self._mine(run_id) as folder:
            if why := self.why_not(run_id):
                raise QueueError(f"This run was not started. {why}")
            stop_checks(folder)
            self._describe(run_id)
            accept(folder, self.trust)
            queue.enqueue(self.store, run_id, created_at=time.time())

    def remove_upload(self, run_id: int, name: str) -> None:
        """Raises QueueError."""
        with self._mine(run_id) as folder:
            record = Record.read(folder)
            if name in record.uploads:
                record.uploads.remove(name)
                record.write(folder)
                (folder / name).unlink(missing_ok=True)
            self._save(run_id, folder, self.draft(run_id).config_text, ())

    def discard(self, run_id: int) -> None:
        """Remove a draft with its folder. Raises QueueError."""
        folder = Path(self.draft(run_id).folder)
        # Without a folder there is nothing to keep others from.
        with locked(folder) if folder.is_dir() else nullcontext():
            self.draft(run_id)
            stop_checks(folder)
            with self.store.write() as session:
                session.execute(delete(Run).where(Run.id == run_id, Run.status == "draft"))
            shutil.rmtree(folder, ignore_errors=True)

    def discard_old_drafts(self, now: float) -> list[int]:
        """Discard the drafts that nobody has touched for `DRAFT_DAYS`; their ids. Raises
        SQLAlchemyError."""
        with self.store.read() as session:
            here = (Run.status == DRAFT, Run.host == HERE)
            drafts = session.scalars(select(Run).where(*here)).all()
        discarded = []
        for run in drafts:
            touched = max(run.created_at, _touched(Path(run.folder)))
            if now - touched > DRAFT_DAYS * 86400:
                with suppress(QueueError):  # somebody else did, or has started it
                    self.discard(run.id)
                    discarded.append(run.id)
        return discarded

    def delete(self, run_id: int) -> None:
        """Remove a run that has ended: its rows, and the folder if it is one of this server's. What
        a run of a terminal wrote stays where its user put it. Raises StoreError and OSError."""
        delete_run(self.store, run_id)
        shutil.rmtree(self.place_of(run_id), ignore_errors=True)

    def owns(self, run: Run) -> bool:
        """Whether the folder of ``run`` is one that this server made."""
        return Path(run.folder) == self.place_of(run.id)

    def log_folder(self, run_id: int) -> Path:
        """Where what the run's process prints is kept, also that of a run of a terminal which goes
        on here."""
        folder = self.place_of(run_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def place_of(self, run_id: int) -> Path:
        """The folder of a run, which may not be there."""
        return self.data_folder / "runs" / str(run_id)

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
            folder = self.place_of(run.id)
            run.folder, run.config_path = str(folder), str(folder / name)
            return run.id, folder

    def _describe(self, run_id: int) -> None:
        """What the list of runs says of it before it has begun."""
        config = placed_config(Path(self.draft(run_id).folder))
        with self.store.write() as session:
            run = session.get(Run, run_id)
            assert run is not None
            fill_from_config(run, config)
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


def _touched(folder: Path) -> float:
    """When the draft in ``folder`` was saved last, or checked."""
    times = [0.0]
    with suppress(OSError):
        times += [path.stat().st_mtime for path in folder.iterdir()]
    return max(times)


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
