"""What Alembic runs: the revisions on the connection that it was given, within the caller's transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=None,
    transactional_ddl=False,
    transaction_per_migration=False,
)
context.run_migrations()
