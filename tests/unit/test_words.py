"""How things are said: one of a thing, what is cut, and nothing twice."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import InputError, counted, shortened
from pytest_llmbench.explaining import _changed


def test_one_is_not_several() -> None:
    assert [counted(n, "pair") for n in (0, 1, 2, 1024)] == ["0 pairs", "1 pair", "2 pairs", "1,024 pairs"]


@pytest.mark.parametrize(
    ("text", "limit", "found"),
    [
        ("leave a core free", 17, "leave a core free"),
        ("leave a core free for the client", 30, "leave a core free for the…"),
        ("leave a core free for the client", 26, "leave a core free for the…"),
        ("waited long, (so it is)", 15, "waited long…"),
        ("/a/very/long/path/of/one/word", 10, "/a/very/l…"),
    ],
)
def test_what_is_cut_ends_after_a_word(text: str, limit: int, found: str) -> None:
    assert shortened(text, limit) == found
    assert len(found) <= limit


def test_an_errors_value_is_cut_at_a_word() -> None:
    assert "wor…" not in str(InputError("field", "word " * 100, "is too long"))


@pytest.mark.parametrize(
    ("changed", "said", "lines"),
    [
        ([], [], ["changed since the baseline: nothing that is recorded"]),
        ([], ["changed since the baseline: steal 1% -> 9%"], []),
        ([], ["clock 2,500 -> 2,300 MHz explains about -8.0% of -8.2%"], []),
        (["engine b1 or b2 -> b3"], ["changed since the baseline: engine b1 -> b3"], []),
        (["engine program ab -> cd"], ["changed since the baseline: engine: the same version b1, another binary"], []),
        (
            ["engine b1 -> b3", "driver 1 -> 2"],
            ["changed since the baseline: engine b1 -> b3"],
            ["changed since the baseline: driver 1 -> 2"],
        ),
    ],
)
def test_what_changed_is_said_once(changed: list[str], said: list[str], lines: list[str]) -> None:
    assert _changed(changed, said) == lines
