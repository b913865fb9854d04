"""The noise of one figure as its sessions show it: what ``power.resolve`` needs. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.gate.lines import RULE, yardstick
from pytest_llmbench.gate.power import Noise, median_variance

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.gate.lines import Rule
    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.records import Baseline, Direction

_LEAST_RUN_DF = 5
_UNKNOWN_S = 0.0


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure's noise. sigma: sd of log session medians of ``runs`` runs; assumed: what was not measured but taken, in words."""

    noise: Noise
    sigma: float
    runs: int
    assumed: tuple[str, ...]


def figure(
    baseline: Baseline,
    direction: Direction,
    sessions: Sequence[tuple[Sequence[float], float | None, float | None]],
    machine: Machine | None,
    rule: Rule = RULE,
) -> Figure:
    """Split what the gate takes for sigma into machine, start and run.

    sessions: of each its runs' values, seconds a run and seconds a fresh start, None where not known. ValueError without any.

    sigma and the machine's part are the gate's own (``lines.yardstick``). The runs' part is their pooled variance within sessions;
    what is left of a session's own variance is the start's. Where too few runs are known, all of it is taken for the start's, which
    more runs then do not reduce.
    """
    if not sessions:
        raise ValueError("a figure without sessions has no noise")
    stick = yardstick(baseline, direction, rule, machine)
    counts = [len(runs) for runs, _, _ in sessions if runs]
    promised = max(1, round(statistics.median(counts))) if counts else 1
    run, df = _within(runs for runs, _, _ in sessions)
    assumed = []
    if df < _LEAST_RUN_DF:
        run = 0.0
        assumed.append("too few runs a session to tell runs from starts: more runs are taken to change nothing")
    if not stick.machine_learned:
        assumed.append(
            f"the machine's own part is not learned yet: {rule.machine_share:.0%} of the variance is taken for it"
        )
    run = min(run, math.sqrt(stick.own_variance / median_variance(promised)))
    start = math.sqrt(max(stick.own_variance - run**2 * median_variance(promised), 0.0))
    seconds = [one for _, one, _ in sessions if one is not None]
    starts = [one for _, _, one in sessions if one is not None]
    if not seconds or not starts:
        assumed.append("durations are not known: minutes count as 0")
    noise = Noise(
        machine=math.sqrt(stick.machine_variance),
        start=start,
        run=run,
        start_minutes=(statistics.median(starts) if starts else _UNKNOWN_S) / 60,
        run_minutes=(statistics.median(seconds) if seconds else _UNKNOWN_S) / 60,
        lines=rule,
    )
    return Figure(noise, stick.sigma, promised, tuple(assumed))


def _within(sessions: Iterable[Sequence[float]]) -> tuple[float, int]:
    """The pooled sd of log values within sessions, and its degrees of freedom."""
    total, df = 0.0, 0
    for runs in sessions:
        logs = [math.log(one) for one in runs if 0 < one < math.inf]
        if len(logs) > 1:
            total += statistics.variance(logs) * (len(logs) - 1)
            df += len(logs) - 1
    return (math.sqrt(total / df), df) if df else (0.0, 0)
