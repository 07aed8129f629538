"""The first schema: runs, what their monitors told, and what people asked of them."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# A row of the index is the row of the table with the same id, whose text is not kept twice.
SQLITE_INDEX = """
CREATE VIRTUAL TABLE {table}_fts USING fts5(
    text, content='{table}', content_rowid='id', tokenize='unicode61 remove_diacritics 2'
);
CREATE TRIGGER {table}_fts_in AFTER INSERT ON {table} WHEN new.text IS NOT NULL BEGIN
    INSERT INTO {table}_fts (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER {table}_fts_out AFTER DELETE ON {table} WHEN old.text IS NOT NULL BEGIN
    INSERT INTO {table}_fts ({table}_fts, rowid, text) VALUES ('delete', old.id, old.text);
END
"""

# The index of a longer text would not fit into the megabyte that the server allows it.
POSTGRESQL_INDEX = """
CREATE INDEX {table}_by_words ON {table}
USING gin (to_tsvector('simple', left(coalesce(text, ''), 100000)))
"""


def upgrade() -> None:
    _metric_names()
    _runs()
    _artifacts()
    _events()
    _metrics()
    _prompts()
    _requests()
    _segments()
    _updates()
    _groups()
    _answers()
    for table in ("answers", "prompts"):
        _words_of(table)


def _words_of(table: str) -> None:
    """The full-text index of the column ``text``. No text is ever changed, so there is no trigger
    for that."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(POSTGRESQL_INDEX.format(table=table))
        return
    for statement in re.split(r";\n(?=CREATE)", SQLITE_INDEX.format(table=table)):
        op.execute(statement)


def _metric_names() -> None:
    op.create_table(
        "metric_names",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("algorithm", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("config_path", sa.Text(), nullable=False),
        sa.Column("config_text", sa.Text(), nullable=False),
        sa.Column("output", sa.Text(), nullable=False),
        sa.Column("params", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("provenance", sa.JSON(), nullable=False),
        sa.Column("planned", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("stage_done", sa.Integer(), nullable=False),
        sa.Column("stage_total", sa.Integer(), nullable=False),
        sa.Column("last_reward", sa.Float(), nullable=True),
        sa.Column("last_evaluation", sa.Float(), nullable=True),
        sa.Column("seconds_per_update", sa.Float(), nullable=True),
        sa.Column("sparkline", sa.JSON(), nullable=False),
        sa.Column("findings", sa.JSON(), nullable=False),
        sa.Column("audited", sa.JSON(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("pulse", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("queued_at", sa.Float(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("heartbeat_at", sa.Float(), nullable=True),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("process_started_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("runs_by_status", "runs", ["status"], unique=False)
    op.create_index("runs_by_time", "runs", ["created_at"], unique=False)


def _artifacts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("update", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "path"),
    )


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("segment_id", ID, nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("update", sa.Integer(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("events_by_run", "events", ["run_id", "id"], unique=False)


def _metrics() -> None:
    op.create_table(
        "metrics",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("segment_id", ID, nullable=False),
        sa.Column("name_id", ID, nullable=False),
        sa.Column("update", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["name_id"],
            ["metric_names.id"],
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "metrics_by_name",
        "metrics",
        ["run_id", "name_id", "update", "segment_id", "value", "id"],
        unique=False,
    )


def _prompts() -> None:
    op.create_table(
        "prompts",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "key"),
    )


def _requests() -> None:
    op.create_table(
        "requests",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("handled_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("requests_by_run", "requests", ["run_id", "handled_at"], unique=False)


def _segments() -> None:
    op.create_table(
        "segments",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("resumed_from", sa.Integer(), nullable=True),
        sa.Column("visible_until", sa.Integer(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("run_id", "number"),
    )


def _updates() -> None:
    op.create_table(
        "updates",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("segment_id", ID, nullable=False),
        sa.Column("update", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("answers", sa.Integer(), nullable=False),
        sa.Column("trained", sa.Integer(), nullable=False),
        sa.Column("reward_mean", sa.Float(), nullable=True),
        sa.Column("reward_min", sa.Float(), nullable=True),
        sa.Column("reward_max", sa.Float(), nullable=True),
        sa.Column("rewards", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("updates_by_run", "updates", ["run_id", "kind", "update"], unique=False)


def _groups() -> None:
    op.create_table(
        "groups",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("segment_id", ID, nullable=False),
        sa.Column("update", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("prompt_id", ID, nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("trained", sa.Integer(), nullable=False),
        sa.Column("reward_mean", sa.Float(), nullable=False),
        sa.Column("reward_min", sa.Float(), nullable=False),
        sa.Column("reward_max", sa.Float(), nullable=False),
        sa.Column("spread", sa.Float(), nullable=False),
        sa.Column("tokens_mean", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["prompt_id"], ["prompts.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("groups_by_prompt", "groups", ["prompt_id"], unique=False)
    op.create_index(
        "groups_by_update", "groups", ["run_id", "kind", "update", "number"], unique=False
    )


def _answers() -> None:
    op.create_table(
        "answers",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("segment_id", ID, nullable=False),
        sa.Column("group_id", ID, nullable=False),
        sa.Column("update", sa.Integer(), nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("chars", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("truncated", sa.Boolean(), nullable=False),
        sa.Column("reward", sa.Float(), nullable=False),
        sa.Column("reward_raw", sa.Float(), nullable=False),
        sa.Column("judge_term", sa.Float(), nullable=False),
        sa.Column("judge_words", sa.Text(), nullable=True),
        sa.Column("parts", sa.JSON(), nullable=False),
        sa.Column("advantage", sa.Float(), nullable=False),
        sa.Column("trained", sa.Boolean(), nullable=False),
        sa.Column("skip_reason", sa.Text(), nullable=True),
        sa.Column("audit", sa.JSON().with_variant(JSONB(), "postgresql"), nullable=False),
        sa.Column("duplicate", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["group_id"], ["groups.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("answers_by_group", "answers", ["group_id"], unique=False)
    op.create_index("answers_by_run", "answers", ["run_id", "id"], unique=False)
    op.create_index(
        "answers_by_reward",
        "answers",
        [
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
        ],
        unique=False,
    )
