"""The last lines of a session: one a figure that moved, none for those that did not, and a count. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pytest_llmbench.outcomes.categories import JudgedCell
    from pytest_llmbench.records import Verdict, VerdictKind

MOVED: frozenset[VerdictKind] = frozenset({"regressed", "improved", "below target", "below floor", "machine changed"})
STILL: frozenset[VerdictKind] = frozenset({"ok", "equivalent"})


def summary_lines(cells: Sequence[JudgedCell], *, gates_at: int = 5) -> list[str]:
    """What to print at the end of a session. gates_at: sessions of a baseline from which on it judges.

    Figures that moved or could not be decided, in the cells' order; then expired marks and what must be said aloud; then
    the count. Empty for a session without cells.
    """
    moved = [
        (cell, verdict)
        for cell in cells
        for verdict in cell.verdicts
        if verdict.kind in MOVED or verdict.kind == "inconclusive"
    ]
    lines = [_line(cell, verdict) for cell, verdict in moved]
    lines += [line for cell in cells for line in (*cell.mark_failures, *cell.notes)]
    count = _count(cells, gates_at)
    return [*dict.fromkeys(lines), *([count] if count else [])]


def _line(cell: JudgedCell, verdict: Verdict) -> str:
    said = verdict.lines[0] if verdict.lines else f"{verdict.cell} {verdict.figure} {verdict.kind}"
    return f"{said} [expected: a mark covers it]" if cell.is_covered(verdict) else said


def _count(cells: Sequence[JudgedCell], gates_at: int) -> str:
    verdicts = [verdict for cell in cells for verdict in cell.verdicts]
    still = [one for one in verdicts if one.kind in STILL]
    judged = [one for one in still if one.reference is not None]
    within = f"{len(judged)} {'figure' if len(judged) == 1 else 'figures'} within what they resolve"
    words = [
        (len(judged), within.replace("they resolve", "it resolves") if len(judged) == 1 else within),
        *_counted("moved", [one for one in verdicts if one.kind in MOVED]),
        *_counted("not decided", [one for one in verdicts if one.kind == "inconclusive"]),
        *_counted("too noisy to gate", [one for one in verdicts if one.kind == "noisy"]),
        *_without_baseline(cells, gates_at),
        *_counted("not compared with anything", [one for one in still if one.reference is None]),
        *_not_judged(cells),
        *_without_number(cells),
    ]
    return "; ".join(text for number, text in words if number)


def _counted(word: str, verdicts: Sequence[Verdict]) -> Iterable[tuple[int, str]]:
    return [(len(verdicts), f"{len(verdicts)} {word}")]


def _without_baseline(cells: Sequence[JudgedCell], gates_at: int) -> Iterable[tuple[int, str]]:
    missing = []
    for cell in cells:
        for verdict in cell.verdicts:
            if verdict.kind == "no baseline":
                baseline = cell.baselines.get(verdict.figure)
                missing.append(max(gates_at - len(baseline.values if baseline else ()), 0))
    if not missing:
        return []
    least, most = min(missing), max(missing)
    many = f"{most}" if least == most else f"{least} to {most}"
    more = f"{many} more session{'' if many == '1' else 's'}"
    return [(len(missing), f"{len(missing)} {'has' if len(missing) == 1 else 'have'} no baseline yet ({more})")]


def _not_judged(cells: Sequence[JudgedCell]) -> Iterable[tuple[int, str]]:
    found = [cell.result.spec.id for cell in cells if cell.not_judged]
    return [(len(found), f"{len(found)} {'cell' if len(found) == 1 else 'cells'} not judged ({', '.join(found)})")]


def _without_number(cells: Sequence[JudgedCell]) -> Iterable[tuple[int, str]]:
    statuses = [cell.result.status for cell in cells if cell.result.status != "measured"]
    each = ", ".join(f"{statuses.count(one)} {one}" for one in dict.fromkeys(statuses))
    word = "cell has" if len(statuses) == 1 else "cells have"
    return [(len(statuses), f"{len(statuses)} {word} no number ({each})")]


def control_lines(control: Mapping[str, Any], cells: Sequence[JudgedCell]) -> list[str]:
    """What the control did, what it is worth, what it cost, and the machine's own verdict. control: as in the verdict file."""
    lines = [control["why"]]
    if control["turns"]:
        lines[0] += f" ({counted(control['turns'], 'turn')}, {control['minutes']:.1f} min)"
    if control["lost"]:
        lines.append(f"the control was lost in this session, which went on without it: {control['lost']}")
    lines += [
        f"{one.cell} {one.figure} resolves >= {100 * one.resolves:.1f} % with the control, "
        f">= {100 * one.control.resolves_without:.1f} % without"
        for cell in cells
        for one in cell.verdicts
        if one.control is not None and one.control.used and one.resolves is not None
        if one.control.resolves_without is not None
    ]
    if control["verdict"] is not None:
        moved = ", ".join(f"{name} {100 * change:+.1f} %" for name, change in control["changes"].items() if change)
        lines.append(f"{control['verdict']}: {control['said']} ({moved})")
    return lines
