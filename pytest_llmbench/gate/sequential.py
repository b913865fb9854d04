"""Is the new one slower than the old one? A direct comparison that may be looked at after every pair. Pure.

A pair is one start of the old and one of the new setup, next to each other (ABBA …); d = log(new / old), turned so that
negative is worse. Asked is the middle of d, with an interval that is right at *every* moment at once, so that one may stop
as soon as one knows.

Why not a t interval, or a mixture of normals: both believe in normal noise with a spread that stays, and after three or four
pairs (a pair costs two server starts) they believe it hardest. What a pair does give is symmetry: when old and new differ by a
shift of the log alone, old and new may be swapped, so d is symmetric about that shift whatever the noise of a start looks
like: skewed, heavy-tailed, with two humps, another spread every hour. So we bet on signs. For a candidate middle m, given the
size |d - m| and the past, the sign of d - m is a fair coin, and

    M(m) = sum over k of w_k * product over pairs of (1 + tanh(k * z) * sign),   z = min(|d - m| / scale, CLIP)

is a fair game's fortune, with scale = the median size up to and with this pair (sizes tell nothing of signs). Whatever the
rule to stop, it reaches 1 / alpha with probability alpha at most (Ville). The interval holds every m that no bet on either
side has ruined, alpha / 2 a side. Sources: J. Ville 1939; V. de la Peña, Ann. Probab. 27 (1999), on symmetric increments;
A. Ramdas et al., "Game-theoretic statistics and safe anytime-valid inference", Statist. Sci. 38 (2023).
The price: at 95 % no verdict before 7 pairs, for a coin can fall seven times on one side.
"""

from __future__ import annotations

import bisect
import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.errors import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.records import Direction

Outcome = Literal["measure again", "regressed", "improved", "equivalent", "inconclusive"]

BETS = ((0.08, 0.15), (0.2, 0.2), (0.5, 0.2), (1.2, 0.2), (4.0, 0.25))
"""(k, weight): small k for a small effect over many pairs, large k for an effect that every pair shows."""
CLIP = 4.0
_STEPS = 40
_POWER_Z = statistics.NormalDist().inv_cdf(0.8)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a comparison is to find out.

    margin: changes within it are no matter (0.02 = 2 %). budget: the most pairs. error: the probability of any wrong
    verdict, over all figures that are compared and all looks. figures: how many are compared in this session.
    """

    margin: float = 0.02
    budget: int = 30
    error: float = 0.05
    figures: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1 or not 0 < self.error < 1 or self.budget < 1 or self.figures < 1:
            raise ValueError(f"{self}: margin and error lie between 0 and 1, budget and figures are 1 or more")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is known after these pairs; ``measure again`` = one more pair is needed.

    change: of the new against the old, as a share, in the figure's own sense (a latency that grows is positive);
    interval: of the change, right at every moment with 1 - error; an end that no pair has bounded yet is None.
    could_have_seen: the smallest worsening, as a share, that these pairs would have shown in 8 of 10 such comparisons;
    None while there is no interval. why: in words.
    """

    outcome: Outcome
    pairs: int
    change: float | None
    interval: tuple[float | None, float | None]
    could_have_seen: float | None
    why: str


class Bet:
    """Bets that the middle lies on one side of ``at``; fed one pair after the other. side: +1 above, -1 below."""

    def __init__(self, at: float, side: int) -> None:
        self._at, self._side = at, side
        self._sizes: list[float] = []
        self._logs = [math.log(weight) for _, weight in BETS]
        self.peak = 0.0
        """The largest log fortune so far: once ruined, a candidate stays out."""

    def take(self, d: float) -> None:
        x = (d - self._at) * self._side
        bisect.insort(self._sizes, abs(x))
        scale = statistics.median(self._sizes)
        if x == 0:
            return  # a tie is no coin
        z = min(abs(x) / scale, CLIP) if scale > 0 else CLIP
        for i, (k, _) in enumerate(BETS):
            self._logs[i] += math.log1p(math.copysign(math.tanh(k * z), x))
        most = max(self._logs)
        self.peak = max(self.peak, most + math.log(math.fsum(math.exp(one - most) for one in self._logs)))


