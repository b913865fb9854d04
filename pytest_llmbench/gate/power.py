"""What it takes to see an effect on this machine: runs, re-measures, baseline sessions, minutes. Pure.

The model, on log values. A figure of one server start is

    reference + machine (sd ``machine``) + start (sd ``start``) + median of R runs (sd ``run`` * sqrt(median_variance(R)))

The machine's term is shared by all starts of a session: a fresh server does not refresh it. sigma, the sd of session
medians, is the root of the three variances. The reference is the trimmed mean of K sessions: sd sigma * sqrt(1.1 / K).
The gate (GATE, "The rule"): a session below its suspect line is measured again on n fresh starts of r runs; one above its
clear line clears it; else the mean of the best three must lie below the deep line. So

    shared by all starts   u ~ N(0, machine^2 + 1.1 sigma^2 / K)
    the first start        P1(u) = Phi((-suspect - u) / sd1),   sd1^2 = start^2 + run^2 v(R)
    the mean of n starts   P2(u) = Phi((-L - u) / sdn),         sdn^2 = (start^2 + run^2 v(r)) / n
    false alarm         <= mean over u and sigma^ of P1 P2: that every start lies below the clear line is left out
    deep line              L = max(floor, deep * sigma^ * sqrt(1/3 + 1.1/K), what makes that the asked rate)

sigma^ is estimated with df = 20 + K - 2 degrees of freedom (chi-square by Wilson and Hilferty), and all lines scale with it. The power
is the probability that a worsening passes all three lines, summed over a fixed lattice of draws (the same in, the same out). No number of runs or sessions takes the machine's term away: an effect below
(z_alarm + z_power) * machine cannot be seen here, only with a control that takes it out, or spread in time.
With n > 3 re-measures the mean is over all but the n - 3 worst; that is the rule's "best three" for n = 3 alone and for n = 4.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORMAL = statistics.NormalDist()
_POINTS = 2048
_DIMENSIONS = 9
_SIGMAS = 5
_SHARED = tuple(-6.5 + 0.5 * i for i in range(27))
_WEIGHTS = tuple(math.exp(-u * u / 2) for u in _SHARED)
REFERENCE_VARIANCE = 1.1
"""Of a 20 % trimmed mean of normal values, times K (GATE)."""
BORROWED_DF = 20
BEST = 3


@dataclass(frozen=True, slots=True)
class Lines:
    """The rule's lines: floors as shares, the rest in sigma (suspect, clear: times sqrt(1 + 1.1/K); deep: sqrt(1/3 + 1.1/K))."""

    suspect_floor: float = 0.02
    suspect: float = 1.4
    clear_floor: float = 0.015
    clear: float = 1.05
    deep_floor: float = 0.03
    deep: float = 3.3


WITH_CONTROL = Lines(suspect_floor=0.012, clear_floor=0.009, deep_floor=0.017, deep=3.6)
"""The rule's lines where a control takes the machine out (GATE)."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Standard deviations of log values, and what measuring costs.

    machine: between sessions, shared by all starts of one; start: between starts; run: between runs of a start.
    start_minutes, run_minutes: what one start and one run take, a control's own included. name: what it is ("with control").
    lines: the rule's lines that hold there.
    """

    machine: float
    start: float
    run: float
    start_minutes: float
    run_minutes: float
    name: str = ""
    lines: Lines = field(default_factory=Lines)

    @classmethod
    def of(
        cls,
        sigma: float,
        runs: int,
        *,
        start: float,
        run: float,
        start_minutes: float,
        run_minutes: float,
        name: str = "",
        lines: Lines | None = None,
    ) -> Noise:
        """From the sd of session medians of so many runs: what starts and runs do not explain of it is the machine's."""
        rest = sigma**2 - start**2 - run**2 * median_variance(runs)
        return cls(math.sqrt(max(rest, 0.0)), start, run, start_minutes, run_minutes, name, lines or Lines())

    def sigma(self, runs: int) -> float:
        """The sd of session medians of so many runs."""
        return math.sqrt(self.machine**2 + self.start**2 + self.run**2 * median_variance(runs))


@dataclass(frozen=True, slots=True)
class Rates:
    """What is asked: false alarms of one figure in one unchanged session, and how often the effect is found.

    The default is 1 % of sessions with 30 figures.
    """

    alarm: float = 0.01 / 30
    power: float = 0.95


@dataclass(frozen=True, slots=True)
class Option:
    """One way to see the effect. again: re-measures on fresh starts, each of again_runs; sessions: K of the baseline.

    found: how often the effect is found; false_alarm: an upper bound. deep_line: the worsening, as a share, that the mean of the
    re-measures must exceed. minutes: of a session, suspicion's expected part included; minutes_suspect: of a session that is
    measured again to the end; minutes_baseline: of the K sessions.
    """

    noise: str
    runs: int
    again: int
    again_runs: int
    sessions: int
    found: float
    false_alarm: float
    deep_line: float
    minutes: float
    minutes_suspect: float
    minutes_baseline: float


