"""A place for the history, made ready: URL, SQLite's settings, the schema's version, and errors that say what to do."""

from __future__ import annotations

import os
import re
import sqlite3
import tempfile
import time
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

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
_SECRET = re.compile(r"pass|pwd|secret|token|key|cred|auth|odbc", re.IGNORECASE)
# What a SQLite URL may ask for: of Python's module, and with uri=true of SQLite itself.
_SQLITE = {"uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"}
_SQLITE_URI = {"mode", "cache", "immutable", "vfs", "nolock", "psow", "modeof"}
_EXAMPLE = "sqlite:////folder/history.sqlite, or a path"
# No path, but a URL mistyped: a known database, or a name and a password.
_SCHEME = re.compile(r"\s*([A-Za-z][\w+.-]+):")
_DATABASES = {"sqlite", "postgresql", "postgres", "mysql", "mariadb", "oracle", "mssql", "cockroachdb", "duckdb"}


def default_place(storage: Path) -> Path:
    """Where the history lies unless somebody says otherwise: ``history.sqlite`` in the storage folder."""
    return storage.absolute() / "history.sqlite"


def parse(given: str | Path) -> URL:
    """A database URL, or the path of a SQLite file, as a URL. Raises InputError; a password is never in its text."""
    text = str(given)
    scheme = _scheme(text)
    if "://" not in text:
        if scheme is not None:
            raise InputError(FIELD, f"{scheme}:…", "not a database URL: // must follow the colon", _EXAMPLE)
        return URL.create("sqlite", database=str(Path(os.path.expanduser(text)).absolute()))  # noqa: PTH111 - pathlib raises where there is no such user
    hidden = f"{scheme or '…'}://…"
    try:
        url = make_url(text)
        if url.get_backend_name() != "sqlite" and "@" in f"{url.host}{url.database}":
            # What follows the first @ may be the rest of a password.
            raise InputError(FIELD, hidden, "has more than one @", "write %40 for an @ within a name or a password")
        url.get_dialect().import_dbapi()
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError):
        raise InputError(FIELD, hidden, "not a database URL that SQLAlchemy knows", _EXAMPLE) from None
    except ImportError as missing:
        raise InputError(
            FIELD, shown(url), f"its driver is not installed: {missing}", f"pip install {missing.name or 'the driver'}"
        ) from None
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InputError(FIELD, "sqlite://", "a store in memory is gone when the session ends", "name a file")
    if url.get_backend_name() == "sqlite" and url.get_driver_name() == "pysqlite":
        _check_sqlite(url)
    return url


def _scheme(text: str) -> str | None:
    """The scheme of what is a URL, or was meant as one; None for a path."""
    found = _SCHEME.match(text)
    if found is None:
        return None
    rest = text[found.end() :]
    meant = found[1].partition("+")[0].lower() in _DATABASES or "@" in rest or rest.startswith("//")
    return found[1] if meant else None


def _check_sqlite(url: URL) -> None:
    """Refuse what its driver would not take; its own message would show the value."""
    may = _SQLITE | (_SQLITE_URI if str(url.query.get("uri")).lower() in {"true", "1", "yes", "on"} else set())
    plain = URL.create("sqlite", database=url.database).render_as_string()
    unknown = sorted(set(url.query) - may)
    if unknown:
        wants_uri = set(unknown) <= _SQLITE_URI
        reason = (
            f"its query has {', '.join(unknown)}, which SQLite does not know{' without uri=true' if wants_uri else ''}"
        )
        raise InputError(FIELD, plain, reason, f"leave it out; it may have {', '.join(sorted(may))}")
    try:
        url.get_dialect()().create_connect_args(url)
    except (exc.ArgumentError, ValueError, TypeError):
        reason = "has a user or a host" if url.host or url.username else "its query has a value that SQLite cannot use"
        raise InputError(FIELD, "sqlite://…" if url.host or url.username else plain, reason, _EXAMPLE) from None


def shown(url: URL) -> str:
    """The URL as it may be printed: no password, neither in its place nor in the query."""
    query = {name: "***" if _SECRET.search(name) else value for name, value in url.query.items()}
    return url.set(query=query).render_as_string(hide_password=True)


def sqlite_file(url: URL) -> Path | None:
    """The file of a SQLite URL, also of the form ``file:…?uri=true``; None for a server."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path((url.database or "").removeprefix("file:"))


def connect(url: URL, *, wait_s: float = WAIT_S, reads: bool = False) -> Engine:
    """An engine whose schema is the one of this version: created or migrated where it was not.

    wait_s: how long a writer waits for another. reads: nothing will be written, so that a SQLite file that may not be
    written is good enough. Raises InputError naming URL, reason and remedy.
    """
    file = sqlite_file(url)
    only_read = _only_read(file) if reads and file is not None and not url.query else None
    with told(url):
        if file is not None and only_read is None:
            file.parent.mkdir(parents=True, exist_ok=True)
        if only_read is None:
            engine = sa.create_engine(url)
        else:
            address = only_read
            engine = sa.create_engine(url, creator=lambda: sqlite3.connect(address, uri=True, check_same_thread=False))
        if file is not None:
            _prepare_sqlite(engine, wait_s)
        try:
            with engine.connect() as connection:
                current = _is_current(connection, url)
            if not current:
                _migrate(engine, url, wait_s)
        except TypeError:  # a driver's own way to refuse an argument that it does not know
            engine.dispose()
            if not url.query:
                raise
            names = ", ".join(sorted(url.query))
            raise InputError(FIELD, shown(url), f"its driver does not take {names}", "correct the query") from None
        except BaseException:
            engine.dispose()
            raise
    return engine


def _only_read(file: Path) -> str | None:
    """SQLite's own URI for a file that is there and that this user may not write; None where it may be written."""
    if not file.exists() or (_may_write(file) and _may_write(file.parent)):
        return None
    # A reader needs files beside it, unless SQLite is told that nobody writes. Where a writer left its own, they are used.
    quiet = not _may_write(file.parent) and not any(
        file.with_name(f"{file.name}{one}").exists() for one in ("-wal", "-shm")
    )
    return f"file:{quote(str(file.absolute()))}?mode=ro{'&immutable=1' if quiet else ''}"


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK | (os.X_OK if path.is_dir() else 0))


def check(storage: Path, given: str | None) -> None:
    """Refuse, before anything is measured, a history that cannot be used; one that is not there yet is not made.

    storage, given: as ``Store.open`` takes them. Raises InputError.
    """
    url = parse(default_place(storage) if given is None else given)
    file = sqlite_file(url)
    try:
        if file is None or file.exists():
            connect(url).dispose()
            return
        there = next(folder for folder in file.parents if folder.exists())
    except OSError as error:  # a folder that may not be looked into, a name that is too long
        raise InputError(FIELD, shown(url), f"cannot be used: {error.strerror}", "name another place") from None
    reason = ""
    if not there.is_dir():
        reason = f"{there} is a file, not a folder"
    elif not _may_write(there):
        reason = f"{there} may not be written by this user"
    else:
        try:  # rights are not all: /proc, and a full or a read-only disk
            with tempfile.NamedTemporaryFile(dir=there, prefix=".llmbench-"):
                pass
        except OSError as error:
            reason = f"no file can be made in {there}: {error.strerror or error}"
    if reason:
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
    (
        "not a database",
        "not a SQLite database",
        "name another file, or move this one away: then `llmbench history rebuild` makes a new one from the reports",
    ),
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
    secrets = [url.password, *(value for name, value in url.query.items() if _SECRET.search(name))]
    for one in secrets:
        if isinstance(one, str) and one:
            text = text.replace(one, "***")
    return text
