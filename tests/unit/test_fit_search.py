"""The finer search of the memory test: which sizes it tries, and where it stops."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench import fit_search
from pytest_llmbench.records import CellResult, CellSpec

if TYPE_CHECKING:
    from pytest_llmbench.records import CellStatus


def size(context: int, status: CellStatus) -> CellResult:
    spec = CellSpec(f"fit[{context}]", "fit", 1, context=context)
    return CellResult(spec=spec, card="card", status=status, attempts=(), summaries=(), reasons=())


def searched(limit: int, known: dict[int, CellResult], disturbed: int | None = None) -> tuple[int | None, list[int]]:
    """The largest size found below 16,384 where 1,024 answered and everything above the limit fails; the sizes tried."""
    tried = []

    async def measure(spec: CellSpec) -> CellResult:
        assert spec.context is not None
        assert spec.id == f"fit[{spec.context}]"
        tried.append(spec.context)
        return size(
            spec.context,
            "disturbed" if spec.context == disturbed else "measured" if spec.context <= limit else "failed",
        )

    failed = size(16_384, "failed").spec
    return asyncio.run(fit_search.search(failed, [size(1024, "measured")], known, measure)), tried


def test_halves_the_way_to_a_step() -> None:
    assert searched(5000, {}) == (4096, [8192, 4096, 6144, 5120])


def test_does_not_try_again_what_is_known() -> None:
    known = {8192: size(8192, "failed"), 4096: size(4096, "measured")}
    assert searched(5000, known) == (4096, [6144, 5120])


def test_a_disturbed_size_ends_it() -> None:
    assert searched(5000, {}, disturbed=4096) == (1024, [8192, 4096])


@pytest.mark.parametrize(("good", "bad", "expected"), [(None, 4096, None), (1024, 2048, None), (1024, 3072, 2048)])
def test_next_size(good: int | None, bad: int, expected: int | None) -> None:
    assert fit_search.next_size(good, bad) == expected


@pytest.mark.parametrize(("cell", "expected"), [("fit[4096]", 4096), ("fit[]", None), ("prefill[4096]", None)])
def test_size_of(cell: str, expected: int | None) -> None:
    assert fit_search.size_of(cell) == expected
