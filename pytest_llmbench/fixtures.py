"""The fixtures, and what the hooks keep between them: cards, setups, their folder. Heavy rooms load when used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from pytest_llmbench.asked import LoadedCard
    from pytest_llmbench.bench import Bench
    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.marking import Marking
    from pytest_llmbench.options import Settings
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.setups import Setups
    from pytest_llmbench.terminal import Terminal

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
CARDS: pytest.StashKey[tuple[LoadedCard, ...]] = pytest.StashKey()
SETUPS: pytest.StashKey[Setups] = pytest.StashKey()
MARKING: pytest.StashKey[Marking] = pytest.StashKey()
TERMINAL: pytest.StashKey[Terminal] = pytest.StashKey()


@dataclass(frozen=True)
class CellParam:
    """What one bench item measures."""

    loaded: LoadedCard
    spec: CellSpec

    def test_id(self, *, many: bool) -> Any:
        """``code`` of ``decode[code]``; with several cards the card's id first; nothing for a part of one cell."""
        own = self.spec.id.partition("[")[2].rstrip("]")
        words = [self.loaded.card.id] if many else []
        words += [own] if own else []
        return "-".join(words) if words else pytest.HIDDEN_PARAM


def place_of(param: CellParam, cards: Sequence[LoadedCard]) -> tuple[int, int]:
    """Where a cell's turn is: one card after the other, and in the order of the plan, so that servers start seldom."""
    card = next(n for n, loaded in enumerate(cards) if loaded.card.id == param.loaded.card.id)
    return card, param.loaded.cells.index(param.spec)


def param_of(item: pytest.Item) -> CellParam | None:
    """What a bench item measures; None for one whose part is not in any plan."""
    callspec = getattr(item, "callspec", None)
    param = callspec.params.get("cell") if callspec is not None else None
    return param if isinstance(param, CellParam) else None


# ---- fixtures ---------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llmbench_setups(request: pytest.FixtureRequest) -> AsyncIterator[Setups]:
    """The session's setups; stops the running server at the end."""
    setups = request.config.stash[SETUPS]
    try:
        yield setups
    finally:
        await setups.stop()


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> CellSpec:
    """The cell that this item measures."""
    return _param(request).spec


@pytest.fixture
def card(request: pytest.FixtureRequest) -> SetupCard:
    """The setup card that this item measures."""
    return _param(request).loaded.card


@pytest_asyncio.fixture(loop_scope="session")
async def bench(request: pytest.FixtureRequest, llmbench_setups: Setups) -> AsyncIterator[Bench]:
    """Measures and checks cells of the item's card, whose server is running."""
    from pytest_llmbench.bench import Bench  # noqa: PLC0415

    param = _param(request)
    run = await llmbench_setups.use(param.loaded, request.config.stash[TERMINAL], param.spec)
    face = Bench(run, skip=pytest.skip, xfail=pytest.xfail)
    yield face
    for result in face.measured:
        for summary in result.summaries:
            if summary.median is not None:
                request.node.user_properties.append((f"{result.spec.id} {summary.name}", summary.median))


def _param(request: pytest.FixtureRequest) -> CellParam:
    param = param_of(request.node)
    if param is None:
        pytest.fail(
            "this test needs a cell: mark it @pytest.mark.llmbench(part) and take the argument cell", pytrace=False
        )
    return param
