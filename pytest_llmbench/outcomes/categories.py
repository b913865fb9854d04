"""The category of a cell from its status and verdicts, and the exit code of a session. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pytest_llmbench.records import Baseline, CellResult, CellStatus, Verdict, VerdictKind

Category = Literal["performance", "setup", "measurement", "machine"]
Result = Literal["passed", "failed", "xfailed", "skipped", "not judged"]

# Which category speaks for a session that has several. First what is known of the setup's speed: a regression was measured
# on a machine that the guard and the control did not object to, so no other cell's trouble excuses it. Then a server that
# does not run, which also hides speed; then numbers that no rule let pass. The machine comes last, because it is the one
# category that a CI may answer by trying again, and trying again must not bury one of the others.
ORDER: tuple[Category, ...] = ("performance", "setup", "measurement", "machine")
# Clear of pytest's own (0 to 5), of a shell's (126 and above), and of sysexits (64 to 78).
EXIT_CODES: Mapping[Category, int] = {"performance": 10, "setup": 11, "measurement": 12, "machine": 13}
PYTEST_FAILED = 1

_OF_STATUS: Mapping[CellStatus, Category] = {
    "failed": "setup",
    "invalid": "measurement",
    "missing": "measurement",
    "disturbed": "machine",
}
COVERABLE: frozenset[VerdictKind] = frozenset({"regressed", "below target"})


@dataclass(frozen=True, slots=True)
class JudgedCell:
    """A cell with everything that was decided about it.

    covered: the figures whose speed failures an accepted mark covers. mark_failures: lines that fail the cell by themselves
    (expired marks). notes: what is said aloud whatever the result (passes again although marked, the machine is the
    problem). marks, proposals: ``marks.effect.Applied`` and ``marks.propose.Proposal``. baselines: by figure; a figure
    without one is not in it. not_judged: measured, and the session was interrupted before its verdict.
    """

    result: CellResult
    verdicts: tuple[Verdict, ...] = ()
    covered: frozenset[str] = frozenset()
    mark_failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marks: Sequence[object] = ()
    proposals: Sequence[object] = ()
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    not_judged: bool = False

    def is_covered(self, verdict: Verdict) -> bool:
        return verdict.failed and verdict.kind in COVERABLE and verdict.figure in self.covered


def category_of(cell: JudgedCell) -> Category | None:
    """The category of a cell that fails; None for one that passes, is skipped, or fails as a mark expects."""
    return worst(_categories(cell))


def _categories(cell: JudgedCell) -> Iterable[Category]:
    if cell.result.status in _OF_STATUS:
        yield _OF_STATUS[cell.result.status]
    if cell.mark_failures and cell.result.status == "measured":  # otherwise what kept it from being measured speaks
        yield "performance"
    for verdict in cell.verdicts:
        if verdict.failed and not cell.is_covered(verdict):
            yield _of_verdict(verdict)


def _of_verdict(verdict: Verdict) -> Category:
    if verdict.kind == "machine changed":
        return "machine"
    # A limit without a number, or a number without the baseline that was required, is no finding about speed.
    return "measurement" if verdict.value is None or verdict.kind == "no baseline" else "performance"


def result_of(cell: JudgedCell) -> Result:
    """What pytest reports of the cell (an error at setup counts as failed); ``not judged``: it was interrupted."""
    if category_of(cell) is not None:
        return "failed"
    if cell.result.status == "unsupported":
        return "skipped"
    if cell.not_judged:
        return "not judged"
    return "xfailed" if any(cell.is_covered(verdict) for verdict in cell.verdicts) else "passed"


def worst(categories: Iterable[Category | None]) -> Category | None:
    """The category that speaks for all of them; None where there is none."""
    there = set(categories)
    return next((one for one in ORDER if one in there), None)


def exit_code(category: Category | None, pytest_code: int, *, other_failures: bool = False) -> int:
    """The exit code of a session. pytest_code: what pytest would say.

    pytest's word stands where it could not do its work (interrupted, wrong call, nothing collected), and where something
    failed that is no benchmark (other_failures): a pipeline that forgives a category must not forgive that too.
    """
    if pytest_code > PYTEST_FAILED or category is None:
        return pytest_code
    return PYTEST_FAILED if other_failures else EXIT_CODES[category]


def is_interrupted(pytest_code: int) -> bool:
    """Whether a session ended before its time, by the code that pytest would give it."""
    return pytest_code > PYTEST_FAILED


def categories_of(cells: Collection[JudgedCell]) -> dict[Category, int]:
    """How many cells each category has, most important first; those without any are left out."""
    found = [category_of(cell) for cell in cells]
    return {one: found.count(one) for one in ORDER if one in found}