@dataclass(frozen=True, slots=True)
class Answer:
    """options: those that find the effect as often as asked, cheapest session first. why: in words, also where there is none.

    least: the smallest effect, as a share, that any effort could show here; None where nothing bounds it.
    """

    effect: float
    options: tuple[Option, ...]
    least: float | None
    why: str


def median_variance(runs: int) -> float:
    """The variance of the median of so many normal values of variance 1 (exact under 8, asymptotic above)."""
    if runs < 1:
        raise ValueError(f"{runs} runs have no median")
    exact = (1.0, 0.5, 0.4487, 0.2982, 0.2868, 0.2147, 0.2104)
    return exact[runs - 1] if runs <= len(exact) else math.pi / 2 / (runs + math.pi / 2 - 1)


def resolve(
    effect: float,
    noises: Sequence[Noise],
    *,
    rates: Rates | None = None,
    runs: Sequence[int] = (2, 3, 5),
    again: Sequence[int] = (3, 4, 5),
    again_runs: int = 5,
    sessions: Sequence[int] = (5, 10, 20, 40),
) -> Answer:
    """What shows a worsening by ``effect`` (0.03 = 3 %) as often as asked, under each noise (without and with a control).

    Raises ValueError for an effect that is not between 0 and 1, or negative sds.
    """
    if not 0 < effect < 1 or not noises or any(min(n.machine, n.start, n.run) < 0 for n in noises):
        raise ValueError(f"effect {effect} must lie between 0 and 1, and sds of {list(noises)} must not be negative")
    rates = rates or Rates()
    found = [
        one
        for noise in noises
        for r in runs
        for n in again
        for k in sessions
        if (one := option(effect, noise, r, n, again_runs, k, rates)).found >= rates.power
    ]
    kept = sorted(
        (o for o in found if not any(_beats(other, o) for other in found)), key=lambda o: (o.minutes, o.sessions)
    )
    least = min(least_effect(noise, rates) for noise in noises)
    return Answer(effect, tuple(kept), least or None, _why(effect, kept, noises, rates))


def least_effect(noise: Noise, rates: Rates) -> float:
    """The effect that no number of starts and sessions can get below: the machine's own term stays in every session."""
    z = _NORMAL.inv_cdf(1 - rates.alarm) + _NORMAL.inv_cdf(rates.power)
    return -math.expm1(-z * noise.machine)