class Sequential:
    """A comparison in progress. Not a record: it keeps the bets that decide, so that a pair costs the same each time."""

    def __init__(self, asked: Asked, direction: Direction) -> None:
        if direction == "none":
            raise ValueError("a figure without a better direction cannot be compared")
        self.asked, self.direction = asked, direction
        self._sign = -1.0 if direction == "lower" else 1.0
        self._needs = math.log(2 * asked.figures / asked.error)
        self._worse, self._better = -math.log1p(asked.margin), math.log1p(asked.margin)
        self.values: list[float] = []
        """log(new / old) of each pair, negative = worse."""
        self._below = {at: Bet(at, -1) for at in (0.0, self._better)}
        self._above = {at: Bet(at, 1) for at in (0.0, self._worse)}

    def add(self, old: float, new: float) -> Comparison:
        """Take one pair (the figure's medians on two neighbouring starts) and say what is known now.

        Raises ValueError for values that are not positive numbers.
        """
        if not (0 < old < math.inf and 0 < new < math.inf):
            raise ValueError(f"a pair needs two positive numbers, not {old} and {new}")
        self.take(self._sign * math.log(new / old))
        return self.now()

    def take(self, d: float) -> None:
        """Take a pair as log(new / old), negative = worse, without saying what is known."""
        self.values.append(d)
        for bet in (*self._below.values(), *self._above.values()):
            bet.take(d)

    def outcome(self) -> Outcome:
        """The verdict alone, without the interval (which takes a search)."""
        if not self.values:
            return "measure again"
        if self._ruined(self._below[0.0]) and walsh_median(self.values) <= self._worse:
            return "regressed"
        if self._ruined(self._above[0.0]) and walsh_median(self.values) >= self._better:
            return "improved"
        if self._ruined(self._below[self._better]) and self._ruined(self._above[self._worse]):
            return "equivalent"
        return "inconclusive" if len(self.values) >= self.asked.budget else "measure again"

    def now(self) -> Comparison:
        """What is known, with the interval."""
        outcome, n = self.outcome(), len(self.values)
        if not n:
            return Comparison(outcome, 0, None, (None, None), None, "no pair yet")
        low, high = self.bounds()
        middle = walsh_median(self.values)
        seen = None
        if math.isfinite(high):
            noise = robust_sd(self.values) / math.sqrt(n)
            seen = -math.expm1(-(high - middle + _POWER_Z * noise))
        low, high = sorted((self._sign * low, self._sign * high))
        shares = _share(low), _share(high)
        change = math.expm1(self._sign * middle)
        return Comparison(outcome, n, change, shares, seen, self._why(outcome, change, shares, seen))

    def bounds(self) -> tuple[float, float]:
        """The confidence interval of the middle of d: log(new / old), negative = worse; infinite where nothing bounds it."""
        return self._bound(-1), self._bound(1)

    def _ruined(self, bet: Bet) -> bool:
        return bet.peak >= self._needs

    def _bound(self, side: int) -> float:
        """The outermost candidate on this side that the bets against it have not ruined."""
        inside = walsh_median(self.values)
        spread = max(self.values) - min(self.values)
        outside = (max(self.values) if side > 0 else min(self.values)) + side * max(spread, 1e-6)
        if not self._excluded(outside, side):
            return side * math.inf
        if self._excluded(inside, side):
            return inside
        for _ in range(_STEPS):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if self._excluded(middle, side) else (middle, outside)
        return outside

    def _excluded(self, at: float, side: int) -> bool:
        bet = Bet(at, -side)
        for d in self.values:
            bet.take(d)
        return self._ruined(bet)

    def _why(self, outcome: Outcome, change: float, shares: tuple[float | None, ...], seen: float | None) -> str:
        n = len(self.values)
        low, high = ("?" if end is None else f"{end:+.1%}" for end in shares)
        line = f"{change:+.1%} (interval {low} … {high}, {counted(n, 'pair')}, margin {self.asked.margin:.1%})"
        if outcome == "inconclusive":
            could = "nothing could be bounded" if seen is None else f"a worsening of {seen:.1%} would have been seen"
            return f"{line}: the budget of {counted(self.asked.budget, 'pair')} is used up; {could}"
        return line


def _share(log_ratio: float) -> float | None:
    return math.expm1(log_ratio) if math.isfinite(log_ratio) else None


def robust_sd(values: Sequence[float]) -> float:
    """Spread of the pairs that a few wild ones do not move: 1.4826 x the median distance from the median."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - middle) for v in values)


def walsh_median(values: Sequence[float]) -> float:
    """The median of the means of all two values, each with itself too (Hodges, Lehmann 1963): the middle of symmetric noise."""
    return statistics.median((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
