"""How fast a prompt of exactly N tokens is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.bench import Bench
    from pytest_llmbench.records import CellSpec


@pytest.mark.llmbench("prefill")
async def test_prefill(bench: Bench, cell: CellSpec) -> None:
    result = await bench.measure(cell)
    await bench.check(result)
