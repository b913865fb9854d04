"""What the accepted marks do to a cell today (GATE: "Marks", "Outcomes"). Pure.

Either kind of mark turns a speed failure (regressed, below target) down to its depth into an expected one. A slow mark
expects it every time, so passing again is said; a flaky mark expects it now and then, so passing is no news. Neither makes
anything pass that failed: the failure is told, with the mark's reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.marks.file import Mark
    from pytest_llmbench.records import CellStatus, Verdict, VerdictKind

MarkState = Literal["covers", "too deep", "expired", "not applicable", "passes again", "idle"]
COVERABLE: frozenset[VerdictKind] = frozenset({"regressed", "below target"})
PASSES: frozenset[VerdictKind] = frozenset({"ok", "improved", "equivalent"})
# What a failure is where no mark may cover it.
_NEVER = {
    "below floor": "a missed floor",
    "machine changed": "a change of the machine",
    "inconclusive": "an inconclusive figure",
}


@dataclass(frozen=True, slots=True)
class Applied:
    """One mark, and what it did today. figure None: every judged figure. covers: the figures whose failure it covers.

    state: covers, too deep (a failure is deeper than its depth), expired, not applicable (a failure that no mark covers),
    passes again (slow, and nothing failed), idle (nothing to cover). line: that in words, with the mark's reason.
    """

    mark: Literal["slow", "flaky"]
    figure: str | None
    state: MarkState
    line: str
    covers: tuple[str, ...]
    depth: float
    reason: str
    expires: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Effect:
    """What all marks of a cell do together. covered: the figures whose failures are covered.

    xfail: the reason, where the cell has failures and each is covered; else None. failures: lines that fail the cell by
    themselves (expired marks). notes: lines to say aloud whatever the cell's result is.
    """

    applied: tuple[Applied, ...] = ()
    covered: frozenset[str] = frozenset()
    xfail: str | None = None
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def effect(
    marks: Sequence[Mark],
    *,
    card: str,
    cell: str,
    machine_key: str,
    status: CellStatus,
    verdicts: Sequence[Verdict],
    today: dt.date,
) -> Effect:
    """Apply the file's marks to one cell. machine_key: sha256 of the machine's identity, hexadecimal; today: UTC."""
    applied = tuple(_apply(mark, status, verdicts, today) for mark in marks if mark.is_for(card, cell, machine_key))
    covered = frozenset(figure for one in applied for figure in one.covers)
    failures = tuple(one.line for one in applied if one.state == "expired")
    failed = [one for one in verdicts if one.failed]
    all_covered = bool(failed) and all(_is_covered(one, covered) for one in failed)
    covering = [one.line for one in applied if one.state == "covers"]
    xfail = "; ".join(covering) if all_covered and not failures and status == "measured" else None
    said = {"not applicable", "passes again"} | ({"too deep"} if xfail is None else set())
    return Effect(
        applied=applied,
        covered=covered,
        xfail=xfail,
        failures=failures,
        notes=tuple(one.line for one in applied if one.state in said),
    )


def markers(marks: Iterable[Mark], *, card: str, cell: str, machine_key: str, today: dt.date) -> tuple[str, ...]:
    """The pytest markers of a cell. An expired mark gives none: ``-m "not slow"`` must not hide that it expired."""
    return tuple(sorted({one.mark for one in marks if one.is_for(card, cell, machine_key) and one.is_active(today)}))


def _apply(mark: Mark, status: CellStatus, verdicts: Sequence[Verdict], today: dt.date) -> Applied:
    its = [one for one in verdicts if mark.figure in (None, one.figure)]
    name = f"{mark.mark} mark of {mark.place}"
    covers: tuple[str, ...] = ()
    state: MarkState
    if not mark.is_active(today):
        state = "expired"
        line = f"{name} expired on {mark.expires}: remove it, or accept it again with its evidence ({mark.reason})"
    elif status != "measured":
        state, line = "not applicable", f"{name} covers speed only, not a cell that is {status}"
    else:
        failed = [one for one in its if one.failed]
        covers = tuple(one.figure for one in failed if _within(mark, one))
        left = [one for one in failed if one.figure not in covers]
        state, said = _state(mark, its, failed, left)
        line = f"{name} {said}"
    return Applied(
        mark=mark.mark,
        figure=mark.figure,
        state=state,
        line=line,
        covers=covers,
        depth=mark.depth,
        reason=mark.reason,
        expires=str(mark.expires),
        evidence=mark.evidence,
    )


def _state(
    mark: Mark, its: Sequence[Verdict], failed: Sequence[Verdict], left: Sequence[Verdict]
) -> tuple[MarkState, str]:
    until = f"until {mark.expires} ({mark.reason})"
    down_to = f"{mark.depth:.0%}"
    if left:
        deeper = [one for one in left if one.kind in COVERABLE and one.change is not None]
        if deeper:
            said = ", ".join(f"{one.figure} {one.kind} {_percent(one.change)}" for one in deeper)
            return "too deep", f"covers {down_to} and no more: {said}"
        said = ", ".join(f"{_NEVER.get(one.kind, one.kind)} ({one.figure})" for one in left)
        return "not applicable", f"never covers {said}"
    if failed:
        said = ", ".join(f"{one.figure} {one.kind} {_percent(one.change)}" for one in failed)
        return "covers", f"covers {said}: down to {down_to} worse is accepted {until}"
    if mark.mark == "slow" and its and all(one.kind in PASSES for one in its):
        return "passes again", f"is no longer needed today: it passes again; accepted {until}"
    return "idle", f"had nothing to cover; accepted {until}"


def _within(mark: Mark, verdict: Verdict) -> bool:
    """A failing verdict's change is always for the worse, whatever the figure's direction."""
    return verdict.kind in COVERABLE and verdict.change is not None and abs(verdict.change) <= mark.depth


def _is_covered(verdict: Verdict, covered: frozenset[str]) -> bool:
    return verdict.kind in COVERABLE and verdict.figure in covered


def _percent(share: float | None) -> str:
    return "by an unknown share" if share is None else f"{100 * share:+.1f} %"
