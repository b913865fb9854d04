"""One long task that must end by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.session import Bench


@pytest.mark.llmbench("long_answer")
async def test_long_answer(bench: Bench, cell: CellSpec) -> None:
    result = await bench.measure(cell)
    await bench.check(result)
