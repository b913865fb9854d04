"""Rules over many simulated sessions at once: ours (a vectorised twin of ``gate.decide``), and what others do.

Arrays are logs where higher is better. base: (sessions, figures, baseline sessions); first: (sessions, figures);
again: (sessions, figures, fresh starts). A test holds the twin equal to ``decide`` on thousands of random cases.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy import stats

from pytest_llmbench.gate.lines import FOUND_FOR, TRIMMED
from pytest_llmbench.gate.machine import LEAST_REPEATED, MEDIAN_VARIANCE, SHRUNK_BY
from pytest_llmbench.gate.spread import degrees, dropped
from pytest_llmbench.gate.student import t_quantile

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pytest_llmbench.gate import Rule

    Floats = NDArray[np.float64]
    Bools = NDArray[np.bool_]


class Learned(NamedTuple):
    """What a machine's history says. sigma0: (sessions, 1) or None; machine: its sd (sessions, 1) and df, or None."""

    sigma0: Floats | None
    machine: tuple[Floats, float] | None


class Judged(NamedTuple):
    """(sessions, figures) each. starts: how many fresh servers were started, for those that look better too."""

    regressed: Bools
    noisy: Bools
    starts: Floats


def reference(base: Floats) -> Floats:
    k = base.shape[-1]
    cut = int(0.2 * k)
    return np.asarray(np.sort(base, axis=-1)[..., cut : k - cut].mean(axis=-1))


def spread(base: Floats) -> Floats:
    k = base.shape[-1]
    rest = np.sort(base, axis=-1)[..., dropped(k) :]
    cut = NormalDist().inv_cdf(dropped(k) / (k + 3))
    hazard = NormalDist().pdf(cut) / (1 - NormalDist().cdf(cut))
    return np.asarray(rest.std(axis=-1, ddof=1) / math.sqrt(1 + cut * hazard - hazard**2))


def machine_sd(history: Floats, fresh: Floats | None = None, suspect: float = 0.02) -> tuple[Floats, float]:
    """``gate.machine_state`` over complete histories (sessions, figures, past sessions).

    fresh: one re-measure each; those of values that are ``suspect`` below their figure's mean, after the first 5 sessions, count.
    """
    figures, k = history.shape[-2:]
    deviation = history - history.mean(axis=-1, keepdims=True)
    movement = np.median(deviation, axis=-2, keepdims=True)
    own = ((deviation - movement) ** 2).sum(axis=(-1, -2)) / ((figures - 1) * (k - 1))
    variance = spread(movement[..., 0, :]) ** 2 - MEDIAN_VARIANCE * own / figures
    variance = np.maximum(0.0, variance)
    if fresh is not None:
        variance = variance * _machines_part(history, deviation, movement[..., 0, :], fresh, suspect)
    return np.sqrt(variance)[..., None], float(degrees(k))


def _machines_part(history: Floats, deviation: Floats, movement: Floats, fresh: Floats, suspect: float) -> Floats:
    again = fresh - history.mean(axis=-1, keepdims=True)
    made = deviation < -suspect
    made[..., :5] = False
    count = made.sum(axis=-2)
    mean = np.where(made, again, 0.0).sum(axis=-2) / np.maximum(count, 1)
    prior = SHRUNK_BY * (movement**2).mean(axis=-1)
    weight = (np.where(count > 0, movement**2, 0.0)).sum(axis=-1) + prior
    slope = (np.where(count > 0, movement * mean, 0.0).sum(axis=-1) + prior) / weight
    enough = (count > 0).sum(axis=-1) >= LEAST_REPEATED
    return np.where(enough, np.clip(slope, 0.0, 1.0), 1.0)


