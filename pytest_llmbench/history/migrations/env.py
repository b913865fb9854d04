"""Alembic runs this file: the connection, and its transaction, are the caller's."""

from __future__ import annotations

from alembic import context

from pytest_llmbench.history.schema import METADATA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
