"""What a figure can resolve: the smallest worsening that the rule finds in 95 % of sessions. Pure."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.gate.lines import Yardstick
    from pytest_llmbench.records import Direction

_NORMAL = NormalDist()
FOUND = 0.95
# Mean and variance of the largest of n + 1 standard normal values, n = 3, 4, 5 (tables of normal order statistics).
_LARGEST = {3: (1.02938, 0.49172), 4: (1.16296, 0.44753), 5: (1.26721, 0.41593)}
_STEPS = 32


def chance_to_find(off: float, stick: Yardstick) -> float:
    """The probability that a figure that became worse by ``off`` (in logs) is found, with the rule's full re-measures.

    Given what all starts of the session share, u ~ N(0, machine (1 + 1.1/K) + own 1.1/K), starts are independent with
    variance ``own``, and the three conditions of the rule (the first value suspect, every fresh start beyond the
    clearing line, the mean of the best n of n + 1 beyond the line of regressions) hold together at least as often as if they
    were independent, for each becomes likelier as any start gets worse. So

        P(off) >= ∫ Φ((off - u - suspect) / s) · Φ((off - u - clears) / s)^n · Φ((off - u - line - m s / n) / (s √v)) dN(u)

    with s = √own, m the mean of the largest of n + 1 normal values, and v = (n - 1 + var of it) / n² the variance of the
    mean of the best n. sigma is taken as if it were exact. The simulation confirms it (benchmarks/gate_simulation.py).
    """
    n = stick.remeasures
    s = math.sqrt(stick.own_variance)
    shared = math.sqrt(stick.machine_variance * (1 + stick.doubt) + stick.own_variance * stick.doubt)
    mean, variance = _LARGEST[n]
    lift, narrow = mean / n * s, s * math.sqrt(n - 1 + variance) / n
    suspect, clears, line = stick.suspect, stick.clears, stick.regressed(n)
    total = weights = 0.0
    for step in range(_STEPS + 1):
        z = -4 + 8 * step / _STEPS
        weight = math.exp(-z * z / 2)
        here = off - shared * z
        chance = _beyond(here - suspect, s) * _beyond(here - clears, s) ** n * _beyond(here - line - lift, narrow)
        total, weights = total + weight * chance, weights + weight
    return total / weights


def resolves(stick: Yardstick, direction: Direction) -> float:
    """The smallest worsening that is found in 95 % of sessions, as a share of the reference (``chance_to_find``)."""
    low, high = 0.0, stick.regressed(stick.remeasures)
    while chance_to_find(high, stick) < FOUND:
        low, high = high, high * 2
        if high > 100:
            return 1.0 if direction != "lower" else math.inf
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if chance_to_find(middle, stick) >= FOUND else (middle, high)
    return math.expm1(high) if direction == "lower" else -math.expm1(-high)


def _beyond(distance: float, sd: float) -> float:
    if sd == 0:
        return 1.0 if distance > 0 else 0.0
    return _NORMAL.cdf(distance / sd)