def ours(base: Floats, first: Floats, again: Floats, learned: Learned, rule: Rule) -> Judged:
    """The package's rule."""
    k = base.shape[-1]
    n = rule.remeasures if k >= rule.full_sessions else rule.early_remeasures
    own, free = spread(base), float(degrees(k))
    variance, df = own**2, np.full(own.shape, free)
    noisy = np.zeros(own.shape, dtype=bool)
    if learned.sigma0 is not None:
        noisy = own > np.maximum(rule.noisy_times * learned.sigma0, rule.noisy_least)
        weight = rule.sigma0_weight
        variance = np.where(noisy, variance, (weight * learned.sigma0**2 + free * variance) / (weight + free))
        df = np.where(noisy, free, weight + free)
    if learned.machine is None:
        of_machine, machine_df = rule.machine_share * variance, df
    else:
        of_machine = np.minimum(learned.machine[0] ** 2, variance)
        machine_df = np.full(own.shape, learned.machine[1])
    doubt = TRIMMED / k
    single = np.sqrt(variance * (1 + doubt))
    suspect = np.maximum(rule.suspect_floor, rule.suspect_sigmas * single)
    clears = np.maximum(rule.clear_floor, rule.clear_sigmas * single)
    widened = _quantiles(1 - rule.suite_alarms / rule.figures, df) / FOUND_FOR
    machine_sigmas = rule.machine_sigmas * _quantiles(0.975, machine_df) / NormalDist().inv_cdf(0.975)
    squares = machine_sigmas**2 * of_machine
    squares += (rule.reference_sigmas * widened) ** 2 * doubt * variance
    squares += (rule.start_sigmas * widened) ** 2 * (variance - of_machine) / n
    line = np.maximum(rule.regressed_floor, np.sqrt(squares))
    level = reference(base)
    off, off_again = first - level, again[..., :n] - level[..., None]
    is_suspect = off < -suspect
    below = off_again < -clears[..., None]
    starts = np.concatenate([off[..., None], off_again], axis=-1)
    best = (starts.sum(axis=-1) - starts.min(axis=-1)) / n
    used = _used(is_suspect, below) + _used(off > suspect, off_again > clears[..., None])
    return Judged(is_suspect & below.all(axis=-1) & (best < -line), noisy, used)


def _used(suspect: Bools, beyond: Bools) -> Floats:
    """How many fresh servers each suspect takes: up to the first start that clears it."""
    n = beyond.shape[-1]
    return np.where(suspect, np.where(beyond.all(axis=-1), n, beyond.argmin(axis=-1) + 1), 0).astype(float)


def _quantiles(p: float, df: Floats) -> Floats:
    found = {one: t_quantile(p, float(one)) for one in np.unique(df)}
    return np.asarray(np.vectorize(found.__getitem__, otypes=[float])(df))


def as_gate_had_it(base: Floats, first: Floats, again: Floats, learned: Learned, sigma_known: float = 0.015) -> Judged:
    """The rule to start from: 3 re-measures, best 3 of 4 starts, 3.3 sigma of one term; noisy is never judged.

    Where sigma0 is not learned it is taken as ``sigma_known``, a constant.
    """
    k = base.shape[-1]
    own, df = spread(base), float(degrees(k))
    usual = learned.sigma0 if learned.sigma0 is not None else np.full((base.shape[0], 1), sigma_known)
    sigma = np.sqrt((20 * usual**2 + df * own**2) / (20 + df))
    n = 3 if k >= 10 else 4
    level = reference(base)
    off, off_again = first - level, again[..., :n] - level[..., None]
    single = sigma * math.sqrt(1 + 1.1 / k)
    suspect, clears = np.maximum(0.02, 1.4 * single), np.maximum(0.015, 1.05 * single)
    is_suspect = off < -suspect
    below = off_again < -clears[..., None]
    best = np.sort(np.concatenate([off[..., None], off_again], axis=-1), axis=-1)[..., -3:].mean(axis=-1)
    beyond = best < -np.maximum(0.03, 3.3 * sigma * math.sqrt(1 / 3 + 1.1 / k))
    noisy = own > 1.8 * usual
    used = _used(is_suspect, below) + _used(off > suspect, off_again > clears[..., None])
    return Judged(is_suspect & below.all(axis=-1) & beyond & ~noisy, noisy, used)


