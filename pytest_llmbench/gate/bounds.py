"""Exact (Clopper-Pearson) bounds of a rate that was counted. Pure.

Source: C. Clopper, E. Pearson, Biometrika 26 (1934). A bound is the rate at which what was counted, or something more
extreme, has the stated small probability; it is found by bisection on the binomial tail.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIDENCE = 0.95
_STEPS = 60


def at_most(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided upper bound of the rate behind ``hits`` of ``trials``: 0 of 30 bounds it at 9.5 %, 0 of 299 at 1 %.

    1.0 where nothing was tried. Raises ValueError for counts that cannot be.
    """
    _check(hits, trials, confidence)
    if hits == trials:
        return 1.0
    return _solve(lambda rate: _at_most_hits(hits, trials, rate) > 1 - confidence)


def at_least(hits: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """One-sided lower bound: 20 of 20 found proves 86 %. 0.0 where nothing was tried."""
    _check(hits, trials, confidence)
    return 1 - at_most(trials - hits, trials, confidence) if trials else 0.0


def interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Two-sided bounds: each side is wrong with (1 - confidence) / 2 at most."""
    side = (1 + confidence) / 2
    return at_least(hits, trials, side), at_most(hits, trials, side)


def shown_at_most(hits: int, trials: int, rate: float) -> str:
    """A counted rate that should be small, with its bound, and whether the bound shows it: for a table."""
    return _words(hits, trials, "at most", at_most(hits, trials), at_most(hits, trials) <= rate, f"<= {rate:.2%}")


def shown_at_least(hits: int, trials: int, rate: float) -> str:
    """A counted rate that should be large, with its bound, and whether the bound shows it: for a table."""
    return _words(hits, trials, "at least", at_least(hits, trials), at_least(hits, trials) >= rate, f">= {rate:.0%}")


def _words(hits: int, trials: int, side: str, bound: float, shown: bool, goal: str) -> str:  # noqa: FBT001 - private
    if not trials:
        return "nothing tried"
    verdict = f"shows {goal}" if shown else f"{goal} not yet shown"
    return f"{hits} of {trials} = {hits / trials:.2%}, {side} {bound:.2%} ({verdict})"


def _check(hits: int, trials: int, confidence: float) -> None:
    if not 0 <= hits <= trials:
        raise ValueError(f"{hits} hits of {trials} trials cannot be")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence {confidence} is not between 0 and 1")


def _solve(too_small: Callable[[float], bool]) -> float:
    low, high = 0.0, 1.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_small(middle) else (low, middle)
    return high


def _at_most_hits(hits: int, trials: int, rate: float) -> float:
    """P(X <= hits) of a binomial; summed from the largest term down, so that nothing cancels."""
    if rate <= 0:
        return 1.0
    if rate >= 1:
        return 0.0
    if hits > rate * trials:  # the other tail is the short one
        return 1 - _at_most_hits(trials - hits - 1, trials, 1 - rate) if trials > hits else 1.0
    logs = math.lgamma(trials + 1) - math.lgamma(hits + 1) - math.lgamma(trials - hits + 1)
    term = math.exp(logs + hits * math.log(rate) + (trials - hits) * math.log1p(-rate))
    total, odds = term, (1 - rate) / rate
    for k in range(hits, 0, -1):
        term *= k / (trials - k + 1) * odds
        total += term
        if term < total * 1e-17:
            break
    return min(total, 1.0)
