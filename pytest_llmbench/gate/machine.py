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
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_llmbench.records import Direction

LEAST_SESSIONS = 5
LEAST_FIGURES = 5
# The variance of a median of n normal values, times n.
MEDIAN_VARIANCE = math.pi / 2
# So many sessions with re-measures must be there before they say anything; and so many count for "a fresh start changes nothing".
LEAST_REPEATED = 10
SHRUNK_BY = 5


@dataclass(frozen=True, slots=True)
class Machine:
    """What figures of past sessions share. sd: of logs, between sessions; df: how surely it is known."""

    sd: float
    df: float
    sessions: int
    figures: int


def machine_state(
    series: Iterable[tuple[Mapping[str, float], Direction]],
    again: Sequence[Mapping[str, Sequence[float]]] = (),
) -> Machine | None:
    """Learn how far all figures of a session move together, and how much of that a fresh start would not have changed.

    series: for each figure, its values by session. All usable sessions count, not only those that a baseline is made of:
    the more, the surer. A session's movement is the median over its figures of the deviation from the figure's own mean,
    so no single figure decides it. Its variance, less what medians of that many independent deviations would vary anyway,
    is that of what the figures share. None under 5 sessions or 5 figures, for then a figure's own noise cannot be told from it.

    again: in the order of series, what fresh servers gave for suspects, by session. Where one server serves all cells, its
    start is part of what they share. A re-measure has the session's machine and another start, so the slope of re-measures
    over movements is the machine's part. (Suspects are picked by their first value, which leaves that slope as it is.) Under
    10 sessions with re-measures all of it counts as the machine; from then on the slope is shrunk to 1 with the weight of 5 sessions.
    """
    deviations: dict[str, list[float]] = {}
    repeated: dict[str, list[float]] = {}
    figures = 0
    for at, (values, direction) in enumerate(series):
        goods = {name: goodness(value, direction) for name, value in values.items() if 0 < value < math.inf}
        if len(goods) < LEAST_SESSIONS:
            continue
        figures += 1
        middle = statistics.fmean(goods.values())
        for name, good in goods.items():
            deviations.setdefault(name, []).append(good - middle)
        for name, starts in again[at].items() if at < len(again) else ():
            repeated.setdefault(name, []).extend(
                goodness(one, direction) - middle for one in starts if 0 < one < math.inf
            )
    together = {name: found for name, found in deviations.items() if len(found) >= LEAST_FIGURES}
    if figures < LEAST_FIGURES or len(together) < LEAST_SESSIONS:
        return None
    movements = {name: statistics.median(found) for name, found in together.items()}
    own = sum((one - movements[name]) ** 2 for name, found in together.items() for one in found)
    own_variance = own / ((figures - 1) * (len(together) - 1))
    share_of_own = MEDIAN_VARIANCE * own_variance / figures
    variance = max(0.0, spread(list(movements.values())) ** 2 - share_of_own)
    variance *= _machines_part(movements, repeated)
    return Machine(sd=math.sqrt(variance), df=degrees(len(together)), sessions=len(together), figures=figures)


def _machines_part(movements: Mapping[str, float], repeated: Mapping[str, Sequence[float]]) -> float:
    """The slope of sessions' mean re-measures over their movements, shrunk to 1, between 0 and 1."""
    pairs = [
        (movements[name], statistics.fmean(found)) for name, found in repeated.items() if found and name in movements
    ]
    if len(pairs) < LEAST_REPEATED:
        return 1.0
    prior = SHRUNK_BY * math.fsum(one * one for one in movements.values()) / len(movements)
    weight = math.fsum(movement * movement for movement, _ in pairs) + prior
    if weight == 0:
        return 1.0
    slope = (math.fsum(movement * fresh for movement, fresh in pairs) + prior) / weight
    return min(1.0, max(0.0, slope))
