"""The rule's constants, and the lines that they draw for one figure. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from pytest_llmbench.errors import InputError
from pytest_llmbench.gate import spread
from pytest_llmbench.gate.student import t_quantile

if TYPE_CHECKING:
    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.records import Baseline, Direction

MOST_REMEASURES = (3, 4, 5)


@dataclass(frozen=True, slots=True)
class Rule:
    """The constants of the gate. Floors are shares; "sigmas" multiply standard deviations of log session medians.

    figures: how many figures the suite judges; all of them together may raise a false alarm in ``suite_alarms`` of the
    unchanged sessions. machine_share: the part of a figure's variance that is taken as the machine's while nothing is learned of it.
    least_sessions: from there on a figure is judged; full_sessions: a baseline is complete and pinned.
    remeasures: fresh servers that a suspect gets; early_remeasures: the same before full_sessions; least_remeasures: fewer than these decide nothing.
    sigma0_weight: what sigma0 counts for, in degrees of freedom. noisy_times: a spread of more than so many sigma0 is
    noisy, unless below noisy_least, where the floors are wide enough anyway.
    """

    figures: int = 30
    suite_alarms: float = 0.01
    machine_share: float = 0.2
    least_sessions: int = spread.LEAST_SESSIONS
    full_sessions: int = 10
    remeasures: int = 4
    early_remeasures: int = 5
    least_remeasures: int = 3
    suspect_floor: float = 0.02
    suspect_sigmas: float = 1.4
    clear_floor: float = 0.015
    clear_sigmas: float = 1.05
    dip_floor: float = 0.05
    dip_sigmas: float = 3.0
    regressed_floor: float = 0.03
    machine_sigmas: float = 3.1
    reference_sigmas: float = 3.4
    start_sigmas: float = 1.9
    sigmas_per_start_less: float = 0.3
    sigma0_weight: float = 20.0
    noisy_times: float = 1.8
    noisy_least: float = 0.01

    def __post_init__(self) -> None:
        for name in ("remeasures", "early_remeasures"):
            if getattr(self, name) not in MOST_REMEASURES:
                raise InputError(
                    f"rule.{name}",
                    getattr(self, name),
                    "the lines are known for 3, 4 and 5 fresh servers",
                    "take one of these, and bound the cost with --llmbench-remeasure",
                )
        if self.figures < 1:
            raise InputError(
                "rule.figures", self.figures, "a suite judges at least one figure", "count the gated figures"
            )


RULE = Rule()
# Where a control has taken the machine out of the number, so that it varies by 1 % and less between sessions.
WITH_CONTROL = Rule(suspect_floor=0.012, clear_floor=0.009, regressed_floor=0.017)

# A trimmed mean is a little less sure than a mean: its variance is about 1.1 sigma² / K (GATE).
TRIMMED = 1.1
# The figures' budget that the regressed_sigmas were found for: 1 % of the sessions of a suite of 30.
FOUND_FOR = NormalDist().inv_cdf(1 - 0.01 / 30)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What a figure is measured against: reference and spreads on log values where higher is better.

    variance = machine + own: what a fresh server does not refresh, and what it does. k: sessions of the reference.
    """

    rule: Rule
    k: int
    reference: float
    spread: float
    sigma0: float | None
    noisy: bool
    df: float
    machine_variance: float
    machine_df: float
    machine_learned: bool
    own_variance: float

    @property
    def sigma(self) -> float:
        return math.sqrt(self.machine_variance + self.own_variance)

    @property
    def remeasures(self) -> int:
        """How many fresh servers a suspect gets: one more while the reference is made of few sessions."""
        return self.rule.remeasures if self.k >= self.rule.full_sessions else self.rule.early_remeasures

    @property
    def doubt(self) -> float:
        """The variance of the reference, in units of a session's variance."""
        return TRIMMED / self.k

    def single(self, floor: float, sigmas: float) -> float:
        """How far one value must be off: floor, or so many standard deviations of its difference to the reference."""
        return max(floor, sigmas * self.sigma * math.sqrt(1 + self.doubt))

    @property
    def suspect(self) -> float:
        return self.single(self.rule.suspect_floor, self.rule.suspect_sigmas)

    @property
    def clears(self) -> float:
        return self.single(self.rule.clear_floor, self.rule.clear_sigmas)

    @property
    def dip(self) -> float:
        return self.single(self.rule.dip_floor, self.rule.dip_sigmas)

    def regressed(self, starts: int) -> float:
        """How far the mean of the best ``starts`` of one more start must be off.

        Three things may be off without a change, and each has its own number of sigmas: the machine, which moves all figures of
        a session at once and stays through it; the reference, which is off for this figure in every session; and the starts, which
        measuring again refreshes: few sigmas do, for all starts must be off and the worst is left out. Each is widened
        for how surely its spread is known (t quantile / normal quantile), the last two for the number of figures too.
        """
        rule = self.rule
        widened = t_quantile(1 - rule.suite_alarms / rule.figures, self.df) / FOUND_FOR
        machine = rule.machine_sigmas * t_quantile(0.975, self.machine_df) / NormalDist().inv_cdf(0.975)
        start = (rule.start_sigmas + rule.sigmas_per_start_less * max(0, self.remeasures - starts)) * widened
        reference = rule.reference_sigmas * widened
        return max(
            rule.regressed_floor,
            math.sqrt(
                machine**2 * self.machine_variance
                + reference**2 * self.doubt * (self.machine_variance + self.own_variance)
                + start**2 * self.own_variance / starts
            ),
        )

    def interval(self, starts: int) -> float:
        """Half the 95 % interval of (mean of so many starts - reference); degrees of freedom by Welch-Satterthwaite."""
        machine = self.machine_variance * (1 + self.doubt)
        own = self.own_variance * (1 / starts + self.doubt)
        variance = machine + own
        if variance == 0:
            return 0.0
        df = variance**2 / (machine**2 / self.machine_df + own**2 / self.df) if self.machine_learned else self.df
        return t_quantile(0.975, df) * math.sqrt(variance)


def yardstick(baseline: Baseline, direction: Direction, rule: Rule, machine: Machine | None) -> Yardstick:
    """What the usable sessions of a baseline say; there must be at least two of them.

    A noisy figure (its own spread far above that of its kind) is measured with its own spread alone. Other figures share
    what their kind has shown: sigma² = (20 sigma0² + df s²) / (20 + df).
    """
    goods = [spread.goodness(value, direction) for value in spread.usable(baseline.values)]
    own_spread, df = spread.spread(goods), float(spread.degrees(len(goods)))
    sigma0 = baseline.sigma0
    noisy = sigma0 is not None and own_spread > max(rule.noisy_times * sigma0, rule.noisy_least)
    variance = own_spread**2
    if sigma0 is not None and not noisy:
        variance = (rule.sigma0_weight * sigma0**2 + df * variance) / (rule.sigma0_weight + df)
        df += rule.sigma0_weight
    machine_variance = rule.machine_share * variance if machine is None else min(machine.sd**2, variance)
    return Yardstick(
        rule=rule,
        k=len(goods),
        reference=spread.reference(goods),
        spread=own_spread,
        sigma0=sigma0,
        noisy=noisy,
        df=df,
        machine_variance=machine_variance,
        machine_df=df if machine is None else machine.df,
        machine_learned=machine is not None,
        own_variance=variance - machine_variance,
    )
