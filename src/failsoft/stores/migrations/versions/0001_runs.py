"""Runs, their events and tasks, and durations: the tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Makes the tables."""
    op.create_table(
        "runs",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("body_hash", sa.Text, nullable=False),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("session", sa.Text),
        sa.Column("request", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("budget", sa.Double, nullable=False),
        sa.Column("background", sa.Integer, nullable=False),
        sa.Column("first_node", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("snapshot", sa.Text, nullable=False),
        sa.Column("terminal", sa.Text),
        sa.Column("result", sa.Text),
    )
    op.create_index(
        "runs_by_key",
        "runs",
        [sa.text("coalesce(tenant, '')"), "idempotency_key"],
        unique=True,
        sqlite_where=sa.text("idempotency_key IS NOT NULL"),
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "events",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("task", sa.Text),
        sa.Column("data", sa.Text),
    )
    op.create_table(
        "tasks",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("task", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("value", sa.Text),
        sa.Column("provenance", sa.Text, nullable=False),
        sa.Column("started", sa.Double),
        sa.Column("ended", sa.Double),
    )
    op.create_table(
        "durations",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
    )
    op.create_index("durations_by_key", "durations", ["key", "id"])
