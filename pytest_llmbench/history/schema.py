"""The tables of the history. A change here needs a migration beside it; a test holds both equal.

``cards``, ``machines``, ``cells``, ``attributes``: what sessions share, each once, by the hash of its JSON.
``sessions`` → ``results`` (a cell of a session) → ``figures``: the index of the report documents.
``canaries``: sessions with a planted slowdown, whole and apart; nothing else is made of them.
``baselines`` → ``members``: computed from them as they are recorded; members hold copies, so that nothing moves a pinned one.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

# Every revision that this version knows, oldest first: read without Alembic, which costs 0.2 s.
REVISIONS = ("0001",)
VERSION_TABLE = "llmbench_version"

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

cards = Table(
    "cards",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("identity", JSON, nullable=False),
)
machines = Table(
    "machines",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("identity", JSON, nullable=False),
)
cells = Table(
    "cells",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("card", Integer, ForeignKey("cards.id"), nullable=False, index=True),
    Column("cell", String(200), nullable=False),
    Column("definition", JSON, nullable=False),
)
attributes = Table(
    "attributes",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("facts", JSON, nullable=False),
)
sessions = Table(
    "sessions",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("session", String(100), nullable=False),
    Column("card_id", String(200), nullable=False),
    Column("card", Integer, ForeignKey("cards.id")),
    Column("machine", Integer, ForeignKey("machines.id")),
    Column("attributes", Integer, ForeignKey("attributes.id"), nullable=False),
    Column("started", String(32), nullable=False, index=True),
    Column("finished", String(32), nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("tool", String(100), nullable=False),
    Column("folder", Text, nullable=False),
    Column("continues", JSON(none_as_null=True)),
    Column("plan_changes", JSON(none_as_null=True)),
    Column("problems", JSON(none_as_null=True)),
    UniqueConstraint("session", "card_id"),
    Index(None, "card_id", "machine", "card", "started"),
)
results = Table(
    "results",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("session", Integer, ForeignKey("sessions.id"), nullable=False, index=True),
    Column("cell", Integer, ForeignKey("cells.id")),
    Column("machine", Integer, ForeignKey("machines.id")),
    Column("started", String(32), nullable=False),
    Column("name", String(200), nullable=False),
    Column("part", String(50), nullable=False),
    Column("status", String(20), nullable=False),
    Column("reasons", JSON(none_as_null=True)),
    Column("own", Boolean, nullable=False),
    Column("crashed", Boolean, nullable=False),
    Column("facts", JSON(none_as_null=True)),
    Column("run_s", Float),
    Column("start_s", Float),
    Index(None, "cell", "machine", "own", "started"),
)
figures = Table(
    "figures",
    METADATA,
    Column("result", Integer, ForeignKey("results.id"), primary_key=True),
    Column("name", String(50), primary_key=True),
    Column("unit", String(30), nullable=False),
    Column("direction", String(10), nullable=False),
    Column("median", Float),
    Column("values", JSON(none_as_null=True)),
    Column("verdict", String(20)),
    Column("reference", Float),
    Column("change", Float),
    Column("interval_low", Float),
    Column("interval_high", Float),
    Column("resolves", Float),
    Column("sigma", Float),
    Column("again", JSON(none_as_null=True)),
    Column("dip", Boolean, nullable=False),
    Column("clear", Boolean),
    Column("control", Float),
    Column("control_key", String(64)),
    sqlite_with_rowid=False,
)
acceptances = Table(
    "acceptances",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("card_id", String(200), nullable=False),
    Column("machine", Integer, ForeignKey("machines.id"), nullable=False),
    Column("cells", JSON, nullable=False),
    Column("who", String(200), nullable=False),
    Column("when", String(32), nullable=False),
    Column("why", Text, nullable=False),
    Column("since", String(100), nullable=False),
    Column("since_started", String(32), nullable=False),
    Column("after", Integer, nullable=False),  # the last session's id then: an export keeps to the order
)
baselines = Table(
    "baselines",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("cell", Integer, ForeignKey("cells.id"), nullable=False),
    Column("machine", Integer, ForeignKey("machines.id"), nullable=False),
    Column("figure", String(50), nullable=False),
    Column("unit", String(30), nullable=False),
    Column("direction", String(10), nullable=False),
    Column("number", Integer, nullable=False),
    Column("current", Boolean, nullable=False),
    Column("pinned", Boolean, nullable=False),
    Column("k", Integer, nullable=False),
    Column("spread", Float),
    Column("acceptance", Integer, ForeignKey("acceptances.id")),
    UniqueConstraint("cell", "machine", "figure", "number"),
    Index(None, "machine", "figure", "k"),
)
members = Table(
    "members",
    METADATA,
    Column("baseline", Integer, ForeignKey("baselines.id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("session", String(100), nullable=False),
    Column("started", String(32), nullable=False),
    Column("value", Float, nullable=False),
    Column("attributes", Integer, ForeignKey("attributes.id"), nullable=False),
)
canaries = Table(
    "canaries",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("session", String(100), nullable=False),
    Column("card_id", String(200), nullable=False),
    Column("machine_key", String(64)),
    Column("started", String(32), nullable=False),
    Column("entry", JSON, nullable=False),
    UniqueConstraint("session", "card_id"),
    Index(None, "card_id", "machine_key", "started"),
)
