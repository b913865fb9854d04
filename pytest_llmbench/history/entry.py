"""A session as the history keeps it: what is read out of a report document, and a line of an export."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from pytest_llmbench.errors import InputError
from pytest_llmbench.gate import facts
from pytest_llmbench.history import durations, keys
from pytest_llmbench.records import CellStatus, Direction, VerdictKind  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPORT_FORMAT = 1


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FigureLine(_Model):
    """One figure of one cell; fields as in records.Verdict.

    control: the median of the control's figure beside it, in its unit; control_key: which control on which build.
    """

    name: str
    unit: str
    direction: Direction
    median: float | None
    values: tuple[float, ...] = ()
    verdict: VerdictKind | None = None
    reference: float | None = None
    change: float | None = None
    interval: tuple[float, float] | None = None
    resolves: float | None = None
    sigma: float | None = None
    again: tuple[float, ...] = ()
    dip: bool = False
    clear: bool | None = None
    control: float | None = None
    control_key: str | None = None


class CellLine(_Model):
    """One promised cell. key: None where the session ended before it knew its machine and model.

    own: measured by this session for the first time; not taken over, mixed with, or in place of an earlier session's.
    crashed: an attempt broke off and a later one of the same run was valid. facts: what was around its figures
    (``gate.facts``). run_s: a run's median duration; start_s: what lies before a server's first run (a stop, a start, the warm-up),
    where the cell was measured again, else what lay before the session's first.
    """

    cell: str
    part: str
    status: CellStatus
    reasons: tuple[str, ...] = ()
    key: str | None = None
    definition: dict[str, Any] | None = None
    own: bool = True
    crashed: bool = False
    facts: dict[str, Any] | None = None
    run_s: float | None = None
    start_s: float | None = None
    figures: tuple[FigureLine, ...] = ()

    @property
    def disturbed(self) -> bool:
        return self.status == "disturbed"


class SessionEntry(_Model):
    """One session of one card. folder: of its raw files. card: the card's identity without cells; machine: as in the key.

    canary: the slowdown that was planted in it, as in the document; such a session is kept apart.
    """

    session: str
    card_id: str
    started: str
    finished: str
    complete: bool
    tool: str
    folder: str
    continues: dict[str, Any] | None = None
    plan_changes: dict[str, Any] = {}
    problems: tuple[str, ...] = ()
    attributes: dict[str, Any] = {}
    card_key: str | None = None
    card: dict[str, Any] | None = None
    machine_key: str | None = None
    machine: dict[str, Any] | None = None
    cells: tuple[CellLine, ...] = ()
    canary: dict[str, Any] | None = None

    @property
    def order(self) -> tuple[str, str, str]:
        """Sessions are recorded when they end; a replay keeps to it."""
        return (self.finished, self.session, self.card_id)


def utc(text: str) -> str:
    """A time as ISO 8601 in UTC with whole seconds, so that text sorts by time. Raises ValueError."""
    when = datetime.fromisoformat(text)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC).isoformat(timespec="seconds")


def seconds(text: str) -> float:
    """The same time in seconds since 1970."""
    return datetime.fromisoformat(text).timestamp()


def of_document(document: Mapping[str, Any], folder: str) -> SessionEntry:
    """Read a report document. Raises InputError where it is none, or damaged; what a newer one adds is not read."""
    try:
        if document["llmbench_report"] != REPORT_FORMAT:
            raise InputError(
                "report",
                folder,
                f"has format {document['llmbench_report']}, this version reads {REPORT_FORMAT}",
                "read it with the version of pytest-llmbench that wrote it",
            )
        return _of_document(document, folder)
    except (KeyError, TypeError, AttributeError, ValueError) as exc:
        raise InputError("report", folder, f"not a report document: {why(exc)}", "measure again") from None


def why(exc: Exception) -> str:
    """The first reason of an exception in one line."""
    if isinstance(exc, ValidationError):
        first = exc.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"no {exc} in it" if isinstance(exc, KeyError) else f"{exc}".partition("\n")[0]


def _of_document(document: Mapping[str, Any], folder: str) -> SessionEntry:
    identity = document["contract"].get("identity")
    known = identity is not None and "cells" in identity["card"]
    return SessionEntry(
        session=document["session"],
        card_id=document["card"]["id"],
        started=utc(document["started"]),
        finished=utc(document["finished"]),
        complete=document["complete"],
        tool=document["tool"],
        folder=folder,
        continues=document.get("continues"),
        plan_changes=document.get("plan_changes") or {},
        problems=tuple(document["problems"]),
        attributes=keys.attributes(document["environment"]),
        card_key=keys.card_key(identity) if known else None,
        card=keys.common_card(identity) if known else None,
        machine_key=keys.machine_key(identity) if known else None,
        machine=identity["machine"] if known else None,
        cells=tuple(_cell(cell, document, identity if known else None) for cell in document["cells"]),
        canary=document.get("canary"),
    )


def _cell(cell: Mapping[str, Any], document: Mapping[str, Any], identity: Mapping[str, Any] | None) -> CellLine:
    definition = identity["card"]["cells"].get(cell["id"]) if identity else None
    makers = tuple(cell.get("sessions") or ())
    return CellLine(
        cell=cell["id"],
        part=cell["part"],
        status=cell["status"],
        reasons=tuple(cell["reasons"]),
        key=keys.cell_key(identity, cell["id"]) if identity is not None and definition is not None else None,
        definition=definition,
        own=not cell.get("replaced") and makers in ((), (document["session"],)),
        crashed=crashed(cell["attempts"]),
        facts=_facts(document, cell),
        run_s=durations.run_s(cell["attempts"]),
        start_s=durations.start_s(cell["attempts"], document),
        figures=tuple(_figure(figure) for figure in cell["figures"]),
    )


def _facts(document: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any] | None:
    """None for a cell without attempts that say which server they were made on."""
    attempts = cell["attempts"]
    known = attempts and all("server_start" in one for one in attempts)
    return facts.of_cell(document, cell["id"]) if known else None


def crashed(attempts: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an attempt broke off, and a later one of the same run was valid."""
    broken: set[tuple[int, int]] = set()
    for one in attempts:
        run = (one.get("again", 0), one["run"])
        if one["error"]:
            broken.add(run)
        elif run in broken and one["guard"] != "disturbed" and any(not f["reasons"] for f in one["figures"]):
            return True
    return False


_FIGURE = frozenset(FigureLine.model_fields) - {"control", "control_key"}


def _figure(figure: Mapping[str, Any]) -> FigureLine:
    # An older report lacks some of the fields, a newer one has more.
    control = figure.get("control") or {}
    return FigureLine.model_validate(
        {name: value for name, value in figure.items() if name in _FIGURE and value is not None}
        | {"median": figure["median"], "control": control.get("median"), "control_key": control.get("key")}
    )
