"""Attempts → summaries. Pure: no clock, no file, no network."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from pytest_llmbench.records import CellResult, Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.records import Attempt, CellSpec, CellStatus, Figure

DISTURBED = "disturbed"


def cv(values: Sequence[float]) -> float | None:
    """Coefficient of variation: sample standard deviation / mean; None under two values or at mean 0."""
    if len(values) < 2 or statistics.fmean(values) == 0:
        return None
    return statistics.stdev(values) / statistics.fmean(values)


def summarise(spec: CellSpec, attempts: Sequence[Attempt], kind: FigureKind) -> Summary:
    """Summarise one figure of a cell: the median over its runs, of each run's first valid undisturbed attempt.

    The first, never the better of two. A figure needs all its promised runs valid (METHOD); short of that, median is
    None and the reasons name the runs.
    """
    values: list[float] = []
    labels: set[str] = set()
    reasons: list[str] = []
    for run in range(1, spec.runs + 1):
        of_run = [a for a in attempts if a.run == run]
        found = first_valid(of_run, kind.name)
        if found is None:
            reasons.append(f"run {run} of {spec.runs}: {_why(of_run, kind.name)}")
        else:
            assert found.value is not None
            values.append(found.value)
            if found.label:
                labels.add(found.label)
    return Summary(
        name=kind.name,
        unit=kind.unit,
        direction=kind.direction,
        median=None if reasons else statistics.median(values),
        values=tuple(values),
        promised_runs=spec.runs,
        cv=cv(values),
        reasons=tuple(reasons),
        label="; ".join(sorted(labels)) or None,
    )


def again_medians(attempts: Sequence[Attempt], name: str) -> tuple[float, ...]:
    """A figure's median on each fresh server on which its cell was measured again, in order.

    A start counts where more than half of its runs are valid and undisturbed.
    """
    medians = []
    for nth in sorted({a.again for a in attempts if a.again}):
        of_start = [a for a in attempts if a.again == nth]
        runs = sorted({a.run for a in of_start})
        found = [f for run in runs if (f := first_valid((a for a in of_start if a.run == run), name)) is not None]
        values = [f.value for f in found if f.value is not None]
        if 2 * len(values) > len(runs):
            medians.append(statistics.median(values))
    return tuple(medians)


def control_median(attempts: Sequence[Attempt], name: str, figure: str) -> float | None:
    """The control's median beside a cell's own runs: its ``figure``, before each attempt whose ``name`` counts.

    None where not more than half of these attempts have one.
    """
    return _beside(_counting([a for a in attempts if a.run > 0 and not a.again], name), figure)


def control_again(attempts: Sequence[Attempt], name: str, figure: str) -> tuple[float | None, ...]:
    """The same for each fresh server that ``again_medians`` has, in its order."""
    medians = []
    for nth in sorted({a.again for a in attempts if a.again}):
        of_start = [a for a in attempts if a.again == nth]
        counting = _counting(of_start, name)
        if 2 * len(counting) > len({a.run for a in of_start}):
            medians.append(_beside(counting, figure))
    return tuple(medians)


def _counting(attempts: Sequence[Attempt], name: str) -> list[Attempt]:
    """The attempt of each run that gives a figure its value."""
    found = []
    for run in sorted({a.run for a in attempts}):
        one = next((a for a in attempts if a.run == run and first_valid([a], name) is not None), None)
        if one is not None:
            found.append(one)
    return found


def _beside(attempts: Sequence[Attempt], figure: str) -> float | None:
    known = [value for a in attempts if (value := (a.details.get("control") or {}).get(figure)) is not None]
    return statistics.median(known) if known and 2 * len(known) > len(attempts) else None


def first_valid(attempts: Iterable[Attempt], name: str) -> Figure | None:
    """The figure of a run's first attempt that is undisturbed and valid for it; None where there is none."""
    for attempt in attempts:
        if attempt.guard == DISTURBED or attempt.error:
            continue
        for figure in attempt.figures:
            if figure.name == name and figure.valid:
                return figure
    return None


def _why(attempts: Sequence[Attempt], name: str) -> str:
    if not attempts:
        return "was not made"
    last = attempts[-1]
    if last.error:
        return last.error
    if last.guard == DISTURBED:
        return str(last.details.get("guard", "disturbed by foreign load"))
    for figure in last.figures:
        if figure.name == name:
            return "; ".join(figure.reasons) or "the server gave no value"
    return "the figure is not part of this cell"


