"""The history: every session in one place, and what the gate and the marks ask of it.

An index: the truth stays in the report documents, from which ``llmbench history rebuild`` makes it again.
"""

from __future__ import annotations

import getpass
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from pytest_llmbench.errors import InputError
from pytest_llmbench.files import now
from pytest_llmbench.gate.machine import machine_state
from pytest_llmbench.history import acceptance as acceptances
from pytest_llmbench.history import apart, connect, entry, exchange, keys, listing, read, rebuild, write
from pytest_llmbench.history import schema as t
from pytest_llmbench.history.acceptance import Acceptance
from pytest_llmbench.history.file import BaselineFile
from pytest_llmbench.history.rebuild import Rebuilt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from sqlalchemy.engine import Engine

    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.history.entry import SessionEntry
    from pytest_llmbench.history.exchange import Imported
    from pytest_llmbench.history.listing import SessionRow, Setup
    from pytest_llmbench.history.read import KeptBaseline, Tries
    from pytest_llmbench.records import Baseline, Outcome


class Store:
    """An open history. identity: always a contract's ``identity`` (``card_id``, ``card`` with ``cells``, ``machine``).

    Every method may raise InputError that names the store, the reason and the remedy. Not for several threads at once;
    several processes may write at once.
    """

    def __init__(self, engine: Engine, storage: Path) -> None:
        self._engine, self.storage = engine, storage

    @classmethod
    def open(
        cls,
        storage: Path,
        given: str | Path | None = None,
        *,
        create: bool = True,
        reads: bool = False,
        wait_s: float = connect.WAIT_S,
    ) -> Self:
        """Open the history; create or migrate it where it has to be.

        storage: the folder of the runs, and of ``acceptances.jsonl``. given: a database URL or a SQLite file's path; None:
        ``history.sqlite`` in storage. create=False: a SQLite file that is not there is an InputError. reads: nothing
        will be written: a SQLite file that may only be read will do. wait_s: how long a writer waits for another process.
        """
        storage = Path(os.path.expanduser(storage)).absolute()  # noqa: PTH111 - pathlib raises where there is no such user
        url = connect.parse(connect.default_place(storage) if given is None else given)
        file = connect.sqlite_file(url)
        if not create and file is not None and not file.exists():
            raise InputError(
                connect.FIELD, connect.shown(url), "there is no history yet", "measure a card, or name another place"
            )
        return cls(connect.connect(url, wait_s=wait_s, reads=reads), storage)

    @property
    def url(self) -> str:
        """Where it is, without a password."""
        return connect.shown(self._engine.url)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- writing ----

    def record(self, document: Mapping[str, Any], folder: Path | str) -> bool:
        """Keep a finished session. document: its report as JSON; folder: where it lies.

        False for a probe, which is never a measurement, for a direct comparison (--llmbench-against), whose cells stop when their
        values say so, and for a session and card that are kept already. Raises
        InputError for what is not a report.
        """
        if document.get("probe") or document.get("against"):
            return False
        return self.add([entry.of_document(document, self._place(folder))]) == 1

    def add(self, entries: Sequence[SessionEntry]) -> int:
        """Keep sessions, in this order, in one transaction; how many were new."""
        with connect.told(self._engine.url), connect.writing(self._engine) as connection:
            return sum(write.add(connection, one) for one in entries)

    def not_counted(self, document: Mapping[str, Any]) -> str | None:
        """Why a recorded session stayed out of baselines that still collect, in a line; None where it did not."""
        one = entry.of_document(document, "")
        found = [line.key for line in one.cells if line.key is not None]
        return apart.not_counted(one, self.baselines_by_key(found, one.machine_key)) if one.machine_key else None

    def accept(
        self,
        card_id: str,
        cells: Sequence[str] | None = None,
        *,
        why: str,
        who: str | None = None,
        when: str | None = None,
        since: str | None = None,
    ) -> Acceptance:
        """Begin new baselines: from a session on (itself included), what is measured is what is expected.

        cells: ids; None: all of that session. since: a session of this card; None: its last. It says which machine and
        which version of the card is meant. who, when: None: the user's name, and now (ISO 8601 UTC). Kept in the store and as a
        line of ``acceptances.jsonl`` in the storage folder. What the old baselines knew of the spread stays known.
        """
        if not why.strip():
            raise InputError("reason", why, "says nothing", "say why the new numbers are right")
        try:
            moment = entry.utc(when) if when else now()
        except ValueError:
            raise InputError("when", when, "not a time", "2026-12-01T03:04:05+00:00") from None
        with connect.told(self._engine.url), connect.writing(self._engine) as connection:
            one = self._acceptance(connection, card_id, cells, since, who or _user(), moment, why)
            if write.accept(connection, one):
                acceptances.append(self.storage, one)
        return one

    def _acceptance(
        self,
        connection: sa.Connection,
        card_id: str,
        cells: Sequence[str] | None,
        since: str | None,
        who: str,
        when: str,
        why: str,
    ) -> Acceptance:
        s, r, c, m = t.sessions.c, t.results.c, t.cells.c, t.machines.c
        query = sa.select(s.id, s.session, s.started, m.identity).join_from(t.sessions, t.machines, s.machine == m.id)
        query = query.where(s.card_id == card_id).order_by(s.started.desc(), s.id.desc())
        row = connection.execute(query.where(s.session == since) if since else query.limit(1)).first()
        if row is None:
            last = [one.session for one in connection.execute(query.limit(3))]
            raise InputError(
                "since" if since else "card",
                since or card_id,
                f"the history has no such session of card {card_id} (last: {', '.join(last) or 'none'})",
                "name one of `llmbench history`",
            )
        found = connection.execute(
            sa.select(c.cell, c.key).join_from(t.results, t.cells, r.cell == c.id).where(r.session == row.id)
        )
        known: dict[str, str] = {one.cell: one.key for one in found}
        for cell in cells or ():
            if cell not in known:
                raise InputError("cell", cell, f"not in session {row.session}", f"one of {', '.join(known)}")
        return Acceptance(
            card_id=card_id,
            cells={cell: key for cell, key in sorted(known.items()) if cells is None or cell in cells},
            machine=row.identity,
            who=who,
            when=when,
            why=why.strip(),
            since=row.session,
            since_started=row.started,
        )

    def _place(self, folder: Path | str) -> str:
        """A run's folder, relative to the storage where it lies in it: a storage may be moved."""
        path = Path(folder).absolute()
        return path.relative_to(self.storage).as_posix() if path.is_relative_to(self.storage) else path.as_posix()

    # ---- asking ----

    def baselines_of(self, identity: Mapping[str, Any]) -> dict[tuple[str, str], Baseline]:
        """The current baseline of every figure of this identity's cells on its machine, by (cell, figure)."""
        return {(one.cell, one.figure): one.baseline for one in self.kept_baselines(identity)}

    def kept_baselines(self, identity: Mapping[str, Any]) -> list[KeptBaseline]:
        """The same with unit, direction, spread, and who accepted it."""
        return self.baselines_by_key(list(keys.cell_keys(identity).values()), keys.machine_key(identity))

    def baselines_by_key(self, cell_keys: Sequence[str], machine_key: str) -> list[KeptBaseline]:
        """The same by keys."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return read.baselines(connection, cell_keys, machine_key)

    def machine_state(self, identity: Mapping[str, Any], limit: int) -> Machine | None:
        """How far the machine itself moves between sessions, learned from this identity's figures; None: not known."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            cells = list(keys.cell_keys(identity).values())
            return machine_state(*read.series(connection, cells, keys.machine_key(identity), limit))

    def outcomes(self, cell_key: str, machine_key: str, figure: str, limit: int = 10) -> tuple[Outcome, ...]:
        """The last outcomes of one figure, oldest first. Sessions that took the cell over from an earlier one are not in it."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return read.outcomes(connection, cell_key, machine_key, figure, limit)

    def first_with_control(
        self, cell_key: str, machine_key: str, figure: str, control_key: str, *, since: str, limit: int
    ) -> tuple[Outcome, ...]:
        """The first outcomes of one figure that this control stood beside, from ``since`` on, oldest first."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return read.first_with_control(connection, cell_key, machine_key, figure, control_key, since, limit)

    def other_machines(self, identity: Mapping[str, Any], limit: int = 8) -> tuple[str, ...]:
        """Why sessions of this card say nothing here: what differs, at most ``limit`` lines of plain words.

        Empty where this identity has sessions of its own on this machine, and where the card has none at all.
        """
        with connect.told(self._engine.url), self._engine.connect() as connection:
            if read.known(connection, identity):
                return ()
            found = listing.setups(connection, identity["card_id"])
        lines: list[str] = []
        for one in found[:3]:
            count = f"{one.sessions} session{'s' if one.sessions > 1 else ''}"
            lines.append(f"{count} of this card until {one.last[:10]} had:")
            lines += [f"  {line}" for line in keys.differences(one.identity, identity) or ("no cell in common",)]
        return keys.capped(lines, limit)

    def changed_since(
        self, identity: Mapping[str, Any], cell: str, figure: str, environment: Mapping[str, Any]
    ) -> tuple[str, ...]:
        """What differs between the sessions of a figure's baseline and now: ``engine b12223 -> b12301``, a line each.

        environment: as in a report document (``machine``, ``engine``, ``software``).
        """
        with connect.told(self._engine.url), self._engine.connect() as connection:
            before = read.attributes_of(connection, keys.cell_key(identity, cell), keys.machine_key(identity), figure)
        return keys.changes(before, keys.attributes(environment))

    def facts_of(self, cell_key: str, machine_key: str, sessions: Sequence[str]) -> list[dict[str, Any]]:
        """What was around a cell's figures in these sessions (``gate.facts``), oldest first."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return read.cell_facts(connection, cell_key, machine_key, sessions)

    def tries(self, cell_key: str, machine_key: str, figure: str, limit: int = 50) -> list[Tries]:
        """The last usable sessions of a figure with their runs, fresh starts and durations, oldest first."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return read.tries(connection, cell_key, machine_key, figure, limit)

    def canaries(self, card_id: str, machine_key: str) -> list[SessionEntry]:
        """The sessions of a card on a machine in which a slowdown was planted, oldest first."""
        c = t.canaries.c
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return exchange.canaries(connection, c.card_id == card_id, c.machine_key == machine_key)

    def sessions(self, limit: int = 20, card_id: str | None = None) -> list[SessionRow]:
        """The last sessions, newest first."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return listing.sessions(connection, limit, card_id)

    def entries_of(self, session: str) -> list[SessionEntry]:
        """A session as it was recorded, one entry a card; empty where it is unknown."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return exchange.of_session(connection, session)

    def setups(self, card_id: str | None = None) -> list[Setup]:
        """Every card identity on every machine that the history knows, the one measured last first."""
        with connect.told(self._engine.url), self._engine.connect() as connection:
            return listing.setups(connection, card_id)

    def baseline_file(self, identity: Mapping[str, Any]) -> BaselineFile:
        """The current baselines of an identity as a file to commit."""
        kept = self.kept_baselines(identity)
        with connect.told(self._engine.url), self._engine.connect() as connection:
            cells = list(keys.cell_keys(identity).values())
            facts = read.facts_of(connection, cells, keys.machine_key(identity))
        return BaselineFile.of(identity, kept, facts)

    # ---- as a whole ----

    def export_to(self, place: Path | TextIO) -> int:
        """Write everything as lines of JSON, in the order in which it was recorded; how many lines. A path's file: atomic."""
        if isinstance(place, Path):
            with connect.told(self._engine.url), self._engine.connect() as connection:
                return exchange.write_lines(connection, place)
        with self._engine.connect() as connection:  # what the reader of a pipe does is no fault of the database
            return exchange.write_to(connection, place)

    def import_from(self, path: Path) -> Imported:
        """Add what an export holds and this store does not; all of it or, where a line is wrong, nothing."""
        for _ in exchange.read_lines(path):
            pass  # every line is right before the first is kept
        with connect.told(self._engine.url), connect.writing(self._engine) as connection:
            return exchange.put(connection, exchange.read_lines(path), self.storage)

    def rebuild(self) -> Rebuilt:
        """Make the index again from the reports under the storage folder and the file of acceptances, in order of time.

        A session whose report is gone is kept as the old index has it. One transaction: readers see the old index until the
        new one is complete; other writers wait.
        """
        found = rebuild.look(self.storage, self._place)
        reports = {(one.session, one.card_id) for one in found.sessions}
        accepted = {one.key for one in found.acceptances}
        with connect.told(self._engine.url), connect.writing(self._engine) as connection:
            old = [
                one
                for one in exchange.entries(connection)
                if (
                    one.key not in accepted
                    if isinstance(one, Acceptance)
                    else (one.session, one.card_id) not in reports
                )
            ]
            write.clear(connection)
            items = rebuild.timeline([*found.sessions, *found.acceptances, *old])
            done = exchange.put(connection, items, None)
        kept = sum(not isinstance(one, Acceptance) for one in old)
        return Rebuilt(found, done.sessions, done.acceptances, kept)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container whose user has no name
        return f"user {os.getuid()}"
