"""Opening the database: settings of SQLite, migrations, errors in plain words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.util.exc import CommandError
from sqlalchemy.exc import SQLAlchemyError

from pyhetsched.errors import StoreError

_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_MS = 2000


class Database:
    """The open database; every method of the store works in one of its transactions.

    ``url`` is SQLAlchemy's. Raises `StoreError` when it cannot be opened or was written by a newer hetsched.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._engine = sa.create_engine(url)
        except (SQLAlchemyError, ModuleNotFoundError) as error:
            raise StoreError(f"the database URL {url!r} cannot be used: {error}") from error
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _set_up_sqlite)
        self._migrate()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Yield a connection whose work is committed at the end, or undone on any error (`StoreError`)."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(f"the database {self._where()} failed: {_first_line(error)}") from error

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _migrate(self) -> None:
        config = AlembicConfig()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        config.set_main_option("version_path_separator", "os")
        with self.transaction() as connection:
            config.attributes["connection"] = connection
            try:
                command.upgrade(config, "head")
            except CommandError as error:
                raise StoreError(
                    f"the database {self._where()} was written by a newer hetsched ({error}); "
                    "restore the copy made before the upgrade, or run the newer version"
                ) from error

    def _where(self) -> str:
        return self._engine.url.render_as_string(hide_password=True)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # FULL: a reservation that was announced must survive a power cut, for an instance may exist because of it.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.close()


def _first_line(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0]
