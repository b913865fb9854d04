"""The first tables.

Revision 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision: str | None = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attributes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_attributes"),
        sa.UniqueConstraint("key", name="uq_attributes_key"),
    )
    op.create_table(
        "cards",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_cards"),
        sa.UniqueConstraint("key", name="uq_cards_key"),
    )
    op.create_table(
        "machines",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("identity", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_machines"),
        sa.UniqueConstraint("key", name="uq_machines_key"),
    )
    op.create_table(
        "acceptances",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("card_id", sa.String(length=200), nullable=False),
        sa.Column("machine", sa.Integer(), nullable=False),
        sa.Column("cells", sa.JSON(), nullable=False),
        sa.Column("who", sa.String(length=200), nullable=False),
        sa.Column("when", sa.String(length=32), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("since", sa.String(length=100), nullable=False),
        sa.Column("since_started", sa.String(length=32), nullable=False),
        sa.Column("after", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["machine"], ["machines.id"], name="fk_acceptances_machine"),
        sa.PrimaryKeyConstraint("id", name="pk_acceptances"),
        sa.UniqueConstraint("key", name="uq_acceptances_key"),
    )
    op.create_table(
        "cells",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("card", sa.Integer(), nullable=False),
        sa.Column("cell", sa.String(length=200), nullable=False),
        sa.Column("definition", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["card"], ["cards.id"], name="fk_cells_card"),
        sa.PrimaryKeyConstraint("id", name="pk_cells"),
        sa.UniqueConstraint("key", name="uq_cells_key"),
    )
    op.create_index("ix_cells_card", "cells", ["card"], unique=False)
    op.create_table(
        "sessions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session", sa.String(length=100), nullable=False),
        sa.Column("card_id", sa.String(length=200), nullable=False),
        sa.Column("card", sa.Integer(), nullable=True),
        sa.Column("machine", sa.Integer(), nullable=True),
        sa.Column("attributes", sa.Integer(), nullable=False),
        sa.Column("started", sa.String(length=32), nullable=False),
        sa.Column("finished", sa.String(length=32), nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        sa.Column("tool", sa.String(length=100), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("continues", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("plan_changes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("problems", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(["attributes"], ["attributes.id"], name="fk_sessions_attributes"),
        sa.ForeignKeyConstraint(["card"], ["cards.id"], name="fk_sessions_card"),
        sa.ForeignKeyConstraint(["machine"], ["machines.id"], name="fk_sessions_machine"),
        sa.PrimaryKeyConstraint("id", name="pk_sessions"),
        sa.UniqueConstraint("session", "card_id", name="uq_sessions_session_card_id"),
    )
    op.create_index(
        "ix_sessions_card_id_machine_card_started", "sessions", ["card_id", "machine", "card", "started"], unique=False
    )
    op.create_index("ix_sessions_started", "sessions", ["started"], unique=False)
    op.create_table(
        "baselines",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cell", sa.Integer(), nullable=False),
        sa.Column("machine", sa.Integer(), nullable=False),
        sa.Column("figure", sa.String(length=50), nullable=False),
        sa.Column("unit", sa.String(length=30), nullable=False),
        sa.Column("direction", sa.String(length=10), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("current", sa.Boolean(), nullable=False),
        sa.Column("pinned", sa.Boolean(), nullable=False),
        sa.Column("k", sa.Integer(), nullable=False),
        sa.Column("spread", sa.Float(), nullable=True),
        sa.Column("acceptance", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["acceptance"], ["acceptances.id"], name="fk_baselines_acceptance"),
        sa.ForeignKeyConstraint(["cell"], ["cells.id"], name="fk_baselines_cell"),
        sa.ForeignKeyConstraint(["machine"], ["machines.id"], name="fk_baselines_machine"),
        sa.PrimaryKeyConstraint("id", name="pk_baselines"),
        sa.UniqueConstraint("cell", "machine", "figure", "number", name="uq_baselines_cell_machine_figure_number"),
    )
    op.create_index("ix_baselines_machine_figure_k", "baselines", ["machine", "figure", "k"], unique=False)
    op.create_table(
        "results",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session", sa.Integer(), nullable=False),
        sa.Column("cell", sa.Integer(), nullable=True),
        sa.Column("machine", sa.Integer(), nullable=True),
        sa.Column("started", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("part", sa.String(length=50), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reasons", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("own", sa.Boolean(), nullable=False),
        sa.Column("crashed", sa.Boolean(), nullable=False),
        sa.Column("facts", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("run_s", sa.Float(), nullable=True),
        sa.Column("start_s", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["cell"], ["cells.id"], name="fk_results_cell"),
        sa.ForeignKeyConstraint(["machine"], ["machines.id"], name="fk_results_machine"),
        sa.ForeignKeyConstraint(["session"], ["sessions.id"], name="fk_results_session"),
        sa.PrimaryKeyConstraint("id", name="pk_results"),
    )
    op.create_index(
        "ix_results_cell_machine_own_started", "results", ["cell", "machine", "own", "started"], unique=False
    )
    op.create_index("ix_results_session", "results", ["session"], unique=False)
    op.create_table(
        "figures",
        sa.Column("result", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=50), nullable=False),
        sa.Column("unit", sa.String(length=30), nullable=False),
        sa.Column("direction", sa.String(length=10), nullable=False),
        sa.Column("median", sa.Float(), nullable=True),
        sa.Column("values", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("verdict", sa.String(length=20), nullable=True),
        sa.Column("reference", sa.Float(), nullable=True),
        sa.Column("change", sa.Float(), nullable=True),
        sa.Column("interval_low", sa.Float(), nullable=True),
        sa.Column("interval_high", sa.Float(), nullable=True),
        sa.Column("resolves", sa.Float(), nullable=True),
        sa.Column("sigma", sa.Float(), nullable=True),
        sa.Column("again", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("dip", sa.Boolean(), nullable=False),
        sa.Column("clear", sa.Boolean(), nullable=True),
        sa.Column("control", sa.Float(), nullable=True),
        sa.Column("control_key", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["result"], ["results.id"], name="fk_figures_result"),
        sa.PrimaryKeyConstraint("result", "name", name="pk_figures"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "members",
        sa.Column("baseline", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("session", sa.String(length=100), nullable=False),
        sa.Column("started", sa.String(length=32), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("attributes", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["attributes"], ["attributes.id"], name="fk_members_attributes"),
        sa.ForeignKeyConstraint(["baseline"], ["baselines.id"], name="fk_members_baseline"),
        sa.PrimaryKeyConstraint("baseline", "position", name="pk_members"),
    )
    op.create_table(
        "canaries",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("session", sa.String(length=100), nullable=False),
        sa.Column("card_id", sa.String(length=200), nullable=False),
        sa.Column("machine_key", sa.String(length=64), nullable=True),
        sa.Column("started", sa.String(length=32), nullable=False),
        sa.Column("entry", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_canaries"),
        sa.UniqueConstraint("session", "card_id", name="uq_canaries_session_card_id"),
    )
    op.create_index(
        "ix_canaries_card_id_machine_key_started", "canaries", ["card_id", "machine_key", "started"], unique=False
    )
