"""A place for the history, made ready: URL, SQLite's settings, the schema's version, and errors that say what to do."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.engine import URL, Connection, Engine, make_url

from pytest_llmbench.errors import InputError
from pytest_llmbench.history.schema import REVISIONS, VERSION_TABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

FIELD = "history"
WAIT_S = 60.0
_WRITE = "llmbench_write"
_SECRET = re.compile(r"pass|secret|token|key", re.IGNORECASE)


def default_url(storage: Path) -> str:
    """Where the history lies unless somebody says otherwise: ``history.sqlite`` in the storage folder."""
    return f"sqlite:///{(storage / 'history.sqlite').absolute()}"


def parse(given: str | Path) -> URL:
    """A database URL, or the path of a SQLite file, as a URL. Raises InputError; a password is never in its text."""
    text = str(given)
    if "://" not in text:
        return make_url(f"sqlite:///{Path(text).expanduser().absolute()}")
    try:
        url = make_url(text)
        url.get_dialect().import_dbapi()
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError):
        scheme = text.partition("://")[0]
        raise InputError(
            FIELD,
            f"{scheme}://…",
            "not a database URL that SQLAlchemy knows",
            "sqlite:////folder/history.sqlite, or a path",
        ) from None
    except ImportError as missing:
        raise InputError(
            FIELD, shown(url), f"its driver is not installed: {missing}", f"pip install {missing.name or 'the driver'}"
        ) from None
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InputError(FIELD, text, "a store in memory is gone when the session ends", "name a file")
    return url


def shown(url: URL) -> str:
    """The URL as it may be printed: no password, neither in its place nor in the query."""
    query = {name: "***" if _SECRET.search(name) else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite URL, also of the form ``file:…?uri=true``; None for a server."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path((url.database or "").removeprefix("file:"))


def connect(url: URL, *, wait_s: float = WAIT_S) -> Engine:
    """An engine whose schema is the one of this version: created or migrated where it was not.

    wait_s: how long a writer waits for another. Raises InputError naming URL, reason and remedy.
    """
    file = sqlite_file(url)
    with told(url):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        engine = sa.create_engine(url)
        if file is not None:
            _prepare_sqlite(engine, wait_s)
        try:
            with engine.connect() as connection:
                current = _is_current(connection, url)
            if not current:
                _migrate(engine, url, wait_s)
        except BaseException:
            engine.dispose()
            raise
    return engine


def check(storage: Path, given: str | None) -> None:
    """Refuse, before anything is measured, a history that cannot be used; one that is not there yet is not made.

    storage, given: as ``Store.open`` takes them. Raises InputError.
    """
    url = parse(default_url(storage) if given is None else given)
    file = sqlite_file(url)
    if file is None or file.exists():
        connect(url).dispose()
        return
    there = next(folder for folder in file.parents if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = f"{there} may not be written by this user" if there.is_dir() else f"{there} is a file, not a folder"
        raise InputError(FIELD, shown(url), reason, "name another place")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One short transaction that writes. On SQLite it takes the write lock at its start, so it cannot fail half way."""
    with engine.connect().execution_options(**{_WRITE: True}) as connection, connection.begin():
        yield connection


def _prepare_sqlite(engine: Engine, wait_s: float) -> None:
    @event.listens_for(engine, "connect")
    def opened(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # BEGIN is ours: the module's own begins too late, and not before DDL
        for pragma in (f"busy_timeout={int(wait_s * 1000)}", "foreign_keys=ON", "synchronous=NORMAL"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _is_current(connection: Connection, url: URL) -> bool:
    """Whether the schema is this version's; without Alembic. Raises InputError for a newer one, and for one not ours."""
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return False
    if VERSION_TABLE not in tables:
        raise InputError(
            FIELD,
            shown(url),
            f"a database of something else: it has {', '.join(sorted(tables)[:4])}",
            "name a file or database that is empty, or not there yet",
        )
    found: list[str] = list(
        connection.execute(sa.select(sa.column("version_num")).select_from(sa.table(VERSION_TABLE))).scalars()
    )
    unknown = [version for version in found if version not in REVISIONS]
    if unknown:
        raise InputError(
            FIELD,
            shown(url),
            f"written by a newer pytest-llmbench: its schema is {unknown[0]}, this version knows {REVISIONS[-1]}",
            "update pytest-llmbench, or name another store",
        )
    return found == [REVISIONS[-1]]


def _migrate(engine: Engine, url: URL, wait_s: float) -> None:
    """Bring the schema up to date, in one transaction that only one process at a time is in."""
    from alembic import command  # noqa: PLC0415 - 0.2 s, and only a new or an older store needs it
    from alembic.config import Config  # noqa: PLC0415

    if url.get_backend_name() == "sqlite":
        _write_ahead(engine, wait_s)
    config = Config()
    config.set_main_option("script_location", str(files("pytest_llmbench.history.migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    with writing(engine) as connection:  # another process may have been first: then there is nothing left to do
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _write_ahead(engine: Engine, wait_s: float) -> None:
    """Readers beside a writer. SQLite does not wait for its lock here, so we do."""
    until = time.monotonic() + wait_s
    raw = engine.raw_connection()
    try:
        while True:
            try:
                raw.cursor().execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as busy:
                if "locked" not in str(busy) or time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return
    finally:
        raw.close()


# ---- errors ----------------------------------------------------------------------------------------------------------------

_REASONS: tuple[tuple[str, str, str], ...] = (
    # part of the message, reason, remedy
    ("not a database", "not a SQLite database", "name another file, or move this one away"),
    (
        "malformed",
        "the file is damaged",
        "move it away, then `llmbench history rebuild` makes a new one from the reports",
    ),
    ("readonly", "may only be read", "make file and folder writable, or name another place"),
    (
        "disk is full",
        "no space is left",
        "free some; the raw files are kept, and `llmbench history rebuild` reads them",
    ),
    (
        "locked",
        "another process kept it locked",
        "see which one has it open; on a network file system use a local disk",
    ),
    ("unable to open", "cannot be opened", "see that the folder exists and may be written, or name another place"),
    ("disk i/o error", "reading or writing failed", "see the disk's health; on a network file system use a local disk"),
)


@contextmanager
def told(url: URL) -> Iterator[None]:
    """Turn what a database raises into one InputError that names URL, reason and remedy."""
    try:
        yield
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        text = str(getattr(error, "orig", None) or error).partition("\n")[0]
        for part, reason, remedy in _REASONS:
            if part in text.lower():
                raise InputError(FIELD, shown(url), f"{reason} ({text})", remedy) from None
        raise InputError(FIELD, shown(url), f"the database refused: {_hidden(text, url)}", "") from None
    except OSError as error:
        raise InputError(FIELD, shown(url), f"{error.strerror or error}", "name another place") from None


def _hidden(text: str, url: URL) -> str:
    return text.replace(url.password, "***") if isinstance(url.password, str) and url.password else text
