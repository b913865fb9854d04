"""The verdict file: what a CI reads of a session. ``python -m pytest_llmbench.outcomes.file`` prints its JSON Schema."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pytest_llmbench import __version__
from pytest_llmbench.outcomes.categories import (
    Category,
    JudgedCell,
    Result,
    categories_of,
    category_of,
    exit_code,
    is_interrupted,
    result_of,
    worst,
)
from pytest_llmbench.outcomes.summary import control_lines, summary_lines
from pytest_llmbench.records import CellStatus, Direction, VerdictKind  # noqa: TC001 - pydantic reads them

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_llmbench.records import Baseline, ControlSeen, Verdict


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, from_attributes=True)


class BaselineEntry(_Model):
    """What a figure is compared with."""

    sessions: int = Field(description="how many sessions it has")
    missing: int = Field(description="how many more it needs before it judges; 0: it does")
    pinned: bool = Field(description="complete, so that later sessions do not move it")
    since: str
    until: str
    accepted: str | None = Field(description="the reason, where a person started it anew")


class ControlFigure(_Model):
    """What the control says beside one figure (docs/control.md)."""

    used: bool = Field(description="the verdict is of the figure without the machine")
    why: str = Field(description="why it is used, or is not")
    beta: float | None = Field(description="how much of the control's change is taken out")
    raw: float | None = Field(description="spread of sessions (sd of logs) without the control, out of sample")
    residual: float | None = Field(description="the same with it")
    sessions: int = Field(description="that have both")
    change: float | None = Field(description="of the control against its own baseline, a share")
    word: str | None = Field(description="what the rule says of the control")
    resolves_without: float | None = Field(description="what the figure would resolve without the control")


class ControlVerdict(_Model):
    """The control of a card's session. report: relative to the card's report."""

    card: str
    role: Literal["judges", "trial", "rests"]
    why: str
    turns: int
    minutes: float = Field(description="spent on its turns and its servers")
    lost: str | None = Field(description="why it was given up in the middle of the session")
    report: str | None
    verdict: VerdictKind | None = Field(description="of the machine, once a session, by the control's own level")
    failed: bool
    said: str | None
    changes: dict[str, float | None] = Field(description="of the control's own figures against their baselines")


class FigureVerdict(_Model):
    """One judged figure. change and interval are shares of the reference; negative: the number is smaller."""

    name: str
    unit: str
    direction: Direction
    verdict: VerdictKind
    failed: bool
    covered: bool = Field(description="it failed, and an accepted mark covers it")
    value: float | None
    reference: float | None
    change: float | None
    interval: tuple[float, float] | None = Field(description="95 %, of the change")
    resolves: float | None = Field(description="the smallest worsening that this figure can show here and now, a share")
    sigma: float | None = Field(description="standard deviation of log session medians")
    again: tuple[float, ...] = Field(description="the medians on fresh servers")
    dip: bool = Field(description="it was suspect, and another start cleared it")
    clear: bool | None = Field(description="within the line that clears a suspect; null: there is no such line")
    lines: tuple[str, ...] = Field(description="the explanation, most important first")
    baseline: BaselineEntry | None = Field(description="null: no session yet")
    control: ControlFigure | None = Field(default=None, description="null: no control ran beside it")


class MarkEntry(_Model):
    """One accepted mark of the cell, and what it did."""

    mark: Literal["slow", "flaky"]
    figure: str | None = Field(description="null: every judged figure of the cell")
    state: Literal["covers", "too deep", "expired", "not applicable", "passes again", "idle"]
    line: str
    covers: tuple[str, ...] = Field(description="the figures whose failures it covers")
    depth: float = Field(description="by what share of its reference a figure may be worse")
    reason: str
    expires: str
    evidence: tuple[str, ...] = Field(description="sessions")


class ProposalEntry(_Model):
    """What earlier sessions propose. It has no effect until a person accepts it into the file of marks."""

    action: Literal["add", "remove"]
    mark: Literal["slow", "flaky"]
    figure: str | None
    lines: tuple[str, ...]
    evidence: tuple[str, ...]
    depth: float | None
    depth_why: str
    days: int | None = Field(description="until it would expire")


class CellVerdict(_Model):
    """One promised cell. Paths are relative to this file."""

    id: str
    status: CellStatus
    result: Result
    category: Category | None = Field(description="null: it does not fail")
    reasons: tuple[str, ...] = Field(description="why there is no number; empty when there is one")
    figures: tuple[FigureVerdict, ...]
    marks: tuple[MarkEntry, ...]
    mark_failures: tuple[str, ...] = Field(description="expired marks: they fail the cell by themselves")
    proposals: tuple[ProposalEntry, ...]
    notes: tuple[str, ...]
    raw_file: str | None
    server_logs: tuple[str, ...]


class CardVerdict(_Model):
    """One card of the session."""

    card: str
    machine_key: str | None = Field(description="null: the machine was not looked at")
    machine_name: str | None
    category: Category | None
    cells: tuple[CellVerdict, ...]
    problems: tuple[str, ...] = Field(description="what kept the run from starting or ending as promised")
    remeasured_minutes: float = Field(description="spent on fresh servers before a verdict")
    canary: str | None = Field(default=None, description="the slowdown that was planted in this session on purpose")
    last_canary: str | None = Field(
        default=None, description="when a planted slowdown was last caught here; null without a baseline that judges"
    )
    not_counted: str | None = Field(
        default=None,
        description="why baselines that still collect did not take this session: it started too soon after another; null: they did",
    )
    report: str | None = Field(description="the report, relative to this file")
    control: ControlVerdict | None = Field(default=None, description="null: none was asked for")


class VerdictFile(_Model):
    """The outcome of one session."""

    llmbench_verdict: Literal[1] = Field(description="the version of this format")
    tool: str
    session: str
    started: str
    finished: str
    category: Category | None = Field(description="the one that speaks for the session; null: nothing failed")
    exit_code: int
    interrupted: bool = Field(default=False, description="the session ended before its time: nothing is decided")
    failed_cells: dict[Category, int] = Field(description="how many cells each category has")
    summary: tuple[str, ...] = Field(description="the last lines of the session")
    cards: tuple[CardVerdict, ...]


def card_verdict(
    card: str,
    cells: Sequence[JudgedCell],
    *,
    machine_key: str | None = None,
    machine_name: str | None = None,
    problems: Sequence[str] = (),
    remeasured_s: float = 0.0,
    canary: str | None = None,
    last_canary: str | None = None,
    not_counted: str | None = None,
    report: str | None = None,
    gates_at: int = 5,
    control: Mapping[str, Any] | None = None,
) -> CardVerdict:
    """One card's part of the file. report and the paths in the cells: relative to where the file will be."""
    said = ControlVerdict.model_validate(control) if control is not None else None
    machine: Category | None = "machine" if said is not None and said.failed else None
    category = worst([*(category_of(cell) for cell in cells), "setup" if problems else None, machine])
    return CardVerdict(
        card=card,
        machine_key=machine_key,
        machine_name=machine_name,
        category=category,
        cells=tuple(_cell(cell, gates_at) for cell in cells),
        problems=tuple(problems),
        remeasured_minutes=round(remeasured_s / 60, 2),
        canary=canary,
        last_canary=last_canary,
        not_counted=not_counted,
        report=report,
        control=said,
    )


