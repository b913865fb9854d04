"""What earlier sessions show: events, runs that differ too much, two modes, and how deep they went. Pure.

Usable session: complete, valid, not disturbed. Where this is stricter than GATE's table, ``benchmarks/marks_rate.py`` says
what that is worth: two modes must alternate, else a slowdown would be called flaky, and their gap must be clear of sigma
too, else chance alone makes modes.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.errors import counted
from pytest_llmbench.gate.messages import bare

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pytest_llmbench.records import Direction, Outcome

SLOW = frozenset({"regressed", "below target"})
PASSES = frozenset({"ok", "improved", "equivalent"})


@dataclass(frozen=True, slots=True)
class Rule:
    """The constants of the table. Shares unless their names say days, sds or a count.

    spread_sds: a session median of n runs alone has at least the standard deviation of a run times 0.71 (n = 2), 0.67 (3),
    0.54 (5); so the runs' own is at most sigma divided by that, and chi-squared at 0.1 % allows 3.9 to 4.7 sigma for n = 2
    to 5. One number for all of them, above these because runs are skewed and sigma is an estimate. mode_sigmas: the sd of
    three values that happen to lie close is no measure of noise, so the gap must exceed sigma too; mode_sds_alone: where
    sigma is not known. margin: what a proposed depth allows below the worst that was seen.
    """

    slow_sessions: int = 2
    clear_sessions: int = 3
    window: int = 10
    events: int = 3
    spread_window: int = 5
    spread_sessions: int = 2
    spread_sds: float = 6.0
    spread_floor: float = 0.03
    mode_gap: float = 0.03
    mode_sds: float = 4.0
    mode_sigmas: float = 2.5
    mode_sds_alone: float = 7.0
    mode_side: int = 3
    mode_turns: int = 3
    disturbed_sessions: int = 3
    margin_sds: float = 2.5
    margin_floor: float = 0.01
    margin_unknown: float = 0.03
    slow_days: int = 30
    flaky_days: int = 60


RULE = Rule()


@dataclass(frozen=True, slots=True)
class FigureHistory:
    """One figure of a cell on one machine. outcomes: oldest first; accepted: when its reference was last accepted anew
    (ISO 8601 UTC), None for never."""

    name: str
    direction: Direction
    outcomes: tuple[Outcome, ...]
    accepted: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """figure None: of the whole cell. worse: how far below its reference the session's value was."""

    session: str
    figure: str | None
    text: str
    worse: float = 0.0


def events_in(figures: Sequence[FigureHistory], window: Collection[str]) -> list[Event]:
    """Dips, regressions that the next session did not confirm, and crashes that a retry survived, in some sessions."""
    found = []
    crashed = sessions_of(one for figure in figures for one in usable_of(figure) if one.crashed)
    found += [Event(session, None, f"crashed in {session}, and a retry survived") for session in crashed]
    for figure in figures:
        usable = usable_of(figure)
        for one, then in zip(usable, [*usable[1:], None], strict=False):
            if one.dip:
                text = (
                    f"{figure.name} dipped ({percent(own_share(one))}) in {one.session}, and a fresh start cleared it"
                )
                found.append(Event(one.session, figure.name, text, worse(figure, one)))
            elif one.verdict == "regressed" and then is not None and _passes(figure, one, then):
                text = (
                    f"{figure.name} regressed ({percent(one.change)}) in {one.session}, and {then.session} did not "
                    f"confirm it ({percent(then.change)})"
                )
                found.append(Event(one.session, figure.name, text, worse(figure, one)))
    return [one for one in found if one.session in window]


def _passes(figure: FigureHistory, one: Outcome, then: Outcome) -> bool:
    """The next session clears the figure; not where a new reference was accepted between the two."""
    if figure.accepted and second(one.started) <= second(figure.accepted) < second(then.started):
        return False
    return then.verdict in PASSES and then.clear is not False


def wide_sessions(figure: FigureHistory, outcomes: Sequence[Outcome], rule: Rule) -> list[Event]:
    """The sessions whose runs differ by more than the spread of session medians explains."""
    found = []
    for one in outcomes:
        if len(one.values) < 2 or one.sigma is None or min(one.values) <= 0:
            continue
        limit = max(rule.spread_floor, rule.spread_sds * one.sigma)
        if math.log(max(one.values) / min(one.values)) <= limit:
            continue
        sd = statistics.stdev(math.log(value) for value in one.values)
        if sd > limit:
            runs = " ".join(bare(value) for value in one.values)
            text = f"{runs} in {one.session} (spread {sd:.1%}, explained up to {limit:.1%})"
            found.append(Event(one.session, figure.name, text, worse(figure, one)))
    return found


