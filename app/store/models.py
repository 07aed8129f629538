"""The tables. Times are Unix seconds (UTC). Rows of metrics, updates, groups, answers and events
are only ever appended, with increasing ids, so that a live view is a cursor.

A run that goes on from an earlier checkpoint starts a new segment. What the older segments told of
later updates stays, and is hidden: a row counts while its ``update`` is at most its segment's
``visible_until`` (see ``app.store.visible``). The journal hides nothing.

The texts of answers and prompts have a full-text index, which ``app.store.search`` asks; it is made
in ``migrations/`` and is no table here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# SQLite makes only an INTEGER PRIMARY KEY the rowid, which counts by itself.
_Id = BigInteger().with_variant(Integer, "sqlite")


def _of_run() -> Mapped[int]:
    return mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))


def _of_segment() -> Mapped[int]:
    # No foreign key: the run's own removes the row, and checking this one when a segment goes would
    # read every row of every run, or take an index as large as the table.
    return mapped_column(_Id)


class Base(DeclarativeBase):
    type_annotation_map = {float: Float, str: Text, dict[str, Any]: JSON, list[Any]: JSON}  # noqa: RUF012


class Identity(Base):
    """One row: a name of this store that no other one has, whatever address it is opened by."""

    __tablename__ = "identity"

    id: Mapped[str] = mapped_column(primary_key=True)


class Run(Base):
    """One run. The list of runs reads this table and no other: last values are kept here.

    ``status``: draft (being prepared in the browser), queued, starting, running, stopping; the
    ends: completed, stopped, failed, interrupted (its process died); and deleting. What they mean
    is in ``app.store.status``.
    """

    __tablename__ = "runs"
    __table_args__ = (
        Index("runs_by_status", "status"),
        Index("runs_by_time", "created_at"),
        # The number of a deleted run is never given again: its address may be in somebody's notes.
        {"sqlite_autoincrement": True},
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    name: Mapped[str]
    algorithm: Mapped[str]
    model: Mapped[str]
    """File name of the base model."""
    uuid: Mapped[str] = mapped_column(default="")
    """A name that it keeps through all its segments, and that its checkpoints have too; empty until
    it has started, and where it started before there was one."""
    source: Mapped[str]
    """``browser`` or ``terminal``: who started it."""
    status: Mapped[str]
    message: Mapped[str] = mapped_column(default="")
    """How it ended, in a sentence."""
    folder: Mapped[str]
    """Absolute. The configuration lies in it; a run of the browser writes nowhere else."""
    config_path: Mapped[str]
    config_text: Mapped[str]
    """The TOML file as it was at the start."""
    output: Mapped[str] = mapped_column(default="")
    params: Mapped[dict[str, Any]]
    """The resolved configuration, as JSON types; empty until the run has started."""
    facts: Mapped[dict[str, Any]]
    provenance: Mapped[dict[str, Any]]
    """Versions, the base model's hash, command, git commit: name to text."""
    planned: Mapped[int] = mapped_column(default=0)
    """Updates in all."""
    completed: Mapped[int] = mapped_column(default=0)
    steps: Mapped[int] = mapped_column(default=0)
    stage: Mapped[str] = mapped_column(default="")
    stage_done: Mapped[int] = mapped_column(default=0)
    stage_total: Mapped[int] = mapped_column(default=0)
    last_reward: Mapped[float | None]
    """The last mean reward; with SFT the last loss."""
    last_evaluation: Mapped[float | None]
    """Mean reward on held-out prompts; with SFT the loss on held-out texts."""
    seconds_per_update: Mapped[float | None]
    """Over the last updates; times what is left it is the time left."""
    sparkline: Mapped[list[Any]]
    """At most 60 mean rewards (SFT: losses) over the whole run; null where there is none."""
    findings: Mapped[list[Any]]
    """What is wrong with its numbers now: objects with the fields of ``Finding``."""
    audited: Mapped[list[Any]]
    """Measures of the reward-hacking audit that are over their limit now."""
    lost: Mapped[int] = mapped_column(default=0)
    """Rows that could not be written."""
    pulse: Mapped[int] = mapped_column(default=0)
    """Grows with every change of the run or of its rows."""
    created_at: Mapped[float]
    queued_at: Mapped[float | None]
    started_at: Mapped[float | None]
    idle_seconds: Mapped[float] = mapped_column(default=0.0)
    """Between its stretches, while no process was at work on it."""
    ended_at: Mapped[float | None]
    heartbeat_at: Mapped[float | None]
    host: Mapped[str] = mapped_column(default="")
    pid: Mapped[int | None]
    process_started_at: Mapped[float | None]
    """When ``pid`` was started, which tells it from a later process of the same number."""


