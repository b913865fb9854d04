"""From earlier sessions to proposals of marks, and of their removal (GATE: "Marks"). Pure. A proposal changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.marks.evidence import (
    PASSES,
    RULE,
    SLOW,
    FigureHistory,
    Rule,
    depth_for,
    events_in,
    once,
    percent,
    second,
    sessions_of,
    told,
    usable_of,
    wide_sessions,
    worse,
    worse_mode,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pytest_llmbench.records import Outcome

MarkKind = Literal["slow", "flaky"]


@dataclass(frozen=True, slots=True)
class Marked:
    """A mark that the cell has. figure None: all of them. since: its date (ISO 8601)."""

    mark: MarkKind
    figure: str | None
    since: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the sessions of a cell say. figure None: the cell. lines: the evidence in words; evidence: session ids.

    depth (a share, 0: it covers no speed failure), depth_why and days (until it expires) are of an added mark.
    """

    action: Literal["add", "remove"]
    mark: MarkKind
    figure: str | None
    lines: tuple[str, ...]
    evidence: tuple[str, ...]
    depth: float | None = None
    depth_why: str = ""
    days: int | None = None


def propose(
    figures: Sequence[FigureHistory], marked: Collection[Marked] = (), rule: Rule = RULE
) -> tuple[Proposal, ...]:
    """Everything that a cell's history proposes. figures: the judged figures of one cell on one machine.

    marked: the marks in effect; what they speak for is not proposed again, and only they are proposed for removal.
    """
    figures = [once(figure) for figure in figures]
    found = [one for figure in figures if not _has(marked, "slow", figure.name) and (one := _slow(figure, rule))]
    if not _has(marked, "flaky", None):
        found += _flaky([figure for figure in figures if not _has(marked, "flaky", figure.name)], rule)
    for mark in marked:
        of_mark = [figure for figure in figures if mark.figure in (None, figure.name)]
        gone = (_no_longer_slow if mark.mark == "slow" else _no_longer_flaky)(of_mark, mark, rule)
        found += [gone] if gone else []
    return tuple(found)


def machine_trouble(figures: Sequence[FigureHistory], rule: Rule = RULE) -> str | None:
    """What to say when the last sessions of a cell were all disturbed: the machine is the problem; else None."""
    sessions = sessions_of(one for figure in figures for one in figure.outcomes)[-rule.disturbed_sessions :]
    disturbed = {one.session for figure in figures for one in figure.outcomes if one.disturbed}
    if len(sessions) < rule.disturbed_sessions or not set(sessions) <= disturbed:
        return None
    return (
        f"the machine is the problem: {len(sessions)} sessions in a row were disturbed ({', '.join(sessions)}); "
        "find what works there, before anything is said about the setup"
    )


# ---- slow -------------------------------------------------------------------------------------------------------------


def _slow(figure: FigureHistory, rule: Rule) -> Proposal | None:
    streak: list[Outcome] = []
    for one in reversed(usable_of(figure, of_reference=True)):
        if one.verdict not in SLOW:
            break
        streak.insert(0, one)
    if len(streak) < rule.slow_sessions:
        return None
    shown = streak[-rule.window :]
    said = ", ".join(f"{one.verdict} {percent(one.change)} in {one.session}" for one in shown)
    depth, why = depth_for(figure, [worse(figure, one) for one in shown], rule)
    return Proposal(
        action="add",
        mark="slow",
        figure=figure.name,
        lines=(f"{figure.name}: {len(streak)} usable sessions in a row: {said}",),
        evidence=tuple(one.session for one in shown),
        depth=depth,
        depth_why=why,
        days=rule.slow_days,
    )


def _no_longer_slow(figures: Sequence[FigureHistory], mark: Marked, rule: Rule) -> Proposal | None:
    accepted = [figure for figure in figures if figure.accepted and second(figure.accepted)[:10] > mark.since]
    if figures and len(accepted) == len(figures):
        line = "its baseline was accepted anew: " + ", ".join(f"{one.name} on {one.accepted}" for one in accepted)
        return Proposal("remove", "slow", mark.figure, (line,), ())
    lines, evidence = [], []
    for figure in figures:
        last = usable_of(figure)[-rule.clear_sessions :]
        if len(last) < rule.clear_sessions or not all(one.verdict in PASSES and one.clear is not False for one in last):
            return None
        said = ", ".join(f"{percent(one.change)} in {one.session}" for one in last)
        lines.append(f"{figure.name}: {len(last)} usable sessions in a row are clear: {said}")
        evidence += [one.session for one in last]
    return Proposal("remove", "slow", mark.figure, tuple(lines), tuple(dict.fromkeys(evidence))) if lines else None


# ---- flaky ------------------------------------------------------------------------------------------------------------


def _flaky(figures: Sequence[FigureHistory], rule: Rule) -> list[Proposal]:
    """One proposal for the cell at most; it names the figure where all its evidence is of one."""
    window = sessions_of(one for figure in figures for one in usable_of(figure))[-rule.window :]
    events = events_in(figures, window)
    lines, grounds = [], []
    if len({one.session for one in events}) >= rule.events:
        grounds += events
        lines.append(f"events in the last {len(window)} usable sessions: " + "; ".join(told(events)))
    for figure in figures:
        wide = wide_sessions(figure, usable_of(figure)[-rule.spread_window :], rule)
        if len(wide) >= rule.spread_sessions:
            grounds += wide
            lines.append(f"{figure.name}: the runs of one session differ too much: " + "; ".join(told(wide)))
        modes = worse_mode(figure, rule)
        grounds += modes
        lines += [one.text for one in modes[:1]]
    if not grounds:
        return []
    named = {one.figure for one in grounds}
    of = [figure for figure in figures if figure.name in named]
    depth, why = 0.0, "crashes alone: it covers no speed failure, and never a crash"
    for figure in of:
        its, its_why = depth_for(figure, [one.worse for one in grounds if one.figure == figure.name], rule)
        if its > depth:
            depth, why = its, its_why
    return [
        Proposal(
            action="add",
            mark="flaky",
            figure=of[0].name if len(of) == 1 and None not in named else None,
            lines=tuple(lines),
            evidence=tuple(session for session in window if session in {one.session for one in grounds}),
            depth=depth,
            depth_why=why,
            days=rule.flaky_days,
        )
    ]


def _no_longer_flaky(figures: Sequence[FigureHistory], mark: Marked, rule: Rule) -> Proposal | None:
    window = sessions_of(one for figure in figures for one in usable_of(figure))[-rule.window :]
    if len(window) < rule.window or events_in(figures, window):
        return None
    if any(
        wide_sessions(figure, usable_of(figure)[-rule.window :], rule) or worse_mode(figure, rule) for figure in figures
    ):
        return None
    line = f"{len(window)} usable sessions without an event, {window[0]} to {window[-1]}"
    return Proposal("remove", "flaky", mark.figure, (line,), tuple(window))


def _has(marked: Collection[Marked], mark: MarkKind, figure: str | None) -> bool:
    return any(one.mark == mark and one.figure in (None, figure) for one in marked)