def build(
    *,
    session: str,
    started: str,
    finished: str,
    cards: Sequence[tuple[CardVerdict, Sequence[JudgedCell]]],
    pytest_code: int,
    other_failures: bool = False,
    gates_at: int = 5,
) -> VerdictFile:
    """Put the file together. cards: each with the cells that it was made of. pytest_code: what pytest would say."""
    cells = [cell for _, judged in cards for cell in judged]
    category = worst(card.category for card, _ in cards)
    interrupted = is_interrupted(pytest_code)
    return VerdictFile(
        llmbench_verdict=1,
        tool=f"pytest-llmbench {__version__}",
        session=session,
        started=started,
        finished=finished,
        category=category,
        exit_code=exit_code(category, pytest_code, other_failures=other_failures),
        interrupted=interrupted,
        failed_cells=categories_of(cells),
        summary=(
            *(["the session was interrupted: nothing is decided"] if interrupted else ()),
            *summary_lines(cells, gates_at=gates_at),
            *dict.fromkeys(
                f"{one.card}: {one.not_counted}" if len(cards) > 1 else one.not_counted
                for one, _ in cards
                if one.not_counted
            ),
            *(line for one, judged in cards for line in _of_control(one, judged)),
        ),
        cards=tuple(card for card, _ in cards),
    )


def _of_control(card: CardVerdict, cells: Sequence[JudgedCell]) -> list[str]:
    return [] if card.control is None else control_lines(card.control.model_dump(), cells)


def _cell(cell: JudgedCell, gates_at: int) -> CellVerdict:
    result = cell.result
    return CellVerdict(
        id=result.spec.id,
        status=result.status,
        result=result_of(cell),
        category=category_of(cell),
        reasons=result.reasons,
        figures=tuple(_figure(cell, verdict, gates_at) for verdict in cell.verdicts),
        marks=tuple(MarkEntry.model_validate(one) for one in cell.marks),
        mark_failures=cell.mark_failures,
        proposals=tuple(ProposalEntry.model_validate(one) for one in cell.proposals),
        notes=cell.notes,
        raw_file=result.raw_file,
        server_logs=result.server_logs,
    )


def _figure(cell: JudgedCell, verdict: Verdict, gates_at: int) -> FigureVerdict:
    summary = cell.result.summary(verdict.figure)
    return FigureVerdict(
        name=verdict.figure,
        unit=summary.unit,
        direction=summary.direction,
        verdict=verdict.kind,
        failed=verdict.failed,
        covered=cell.is_covered(verdict),
        value=verdict.value,
        reference=verdict.reference,
        change=verdict.change,
        interval=verdict.interval,
        resolves=verdict.resolves,
        sigma=verdict.sigma,
        again=verdict.again,
        dip=verdict.dip,
        clear=verdict.clear,
        lines=verdict.lines,
        baseline=_baseline(cell.baselines, verdict.figure, gates_at),
        control=None if verdict.control is None else _control(verdict.control),
    )


def _control(seen: ControlSeen) -> ControlFigure:
    return ControlFigure.model_validate({name: getattr(seen, name) for name in ControlFigure.model_fields})


def _baseline(baselines: Mapping[str, Baseline], figure: str, gates_at: int) -> BaselineEntry | None:
    one = baselines.get(figure)
    if one is None:
        return None
    return BaselineEntry(
        sessions=len(one.values),
        missing=max(gates_at - len(one.values), 0),
        pinned=one.pinned,
        since=one.since,
        until=one.until,
        accepted=one.accepted,
    )


def schema() -> dict[str, Any]:
    """The file's JSON Schema (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **VerdictFile.model_json_schema()}


def packaged_schema() -> dict[str, Any]:
    """The schema file that the package ships; a test holds it equal to ``schema()``."""
    text = files("pytest_llmbench.outcomes").joinpath("verdict.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2))  # noqa: T201 - this is what it is for
