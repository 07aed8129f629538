"""A name of each run that its checkpoints have too. Runs of before have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("uuid", sa.Text(), nullable=False, server_default=""))
