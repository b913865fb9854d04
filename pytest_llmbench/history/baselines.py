"""Which sessions make a baseline, and what their spread says (GATE: "Baselines", "The rule to start from"). Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.gate import spread as spreads

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.records import Direction

APART_S = 1800.0
COMPLETE = 10
LEARNT = spreads.LEAST_SESSIONS
LEAST_KNOWN = 3
# An invalid cell may still have valid figures.
USABLE = frozenset({"measured", "invalid"})


@dataclass(frozen=True, slots=True)
class Candidate:
    """One session's value of one figure. started: ISO 8601 UTC; at: the same in seconds since 1970; value: the median."""

    session: str
    started: str
    at: float
    value: float


def usable(*, own: bool, status: str, median: float | None) -> bool:
    """Whether a session's figure may enter a baseline: its own first result, valid in all promised runs, undisturbed.

    By validity, never by value: else the reference is biased. A value that has no logarithm cannot be judged at all.
    """
    return own and status in USABLE and median is not None and median > 0 and math.isfinite(median)


def admits(members: Sequence[Candidate], one: Candidate) -> bool:
    """Whether a usable value is admitted: the baseline is not complete, and every member is at least 30 minutes away."""
    return len(members) < COMPLETE and all(abs(one.at - member.at) >= APART_S for member in members)


def collect(candidates: Iterable[Candidate], members: Sequence[Candidate] = ()) -> tuple[Candidate, ...]:
    """The baseline after these usable values, in the order in which they were recorded."""
    found = list(members)
    for one in candidates:
        if admits(found, one):
            found.append(one)
    return tuple(found)


def spread(values: Sequence[float], direction: Direction) -> float | None:
    """s of GATE's step 2 (``gate.spread``), from values in the figure's unit; None under 3 of them."""
    goods = [spreads.goodness(value, direction) for value in spreads.usable(values)]
    return spreads.spread(goods) if len(goods) >= LEAST_KNOWN else None


def sigma0(known: Iterable[float]) -> float | None:
    """The typical s of figures of one kind on one machine: the median over baselines of 5 sessions and more (GATE, step 2).

    None under 3 of them: then a figure stands on its own spread alone.
    """
    found = list(known)
    return statistics.median(found) if len(found) >= spreads.LEAST_FIGURES else None


def reference(values: Sequence[float], direction: Direction) -> float | None:
    """The 20 % trimmed mean of the log session medians, back in the figure's unit; None of nothing."""
    goods = [spreads.goodness(value, direction) for value in spreads.usable(values)]
    return spreads.from_goodness(spreads.reference(goods), direction) if goods else None
