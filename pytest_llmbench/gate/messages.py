"""A decision in words for somebody who has never heard of a p-value; exact numbers in every line. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_llmbench.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.gate.decision import Decision
    from pytest_llmbench.records import Baseline


def explain(
    decision: Decision,
    name: str,
    unit: str,
    baseline: Baseline | None = None,
    runs: Sequence[float] = (),
) -> tuple[str, ...]:
    """The lines of a decision, most important first; none for a figure that did not move.

    name: as people say it (``decode[code]``); runs: the values of the session's own runs, in the figure's unit.
    """
    if decision.kind == "ok" and decision.side is None and decision.reason is None:
        return ()
    return tuple(_lines(decision, name, unit, baseline, runs))


def _lines(decision: Decision, name: str, unit: str, baseline: Baseline | None, runs: Sequence[float]) -> Iterator[str]:
    if decision.reference is None:
        yield _without_reference(decision, name, unit)
        return
    yield _headline(decision, name, unit)
    if decision.side is not None:
        if measured := _measured(decision, unit, runs):
            yield measured
        yield from _why(decision)
    if decision.control is not None and decision.control.said:
        yield decision.control.said
    yield _about(decision, baseline)


def _without_reference(decision: Decision, name: str, unit: str) -> str:
    if decision.kind != "no baseline":
        return f"{name} {decision.kind}: {decision.reason}"
    needed = decision.k + decision.missing
    there = f"{decision.k} of {needed} {_plural('session', needed)} before this one"
    return f"{name} has no baseline yet: {shown(decision.value, unit)}; {there}" + (
        f" ({decision.reason})" if decision.reason else ""
    )


def _headline(decision: Decision, name: str, unit: str) -> str:
    assert decision.reference is not None
    assert decision.estimate is not None
    # Said at the end of a session only: what was to be measured again was not, and stays open.
    word = {"measure again": "inconclusive", "noisy": "is too noisy to judge"}.get(decision.kind, decision.kind)
    said = f"{name} {word}: {shown(decision.estimate, unit)}, was {bare(decision.reference)} ({_change(decision)})"
    open_ = decision.kind == "inconclusive" and decision.best is None
    return f"{said}; more fresh servers would tell (--llmbench-remeasure)" if open_ else said


def _change(decision: Decision) -> str:
    assert decision.change is not None
    assert decision.interval is not None
    low, high = decision.interval
    return f"{percent(decision.change, sign=True)}, 95 % interval {100 * low:+.1f} … {100 * high:+.1f}"


def _measured(decision: Decision, unit: str, runs: Sequence[float]) -> str:
    own = " ".join(bare(value) for value in runs) if runs else ""
    first = f"runs {own}" if own else f"first {shown(decision.value, unit)}"
    if not decision.again:
        return first
    servers = f"{len(decision.again)} fresh {_plural('server', len(decision.again))}"
    return f"{first}; measured again on {servers}: {' '.join(bare(value) for value in decision.again)}"


def _why(decision: Decision) -> Iterator[str]:
    """The sentence between the numbers and the verdict."""
    assert decision.regressed_line is not None
    worse = decision.side == "worse"
    # The number itself goes down where higher is better and got worse, or lower is better and got better.
    way = "lower" if worse == (decision.direction == "higher") else "higher"
    line = percent(decision.regressed_line)
    if decision.kind == "machine changed" or (decision.kind == "inconclusive" and decision.best is not None):
        return  # said by the control
    if decision.kind in ("regressed", "improved"):
        yield f"every server start was {way}, and all but the most extreme by {_best(decision)} on average; from {line} on that is no longer noise"
    elif decision.kind == "measure again":
        assert decision.suspect_line is not None
        yield f"{way} by more than {percent(decision.suspect_line)}: no fresh server could decide whether the setup or that start was it"
    elif decision.kind == "inconclusive":
        yield (
            f"{way} on every start so far, and too few starts to tell: no more fresh servers were allowed "
            f"(--llmbench-remeasure); with enough of them it shows {_resolves(decision)}"
        )
    elif decision.clear and decision.again:
        word = "a dip of that one start" if decision.dip else "not the setup, that start"
        yield f"a fresh server was back near the reference: {word}"
    elif decision.best is not None:
        yield f"every server start was {way}, all but the most extreme by {_best(decision)} on average; below {line} it may be noise"


def _best(decision: Decision) -> str:
    assert decision.best is not None
    assert decision.reference is not None
    return percent(abs(decision.best / decision.reference - 1))


def _about(decision: Decision, baseline: Baseline | None) -> str:
    """The baseline, its spread, and what can be seen at all."""
    assert decision.sigma is not None
    assert decision.spread is not None
    words = [f"baseline: {counted(decision.k, 'session')}"]
    if baseline is not None and baseline.since and baseline.until:
        words.append(f"{baseline.since[:10]} … {baseline.until[:10]}")
    if decision.noisy and decision.sigma0 is not None:
        words.append(f"spread {percent(decision.spread)}, usual for such figures here {percent(decision.sigma0)}")
    else:
        with_control = decision.control is not None and decision.control.used
        words.append(f"spread {percent(decision.sigma)}{' with control' if with_control else ''}")
    return ", ".join(words) + f"; resolves {_resolves(decision)}"


def _resolves(decision: Decision) -> str:
    assert decision.resolves is not None
    if not math.isfinite(decision.resolves):
        return "nothing short of a collapse"
    return f"changes of {percent(math.ceil(decision.resolves * 1000 - 1e-6) / 1000)} and more"


def percent(share: float, *, sign: bool = False) -> str:
    """``-7.7 %``."""
    return f"{100 * share:+.1f} %" if sign else f"{100 * share:.1f} %"


def shown(value: float, unit: str) -> str:
    """A value as people read it, with its unit: ``63.8 tok/s``."""
    return f"{bare(value)} {unit}"


def bare(value: float) -> str:
    """A value without its unit: no decimals from 1000 on, one from 10 on, else three significant digits."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1 or size == 0:
        return f"{value:.2f}"
    return f"{value:.3g}"


def _plural(word: str, n: int) -> str:
    return word if n == 1 else f"{word}s"
