"""Errors that a user reads. Each says what, why and what to do; none is raised for control flow."""

from __future__ import annotations

import json
import re

# What a terminal obeys or cannot show: C0 and C1 controls but tab and newline, what turns the direction of writing, line
# separators of Unicode, and lone surrogates (bytes of a path that are no UTF-8).
_NOT_SHOWN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str, *, lines: bool = False) -> str:
    """Text from outside as it may be shown: what a terminal would obey is written out (``\\x1b``).

    lines: newlines are meant, and stay.
    """
    kept = text.replace("\r\n", "\n") if lines else text.replace("\n", "\\n")
    return _NOT_SHOWN.sub(lambda found: ascii(found[0])[1:-1], kept)


def counted(number: int, word: str) -> str:
    """``1 pair``, ``2 pairs``, ``1,024 pairs``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def shortened(text: str, limit: int) -> str:
    """Text of at most so many characters; what is longer ends after a whole word, and with ``…``."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    words = cut if text[limit - 1].isspace() else cut.rpartition(" ")[0]
    # One word as long as the half of it (a path, a hash) is better cut than left out.
    return (words if len(words) > limit // 2 else cut).rstrip(" ,;:(") + "…"


class LlmbenchError(Exception):
    """Base of every error of ours whose text is meant for the user. It may quote a log: what it holds is shown printable."""

    def __init__(self, text: str) -> None:
        super().__init__(printable(text, lines=True))


class InputError(LlmbenchError):
    """Something the user gave is not usable.

    field: where it stands (``server.args``, ``--setup``); value: what was found; reason: why it cannot be used;
    remedy: what to write instead.
    """

    def __init__(self, field: str, value: object, reason: str, remedy: str = "") -> None:
        self.field, self.value, self.reason, self.remedy = field, value, reason, remedy
        shown = "" if value is None else f" = {_short(value)}"
        super().__init__(f"{printable(field)[:500]}{shown}: {reason}" + (f"\n  remedy: {remedy}" if remedy else ""))


class CardError(InputError):
    """A setup card cannot be used as it stands."""


class PromiseBrokenError(LlmbenchError):
    """The machine, a file or the server is not what the card states."""

    def __init__(self, what: str, promised: object, found: object, remedy: str = "") -> None:
        self.what, self.promised, self.found, self.remedy = what, promised, found, remedy
        sides = f"the card promises {printable(str(promised))}, found {printable(str(found))}"
        super().__init__(f"{printable(what)}: {sides}" + (f"\n  remedy: {remedy}" if remedy else ""))


class ServerError(LlmbenchError):
    """The server could not start, or died. The text holds command line, exit, last log lines and known remedy."""


class ServerStartError(ServerError):
    """The server did not become ready."""


class ServerDiedError(ServerError):
    """The server ended while it was needed."""


def _short(value: object, limit: int = 160) -> str:
    # As it stands in a card or on a command line: true and not True.
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, bool | dict | list) else repr(value)
    return shortened(printable(text), limit)
