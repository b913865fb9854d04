"""The gate's rule for one figure: a value, what re-measures gave, a baseline → a decision. Pure and stateless.

A session's value that is clearly off its reference is *suspect*. A suspect is measured again on fresh servers; the first
start that is not off clears it. Only if every start is off, and the mean of all but the worst is off by more than noise and the
machine explain, has the figure regressed (or, mirrored, improved). docs/gate.md has the rates; benchmarks/gate_simulation.py
makes them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.gate.decision import Decision, Kind
from pytest_llmbench.gate.lines import MOST_REMEASURES, RULE, WITH_CONTROL, Rule, Yardstick, yardstick
from pytest_llmbench.gate.resolve import resolves
from pytest_llmbench.gate.spread import from_goodness, goodness, usable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.records import Baseline, Direction

__all__ = ["RULE", "WITH_CONTROL", "Decision", "Kind", "Rule", "decide"]


def decide(
    value: float,
    again: Sequence[float],
    baseline: Baseline | None,
    direction: Direction,
    rule: Rule = RULE,
    remeasures_left: int | None = None,
    *,
    machine: Machine | None = None,
) -> Decision:
    """Decide what a figure's value says.

    value: the session's median, again: the medians on fresh servers so far, both in the figure's unit.
    remeasures_left: how many more fresh servers may be started (None = as many as the rule wants).
    machine: how far the machine moves between sessions (``machine_state``); None = not learned, a fifth of the figure's
    variance is taken for it. "measure again" asks for one more start and another call. A figure without a better
    direction is never judged: "ok". A value that is no number, or negative: "inconclusive", with the reason.
    """
    kept = tuple(one for one in again if math.isfinite(one) and one >= 0)
    goods_there = usable(baseline.values) if baseline is not None else []
    start = Decision(
        kind="ok",
        direction=direction,
        value=value,
        again=kept,
        k=len(goods_there),
        missing=max(0, rule.least_sessions - len(goods_there)),
    )
    if direction == "none":
        return replace(start, reason="this figure has no better or worse")
    if not (math.isfinite(value) and value >= 0):
        return replace(
            start, kind="inconclusive", reason=f"{value} cannot be compared: a value must be a number and not below 0"
        )
    if baseline is None or start.missing:
        unusable = len(baseline.values) - start.k if baseline is not None else 0
        reason = f"{unusable} of the baseline's values are not above 0" if unusable else None
        return replace(start, kind="no baseline", reason=reason)
    if remeasures_left is None:
        remeasures_left = MOST_REMEASURES[-1]
    return _judged(start, yardstick(baseline, direction, rule, machine), remeasures_left)


def _judged(start: Decision, stick: Yardstick, remeasures_left: int) -> Decision:
    offs = [goodness(one, start.direction) - stick.reference for one in (start.value, *start.again)]
    first, fresh = offs[0], offs[1:]
    known = _numbers(start, stick, offs)
    if stick.noisy:
        known = replace(known, kind="noisy", noisy=True)
    known = replace(known, clear=first >= -stick.clears)
    side: Literal["worse", "better"] | None = (
        "worse" if first < -stick.suspect else "better" if first > stick.suspect else None
    )
    if side is None:
        return known
    sign = 1 if side == "worse" else -1
    known = replace(known, side=side)
    # From here on "below" is the suspected side; an improvement is a regression in the mirror.
    if any(sign * one >= -stick.clears for one in fresh):
        return replace(known, dip=side == "worse" and first < -stick.dip, clear=True)
    n = len(fresh)
    if n < stick.remeasures and remeasures_left > 0:
        return replace(known, kind="measure again")
    if n < stick.rule.least_remeasures:
        # Nobody is to be warned of good news that was not confirmed.
        return replace(known, kind="inconclusive" if side == "worse" else known.kind)
    best = _best(offs, sign)
    line = stick.regressed(n)
    known = replace(
        known,
        best=from_goodness(stick.reference + best, start.direction),
        regressed_line=_share(line, start.direction),
    )
    if sign * best < -line:
        return replace(known, kind="regressed" if side == "worse" else "improved")
    return known


def _best(offs: list[float], sign: int) -> float:
    """The mean of all starts but the most suspicious one: one disturbed start must not decide."""
    ranked = sorted(offs, key=lambda one: sign * one)
    return math.fsum(ranked[1:]) / (len(ranked) - 1)


def _numbers(start: Decision, stick: Yardstick, offs: list[float]) -> Decision:
    middle = math.fsum(offs) / len(offs)
    half = stick.interval(len(offs))
    ends = sorted(_moved(off, start.direction) for off in (middle - half, middle + half))
    return replace(
        start,
        reference=from_goodness(stick.reference, start.direction),
        estimate=from_goodness(stick.reference + middle, start.direction),
        change=_moved(middle, start.direction),
        interval=(ends[0], ends[1]),
        sigma=stick.sigma,
        df=stick.df,
        spread=stick.spread,
        sigma0=stick.sigma0,
        machine=math.sqrt(stick.machine_variance),
        resolves=resolves(stick, start.direction),
        suspect_line=_share(stick.suspect, start.direction),
        clear_line=_share(stick.clears, start.direction),
        regressed_line=_share(stick.regressed(stick.remeasures), start.direction),
    )


def _moved(off: float, direction: Direction) -> float:
    """A difference of logs, higher = better, as the share by which the number moved."""
    return from_goodness(off, direction) - 1


def _share(line: float, direction: Direction) -> float:
    """A line below the reference, as a positive share of worsening."""
    return abs(_moved(-line, direction))
