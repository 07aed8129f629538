"""Which runs can be talked to: they have ended, and their model and adapter are still there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.chat.process import Partners, stamp
from app.store.left_files import look
from app.store.models import Artifact, Run
from app.store.provenance import MODEL_FILE, model_file
from app.store.queries.artifacts import artifacts_of
from app.store.status import ENDED
from trainer.health.resolve import lookup

_MOST = 100


@dataclass(frozen=True, slots=True)
class Talker:
    """A run that can be talked to. ``temperature`` and ``top_p`` are those that it was trained
    with, where it sampled."""

    id: int
    name: str
    algorithm: str
    model: str
    ctx: int
    temperature: float
    top_p: float


def talkers(session: Session) -> list[Talker]:
    """The newest ones, at most a hundred."""
    runs = session.scalars(
        select(Run)
        .where(Run.status.in_(ENDED))
        .where(Run.id.in_(select(Artifact.run_id).where(Artifact.kind == "adapter")))
        .order_by(Run.id.desc())
        .limit(_MOST)
    )
    return [talker_of(run) for run in runs if not isinstance(partners_of(session, run), str)]


def talker_of(run: Run) -> Talker:
    sampling = lookup(run.params, f"{run.algorithm}.sampling") or {}
    return Talker(
        id=run.id,
        name=run.name,
        algorithm=run.algorithm,
        model=run.model,
        ctx=int(lookup(run.params, "training.ctx") or 0),
        temperature=float(sampling.get("temperature", 1.0)),
        top_p=float(sampling.get("top_p", 1.0)),
    )


def partners_of(session: Session, run: Run) -> Partners | str:
    """The files of a run to talk to, or why it cannot be talked to."""
    if run.status not in ENDED:
        return "it has not ended yet"
    found = next((a for a in artifacts_of(session, run.id) if a.kind == "adapter"), None)
    if found is None:
        return "it left no adapter"
    inside = Path(run.folder) if run.source == "browser" else None
    if look(found, inside) != "there":
        return "its adapter is not there as it was written"
    model, ctx = lookup(run.params, "model.path"), lookup(run.params, "training.ctx")
    if not isinstance(model, str) or not isinstance(ctx, int):
        return "its configuration does not say what it was trained on"
    if not Path(model).is_file():
        return "its base model is not there any more"
    try:
        described = (run.provenance or {}).get(MODEL_FILE)
        if described and described != model_file(Path(model)):
            return "its base model is not the file any more that it was trained on"
        stamps = (stamp(model), stamp(found.path))
    except OSError as error:
        return f"its files cannot be read ({error.strerror})"
    given = lookup(run.params, "model.template_variables")
    return Partners(
        model=model,
        adapter=found.path,
        ctx=ctx,
        exact=lookup(run.params, "training.fast_sampling_context") is False,
        use_gpu=lookup(run.params, "model.device") != "cpu",
        variables=given if isinstance(given, dict) else {},
        merge_system=lookup(run.params, "model.merge_system") is True,
        stamps=stamps,
    )
