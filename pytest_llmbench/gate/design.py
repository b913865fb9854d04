"""One design of a figure's gate on a fixed lattice of draws: how often it alarms. Pure; ``power.py`` has the formulas."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORMAL = statistics.NormalDist()
_POINTS = 2048
_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class Line:
    """A line below the reference, in log: so far at least, and further where the estimated sigma asks for it."""

    floor: float
    sigmas: float

    def at(self, ratio: float) -> float:
        """Where it lies when sigma is estimated at ``ratio`` times its true value."""
        return max(self.floor, ratio * self.sigmas)


@dataclass(frozen=True, slots=True)
class Design:
    """One design: sds of what is shared, of the first start and of the fresh ones; and its lines."""

    shared: float
    first: float
    again: float
    starts: int
    df: int
    suspect: Line
    clear: Line
    floor: float
    base: float

    def alarms(self, drop: float | None = None) -> list[tuple[float, float]]:
        """(c, probability) of lattice points that are an alarm for lines up to c times ``base``.

        drop: a worsening; None: unchanged, with draws that lean toward the alarm, weighed back.
        """
        sds = (self.shared, self.first, *(self.again for _ in range(self.starts)))
        lean = [0.0] * len(sds)
        if drop is None:
            # The likeliest way to an alarm: all starts off by the line, each cause by its part of the variance.
            whole = self.shared**2 + (self.first**2 + self.starts * self.again**2) / (1 + self.starts) ** 2
            most = max(self.floor, self.base) / max(whole, 1e-24)
            lean = [most * self.shared, *(most * sd / (1 + self.starts) for sd in sds[1:])]
        found = []
        for estimate, *draws in _lattice():
            ratio = _sigma_ratio(estimate, self.df)
            shifted = [draw + by for draw, by in zip(draws, lean, strict=False)]
            base = (drop or 0.0) + self.shared * shifted[0]
            offs = [base + sd * z for sd, z in zip(sds[1:], shifted[1:], strict=True)]
            if offs[0] <= self.suspect.at(ratio) or min(offs[1:]) <= self.clear.at(ratio):
                continue
            best = (math.fsum(offs) - max(offs)) / self.starts
            if best > self.floor:
                weight = math.exp(-math.fsum(by * (z - by / 2) for z, by in zip(shifted, lean, strict=True)))
                found.append((best / max(ratio * self.base, 1e-12), weight / _POINTS))
        return found


def where(alarms: Sequence[tuple[float, float]], rate: float) -> float:
    """The smallest c at which the alarms are as rare as asked; 0 where they are so everywhere."""
    total = 0.0
    for at, weight in sorted(alarms, reverse=True):
        total += weight
        if total > rate:
            return at * (1 + 1e-9)
    return 0.0


def widened(tail: float, df: int) -> float:
    """How much further out than a normal one a t quantile lies (the first term of Cornish and Fisher)."""
    z = _NORMAL.inv_cdf(1 - tail)
    return 1 + (z * z + 1) / (4 * df)


def _sigma_ratio(z: float, df: int) -> float:
    """Estimated / true sigma at this normal quantile: the root of chi-square / df (Wilson, Hilferty 1931)."""
    return math.sqrt(max(1 - 2 / (9 * df) + z * math.sqrt(2 / (9 * df)), 0.0) ** 3)


@lru_cache(maxsize=1)
def _lattice() -> tuple[tuple[float, ...], ...]:
    """Normal draws that fill the space evenly: a Kronecker sequence with the roots of x^(d+1) = x + 1 (M. Roberts 2018)."""
    phi = 2.0
    for _ in range(60):
        phi = (1 + phi) ** (1 / (_DIMENSIONS + 1))
    steps = [phi ** -(j + 1) % 1 for j in range(_DIMENSIONS)]
    return tuple(
        tuple(_NORMAL.inv_cdf(min(max((0.5 + i * step) % 1, 1e-6), 1 - 1e-6)) for step in steps)
        for i in range(1, _POINTS + 1)
    )
