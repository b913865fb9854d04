"""Out of the tables: what the gate and the marks ask."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from pytest_llmbench.history import baselines as rules
from pytest_llmbench.history import keys
from pytest_llmbench.history import schema as t
from pytest_llmbench.records import Baseline, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy.engine import Connection

    from pytest_llmbench.records import Direction


@dataclass(frozen=True, slots=True)
class KeptBaseline:
    """A current baseline with what it is of. unit, direction: the figure's; spread: s, None under 3 sessions.

    started: when each of its sessions started.
    """

    cell: str
    cell_key: str
    machine_key: str
    figure: str
    unit: str
    direction: Direction
    spread: float | None
    baseline: Baseline
    started: tuple[str, ...]
    accepted_by: str | None = None
    accepted_when: str | None = None


@dataclass(frozen=True, slots=True)
class Tries:
    """One usable session of a figure. runs: its own runs' values; again: medians on fresh servers; seconds as in CellLine."""

    median: float
    runs: tuple[float, ...]
    again: tuple[float, ...]
    run_s: float | None
    start_s: float | None


def baselines(connection: Connection, cell_keys: Sequence[str], machine_key: str) -> list[KeptBaseline]:
    """The current baselines of these cells on this machine, by cell and figure."""
    b, c, a, m = t.baselines.c, t.cells.c, t.acceptances.c, t.machines.c
    rows = connection.execute(
        sa.select(
            b.id, c.cell, c.key, b.figure, b.unit, b.direction, b.pinned, b.spread, a.who, a.when, a.why, b.machine
        )
        .join_from(t.baselines, t.cells, b.cell == c.id)
        .join(t.machines, b.machine == m.id)
        .outerjoin(t.acceptances, b.acceptance == a.id)
        .where(c.key.in_(cell_keys), m.key == machine_key, b.current)
        .order_by(c.cell, b.figure)
    ).all()
    if not rows:
        return []
    members: dict[int, list[Any]] = {}
    e = t.members.c
    for one in connection.execute(
        sa.select(e.baseline, e.session, e.started, e.value)
        .where(e.baseline.in_([row.id for row in rows]))
        .order_by(e.started, e.position)
    ):
        members.setdefault(one.baseline, []).append(one)
    typical = sigma0s(connection, rows[0].machine, {row.figure for row in rows})
    found = []
    for row in rows:
        mine = members.get(row.id, [])
        baseline = Baseline(
            values=tuple(one.value for one in mine),
            sessions=tuple(one.session for one in mine),
            since=mine[0].started if mine else "",
            until=mine[-1].started if mine else "",
            pinned=row.pinned,
            sigma0=typical.get(row.figure),
            accepted=row.why,
        )
        found.append(
            KeptBaseline(
                row.cell,
                row.key,
                machine_key,
                row.figure,
                row.unit,
                row.direction,
                row.spread,
                baseline,
                tuple(one.started for one in mine),
                row.who,
                row.when,
            )
        )
    return found


def sigma0s(connection: Connection, machine: int, figures: set[str]) -> dict[str, float]:
    """The typical spread of figures of each name on a machine, baselines that were followed by a new one included."""
    b = t.baselines.c
    spreads: dict[str, list[float]] = {}
    for figure, spread in connection.execute(
        sa.select(b.figure, b.spread).where(
            b.machine == machine, b.figure.in_(figures), b.k >= rules.LEARNT, b.spread.is_not(None)
        )
    ):
        spreads.setdefault(figure, []).append(spread)
    return {figure: typical for figure, known in spreads.items() if (typical := rules.sigma0(known)) is not None}


@cache
def _outcomes_query() -> sa.Select[Any]:
    # Built once: the gate asks it for every figure, and building it costs more than the answer.
    s, r, f = t.sessions.c, t.results.c, t.figures.c
    cell = sa.select(t.cells.c.id).where(t.cells.c.key == sa.bindparam("cell")).scalar_subquery()
    machine = sa.select(t.machines.c.id).where(t.machines.c.key == sa.bindparam("machine")).scalar_subquery()
    last = (
        sa.select(r.id, r.session, r.started, r.status, r.crashed)
        .where(r.cell == cell, r.machine == machine, r.own.is_(True))
        .order_by(r.started.desc(), r.id.desc())
        .limit(sa.bindparam("limit"))
        .subquery()
    )
    return (
        sa.select(*_outcome_columns(last.c.started, last.c.status, last.c.crashed))
        .join_from(last, t.sessions, last.c.session == s.id)
        .outerjoin(t.figures, sa.and_(f.result == last.c.id, f.name == sa.bindparam("figure")))
        .order_by(last.c.started, last.c.id)
    )


