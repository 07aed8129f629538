"""The files that a run leaves: which there are, how large they are, and their digests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import delete, select

from app.store.database import BUSY_SECONDS, Store
from app.store.models import Artifact, Run
from trainer.checkpoint.head import by_age
from trainer.checkpoint.identity import digest
from trainer.health.resolve import lookup
from trainer.monitor import RunInfo
from trainer.monitor.jsonl import FILE_NAME

_UPDATE = re.compile(r"update-(\d+)$")


@dataclass(slots=True)
class Artifacts:
    """Keeps the table in step with the disk. A file is read again only where it has changed."""

    store: Store
    run_id: int
    info: RunInfo
    _read: dict[Path, tuple[int, int, str]] = field(default_factory=dict)

    def note_checkpoints(self, wait: float = BUSY_SECONDS) -> None:
        """Those that are on the disk now. Others that write are waited for ``wait`` seconds. Raises
        DBAPIError."""
        own = by_age(checkpoint_folder(self.info), self.info.run_id)
        self._note({"checkpoint": sorted(own)}, wait)

    def note_all(
        self, config: Path, update: int, *, adapter: Path | None, model: Path | None = None
    ) -> None:
        """What is there when the run has ended, with the adapter of ``update`` and the model that
        it was merged into. Raises DBAPIError."""
        observed = lookup(self.info.params, "observe.directory")
        # Without an adapter or a model, that of an earlier segment may still be there.
        results = {"adapter": adapter, "model": model}
        found = {kind: [path] for kind, path in results.items() if path is not None}
        found |= {"config": [config], "observe": [Path(observed) / FILE_NAME] if observed else []}
        self._note(found, BUSY_SECONDS, update)
        self.note_checkpoints()

    def _note(self, found: dict[str, list[Path]], wait: float, update: int | None = None) -> None:
        rows = [row for kind, paths in found.items() for row in self._rows(kind, paths, update)]
        paths = [row["path"] for row in rows]
        with self.store.write(wait) as session:
            old = (Artifact.run_id == self.run_id) & (
                Artifact.kind.in_(found) | Artifact.path.in_(paths)
            )
            session.execute(delete(Artifact).where(old))
            session.add_all(Artifact(run_id=self.run_id, **row) for row in rows)
            run = session.scalars(select(Run).where(Run.id == self.run_id)).one()
            run.pulse = Run.pulse + 1

    def _rows(
        self, kind: str, paths: list[Path], update: int | None
    ) -> Iterator[dict[str, object]]:
        """``update`` is that of adapter and model; a checkpoint has its own in its name."""
        for path in paths:
            try:
                state = path.stat()
                known = self._read.get(path)
                if known is None or known[:2] != (state.st_size, state.st_mtime_ns):
                    known = (state.st_size, state.st_mtime_ns, digest(path))
                    self._read[path] = known
            except OSError:  # let go, or moved, in this moment
                continue
            number = _UPDATE.search(path.stem) if kind == "checkpoint" else None
            own = int(number[1]) if number else None
            yield {
                "kind": kind,
                "path": str(path),
                "size": known[0],
                "sha256": known[2],
                "created_at": min(state.st_mtime, time.time()),
                "update": update if kind in ("adapter", "model") else own,
            }


def checkpoint_folder(info: RunInfo) -> Path:
    """Where the run's checkpoints are, from its resolved configuration."""
    named = lookup(info.params, "checkpoint.directory")
    output = Path(info.output)
    return Path(named) if named else output.with_name(f"{output.stem}.checkpoints")
