"""What it takes to see an effect on this machine: runs, re-measures, baseline sessions, minutes. Pure.

The model, on log values. A figure of one server start is

    reference + machine (sd ``machine``) + start (sd ``start``) + median of R runs (sd ``run`` * sqrt(median_variance(R)))

The machine's term is shared by all starts of a session: a fresh server does not refresh it. sigma, the sd of session
medians, is the root of the three variances; own = start + runs. The reference is the trimmed mean of K sessions: sd
sigma * sqrt(1.1 / K). The rule (gate/rule.py, GATE): a session below its suspect line is measured again on n fresh starts of r
runs; one above its clear line clears it; else the mean of all starts but the worst must lie below

    L = max(floor, c * sqrt((a m)^2 + (b sigma)^2 * 1.1/K + (d own)^2 / n))       a, b, d as the rule has them, widened for df

with df = 20 + K - 2 degrees of freedom of sigma (chi-square by Wilson and Hilferty), and all lines scale with the sigma that was
estimated. c is 1, or more where the asked rate of false alarms needs it. Both rates are sums over a fixed lattice of draws (the
same in, the same out); that of false alarms over draws that lean toward the alarm and are weighed back.
No number of runs or sessions takes the machine's term away: an effect below
(z_alarm + z_power) * machine cannot be seen here, only with a control that takes it out, or spread in time.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.gate.design import Design, Line, where, widened
from pytest_llmbench.gate.lines import RULE, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

_NORMAL = statistics.NormalDist()
REFERENCE_VARIANCE = 1.1
"""Of a 20 % trimmed mean of normal values, times K (GATE)."""
BORROWED_DF = 20


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
    lines: Rule = RULE

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
        lines: Rule | None = None,
    ) -> Noise:
        """From the sd of session medians of so many runs: what starts and runs do not explain of it is the machine's."""
        rest = sigma**2 - start**2 - run**2 * median_variance(runs)
        return cls(math.sqrt(max(rest, 0.0)), start, run, start_minutes, run_minutes, name, lines or RULE)

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

    found: how often the effect is found; false_alarm: of one figure in one unchanged session. line: the worsening, as a share, that
    the mean of all starts but the worst must exceed. minutes: of a session, suspicion's expected part included; minutes_suspect: of a session that is
    measured again to the end; minutes_baseline: of the K sessions.
    """

    noise: str
    runs: int
    again: int
    again_runs: int
    sessions: int
    found: float
    false_alarm: float
    line: float
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
    reference_sd = sigma * math.sqrt(REFERENCE_VARIANCE / sessions)
    around = math.hypot(sigma, reference_sd)
    df = BORROWED_DF + sessions - 2
    base = math.sqrt(
        (lines.machine_sigmas * widened(0.025, df) * noise.machine) ** 2
        + (lines.reference_sigmas * widened(rates.alarm, df) * reference_sd) ** 2
        + (lines.start_sigmas * widened(rates.alarm, df) * first_sd) ** 2 / again
    )
    design = Design(
        shared=math.hypot(noise.machine, reference_sd),
        first=first_sd,
        again=again_sd,
        starts=again,
        df=df,
        suspect=Line(-math.log1p(-lines.suspect_floor), lines.suspect_sigmas * around),
        clear=Line(-math.log1p(-lines.clear_floor), lines.clear_sigmas * around),
        floor=-math.log1p(-lines.regressed_floor),
        base=base,
    )
    unchanged = design.alarms()
    times = max(1.0, where(unchanged, rates.alarm))
    suspicion = 0.5 * math.erfc(design.suspect.at(1.0) / max(math.hypot(design.shared, first_sd) * math.sqrt(2), 1e-12))
    session = noise.start_minutes + runs * noise.run_minutes
    once_more = noise.start_minutes + again_runs * noise.run_minutes
    return Option(
        noise=noise.name,
        runs=runs,
        again=again,
        again_runs=again_runs,
        sessions=sessions,
        found=math.fsum(weight for at, weight in design.alarms(-math.log1p(-effect)) if at >= times),
        false_alarm=math.fsum(weight for at, weight in unchanged if at >= times),
        line=-math.expm1(-max(design.floor, times * base)),
        minutes=session + suspicion * again * once_more,
        minutes_suspect=session + again * once_more,
        minutes_baseline=sessions * session,
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
    floor = min(noise.lines.regressed_floor for noise in noises)
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
                f"{o.false_alarm:.3%}",
                f"{o.minutes:.1f}",
                f"{o.minutes_suspect:.1f}",
                f"{o.minutes_baseline:.0f}",
            )
            for o in answer.options[:limit]
        ),
    ]
