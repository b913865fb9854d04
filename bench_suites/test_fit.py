"""Which context fits into the memory, shown by a cold prompt that fills 95 % of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.bench import Bench
    from pytest_llmbench.records import CellSpec


@pytest.mark.llmbench("fit")
async def test_fit(bench: Bench, cell: CellSpec) -> None:
    result = await bench.measure(cell)
    await bench.check(result)