def outcomes(connection: Connection, cell_key: str, machine_key: str, figure: str, limit: int) -> tuple[Outcome, ...]:
    """The last sessions' outcomes of one figure, oldest first; only a session's own results."""
    asked = {"cell": cell_key, "machine": machine_key, "figure": figure, "limit": limit}
    return tuple(_outcome(row) for row in connection.execute(_outcomes_query(), asked))


def first_with_control(
    connection: Connection, cell_key: str, machine_key: str, figure: str, control_key: str, since: str, limit: int
) -> tuple[Outcome, ...]:
    """The first sessions' outcomes of one figure that this control stood beside, from ``since`` on, oldest first."""
    s, r, f, c, m = t.sessions.c, t.results.c, t.figures.c, t.cells.c, t.machines.c
    query = (
        sa.select(*_outcome_columns(r.started, r.status, r.crashed))
        .join_from(t.results, t.sessions, r.session == s.id)
        .join(t.figures, sa.and_(f.result == r.id, f.name == figure))
        .where(r.cell == sa.select(c.id).where(c.key == cell_key).scalar_subquery())
        .where(r.machine == sa.select(m.id).where(m.key == machine_key).scalar_subquery())
        .where(r.own.is_(True), r.started >= since, f.control_key == control_key, f.control.is_not(None))
        .order_by(r.started, r.id)
        .limit(limit)
    )
    return tuple(_outcome(row) for row in connection.execute(query))


def _outcome_columns(*of_result: sa.ColumnElement[Any]) -> list[sa.ColumnElement[Any]]:
    """What ``_outcome`` reads; of_result: when it started, its status, and whether it crashed."""
    f = t.figures.c
    figure = [f.verdict, f.reference, f.change, f.sigma, f.dip, f.clear, f.control, f.control_key]
    return [t.sessions.c.session, *of_result, f.median, f["values"].label("runs"), *figure]


def _outcome(row: Any) -> Outcome:
    return Outcome(
        session=row.session,
        started=row.started,
        usable=rules.usable(own=True, status=row.status, median=row.median),
        disturbed=row.status == "disturbed",
        crashed=row.crashed,
        verdict=row.verdict,
        value=row.median,
        values=tuple(row.runs or ()),
        reference=row.reference,
        change=row.change,
        sigma=row.sigma,
        dip=bool(row.dip),
        clear=row.clear,
        control=row.control,
        control_key=row.control_key,
    )


def series(
    connection: Connection, cell_keys: Sequence[str], machine_key: str, limit: int
) -> tuple[list[tuple[dict[str, float], Direction]], list[dict[str, tuple[float, ...]]]]:
    """The judged figures of these cells by session, since their current baselines began; at most ``limit`` sessions each.

    With them, in the same order, what fresh servers gave for suspects, by session.

    Sessions in which a figure was found to have moved are left out whole: what a slower setup does to all of its figures
    is no movement of the machine.
    """
    r, s, f, c, m, b, e = (
        t.results.c,
        t.sessions.c,
        t.figures.c,
        t.cells.c,
        t.machines.c,
        t.baselines.c,
        t.members.c,
    )
    machine = sa.select(m.id).where(m.key == machine_key).scalar_subquery()
    query = (
        sa.select(b.cell, sa.func.min(e.started))
        .join_from(t.baselines, t.members, e.baseline == b.id)
        .join(t.cells, b.cell == c.id)
        .where(c.key.in_(cell_keys), b.machine == machine, b.current)
        .group_by(b.cell)
    )
    began: dict[int, str] = {row[0]: row[1] for row in connection.execute(query)}
    found: dict[tuple[int, str], tuple[dict[str, float], Direction]] = {}
    again: dict[tuple[int, str], dict[str, tuple[float, ...]]] = {}
    moved: set[str] = set()
    for cell, since in began.items():
        last = (
            sa.select(r.id, r.session)
            .where(r.cell == cell, r.machine == machine, r.own.is_(True), r.started >= since)
            .where(r.status.in_(rules.USABLE))
            .order_by(r.started.desc(), r.id.desc())
            .limit(limit)
            .subquery()
        )
        for row in connection.execute(
            sa.select(s.session, f.name, f.direction, f.median, f.verdict, f.again)
            .join_from(last, t.sessions, last.c.session == s.id)
            .join(t.figures, f.result == last.c.id)
            .where(f.verdict.is_not(None), f.median > 0)
        ):
            if row.verdict in {"regressed", "improved"}:
                moved.add(row.session)
            found.setdefault((cell, row.name), ({}, row.direction))[0][row.session] = row.median
            again.setdefault((cell, row.name), {})[row.session] = tuple(row.again or ())
    kept = [
        ({session: value for session, value in values.items() if session not in moved}, direction)
        for values, direction in found.values()
    ]
    return kept, [
        {session: starts for session, starts in again[place].items() if starts and session not in moved}
        for place in found
    ]


