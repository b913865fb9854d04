"""Several requests released together, below and above the server's slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.bench import Bench
    from pytest_llmbench.records import CellSpec


@pytest.mark.llmbench("concurrency")
async def test_concurrency(bench: Bench, cell: CellSpec) -> None:
    result = await bench.measure(cell)
    await bench.check(result)
