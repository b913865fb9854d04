"""The history's migrations (Alembic), run by ``history.connect`` when a store is older than this version."""
