"""The finer search of the memory test: halve the way between the last size that answered and the first that failed.

Its sizes are not promised cells: they are found out, and stand apart in the document. Pure, but for ``measure``, which
the caller gives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_llmbench import stats

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from pytest_llmbench.records import CellResult, CellSpec

STEP = 1024
"""Tokens: the search ends where the two sizes are this near."""


def due(result: CellResult) -> bool:
    """Whether a cell is a size that was tried and did not answer."""
    return result.spec.part == "fit" and bool(result.attempts) and result.status in {"failed", "unsupported"}


def next_size(good: int | None, bad: int) -> int | None:
    """The size halfway, in steps of 1,024 tokens; None where none lies between, or no size answered at all."""
    if good is None:
        return None
    middle = (good + bad) // 2 // STEP * STEP
    return middle if middle > good else None


def sized(like: CellSpec, size: int) -> CellSpec:
    """The cell of a size that nobody promised, after the pattern of one that was."""
    return replace(like, id=f"fit[{size}]", context=size)


def size_of(cell: str) -> int | None:
    """The size in a cell's id; None for a cell of another part."""
    number = cell.removeprefix("fit[").removesuffix("]")
    return int(number) if cell == f"fit[{number}]" and number.isdecimal() else None


async def search(
    failed: CellSpec,
    answered: Iterable[CellResult],
    known: Mapping[int, CellResult],
    measure: Callable[[CellSpec], Awaitable[CellResult]],
) -> int | None:
    """The largest size that answers; None where not even the smallest did.

    answered: results of the promised sizes. known: sizes that an earlier session tried already, by size; those are not
    measured again.
    """
    assert failed.context is not None
    good, bad = stats.fit_largest(answered), failed.context
    while (size := next_size(good, bad)) is not None:
        result = known[size] if size in known else await measure(sized(failed, size))
        if result.status in {"disturbed", "invalid", "missing"}:
            break  # nothing is known of this size: going on below it would call it too large
        good, bad = (size, bad) if stats.fit_largest([result]) == size else (good, size)
    return good
