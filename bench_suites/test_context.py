"""How fast a long prompt is read, and how fast tokens come behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_llmbench.bench import Bench
    from pytest_llmbench.records import CellSpec


@pytest.mark.llmbench("context")
async def test_context(bench: Bench, cell: CellSpec) -> None:
    result = await bench.measure(cell)
    await bench.check(result)
