"""Out of the tables: lists of sessions and setups, for people."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from pytest_llmbench.history import keys
from pytest_llmbench.history import schema as t

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One line of the list of sessions. verdicts: how many figures have which (``in_words``); statuses: how many cells."""

    session: str
    card_id: str
    started: str
    machine: str
    complete: bool
    folder: str
    verdicts: Mapping[str, int]
    statuses: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Setup:
    """A card on a machine, as the history knows them. identity: as in a contract, with every cell measured there.

    sessions: how many; last: when the last one started.
    """

    card_id: str
    sessions: int
    last: str
    identity: dict[str, Any]


def setups(connection: Connection, card_id: str | None = None) -> list[Setup]:
    """Every card identity on every machine, the one measured last first."""
    s, k, m = t.sessions.c, t.cards.c, t.machines.c
    groups = sa.select(s.card_id, s.card, s.machine, sa.func.count().label("n"), sa.func.max(s.started).label("last"))
    groups = groups.where(s.card.is_not(None), s.machine.is_not(None)).group_by(s.card_id, s.machine, s.card)
    if card_id is not None:
        groups = groups.where(s.card_id == card_id)
    each = groups.subquery()
    rows = connection.execute(
        sa.select(each, k.identity.label("card_identity"), m.identity.label("machine_identity"))
        .join_from(each, t.cards, k.id == each.c.card)
        .join(t.machines, m.id == each.c.machine)
        .order_by(each.c.last.desc())
    ).all()
    return [
        Setup(
            row.card_id,
            row.n,
            row.last,
            {
                "card_id": row.card_id,
                "card": row.card_identity | {"cells": _cells(connection, row.card_id, row.card, row.machine)},
                "machine": row.machine_identity,
            },
        )
        for row in rows
    ]


def _cells(connection: Connection, card_id: str, card: int, machine: int) -> dict[str, Any]:
    """The definitions of the cells that a card measured on a machine; of two of one name the later one.

    Another card of the same identity (a control of the same model and arguments) has cells of its own.
    """
    c, r, s = t.cells.c, t.results.c, t.sessions.c
    last = (
        sa.select(sa.func.max(r.started))
        .join_from(t.results, t.sessions, r.session == s.id)
        .where(r.cell == c.id, r.machine == machine, s.card_id == card_id)
        .scalar_subquery()
    )
    rows = connection.execute(sa.select(c.cell, c.definition, last.label("last")).where(c.card == card)).all()
    return {row.cell: row.definition for row in sorted((row for row in rows if row.last), key=lambda row: row.last)}


def in_words(verdict: str, reference: float | None) -> str:
    """A verdict for a list: a figure that was compared with nothing (a control's) is not called ok."""
    return "not compared" if verdict == "ok" and reference is None else verdict


def sessions(connection: Connection, limit: int, card_id: str | None = None) -> list[SessionRow]:
    """The last sessions, newest first."""
    s, m, r, f = t.sessions.c, t.machines.c, t.results.c, t.figures.c
    query = sa.select(t.sessions, m.identity).outerjoin_from(t.sessions, t.machines, s.machine == m.id)
    if card_id is not None:
        query = query.where(s.card_id == card_id)
    rows = connection.execute(query.order_by(s.started.desc(), s.id.desc()).limit(limit)).all()
    ids = [row.id for row in rows]
    statuses: dict[int, Counter[str]] = {}
    for session, status in connection.execute(sa.select(r.session, r.status).where(r.session.in_(ids))):
        statuses.setdefault(session, Counter())[status] += 1
    verdicts: dict[int, Counter[str]] = {}
    judged = (
        sa.select(r.session, f.verdict, f.reference)
        .join_from(t.results, t.figures, f.result == r.id)
        .where(r.session.in_(ids), f.verdict.is_not(None))
    )
    for session, verdict, reference in connection.execute(judged):
        verdicts.setdefault(session, Counter())[in_words(verdict, reference)] += 1
    return [
        SessionRow(
            row.session,
            row.card_id,
            row.started,
            keys.machine_label(row.identity),
            row.complete,
            row.folder,
            verdicts.get(row.id, Counter()),
            statuses.get(row.id, Counter()),
        )
        for row in rows
    ]
