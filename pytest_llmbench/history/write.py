"""Into the tables: one session, or one acceptance, in the caller's transaction, with the baselines that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from pytest_llmbench import canonical
from pytest_llmbench.history import baselines as rules
from pytest_llmbench.history import schema as t
from pytest_llmbench.history.baselines import Candidate
from pytest_llmbench.history.canaries import unknown
from pytest_llmbench.history.entry import seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy.engine import Connection

    from pytest_llmbench.history.acceptance import Acceptance
    from pytest_llmbench.history.entry import CellLine, FigureLine, SessionEntry


def add(connection: Connection, entry: SessionEntry) -> bool:
    """Keep a session; False where it is there already (session and card)."""
    s = t.sessions.c
    known = sa.select(s.id).where(s.session == entry.session, s.card_id == entry.card_id)
    if connection.execute(known).first() is not None:
        return False
    if entry.canary is not None:
        return _add_canary(connection, entry)
    card = _shared(connection, t.cards, entry.card_key, identity=entry.card)
    machine = _shared(connection, t.machines, entry.machine_key, identity=entry.machine)
    facts = _shared(connection, t.attributes, canonical.sha256(entry.attributes), facts=entry.attributes)
    assert facts is not None
    session = _insert(
        connection,
        t.sessions,
        session=entry.session,
        card_id=entry.card_id,
        card=card,
        machine=machine,
        attributes=facts,
        started=entry.started,
        finished=entry.finished,
        complete=entry.complete,
        tool=entry.tool,
        folder=entry.folder,
        continues=entry.continues,
        plan_changes=entry.plan_changes or None,
        problems=list(entry.problems) or None,
    )
    admitted: list[tuple[int, FigureLine]] = []
    for line in entry.cells:
        cell = _shared(connection, t.cells, line.key, card=card, cell=line.cell, definition=line.definition)
        result = _insert(
            connection,
            t.results,
            session=session,
            cell=cell,
            machine=machine,
            started=entry.started,
            name=line.cell,
            part=line.part,
            status=line.status,
            reasons=list(line.reasons) or None,
            own=line.own,
            crashed=line.crashed,
            facts=line.facts,
            run_s=line.run_s,
            start_s=line.start_s,
        )
        if line.figures:
            connection.execute(sa.insert(t.figures), [figure_row(result, figure) for figure in line.figures])
        if cell is not None:
            figures = sorted(line.figures, key=lambda figure: figure.name)
            admitted += [(cell, figure) for figure in figures if _may_enter(line, figure)]
    if machine is not None:
        _collect(connection, machine, entry, facts, admitted)
    return True


def _add_canary(connection: Connection, entry: SessionEntry) -> bool:
    """A session with a planted slowdown: whole, and apart from those that baselines and marks are made of.

    Not where it was interrupted: then it says nothing.
    """
    if unknown(entry):
        return False
    c = t.canaries.c
    known = sa.select(c.id).where(c.session == entry.session, c.card_id == entry.card_id)
    if connection.execute(known).first() is not None:
        return False
    _insert(
        connection,
        t.canaries,
        session=entry.session,
        card_id=entry.card_id,
        machine_key=entry.machine_key,
        started=entry.started,
        entry=entry.model_dump(mode="json"),
    )
    return True


def _may_enter(line: CellLine, figure: FigureLine) -> bool:
    return figure.direction != "none" and rules.usable(own=line.own, status=line.status, median=figure.median)


def figure_row(result: int, figure: FigureLine) -> dict[str, Any]:
    """A figure as a row of its table."""
    low, high = figure.interval or (None, None)
    return {
        "result": result,
        "name": figure.name,
        "unit": figure.unit,
        "direction": figure.direction,
        "median": figure.median,
        "values": list(figure.values) or None,
        "verdict": figure.verdict,
        "reference": figure.reference,
        "change": figure.change,
        "interval_low": low,
        "interval_high": high,
        "resolves": figure.resolves,
        "sigma": figure.sigma,
        "again": list(figure.again) or None,
        "dip": figure.dip,
        "clear": figure.clear,
        "control": figure.control,
        "control_key": figure.control_key,
    }


def _insert(connection: Connection, table: sa.Table, **values: Any) -> int:
    key = connection.execute(sa.insert(table).values(**values)).inserted_primary_key
    assert key is not None
    return int(key[0])


def _shared(connection: Connection, table: sa.Table, key: str | None, **values: Any) -> int | None:
    """The id of what several sessions share, made where it is new; None where the key is unknown."""
    if key is None:
        return None
    found = connection.execute(sa.select(table.c.id).where(table.c.key == key)).scalar()
    return int(found) if found is not None else _insert(connection, table, key=key, **values)


# ---- baselines -------------------------------------------------------------------------------------------------------------


def _collect(
    connection: Connection, machine: int, entry: SessionEntry, facts: int, admitted: Sequence[tuple[int, FigureLine]]
) -> None:
    """Let the session's usable figures into the baselines that are still collecting."""
    b, a = t.baselines.c, t.acceptances.c
    rows = connection.execute(
        sa.select(b.id, b.cell, b.figure, b.pinned, a.since_started)
        .outerjoin_from(t.baselines, t.acceptances, b.acceptance == a.id)
        .where(b.cell.in_({cell for cell, _ in admitted}), b.machine == machine, b.current)
    )
    current = {(row.cell, row.figure): row for row in rows}
    for cell, figure in admitted:
        row = current.get((cell, figure.name))
        if row is not None and (row.pinned or entry.started < (row.since_started or "")):
            continue
        baseline = row.id if row is not None else None
        if baseline is None:
            baseline = _begin(connection, cell, machine, figure.name, figure.unit, figure.direction)
        assert figure.median is not None
        one = Candidate(entry.session, entry.started, seconds(entry.started), figure.median)
        admit(connection, baseline, [(one, facts)])


