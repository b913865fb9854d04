"""Where a history may lie, how it is made ready, and what is said where it cannot be used."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from documents import document

from pytest_llmbench.errors import InputError
from pytest_llmbench.history import connect, schema
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]


def test_it_lies_in_the_storage_folder(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a" / "b") as store:
        assert store.url == f"sqlite:///{tmp_path}/a/b/history.sqlite"
    assert (tmp_path / "a" / "b" / "history.sqlite").is_file()


@pytest.mark.parametrize("given", ["{0}/there.db", "sqlite:///{0}/there.db", "sqlite:///file:{0}/there.db?uri=true"])
def test_a_path_or_a_url_may_be_given(tmp_path: Path, given: str) -> None:
    with Store.open(tmp_path / "storage", given.format(tmp_path)):
        assert (tmp_path / "there.db").is_file()
    assert not (tmp_path / "storage").exists()


def test_a_history_that_must_be_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no history yet"):
        Store.open(tmp_path / "no", create=False)
    assert not (tmp_path / "no").exists()


# ---- schema ----


def test_the_schema_after_all_migrations_is_that_of_the_tables(tmp_path: Path) -> None:
    engine = connect.connect(connect.parse(tmp_path / "h.sqlite"))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE, "compare_server_default": True}
        )
        assert compare_metadata(context, schema.METADATA) == []
        assert context.get_current_revision() == schema.REVISIONS[-1]
    engine.dispose()


def test_every_migration_is_known_without_alembic() -> None:
    config = Config()
    config.set_main_option("script_location", str(REPOSITORY / "pytest_llmbench" / "history" / "migrations"))
    config.set_main_option("path_separator", "os")
    found = [one.revision for one in ScriptDirectory.from_config(config).walk_revisions()]
    assert tuple(reversed(found)) == schema.REVISIONS


def test_a_current_store_opens_without_alembic(tmp_path: Path) -> None:
    Store.open(tmp_path).close()
    code = (
        "import sys\nfrom pathlib import Path\nfrom pytest_llmbench.history.store import Store\n"
        f"Store.open(Path({str(tmp_path)!r})).close()\nprint('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("alembic.ddl.impl.DefaultImpl.create_index", fail)  # five tables are made by then
        with pytest.raises(InputError, match="no space is left"):
            Store.open(tmp_path)
    assert tables(tmp_path / "history.sqlite") == []
    Store.open(tmp_path).close()
    assert schema.VERSION_TABLE in tables(tmp_path / "history.sqlite")


def tables(file: Path) -> list[str]:
    connection = sqlite3.connect(file)
    try:
        return [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
    finally:
        connection.close()


# ---- refusals ----


def newer(file: Path) -> None:
    Store.open(file.parent, file).close()
    execute(file, f"update {schema.VERSION_TABLE} set version_num = '0999'")


def execute(file: Path, statement: str) -> None:
    connection = sqlite3.connect(file)
    connection.execute(statement)
    connection.commit()
    connection.close()


def half(file: Path) -> None:
    Store.open(file.parent, file).close()
    content = bytearray(file.read_bytes())
    content[4096:] = b"\x07" * (len(content) - 4096)
    file.write_bytes(content)


def use(storage: Path, file: Path) -> None:
    with Store.open(storage, file) as store:
        store.sessions()
        store.record(document(1), "x")


CASES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "newer": (
        newer,
        "written by a newer pytest-llmbench: its schema is 0999, this version knows",
        "update pytest-llmbench",
    ),
    "not ours": (
        lambda file: execute(file, "create table moz_cookies (x)"),
        "something else: it has moz_cookies",
        "not there yet",
    ),
    "no database": (
        lambda file: file.write_text("Dear diary, " * 100),
        "not a SQLite database",
        "move this one away: then `llmbench history rebuild`",
    ),
    "damaged": (half, "the file is damaged", "llmbench history rebuild"),
    "a folder": (lambda file: file.mkdir(), "cannot be opened", "name another place"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_store_that_cannot_be_used_says_why_and_what_to_do(tmp_path: Path, case: str) -> None:
    prepare, reason, remedy = CASES[case]
    file = tmp_path / "h.sqlite"
    prepare(file)
    before = file.read_bytes() if file.is_file() else None
    with pytest.raises(InputError) as caught:
        use(tmp_path, file)
    text = str(caught.value)
    assert text.startswith(f"history = 'sqlite:///{file}': ")
    assert reason in text
    assert remedy in text
    if case in {"newer", "not ours", "no database"}:
        assert (file.read_bytes() if file.is_file() else None) == before


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="name another place"):
        Store.open(tmp_path / "file")


def test_a_store_that_may_only_be_read_can_be_read(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.record(document(1), "x")
    with Store.open(tmp_path, f"sqlite:///file:{tmp_path}/history.sqlite?mode=ro&uri=true") as store:
        assert len(store.sessions()) == 1
        with pytest.raises(InputError, match=r"may only be read .*\n.*writable"):
            store.record(document(2), "x")


@pytest.mark.parametrize("locked", ["file", "folder"])
def test_what_only_reads_opens_a_store_that_may_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    folder = tmp_path / "a b?#%"
    with Store.open(folder) as store:
        store.record(document(1), "x")
    monkeypatch.setattr(connect, "_may_write", lambda path: path.is_dir() != (locked == "folder"))  # root may write all
    with Store.open(folder, create=False, reads=True) as store:
        assert len(store.sessions()) == 1
        assert unquote(store.url) == f"sqlite:///{folder}/history.sqlite"
        with pytest.raises(InputError, match="may only be read"):
            store.record(document(2), "x")
    if locked == "folder":
        assert [one.name for one in folder.iterdir()] == ["history.sqlite"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_a_place_in_which_no_file_can_be_made_is_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no file can be made in /proc|may not be written"):
        connect.check(tmp_path, "/proc/no-such/h.sqlite")
    connect.check(tmp_path, str(tmp_path / "a" / "b" / "h.sqlite"))
    assert list(tmp_path.iterdir()) == []


def test_a_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    file = tmp_path / "of:2026" / "h?x.sqlite"
    Store.open(tmp_path, file).close()
    assert file.is_file()


def test_a_full_disk_loses_the_session_and_nothing_else(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        store.record(document(1), "x")
        with store._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
        with pytest.raises(InputError, match="no space is left"):
            store.record(document(2, problems=["much text" * 100_000]), "x")
        rows = store.sessions(limit=1000)
        assert [row.session for row in rows] == ["S0001"]


def test_a_store_that_stays_locked_is_named(tmp_path: Path) -> None:
    with Store.open(tmp_path, wait_s=0.1) as store:
        other = sqlite3.connect(tmp_path / "history.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputError, match="another process kept it locked"):
            store.record(document(1), "x")
        assert store.sessions() == []  # reading does not wait for a writer
        other.execute("ROLLBACK")
        other.close()
        assert store.record(document(1), "x")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("nosuchbase://x/y", "not a database URL that SQLAlchemy knows"),
        ("://", "not a database URL"),
        ("sqlite://", "a store in memory is gone"),
        ("sqlite:///:memory:", "a store in memory is gone"),
    ],
)
def test_a_url_that_is_none(tmp_path: Path, given: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Store.open(tmp_path, given)


@pytest.mark.parametrize(
    "given",
    [
        "postgresql+nosuchdriver://me:geheim@db/x",
        "nosuchbase://me:geheim@db/x",
        "mysql+pyodbc://me:geheim@db/x?sslpassword=geheim",
        "not a url at all://me:geheim@db",
        "postgresql://ann:s3cret@geheim@@localhost/db",
        "postgresql://ann:s3/cret@x/geheim@localhost/db",
        "postgresql:///ann:geheim@localhost/db",
        "postgresql:/ann:geheim@localhost/db",
        "postgresql:ann:geheim@localhost/db",
        "postgresql+psycopg:/ann:geheim@localhost/db",
        "PostgreSQL:/geheim",
        "postgrsql:/ann:geheim@localhost/db",
        "sqlite:/geheim.sqlite",
        "sqlite:////x/q.sqlite?password=geheim",
        "sqlite:////x/q.sqlite?timeout=geheim",
        "sqlite:////x/q.sqlite?mode=geheim",
        "sqlite://ann:geheim@host/q.sqlite",
        "ann:geheim@x://y",
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        Store.open(tmp_path, given)
    assert list(tmp_path.iterdir()) == []
    assert "geheim" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_what_is_shown_of_a_url() -> None:
    url = sa.make_url("postgresql://me:geheim@db:5432/x?sslpassword=geheim&connect_timeout=3")
    assert connect.shown(url) == "postgresql://me:***@db:5432/x?connect_timeout=3&sslpassword=%2A%2A%2A"
    with pytest.raises(InputError) as caught, connect.told(url):
        raise sa.exc.OperationalError("select", {}, Exception("no login with geheim for me\nline 2"))
    assert re.search(r"the database refused: no login with \*\*\* for me$", str(caught.value))


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg2", None)
    with pytest.raises(
        InputError, match=r"postgresql\+psycopg2://me:\*\*\*@db/x.*driver is not installed(.|\n)*pip install"
    ):
        connect.parse("postgresql+psycopg2://me:geheim@db/x")