def conclude(
    spec: CellSpec,
    card: str,
    attempts: Sequence[Attempt],
    kinds: Sequence[FigureKind],
    *,
    raw_file: str | None = None,
    server_logs: Sequence[str] = (),
    broken: str | None = None,
) -> CellResult:
    """Put a cell together: summaries of all its figures, and its status.

    The status speaks of the required figures: ``measured`` when each has all its runs; else ``failed`` when a run's last
    attempt broke off (server or connection), ``disturbed`` when its guard said so, ``invalid`` when a rule did.
    broken: what kept the remaining runs from being made at all.
    """
    runs = [a for a in attempts if a.run > 0 and a.again == 0]
    summaries = tuple(
        s for kind in kinds if (s := summarise(spec, runs, kind)).median is not None or kind.gated or s.values
    )
    gated = {kind.name for kind in kinds if kind.gated and kind.required}
    reasons = tuple(dict.fromkeys(r for s in summaries if s.name in gated for r in s.reasons))
    if broken is not None:
        reasons = (broken, *reasons)
    return CellResult(
        spec=spec,
        card=card,
        status="failed" if broken is not None else _status(spec, runs, reasons),
        attempts=tuple(attempts),
        summaries=summaries,
        reasons=reasons,
        raw_file=raw_file,
        server_logs=tuple(server_logs),
    )


def unsupported(spec: CellSpec, card: str, why: str) -> CellResult:
    """A cell that was not measured because it cannot be on this machine or engine, with the reason."""
    return CellResult(spec=spec, card=card, status="unsupported", attempts=(), summaries=(), reasons=(why,))


def _status(spec: CellSpec, runs: Sequence[Attempt], reasons: Sequence[str]) -> CellStatus:
    if not reasons:
        return "measured"
    last = [[a for a in runs if a.run == run][-1] for run in range(1, spec.runs + 1) if any(a.run == run for a in runs)]
    if not last:
        return "missing"
    if any(a.error for a in last):
        return "failed"
    if any(a.guard == DISTURBED for a in last):
        return "disturbed"
    return "invalid"


def headline(results: Iterable[CellResult], figure: str) -> float | None:
    """The mean of the decode cells' medians (METHOD: code and prose); None unless each cell has one."""
    medians = [s.median for r in results if r.spec.part == "decode" for s in r.summaries if s.name == figure]
    known = [m for m in medians if m is not None]
    return statistics.fmean(known) if known and len(known) == len(medians) else None


def headline_spread(results: Iterable[CellResult]) -> float | None:
    """The larger of the decode cells' CVs (METHOD: "the headline spread")."""
    cvs = [s.cv for r in results if r.spec.part == "decode" for s in r.summaries if s.name == "decode_tok_s"]
    known = [c for c in cvs if c is not None]
    return max(known) if known else None


COLLAPSE = 0.5


def fit_largest(results: Iterable[CellResult]) -> int | None:
    """The largest context of the memory test that answered; None where none did or none was tried.

    A size at which the server silently took less than it was asked for does not count (its figures carry a label).
    """
    answered = [r.spec.context for r in results if r.spec.part == "fit" and r.status == "measured" and not _capped(r)]
    return max((size for size in answered if size is not None), default=None)


def again_notes(result: CellResult) -> tuple[str, ...]:
    """What became of fresh servers that broke off while the cell was measured again: they count only with their finished runs."""
    return tuple(
        f"fresh server {one.again} broke off while it was measured again: {one.error.splitlines()[0]}"
        for one in result.attempts
        if one.again and one.error
    )


def fit_notes(results: Iterable[CellResult]) -> dict[str, tuple[str, ...]]:
    """What a reader must know of fit cells beside their figures, by cell id.

    A decode rate below half of the next smaller size's is a collapse: parts of the model or cache may have moved to slower
    memory without an error. A server that gives less context than asked is said too.
    """
    cells = sorted(
        (r for r in results if r.spec.part == "fit" and r.spec.context is not None), key=lambda r: r.spec.context or 0
    )
    notes: dict[str, list[str]] = {}
    before: tuple[int, float] | None = None
    for result in cells:
        said = notes.setdefault(result.spec.id, [])
        if label := _capped(result):
            said.append(label)
        rate = next((s.median for s in result.summaries if s.name == "decode_tok_s"), None)
        if rate is None:
            continue
        size = result.spec.context or 0
        if before is not None and rate < COLLAPSE * before[1]:
            said.append(
                f"decode collapsed: {rate:.1f} tok/s at {size}, {before[1]:.1f} at {before[0]} "
                f"({rate / before[1] - 1:+.0%}): has something moved to slower memory?"
            )
        before = (size, rate)
    return {cell: tuple(said) for cell, said in notes.items() if said}


def _capped(result: CellResult) -> str | None:
    return next((s.label for s in result.summaries if s.name == "load_s"), None)
