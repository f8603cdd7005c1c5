"""Alembic's revisions of the schema, applied when the daemon opens its database."""