def worse_mode(figure: FigureHistory, rule: Rule) -> list[Event]:
    """The sessions of the worse of two clear modes between which the figure went to and fro; empty where there are none."""
    last = [one for one in usable_of(figure, of_reference=True) if one.value and one.value > 0][-rule.window :]
    if len(last) < rule.window:
        return []
    logs = [math.log(one.value) for one in last if one.value]
    sigma = last_sigma(figure)
    ordered = sorted(logs)
    for at in range(rule.mode_side, len(ordered) - rule.mode_side + 1):
        low, high = ordered[:at], ordered[at:]
        gap = high[0] - low[-1]
        if gap < math.log1p(rule.mode_gap) or gap < rule.mode_sigmas * (sigma or 0.0):
            continue
        sds = rule.mode_sds if sigma is not None else rule.mode_sds_alone
        if gap < sds * max(statistics.stdev(low), statistics.stdev(high)):
            continue
        side = [value >= high[0] for value in logs]
        turns = sum(one != then for one, then in itertools.pairwise(side))
        if turns < rule.mode_turns:
            continue
        bad = [one for one, is_high in zip(last, side, strict=True) if is_high == (figure.direction == "lower")]
        text = (
            f"{figure.name}: two modes in the last {len(last)} usable sessions: {len(low)} around "
            f"{bare(math.exp(statistics.fmean(low)))}, {len(high)} around {bare(math.exp(statistics.fmean(high)))} "
            f"(gap {math.expm1(gap):.1%}, {counted(turns, 'change')}); worse in {', '.join(one.session for one in bad)}"
        )
        return [Event(one.session, figure.name, text, worse(figure, one)) for one in bad]
    return []


def depth_for(figure: FigureHistory, seen: Iterable[float], rule: Rule) -> tuple[float, str]:
    """How deep a mark should be: the worst that was seen, and a margin; up to whole percent. And that in words."""
    worst = max([0.0, *seen])
    sigma = last_sigma(figure)
    if sigma is None:
        margin, words = rule.margin_unknown, "as its spread is not known yet"
    elif rule.margin_sds * sigma > rule.margin_floor:
        margin, words = rule.margin_sds * sigma, f"{rule.margin_sds:g} x its spread of {sigma:.1%}"
    else:
        margin, words = rule.margin_floor, "the least margin"
    depth = math.ceil(100 * (worst + margin) - 1e-9) / 100
    if figure.direction != "lower":  # a rate cannot be worse by all of it
        depth = min(depth, 0.99)
    return depth, f"{figure.name}: worst seen {worst:.1%} worse, and {margin:.1%} ({words}), rounded up"


def last_sigma(figure: FigureHistory) -> float | None:
    return next((one.sigma for one in reversed(figure.outcomes) if one.sigma is not None), None)


def worse(figure: FigureHistory, one: Outcome) -> float:
    """By what share the session was worse than its reference; 0 where it was not, or nothing is known."""
    if one.verdict in SLOW and one.change is not None:
        return abs(one.change)
    share = own_share(one)
    return 0.0 if share is None else max(0.0, share if figure.direction == "lower" else -share)


def own_share(one: Outcome) -> float | None:
    """The session's own value against its reference; a dip's change is of the starts that cleared it."""
    return None if one.value is None or not one.reference else one.value / one.reference - 1


def usable_of(figure: FigureHistory, *, of_reference: bool = False) -> list[Outcome]:
    """The usable sessions, oldest first; of_reference: only those since the reference was accepted."""
    since = second(figure.accepted) if of_reference and figure.accepted else ""
    return [one for one in figure.outcomes if one.usable and second(one.started) > since]


def once(figure: FigureHistory) -> FigureHistory:
    """Each session once: two in a row must be two invocations."""
    last = {one.session: one for one in figure.outcomes}
    return FigureHistory(figure.name, figure.direction, tuple(last.values()), figure.accepted)


def sessions_of(outcomes: Iterable[Outcome]) -> list[str]:
    """The sessions' names, oldest first, each once."""
    return list(dict.fromkeys(one.session for one in sorted(outcomes, key=lambda one: second(one.started))))


def second(when: str) -> str:
    """ISO 8601 UTC to the second: what can be compared as text, however its zone is written."""
    return when[:19]


def told(events: Iterable[Event]) -> list[str]:
    return list(dict.fromkeys(one.text for one in events))


def percent(share: float | None) -> str:
    return "by an unknown share" if share is None else f"{100 * share:+.1f} %"
