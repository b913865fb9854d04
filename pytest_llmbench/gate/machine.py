"""How far the machine itself moves between sessions, learned from figures that moved together. Pure.

A fresh server start does not refresh the machine (heat, neighbours, memory layout, power), so measuring again does not
average its state away. What all figures of a session share is the best view of it that needs no extra measurement.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.gate.spread import degrees, goodness, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytest_llmbench.records import Direction

LEAST_SESSIONS = 5
LEAST_FIGURES = 5
# The variance of a median of n normal values, times n.
MEDIAN_VARIANCE = math.pi / 2


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures of past sessions share. sd: of logs, between sessions; df: how surely it is known."""

    sd: float
    df: float
    sessions: int
    figures: int


def machine_state(series: Iterable[tuple[Mapping[str, float], Direction]]) -> Machine | None:
    """Learn how far all figures of a session move together.

    series: for each figure, its values by session. All usable sessions count, not only those that a baseline is made of:
    the more, the surer. A session's movement is the median over its figures of the deviation from the figure's own mean,
    so no single figure decides it. Its variance, less what medians of that many independent deviations would vary anyway,
    is the machine's. None under 5 sessions or 5 figures, for then a figure's own noise cannot be told from the machine.

    Where all figures of a session come from one server start, what a start does to all of them is in it too.
    """
    deviations: dict[str, list[float]] = {}
    figures = 0
    for values, direction in series:
        goods = {name: goodness(value, direction) for name, value in values.items() if 0 < value < math.inf}
        if len(goods) < LEAST_SESSIONS:
            continue
        figures += 1
        middle = statistics.fmean(goods.values())
        for name, good in goods.items():
            deviations.setdefault(name, []).append(good - middle)
    together = {name: found for name, found in deviations.items() if len(found) >= LEAST_FIGURES}
    if figures < LEAST_FIGURES or len(together) < LEAST_SESSIONS:
        return None
    movements = {name: statistics.median(found) for name, found in together.items()}
    own = sum((one - movements[name]) ** 2 for name, found in together.items() for one in found)
    own_variance = own / ((figures - 1) * (len(together) - 1))
    share_of_own = MEDIAN_VARIANCE * own_variance / figures
    sd = math.sqrt(max(0.0, spread(list(movements.values())) ** 2 - share_of_own))
    return Machine(sd=sd, df=degrees(len(together)), sessions=len(together), figures=figures)
