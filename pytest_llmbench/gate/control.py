"""The control: how much of a figure's noise is the machine's, and what the figure says without it. Pure.

A control is a second server, of a pinned model and build, whose runs alternate with the setup's. Its figure says what the
machine gives today. Values go in and come out in the figure's unit; inside all is log, higher = better (GATE, "The
control"). Every judgement of use is made out of sample: each session by a fit to the others.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmbench.errors import counted
from pytest_llmbench.gate.robust import pitman_morgan, robust_sd, slope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.records import Baseline, Direction


@dataclass(frozen=True, slots=True)
class Terms:
    """When a control is used. least_same, least_other: sessions with both, for the same model and engine (beta is 1) and for
    another one (beta is fitted). gain: by what share the residual must be smaller. sure: how sure that must be. most: the
    latest sessions that count.
    """

    least_same: int = 8
    least_other: int = 10
    gain: float = 0.1
    sure: float = 0.95
    most: int = 60


@dataclass(frozen=True, slots=True)
class Pair:
    """One session (its name): the medians of the figure and of the control's same figure, in their unit."""

    value: float
    control: float
    session: str = ""


@dataclass(frozen=True, slots=True)
class ControlFit:
    """What a control is worth for one figure.

    beta: how much of the control's deviation (log) is taken out; 1 for the same model and engine. center: the control's
    median in history; low, high: its range there, in its unit: the correction goes no further (cap). raw_sd, residual_sd:
    robust spread of log session medians, without and with the control, both out of sample. sure: how sure it is that the
    second is the smaller. pays: use it. values: the history's figure without the machine, each session by the others' beta, in the
    figure's unit, with the sessions' names: the baseline to judge adjusted values by. why: in words.
    """

    direction: Direction
    sessions: int
    same: bool
    beta: float
    center: float
    low: float
    high: float
    raw_sd: float | None
    residual_sd: float | None
    sure: float | None
    pays: bool
    values: tuple[float, ...]
    names: tuple[str, ...]
    why: str

    def adjust(self, value: float, control: float) -> float:
        """The figure as it would be on a machine where the control is at its center; the correction is capped."""
        return _moved(value, control, self.center, self.beta, self.low, self.high)

    def one_to_one(self, value: float, control: float) -> float:
        """The figure with the control's whole deviation taken out, uncapped: the most that a slower machine explains."""
        return _moved(value, control, self.center, max(1.0, self.beta), 0.0, math.inf)

    def beyond(self, control: float) -> bool:
        """Whether the control is where history has never seen it, so that ``adjust`` was capped."""
        return not self.low <= control <= self.high


def fit(history: Sequence[Pair], direction: Direction, *, same: bool, terms: Terms | None = None) -> ControlFit:
    """Judge a control by the sessions that have both figures, oldest first.

    same: it is the same model on the same engine, so that beta is 1. Otherwise beta is the repeated median of the slopes
    between sessions (a disturbance that hit one of the two in some sessions does not wreck it), shrunk toward 0 by
    1 - (standard error / beta)^2 (James-Stein). Raises ValueError for values that are not positive numbers, or no session.
    """
    terms = terms or Terms()
    if not history or not all(0 < x < math.inf for pair in history for x in (pair.value, pair.control)):
        raise ValueError("a control is fitted to sessions whose figure and control are positive numbers")
    used = history[-terms.most :]
    y, c = [math.log(p.value) for p in used], [math.log(p.control) for p in used]
    beta = 1.0 if same else shrunk_slope(c, y)
    center, low, high = statistics.median(c), min(c), max(c)
    known = ControlFit(
        direction=direction,
        sessions=len(used),
        same=same,
        beta=beta,
        center=math.exp(center),
        low=math.exp(low),
        high=math.exp(high),
        raw_sd=None,
        residual_sd=None,
        sure=None,
        pays=False,
        values=tuple(p.value for p in used),
        names=tuple(p.session for p in used),
        why="",
    )
    least = terms.least_same if same else terms.least_other
    if len(used) < least:
        return replace(
            known, why=f"no control: {counted(len(used), 'session')} with it, {least} are needed to judge it"
        )
    adjusted, residuals, raw = [], [], []
    for i in range(len(used)):
        others_y, others_c = y[:i] + y[i + 1 :], c[:i] + c[i + 1 :]
        b = 1.0 if same else shrunk_slope(others_c, others_y)
        middle, lo, hi = statistics.median(others_c), min(others_c), max(others_c)
        level = statistics.median(v - b * (w - middle) for v, w in zip(others_y, others_c, strict=True))
        residuals.append(y[i] - b * (min(max(c[i], lo), hi) - middle) - level)
        raw.append(y[i] - statistics.median(others_y))
        adjusted.append(y[i] - b * (min(max(c[i], lo), hi) - center))
    raw_sd, residual_sd = robust_sd(raw), robust_sd(residuals)
    sure = pitman_morgan(raw, residuals)
    pays = residual_sd <= (1 - terms.gain) * raw_sd and sure >= terms.sure and beta > 0
    return replace(
        known,
        raw_sd=raw_sd,
        residual_sd=residual_sd,
        sure=sure,
        pays=pays,
        values=tuple(math.exp(v) for v in adjusted),
        why=_why(known, raw_sd, residual_sd, sure, terms, pays=pays),
    )


