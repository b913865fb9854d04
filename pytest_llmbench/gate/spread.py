"""What earlier sessions say of a figure: its level, how far it varies, and how surely that is known. Pure.

Everything here works on log values with "higher is better": a latency's logs are turned round first.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.records import Baseline, Direction

# Under this many sessions nothing gates, and a spread is not learned from them.
LEAST_SESSIONS = 5
# Fewer figures than this of one kind say nothing of that kind.
LEAST_FIGURES = 3
_TRIM = 0.2
_DROP = 0.1
_NORMAL = statistics.NormalDist()
# Stands for the logarithm of 0, so that a figure that fell to nothing is far below everything, and sums stay finite.
_SMALLEST = 1e-300


def goodness(value: float, direction: Direction) -> float:
    """The value's logarithm, turned round where lower is better. value: finite and not negative."""
    log = math.log(max(value, _SMALLEST))
    return -log if direction == "lower" else log


def from_goodness(good: float, direction: Direction) -> float:
    """A value in the figure's unit again."""
    return math.exp(max(-690.0, min(690.0, -good if direction == "lower" else good)))


def usable(values: Iterable[float]) -> list[float]:
    """Those values that can be a reference: finite and above 0."""
    return [value for value in values if math.isfinite(value) and value > 0]


def reference(goods: Sequence[float]) -> float:
    """The 20 % trimmed mean (GATE: "Reference"): the outer fifth on either side, rounded down, is left out."""
    cut = int(_TRIM * len(goods))
    return statistics.fmean(sorted(goods)[cut : len(goods) - cut])


def dropped(k: int) -> int:
    """How many of the slowest of k sessions are left out of a spread: a tenth, rounded up."""
    return math.ceil(_DROP * k)


def degrees(k: int) -> int:
    """The degrees of freedom of the spread of k sessions."""
    return max(1, k - dropped(k) - 1)


def spread(goods: Sequence[float]) -> float:
    """Standard deviation without the slowest tenth, corrected so that it estimates that of undisturbed sessions.

    The slowest are where disturbances are. Leaving out the lowest d of k normal values makes the rest look calmer; the
    correction is that of a normal distribution cut off below its d / (k + 3) quantile, which meets the exact factor
    within 1 % for k = 5 … 40 (test).
    """
    k = len(goods)
    rest = sorted(goods)[dropped(k) :]
    if len(rest) < 2 or rest[0] == rest[-1]:
        return 0.0
    middle = statistics.fmean(rest)
    found = math.sqrt(math.fsum((one - middle) ** 2 for one in rest) / (len(rest) - 1))
    cut = _NORMAL.inv_cdf(dropped(k) / (k + 3))
    hazard = _NORMAL.pdf(cut) / (1 - _NORMAL.cdf(cut))
    return found / math.sqrt(1 + cut * hazard - hazard**2)


def sigma0(baselines: Iterable[Baseline], direction: Direction) -> float | None:
    """The usual spread of figures of one kind on one machine: the median of their spreads (GATE: σ₀), a standard deviation of logs.

    baselines: of figures of the same kind. Only those with 5 sessions and more count. None under 3 of them: then a
    figure stands on its own spread alone, which is known less surely, and its lines are wider for it.
    """
    spreads = [
        spread([goodness(value, direction) for value in values])
        for values in (usable(one.values) for one in baselines)
        if len(values) >= LEAST_SESSIONS
    ]
    return statistics.median(spreads) if len(spreads) >= LEAST_FIGURES else None