class Segment(Base):
    """A stretch of a run from one start of its process to its end."""

    __tablename__ = "segments"
    __table_args__ = (UniqueConstraint("run_id", "number"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    number: Mapped[int]
    resumed_from: Mapped[int | None]
    """The last update of the checkpoint that it went on from."""
    visible_until: Mapped[int | None]
    """Rows of later updates were superseded by a later segment; null: none were."""
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    status: Mapped[str] = mapped_column(default="running")


class MetricName(Base):
    __tablename__ = "metric_names"

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Metric(Base):
    """One number of one update; ``value`` is null where it was not finite."""

    __tablename__ = "metrics"
    __table_args__ = (
        # Holds all that a chart needs, so that drawing one reads the index alone.
        Index("metrics_by_name", "run_id", "name_id", "update", "segment_id", "value", "id"),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    segment_id: Mapped[int] = _of_segment()
    name_id: Mapped[int] = mapped_column(ForeignKey("metric_names.id"))
    update: Mapped[int]
    value: Mapped[float | None]


class Update(Base):
    """An update (``kind`` train) or an evaluation after it (``kind`` evaluation; update 0 is before
    the first), with what the heat strip and the other horizontal axes need."""

    __tablename__ = "updates"
    __table_args__ = (Index("updates_by_run", "run_id", "kind", "update"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    segment_id: Mapped[int] = _of_segment()
    update: Mapped[int]
    kind: Mapped[str]
    status: Mapped[str]
    """trained, skipped, or evaluation."""
    at: Mapped[float]
    steps: Mapped[int]
    """Optimizer steps made by then."""
    tokens: Mapped[int] = mapped_column(BigInteger)
    """Tokens of the answers to training prompts that were sampled by then, over the whole run."""
    answers: Mapped[int]
    trained: Mapped[int]
    """Answers that entered the loss."""
    reward_mean: Mapped[float | None]
    reward_min: Mapped[float | None]
    reward_max: Mapped[float | None]
    rewards: Mapped[list[Any]]
    """All rewards of its answers, for the shares of a heat strip's column; at most 512, evenly
    taken from the sorted ones."""


class Prompt(Base):
    __tablename__ = "prompts"
    __table_args__ = (UniqueConstraint("run_id", "key"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    key: Mapped[str]
    line: Mapped[int]
    text: Mapped[str]
    """The contents of its messages, for the search."""
    messages: Mapped[list[Any]]
    """Objects with ``role`` and ``content``, and ``content_chars``, its whole length, where
    ``max_text_chars`` cut it."""


class Group(Base):
    """The answers to one prompt in one update (or evaluation)."""

    __tablename__ = "groups"
    __table_args__ = (
        Index("groups_by_update", "run_id", "kind", "update", "number"),
        Index("groups_by_prompt", "prompt_id"),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    segment_id: Mapped[int] = _of_segment()
    update: Mapped[int]
    kind: Mapped[str]
    """train or evaluation."""
    number: Mapped[int]
    """Within the update, from 0."""
    prompt_id: Mapped[int] = mapped_column(ForeignKey("prompts.id", ondelete="CASCADE"))
    size: Mapped[int]
    trained: Mapped[int]
    reward_mean: Mapped[float]
    reward_min: Mapped[float]
    reward_max: Mapped[float]
    spread: Mapped[float]
    """Standard deviation of the rewards, over the group."""
    tokens_mean: Mapped[float]


class Answer(Base):
    """One answer with all that was decided about it; the fields are those of ``Trajectory``."""

    __tablename__ = "answers"
    __table_args__ = (
        Index("answers_by_group", "group_id"),
        Index("answers_by_run", "run_id", "id"),
        # Holds all that answers are filtered and sorted by, so that the texts are not read for it.
        Index(
            "answers_by_reward",
            "run_id",
            "reward",
            "id",
            "segment_id",
            "update",
            "trained",
            "truncated",
            "skip_reason",
            "tokens",
            "advantage",
            "audit",
        ),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    segment_id: Mapped[int] = _of_segment()
    group_id: Mapped[int] = mapped_column(ForeignKey("groups.id", ondelete="CASCADE"))
    update: Mapped[int]
    member: Mapped[int]
    text: Mapped[str | None]
    """Null where ``[observe] every`` left this update's texts out."""
    chars: Mapped[int]
    """Of the whole text, which ``max_text_chars`` may have cut."""
    tokens: Mapped[int]
    truncated: Mapped[bool]
    reward: Mapped[float]
    reward_raw: Mapped[float]
    judge_term: Mapped[float]
    judge_words: Mapped[str | None]
    parts: Mapped[dict[str, Any]]
    advantage: Mapped[float]
    trained: Mapped[bool]
    skip_reason: Mapped[str | None]
    audit: Mapped[list[Any]] = mapped_column(JSON().with_variant(JSONB(), "postgresql"))
    duplicate: Mapped[bool]
    """Whether an answer with a smaller ``member`` in the group has the same text."""


class Event(Base):
    """A line of the journal."""

    __tablename__ = "events"
    __table_args__ = (Index("events_by_run", "run_id", "id"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    segment_id: Mapped[int | None] = mapped_column(_Id)
    at: Mapped[float]
    level: Mapped[str]
    code: Mapped[str]
    message: Mapped[str]
    update: Mapped[int | None]
    data: Mapped[dict[str, Any]]


class Artifact(Base):
    """A file that the run left: ``kind`` is model, adapter, checkpoint, observe or config. The
    first three have the ``update`` that they are of."""

    __tablename__ = "artifacts"
    __table_args__ = (UniqueConstraint("run_id", "path"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    kind: Mapped[str]
    path: Mapped[str]
    size: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    created_at: Mapped[float]
    update: Mapped[int | None]


class Request(Base):
    """What a person asked of a running run: stop, checkpoint, or evaluate."""

    __tablename__ = "requests"
    __table_args__ = (Index("requests_by_run", "run_id", "handled_at"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[int] = _of_run()
    kind: Mapped[str]
    created_at: Mapped[float]
    handled_at: Mapped[float | None]