def facts_of(connection: Connection, cell_keys: Sequence[str], machine_key: str) -> dict[str, dict[str, Any]]:
    """The attributes of every session that is in a current baseline of these cells, by session."""
    b, c, m, e, a = t.baselines.c, t.cells.c, t.machines.c, t.members.c, t.attributes.c
    rows = connection.execute(
        sa.select(e.session, a.facts)
        .join_from(t.baselines, t.cells, b.cell == c.id)
        .join(t.machines, b.machine == m.id)
        .join(t.members, e.baseline == b.id)
        .join(t.attributes, e.attributes == a.id)
        .where(c.key.in_(cell_keys), m.key == machine_key, b.current)
    )
    return {row.session: row.facts for row in rows}


def cell_facts(
    connection: Connection, cell_key: str, machine_key: str, sessions: Sequence[str]
) -> list[dict[str, Any]]:
    """What was around a cell's figures in these sessions, oldest first; those that kept nothing are left out."""
    r, s, c, m = t.results.c, t.sessions.c, t.cells.c, t.machines.c
    rows = connection.execute(
        sa.select(r.facts)
        .join_from(t.results, t.sessions, r.session == s.id)
        .join(t.cells, r.cell == c.id)
        .join(t.machines, r.machine == m.id)
        .where(c.key == cell_key, m.key == machine_key, s.session.in_(sessions))
        .order_by(r.started, r.id)
    ).scalars()
    return [one for one in rows if one]


def tries(connection: Connection, cell_key: str, machine_key: str, figure: str, limit: int) -> list[Tries]:
    """The last usable sessions of a figure, oldest first."""
    r, f, c, m = t.results.c, t.figures.c, t.cells.c, t.machines.c
    rows = connection.execute(
        sa.select(f.median, f["values"].label("runs"), f.again, r.run_s, r.start_s)
        .join_from(t.results, t.figures, f.result == r.id)
        .join(t.cells, r.cell == c.id)
        .join(t.machines, r.machine == m.id)
        .where(c.key == cell_key, m.key == machine_key, f.name == figure, r.own)
        .where(r.status.in_(rules.USABLE), f.median > 0)
        .order_by(r.started.desc(), r.id.desc())
        .limit(limit)
    ).all()
    return [
        Tries(row.median, tuple(row.runs or ()), tuple(row.again or ()), row.run_s, row.start_s)
        for row in reversed(rows)
    ]


def attributes_of(connection: Connection, cell_key: str, machine_key: str, figure: str) -> list[dict[str, Any]]:
    """The different attributes of the sessions in a current baseline, oldest first."""
    b, c, m, e, a = t.baselines.c, t.cells.c, t.machines.c, t.members.c, t.attributes.c
    rows = connection.execute(
        sa.select(a.facts, sa.func.min(e.started).label("first"))
        .join_from(t.baselines, t.cells, b.cell == c.id)
        .join(t.machines, b.machine == m.id)
        .join(t.members, e.baseline == b.id)
        .join(t.attributes, e.attributes == a.id)
        .where(c.key == cell_key, m.key == machine_key, b.figure == figure, b.current)
        .group_by(a.id, a.facts)
        .order_by(sa.text("first"))
    )
    return [row.facts for row in rows]


def known(connection: Connection, identity: Mapping[str, Any]) -> bool:
    """Whether any cell of this identity was measured on its machine."""
    r, c, m = t.results.c, t.cells.c, t.machines.c
    cell = sa.select(c.id).where(c.key.in_(keys.cell_keys(identity).values()))
    machine = sa.select(m.id).where(m.key == keys.machine_key(identity)).scalar_subquery()
    query = sa.select(r.id).where(r.cell.in_(cell), r.machine == machine).limit(1)
    return connection.execute(query).first() is not None
