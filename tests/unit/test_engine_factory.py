"""Engine kinds by name."""

from __future__ import annotations

import pytest

from pytest_llmbench.engine.factory import KINDS, starter
from pytest_llmbench.errors import InputError


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_imported(kind: str) -> None:
    assert callable(starter(kind))


def test_an_unknown_kind_lists_the_known() -> None:
    with pytest.raises(InputError, match="one of: llama-server"):
        starter("llama-serve")
