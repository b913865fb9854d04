"""Which sessions make a baseline, and what their spread says (GATE: "Baselines", "The rule to start from"). Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.records import Direction

APART_S = 1800.0
COMPLETE = 10
LEARNT = 5
TRIMMED = 0.2


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
    return own and status in {"measured", "invalid"} and median is not None and median > 0 and math.isfinite(median)


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
    """s: standard deviation of the log session medians without the slowest ceil(K/10), consistency-corrected (GATE, step 2).

    None under 3 values. direction says which end is slow. The correction is that of a normal distribution cut at one side,
    so that s estimates the standard deviation of the whole.
    """
    if len(values) < 3:
        return None
    cut = math.ceil(len(values) / 10)
    logs = sorted(map(math.log, values), reverse=direction == "lower")[cut:]
    return statistics.stdev(logs) / _kept_sd(cut / len(values)) if len(logs) > 1 else None


def _kept_sd(share: float) -> float:
    """Standard deviation of a standard normal without its lowest share."""
    normal = statistics.NormalDist()
    at = normal.inv_cdf(share)
    mean = normal.pdf(at) / (1 - share)
    return math.sqrt(1 + at * mean - mean * mean)


def sigma0(spreads: Iterable[float]) -> float | None:
    """The typical s of figures of one kind on one machine: the median over baselines of 5 sessions and more (GATE, step 2)."""
    known = list(spreads)
    return statistics.median(known) if known else None


def reference(values: Sequence[float]) -> float | None:
    """20 % trimmed mean of the log session medians, back in the figure's unit (GATE, step 1); None of nothing."""
    if not values:
        return None
    logs = sorted(map(math.log, values))
    cut = int(TRIMMED * len(logs))
    return math.exp(statistics.fmean(logs[cut : len(logs) - cut]))
