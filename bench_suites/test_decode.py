"""How fast tokens come after the first one, on a code and a prose prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.bench import Bench
    from pytest_llmbench.records import CellSpec


@pytest.mark.llmbench("decode")
async def test_decode(bench: Bench, cell: CellSpec) -> None:
    result = await bench.measure(cell)
    await bench.check(result)
