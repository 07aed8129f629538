"""How long a run lay still before it went on. Of runs of before it is added up from their
stretches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_GAPS = """
UPDATE runs SET idle_seconds = coalesce((
    SELECT sum(later.started_at - earlier.ended_at)
    FROM segments AS later JOIN segments AS earlier
    ON earlier.run_id = later.run_id AND earlier.number = later.number - 1
    WHERE later.run_id = runs.id AND earlier.ended_at < later.started_at
), 0.0)
"""


def upgrade() -> None:
    op.add_column("runs", sa.Column("idle_seconds", sa.Float(), nullable=False, server_default="0"))
    op.execute(_GAPS)
