"""Approvals, intents of actions, leases; when a run ended and how many nodes died with it."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Adds the columns and tables; runs that had ended get the time by which they must have."""
    op.add_column("runs", sa.Column("ended", sa.Double))
    op.add_column("runs", sa.Column("deaths", sa.Integer, nullable=False, server_default=sa.text("0")))
    op.add_column("runs", sa.Column("details", sa.Integer, nullable=False, server_default=sa.text("1")))
    op.execute("UPDATE runs SET ended = created + budget WHERE terminal IS NOT NULL")
    unended, in_session = sa.text("terminal IS NULL"), sa.text("session IS NOT NULL")
    op.create_index("runs_unended", "runs", ["node"], sqlite_where=unended, postgresql_where=unended)
    for name, condition in (
        ("", "session IS NULL AND idempotency_key IS NULL"),
        ("_keyed", "session IS NULL AND idempotency_key IS NOT NULL"),
        ("_in_session", "session IS NOT NULL"),
        ("_detailed", "details = 1"),
    ):
        where = sa.text(f"ended IS NOT NULL AND {condition}")
        op.create_index(f"runs_by_end{name}", "runs", ["ended"], sqlite_where=where, postgresql_where=where)
    for name in ("runs_by_time", "runs_by_tenant", "runs_by_session"):  # which some files have already, in some form
        op.drop_index(name, if_exists=True)
    op.create_index("runs_by_tenant", "runs", ["tenant", "run"])
    op.create_index(
        "runs_by_session",
        "runs",
        ["tenant", "session", "run"],
        sqlite_where=in_session,
        postgresql_where=in_session,
    )
    op.create_table(
        "approvals",
        sa.Column("approval", sa.Text, primary_key=True),
        sa.Column("run", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("arguments", sa.Text, nullable=False),
        sa.Column("arguments_hash", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=False),
        sa.Column("tenant", sa.Text),
        sa.Column("agent", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("resolved", sa.Double),
        sa.Column("resolved_by", sa.Text),
        sa.Column("note", sa.Text, nullable=False),
    )
    op.create_index("approvals_by_run", "approvals", ["run"])
    op.create_table(
        "actions",
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("tool", sa.Text, nullable=False),
        sa.Column("task", sa.Text, nullable=False),
        sa.Column("arguments_hash", sa.Text, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("ended", sa.Integer, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("until", sa.Double, nullable=False),
    )
