"""Text from outside is shown printable: nothing of a log, a card or a path is obeyed by a terminal."""

from __future__ import annotations

import pytest

from pytest_llmbench.bench import BenchFailedError
from pytest_llmbench.errors import CardError, InputError, LlmbenchError, PromiseBrokenError, ServerError, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ü, 日本, 👩‍💻, a\tb", "plain, ü, 日本, 👩‍💻, a\tb"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("a\rb\x7f\0", r"a\rb\x7f\x00"),
        ("a\u2028b\u202ec\u2066d", r"a\u2028b\u202ec\u2066d"),
        ("bytes \udcff", r"bytes \udcff"),
    ],
)
def test_controls_are_written_out(text: str, shown: str) -> None:
    assert printable(text) == printable(text, lines=True) == shown


def test_newlines_stay_only_where_they_are_meant() -> None:
    assert printable("a\nb\r\nc") == r"a\nb\r\nc"
    assert printable("a\nb\r\nc", lines=True) == "a\nb\nc"


@pytest.mark.parametrize(
    "error",
    [
        LlmbenchError("log:\n  \x1b[2Jgone"),
        ServerError("log:\n  \x1b[2Jgone"),
        BenchFailedError("log:\n  \x1b[2Jgone"),
        InputError("field\x1b[2J\n", "value\x1b[2J\n", "reason \x1b[2J", "remedy \x1b[2J"),
        CardError("field\x1b[2J\n", {"a\x1b[2J": "\n"}, "reason"),
        PromiseBrokenError("what\n", "a\nb\x1b[2J", ["\x1b[2J"]),
    ],
)
def test_no_error_carries_a_control(error: LlmbenchError) -> None:
    assert all(line.isprintable() for line in str(error).split("\n"))
    assert "\\x1b[2J" in str(error)


def test_field_and_values_stay_on_one_line() -> None:
    assert str(PromiseBrokenError("what", "a\nb", "c\nd")) == r"what: the card promises a\nb, found c\nd"
    assert str(InputError("a\nb", "c\nd", "reason", "remedy")) == "a\\nb = 'c\\nd': reason\n  remedy: remedy"


def test_values_stand_as_in_a_card() -> None:
    assert str(InputError("field", True, "no")) == "field = true: no"  # noqa: FBT003
    assert str(InputError("field", {"a": [None, "ü"]}, "no")) == 'field = {"a": [null, "ü"]}: no'