def option(effect: float, noise: Noise, runs: int, again: int, again_runs: int, sessions: int, rates: Rates) -> Option:
    """How one design does; see the head of this file for the formulas."""
    lines, sigma = noise.lines, noise.sigma(runs)
    first_sd = math.sqrt(noise.start**2 + noise.run**2 * median_variance(runs))
    again_sd = math.sqrt(noise.start**2 + noise.run**2 * median_variance(again_runs))
    shared_sd = math.sqrt(noise.machine**2 + REFERENCE_VARIANCE * sigma**2 / sessions)
    around = sigma * math.sqrt(1 + REFERENCE_VARIANCE / sessions)
    suspect = _Line(-math.log1p(-lines.suspect_floor), lines.suspect * around)
    clear = _Line(-math.log1p(-lines.clear_floor), lines.clear * around)
    df = BORROWED_DF + sessions - 2
    rule = lines.deep * sigma * math.sqrt(1 / 3 + REFERENCE_VARIANCE / sessions)
    spread = _Spread(shared_sd, first_sd, again_sd / math.sqrt(BEST), df)
    deep = spread.deep(rates.alarm, suspect, _Line(-math.log1p(-lines.deep_floor), rule))
    drop = -math.log1p(-effect)
    found = _passes(drop, shared_sd, first_sd, again_sd, again, df, (suspect, clear, deep))
    suspicion = _below(-suspect.at(1.0), 0.0, math.hypot(shared_sd, first_sd))
    session = noise.start_minutes + runs * noise.run_minutes
    once_more = noise.start_minutes + again_runs * noise.run_minutes
    return Option(
        noise=noise.name,
        runs=runs,
        again=again,
        again_runs=again_runs,
        sessions=sessions,
        found=found,
        false_alarm=spread.false_alarm(suspect, deep),
        deep_line=-math.expm1(-deep.at(1.0)),
        minutes=session + suspicion * again * once_more,
        minutes_suspect=session + again * once_more,
        minutes_baseline=sessions * session,
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A line below the reference, in log: so far at least, and further where the estimated sigma asks for it."""

    floor: float
    sigmas: float

    def at(self, ratio: float) -> float:
        """Where it lies when sigma is estimated at ``ratio`` times its true value."""
        return max(self.floor, ratio * self.sigmas)


@dataclass(frozen=True, slots=True)
class _Spread:
    """The sds of what is shared, of the first start, and of the mean of the fresh ones; df of the estimated sigma."""

    shared: float
    first: float
    mean: float
    df: int

    def deep(self, alarm: float, suspect: _Line, rule: _Line) -> _Line:
        """The deep line: the rule's, or further out where the false alarms ask for it."""
        low, high = rule.sigmas, rule.at(1.0) + 12 * math.hypot(self.shared, self.mean)
        if self.false_alarm(suspect, rule) <= alarm:
            return rule
        for _ in range(14):
            middle = (low + high) / 2
            low, high = (
                (low, middle) if self.false_alarm(suspect, _Line(rule.floor, middle)) <= alarm else (middle, high)
            )
        return _Line(rule.floor, high)

    def false_alarm(self, suspect: _Line, deep: _Line) -> float:
        """The upper bound of the false alarms of one figure in one unchanged session."""
        total = 0.0
        for nth in range(_SIGMAS):
            ratio = _sigma_ratio(_NORMAL.inv_cdf((nth + 0.5) / _SIGMAS), self.df)
            first, again = -suspect.at(ratio), -deep.at(ratio)
            total += math.fsum(
                w * _below(first, self.shared * u, self.first) * _below(again, self.shared * u, self.mean)
                for w, u in zip(_WEIGHTS, _SHARED, strict=True)
            )
        return total / sum(_WEIGHTS) / _SIGMAS


def _below(line: float, middle: float, sd: float) -> float:
    return 0.5 * math.erfc((middle - line) / (max(sd, 1e-12) * math.sqrt(2)))


def _sigma_ratio(z: float, df: int) -> float:
    """Estimated / true sigma at this normal quantile: the root of chi-square / df (Wilson, Hilferty 1931)."""
    return math.sqrt(max(1 - 2 / (9 * df) + z * math.sqrt(2 / (9 * df)), 0.0) ** 3)


def _passes(
    drop: float, shared_sd: float, first_sd: float, again_sd: float, again: int, df: int, lines: tuple[_Line, ...]
) -> float:
    """How often a worsening by ``drop`` passes all three lines."""
    best = max(BEST, again - 1)
    hits = 0
    for shared, estimate, first, *others in _lattice():
        ratio = _sigma_ratio(estimate, df)
        suspect, clear, deep = (line.at(ratio) for line in lines)
        base = drop - shared_sd * shared
        if base - first_sd * first <= suspect:
            continue
        starts = sorted(base - again_sd * other for other in others[:again])
        if starts[0] > clear and math.fsum(starts[:best]) / best > deep:
            hits += 1
    return hits / _POINTS


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


def _beats(one: Option, other: Option) -> bool:
    """At least as cheap in every way, and cheaper in one."""
    mine = (one.minutes, one.minutes_suspect, one.minutes_baseline, one.sessions)
    theirs = (other.minutes, other.minutes_suspect, other.minutes_baseline, other.sessions)
    return mine != theirs and all(a <= b for a, b in zip(mine, theirs, strict=True))


def _why(effect: float, kept: Sequence[Option], noises: Sequence[Noise], rates: Rates) -> str:
    asked = f"{effect:.1%} in {rates.power:.0%} of sessions, false alarms in {rates.alarm:.2%} at most"
    if kept:
        best = kept[0]
        named = f" {best.noise}" if best.noise else ""
        return (
            f"{asked}: {best.runs} runs, {best.again} re-measures of {best.again_runs} runs, {best.sessions} baseline sessions"
            f"{named}; {best.minutes:.1f} minutes a session, {best.minutes_suspect:.1f} where it is suspect"
        )
    least = min(least_effect(noise, rates) for noise in noises)
    if least > effect:
        machine = min(noise.machine for noise in noises)
        return (
            f"not on this machine: {asked} is below {least:.1%}, for what all starts of a session share moves by "
            f"{machine:.1%} from session to session, and no number of runs takes that out"
        )
    floor = min(noise.lines.deep_floor for noise in noises)
    if effect <= floor:
        return f"not with this rule: {asked} lies within its floor of {floor:.1%}"
    return f"not within what was tried: {asked} would need more starts or sessions than the largest design here"


def table(answer: Answer, limit: int = 6) -> list[tuple[str, ...]]:
    """The answer as rows of text, the header first; empty where there is no option."""
    if not answer.options:
        return []
    head = (
        "control",
        "runs",
        "again",
        "sessions",
        "found",
        "false alarm",
        "min/session",
        "min suspect",
        "min baseline",
    )
    return [
        head,
        *(
            (
                o.noise or "-",
                str(o.runs),
                f"{o.again} x {o.again_runs}",
                str(o.sessions),
                f"{o.found:.1%}",
                f"<= {o.false_alarm:.2%}",
                f"{o.minutes:.1f}",
                f"{o.minutes_suspect:.1f}",
                f"{o.minutes_baseline:.0f}",
            )
            for o in answer.options[:limit]
        ),
    ]
