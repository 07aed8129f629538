"""The files that a run left, as the store recorded them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from app.store.models import Artifact

_ORDER = ("model", "adapter", "checkpoint", "observe", "config")


@dataclass(frozen=True, slots=True)
class Recorded:
    """A file: ``size`` in bytes, ``created_at`` in Unix seconds; ``update`` of a model, an adapter
    or a checkpoint."""

    id: int
    kind: str
    path: str
    size: int
    sha256: str
    created_at: float
    update: int | None


def artifacts_of(session: Session, run_id: int) -> list[Recorded]:
    """The results first, then the checkpoints from the newest on, then the records."""
    rows = session.execute(_asked().where(Artifact.run_id == run_id))
    return sorted((Recorded(*row) for row in rows), key=_place)


def artifact_of(session: Session, run_id: int, artifact_id: int) -> Recorded | None:
    """None where it is another run's, or none at all."""
    row = session.execute(
        _asked().where(Artifact.run_id == run_id, Artifact.id == artifact_id)
    ).first()
    return None if row is None else Recorded(*row)


def _asked() -> Select[Any]:
    return select(*(getattr(Artifact, name) for name in Recorded.__dataclass_fields__))


def _place(found: Recorded) -> tuple[int, int, int]:
    rank = _ORDER.index(found.kind) if found.kind in _ORDER else len(_ORDER)
    return rank, -(found.update or 0), found.id
