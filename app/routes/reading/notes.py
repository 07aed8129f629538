"""What is said where there is nothing to read, or not all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.routes.reading.state import State
from app.routes.run_header import RunHeader
from app.store.queries.places import Place, resumed_from


@dataclass(frozen=True, slots=True)
class Note:
    """``address`` is where to go instead, with its ``link`` words; empty for nowhere."""

    words: str
    address: str = ""
    link: str = ""


_DOING = {
    "prepare": "It is getting ready",
    "generate": "Answers are being written",
    "reward": "Answers are being rewarded",
    "judge": "Answers are being judged",
    "score": "Answers are being scored",
    "train": "It is training",
    "evaluate": "It is answering the held-out prompts",
    "merge": "The adapter is being merged into the model",
}


def note_of(
    session: Session, run: RunHeader, state: State, place: Place | None, *, gone: bool
) -> Iterator[Note]:
    """Notes on the whole page, most important first."""
    if gone:
        words = "An answer that was to be compared is not in this run, or no longer counts."
        yield Note(words, state.url(marked=None, against=None), "Compare nothing")
    if state.low is not None and state.high is not None and state.low > state.high:
        yield Note(
            f"No reward is from {state.low:g} to {state.high:g}: the first is the larger one.",
            state.url(low=state.high, high=state.low),
            "Swap them",
        )
    if place is None:
        yield _nothing(run, state)
    elif place.status == "superseded":
        since = resumed_from(session, run.id)
        yield Note(
            f"Update {place.update} was superseded: the run was resumed from update {since}, and "
            "has not come this far again.",
            state.url(update=place.latest),
            f"Open update {place.latest}",
        )
    elif place.status == "absent":
        what = "evaluation after update" if state.kind == "evaluation" else "update"
        yield Note(
            f"There is no {what} {place.update} in this run.",
            state.url(update=place.latest),
            f"Open update {place.latest}",
        )
    elif place.status == "begun" and state.kind == "train" and not run.active:
        yield Note(f"Update {place.update} did not end: nothing was trained on these answers.")
    elif not place.groups:
        yield _no_answers(run, state, place)
    elif place.status == "skipped":
        yield Note(f"Update {place.update} was skipped: nothing was trained on its answers.")


def _nothing(run: RunHeader, state: State) -> Note:
    if run.algorithm == "sft":
        return Note(
            "A supervised run learns from given answers and writes none of its own while training.",
            f"/runs/{run.id}/metrics",
            "See its metrics",
        )
    if state.kind == "evaluation":
        return Note(
            "The held-out prompts have not been answered yet, or the run has none "
            "([evaluation] in its configuration).",
            state.url(kind="train"),
            "Read the training answers",
        )
    if run.status == "queued":
        return Note("This run waits in the queue. Its answers will be here once it has started.")
    if run.active:
        doing = _DOING.get(run.stage, "It is starting")
        done = f" ({run.stage_done} of {run.stage_total})" if run.stage_total else ""
        return Note(f"No answers yet. {doing}{done}; they appear here by themselves.")
    return Note(
        "The run ended before it had any answers.", f"/runs/{run.id}/journal", "Read its journal"
    )


def _no_answers(run: RunHeader, state: State, place: Place) -> Note:
    if run.algorithm == "sft":
        return _nothing(run, state)
    return Note(f"No answers of update {place.update} were stored.")