# ---- what others do: (base runs (…, K, runs), today's runs (…, runs)) → alarm -------------------------------------------


def fixed(tolerance: float) -> Callable[[Floats, Floats], Bools]:
    """The session's median against the mean of the baseline's medians, with a fixed tolerance."""

    def judge(base: Floats, today: Floats) -> Bools:
        level = np.median(base, axis=-1).mean(axis=-1)
        return np.asarray(np.median(today, axis=-1) < level + math.log(1 - tolerance))

    return judge


def last_session(tolerance: float) -> Callable[[Floats, Floats], Bools]:
    """The mean of runs against that of one saved session (``--benchmark-compare-fail=mean:5%``)."""

    def judge(base: Floats, today: Floats) -> Bools:
        return np.asarray(today.mean(axis=-1) < base[..., -1, :].mean(axis=-1) + math.log(1 - tolerance))

    return judge


def welch(base: Floats, today: Floats) -> Bools:
    """Welch's t test of today's runs against all runs of the baseline, one-sided, p < .05."""
    pooled = base.reshape(*base.shape[:-2], -1)
    return np.asarray(stats.ttest_ind(today, pooled, axis=-1, equal_var=False, alternative="less").pvalue < 0.05)


def mann_whitney(base: Floats, today: Floats) -> Bools:
    """Exact Mann-Whitney of today's 3 runs against all runs of the baseline, one-sided, p < .01 / 30.

    Exact: the null distribution of U by counting, which the number of runs makes small.
    """
    pooled = base.reshape(*base.shape[:-2], -1)
    u = (today[..., :, None] > pooled[..., None, :]).sum(axis=(-1, -2))
    chances = _u_distribution(today.shape[-1], pooled.shape[-1])
    return np.asarray(np.cumsum(chances)[u] < 0.01 / 30)


def _u_distribution(m: int, n: int) -> Floats:
    ways: dict[tuple[int, int], Floats] = {}

    def count(a: int, b: int) -> Floats:
        if a == 0 or b == 0:
            return np.ones(1)
        if (a, b) not in ways:
            total = np.zeros(a * b + 1)
            total[: a * (b - 1) + 1] += count(a, b - 1)
            total[b : b + (a - 1) * b + 1] += count(a - 1, b)
            ways[a, b] = total
        return ways[a, b]

    for b in range(1, n + 1):
        count(m, b)
    found = count(m, n)
    return np.asarray(found / found.sum())


def bootstrap(rng: np.random.Generator, resamples: int = 400) -> Callable[[Floats, Floats], Bools]:
    """Hierarchical bootstrap: sessions, then runs in them; alarm where the 99 % interval is below 0 and the drop is 3 % or more."""

    def judge(base: Floats, today: Floats) -> Bools:
        k, runs = base.shape[-2:]
        differences = np.empty((resamples, *today.shape[:-1]))
        for one in range(resamples):
            picked = base[..., rng.integers(k, size=k), :]
            columns = rng.integers(runs, size=(k, runs))
            picked = np.take_along_axis(picked, np.broadcast_to(columns, picked.shape), axis=-1)
            level = np.median(picked, axis=-1).mean(axis=-1)
            differences[one] = np.median(today[..., rng.integers(runs, size=runs)], axis=-1) - level
        drop = np.median(today, axis=-1) - np.median(base, axis=-1).mean(axis=-1)
        return np.asarray((np.quantile(differences, 0.995, axis=0) < 0) & (drop < math.log(0.97)))

    return judge


def sigmas(base: Floats, today: Floats) -> Bools:
    """max(3 %, 2.5 standard deviations of the baseline's medians) below their mean."""
    medians = np.median(base, axis=-1)
    line = np.maximum(0.03, 2.5 * medians.std(axis=-1, ddof=1))
    return np.asarray(np.median(today, axis=-1) < medians.mean(axis=-1) - line)