def shrunk_slope(c: Sequence[float], y: Sequence[float]) -> float:
    """How y goes with c: the robust slope, shrunk toward 0 by what may be chance in it; 0 where c does not move."""
    found = slope(c, y)
    spread = robust_sd(c)
    if found is None or spread == 0 or found <= 0 or len(c) < 4:
        return 0.0  # a machine that slows one and speeds up the other is chance
    rest = robust_sd([v - found * w for v, w in zip(y, c, strict=True)])
    error = rest / (spread * math.sqrt(len(c) - 2))
    return found * max(0.0, 1 - (error / found) ** 2)


def pairs(figure: Baseline, control: Baseline) -> tuple[Pair, ...]:
    """The sessions that both have, in the figure's order."""
    of = dict(zip(control.sessions, control.values, strict=True))
    return tuple(Pair(v, of[s], s) for s, v in zip(figure.sessions, figure.values, strict=True) if s in of)


def baseline_without_machine(
    figure: Baseline, found: ControlFit, sigma0: float | None, known: Sequence[Pair] = ()
) -> Baseline:
    """The baseline to judge ``adjust``-ed values by: its sessions that have a control, without the machine.

    sigma0: the typical residual sd of such figures on this machine. known: sessions with both; those that are older than what
    the fit was made of are adjusted by it. A session without a control is left out.
    """
    of = {pair.session: found.adjust(pair.value, pair.control) for pair in known}
    of |= dict(zip(found.names, found.values, strict=True))
    kept = tuple(s for s in figure.sessions if s in of)
    return replace(figure, values=tuple(of[s] for s in kept), sessions=kept, sigma0=sigma0)


def _moved(value: float, control: float, center: float, beta: float, low: float, high: float) -> float:
    return value * math.exp(-beta * math.log(min(max(control, low), high) / center))


def _why(known: ControlFit, raw_sd: float, residual_sd: float, sure: float, terms: Terms, *, pays: bool) -> str:
    seen = counted(known.sessions, "session")
    beta = "" if known.same else f", beta {known.beta:.2f}"
    if pays:
        return f"control: residual {residual_sd:.1%} instead of {raw_sd:.1%} ({seen}, {sure:.1%} sure{beta})"
    if residual_sd >= raw_sd or known.beta <= 0:
        return f"no control: residual {residual_sd:.1%} is not below {raw_sd:.1%} raw ({seen}{beta})"
    if residual_sd > (1 - terms.gain) * raw_sd:
        return f"no control: residual {residual_sd:.1%} is hardly below {raw_sd:.1%} raw ({seen}{beta})"
    return (
        f"no control: residual {residual_sd:.1%} against {raw_sd:.1%} raw may be chance "
        f"({seen}, {sure:.0%} sure, {terms.sure:.0%} are asked for{beta})"
    )
