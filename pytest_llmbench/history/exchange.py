"""A history as lines of JSON: to move it, merge it, keep it. What sessions share is written once, before its first use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import ValidationError

from pytest_llmbench import __version__, canonical
from pytest_llmbench.errors import InputError
from pytest_llmbench.files import replacing
from pytest_llmbench.history import acceptance as acceptances
from pytest_llmbench.history import schema as t
from pytest_llmbench.history import write
from pytest_llmbench.history.acceptance import Acceptance
from pytest_llmbench.history.entry import CellLine, FigureLine, SessionEntry, why

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import TextIO

    from sqlalchemy.engine import Connection

FORMAT = 1
_BATCH = 500
# kind of a line: where its content belongs in a session, or in a cell
_SHARED = {"card": "card", "machine": "machine", "attributes": "attributes", "cell": "definition"}


@dataclass(frozen=True, slots=True)
class Imported:
    """How many sessions and acceptances were new, and how many were there already."""

    sessions: int
    acceptances: int
    known: int


def entries(connection: Connection) -> Iterator[SessionEntry | Acceptance]:
    """Everything that was recorded, in the order in which it was."""
    waiting = _acceptances(connection)
    last, done = 0, False
    while not done:
        batch = list(_sessions(connection, t.sessions.c.id > last))
        for number, one in batch:
            while waiting and waiting[0][0] < number:
                yield waiting.pop(0)[1]
            yield one
            last = number
        done = len(batch) < _BATCH
    yield from (one for _, one in waiting)
    yield from canaries(connection)


def canaries(connection: Connection, *which: sa.ColumnElement[bool]) -> list[SessionEntry]:
    """Sessions with a planted slowdown, oldest first."""
    c = t.canaries.c
    rows = connection.execute(sa.select(c.entry).where(*which).order_by(c.started, c.id)).scalars()
    return [SessionEntry.model_validate(one) for one in rows]


def _acceptances(connection: Connection) -> list[tuple[int, Acceptance]]:
    a, m = t.acceptances.c, t.machines.c
    rows = connection.execute(
        sa.select(t.acceptances, m.identity).join_from(t.acceptances, t.machines, a.machine == m.id).order_by(a.id)
    )
    return [
        (
            row.after,
            Acceptance(
                card_id=row.card_id,
                cells=row.cells,
                machine=row.identity,
                who=row.who,
                when=row.when,
                why=row.why,
                since=row.since,
                since_started=row.since_started,
            ),
        )
        for row in rows
    ]


def of_session(connection: Connection, session: str) -> list[SessionEntry]:
    """A session as it was recorded, one entry a card."""
    found = [one for _, one in _sessions(connection, t.sessions.c.session == session)]
    return [*found, *canaries(connection, t.canaries.c.session == session)]


def _sessions(connection: Connection, which: sa.ColumnElement[bool]) -> Iterator[tuple[int, SessionEntry]]:
    s, k, m, a = t.sessions.c, t.cards.c, t.machines.c, t.attributes.c
    rows = connection.execute(
        sa.select(
            t.sessions,
            k.key.label("card_key"),
            k.identity,
            m.key.label("machine_key"),
            m.identity.label("host"),
            a.facts,
        )
        .join_from(t.sessions, t.attributes, s.attributes == a.id)
        .outerjoin(t.cards, s.card == k.id)
        .outerjoin(t.machines, s.machine == m.id)
        .where(which)
        .order_by(s.id)
        .limit(_BATCH)
    ).all()
    cells = _cells(connection, [row.id for row in rows])
    for row in rows:
        yield (
            row.id,
            SessionEntry(
                session=row.session,
                card_id=row.card_id,
                started=row.started,
                finished=row.finished,
                complete=row.complete,
                tool=row.tool,
                folder=row.folder,
                continues=row.continues,
                plan_changes=row.plan_changes or {},
                problems=row.problems or (),
                attributes=row.facts,
                card_key=row.card_key,
                card=row.identity,
                machine_key=row.machine_key,
                machine=row.host,
                cells=tuple(cells.get(row.id, ())),
            ),
        )


def _cells(connection: Connection, sessions: list[int]) -> dict[int, list[CellLine]]:
    r, c, f = t.results.c, t.cells.c, t.figures.c
    rows = connection.execute(
        sa.select(t.results, c.key, c.definition)
        .outerjoin_from(t.results, t.cells, r.cell == c.id)
        .where(r.session.in_(sessions))
        .order_by(r.id)
    ).all()
    figures: dict[int, list[FigureLine]] = {}
    for one in connection.execute(
        sa.select(t.figures, f["values"].label("runs"))
        .join_from(t.figures, t.results, f.result == r.id)
        .where(r.session.in_(sessions))
        .order_by(f.result, f.name)
    ):
        figures.setdefault(one.result, []).append(
            FigureLine(
                name=one.name,
                unit=one.unit,
                direction=one.direction,
                median=one.median,
                values=one.runs or (),
                verdict=one.verdict,
                reference=one.reference,
                change=one.change,
                interval=None if one.interval_low is None else (one.interval_low, one.interval_high),
                resolves=one.resolves,
                sigma=one.sigma,
                again=one.again or (),
                dip=one.dip,
                clear=one.clear,
                control=one.control,
                control_key=one.control_key,
            )
        )
    found: dict[int, list[CellLine]] = {}
    for row in rows:
        found.setdefault(row.session, []).append(
            CellLine(
                cell=row.name,
                part=row.part,
                status=row.status,
                reasons=row.reasons or (),
                key=row.key,
                definition=row.definition,
                own=row.own,
                crashed=row.crashed,
                facts=row.facts,
                run_s=row.run_s,
                start_s=row.start_s,
                figures=tuple(figures.get(row.id, ())),
            )
        )
    return found


# ---- lines -----------------------------------------------------------------------------------------------------------------


def lines(connection: Connection) -> Iterator[str]:
    """The export, line by line."""
    yield _line({"llmbench_history": FORMAT, "tool": f"pytest-llmbench {__version__}"})
    written: set[str] = set()

    def share(kind: str, content: dict[str, Any] | None) -> Iterator[str]:
        if content is not None and (key := canonical.sha256(content)) not in written:
            written.add(key)
            yield _line({"kind": kind, "key": key, "content": content})

    for one in entries(connection):
        if isinstance(one, Acceptance):
            yield _line({"kind": "acceptance", **one.model_dump(mode="json")})
            continue
        yield from share("card", one.card)
        yield from share("machine", one.machine)
        yield from share("attributes", one.attributes)
        for cell in one.cells:
            yield from share("cell", cell.definition)
        yield _line({"kind": "session", **_short(one)})


def write_lines(connection: Connection, path: Path) -> int:
    """Write the export to a file, which is the old one or the whole new one; how many lines."""
    try:
        with replacing(path) as file:
            return write_to(connection, file)
    except OSError as exc:
        raise InputError("file", str(path), exc.strerror or str(exc), "name another place") from None


def write_to(connection: Connection, file: TextIO) -> int:
    """Write the export to an open file; how many lines."""
    count = 0
    for line in lines(connection):
        file.write(line)
        count += 1
    return count


def _short(one: SessionEntry) -> dict[str, Any]:
    """A session with the keys of what it shares in its place."""
    content = one.model_dump(mode="json", exclude_defaults=True)
    for name in ("card", "machine"):
        if content.pop(name, None) is not None:
            content[name] = canonical.sha256(getattr(one, name))
    content["attributes"] = canonical.sha256(one.attributes)
    for line, cell in zip(content.get("cells", ()), one.cells, strict=True):
        if cell.definition is not None:
            line["definition"] = canonical.sha256(cell.definition)
    return content


def _line(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"


def read_lines(path: Path) -> Iterator[SessionEntry | Acceptance]:
    """What a file of lines holds. Raises InputError that names the line."""
    shared: dict[str, Any] = {}
    number = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                content = json.loads(line)
                if number == 1:
                    _check_head(content, path)
                    continue
                kind = content.pop("kind")
                if kind == "session":
                    yield _session(content, shared)
                elif kind == "acceptance":
                    yield Acceptance.model_validate(content)
                elif kind in _SHARED:
                    if canonical.sha256(content["content"]) != content["key"]:
                        raise ValueError(f"the {kind} was changed: its key is not that of its content")  # noqa: TRY301
                    shared[content["key"]] = content["content"]
                else:
                    raise ValueError(f"unknown kind {kind!r}")  # noqa: TRY301
    except OSError as exc:
        raise InputError(
            "file", str(path), exc.strerror or str(exc), "name a file of `llmbench history export`"
        ) from None
    except (ValidationError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise InputError("file", str(path), f"line {number}: {why(exc)}", "export the history again") from None
    if number == 0:
        raise InputError("file", str(path), "is empty", "name a file of `llmbench history export`")


def _check_head(content: Any, path: Path) -> None:
    found = content.get("llmbench_history") if isinstance(content, dict) else None
    if found != FORMAT:
        raise InputError(
            "file",
            str(path),
            "not an export of a history" if found is None else f"has format {found}, this version reads {FORMAT}",
            "name a file of `llmbench history export`",
        )


def _session(content: dict[str, Any], shared: dict[str, Any]) -> SessionEntry:
    for name in ("card", "machine", "attributes"):
        if name in content:
            content[name] = shared[content[name]]
    for cell in content.get("cells", ()):
        if "definition" in cell:
            cell["definition"] = shared[cell["definition"]]
    return SessionEntry.model_validate(content)


# ---- into a store ------------------------------------------------------------------------------------------------------------


def put(
    connection: Connection,
    items: Iterator[SessionEntry | Acceptance] | list[SessionEntry | Acceptance],
    storage: Path | None,
) -> Imported:
    """Add what is not there yet, in this order. storage: where new acceptances are written down too; None: they are."""
    sessions = accepted = known = 0
    for one in items:
        if isinstance(one, Acceptance):
            new = write.accept(connection, one)
            accepted += new
            if new and storage is not None:
                acceptances.append(storage, one)
        else:
            new = write.add(connection, one)
            sessions += new
        known += not new
    return Imported(sessions, accepted, known)