def _begin(
    connection: Connection,
    cell: int,
    machine: int,
    figure: str,
    unit: str,
    direction: str,
    *,
    number: int = 1,
    acceptance: int | None = None,
) -> int:
    return _insert(
        connection,
        t.baselines,
        cell=cell,
        machine=machine,
        figure=figure,
        unit=unit,
        direction=direction,
        number=number,
        current=True,
        pinned=False,
        k=0,
        acceptance=acceptance,
    )


def admit(connection: Connection, baseline: int, candidates: Iterable[tuple[Candidate, int]]) -> None:
    """Offer usable values, each with the id of its session's attributes, to a baseline that is still collecting."""
    m, b = t.members.c, t.baselines.c
    rows = connection.execute(
        sa.select(m.session, m.started, m.value).where(m.baseline == baseline).order_by(m.position)
    )
    before = [Candidate(row.session, row.started, seconds(row.started), row.value) for row in rows]
    offered = list(candidates)
    facts = {one.session: attributes for one, attributes in offered}
    after = rules.collect([one for one, _ in offered], before)
    for position, one in enumerate(after[len(before) :], len(before)):
        connection.execute(
            sa.insert(t.members).values(
                baseline=baseline,
                position=position,
                session=one.session,
                started=one.started,
                value=one.value,
                attributes=facts[one.session],
            )
        )
    direction = connection.execute(sa.select(b.direction).where(b.id == baseline)).scalar_one()
    connection.execute(
        sa.update(t.baselines)
        .where(b.id == baseline)
        .values(
            k=len(after),
            pinned=len(after) >= rules.COMPLETE,
            spread=rules.spread([one.value for one in after], direction),
        )
    )


def accept(connection: Connection, acceptance: Acceptance) -> bool:
    """Begin new baselines for the acceptance's cells, from its session on; False where it is there already."""
    if connection.execute(sa.select(t.acceptances.c.id).where(t.acceptances.c.key == acceptance.key)).first():
        return False
    machine = _shared(connection, t.machines, canonical.sha256(acceptance.machine), identity=acceptance.machine)
    assert machine is not None
    number = _insert(
        connection,
        t.acceptances,
        key=acceptance.key,
        card_id=acceptance.card_id,
        machine=machine,
        cells=acceptance.cells,
        who=acceptance.who,
        when=acceptance.when,
        why=acceptance.why,
        since=acceptance.since,
        since_started=acceptance.since_started,
        after=connection.execute(sa.select(sa.func.max(t.sessions.c.id))).scalar() or 0,
    )
    ids = connection.execute(sa.select(t.cells.c.id).where(t.cells.c.key.in_(acceptance.cells.values()))).scalars()
    for cell in sorted(ids):
        _renew(connection, cell, machine, acceptance.since_started, number)
    return True


def _renew(connection: Connection, cell: int, machine: int, since: str, acceptance: int) -> None:
    b, r, f, s = t.baselines.c, t.results.c, t.figures.c, t.sessions.c
    here = (b.cell == cell, b.machine == machine, b.current)
    old = connection.execute(sa.select(b.figure, b.unit, b.direction, b.number).where(*here)).all()
    connection.execute(sa.update(t.baselines).where(*here).values(current=False))
    rows = connection.execute(
        sa.select(s.session, s.started, s.attributes, r.status, r.own, f.name, f.median)
        .join_from(t.results, t.sessions, r.session == s.id)
        .join(t.figures, f.result == r.id)
        .where(r.cell == cell, r.machine == machine, r.own, r.started >= since)
        .order_by(s.finished, s.session, s.card_id)
    ).all()
    for figure, unit, direction, number in old:
        baseline = _begin(connection, cell, machine, figure, unit, direction, number=number + 1, acceptance=acceptance)
        admit(
            connection,
            baseline,
            [
                (Candidate(row.session, row.started, seconds(row.started), row.median), row.attributes)
                for row in rows
                if row.name == figure and rules.usable(own=row.own, status=row.status, median=row.median)
            ],
        )


def clear(connection: Connection) -> None:
    """Empty all tables, before a rebuild in the same transaction."""
    for table in reversed(t.METADATA.sorted_tables):
        connection.execute(sa.delete(table))
