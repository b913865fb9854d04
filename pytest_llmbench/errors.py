"""Errors that a user reads. Each says what, why and what to do; none is raised for control flow."""

from __future__ import annotations


class LlmbenchError(Exception):
    """Base of every error of ours whose text is meant for the user."""


class InputError(LlmbenchError):
    """Something the user gave is not usable.

    field: where it stands (``server.args``, ``--setup``); value: what was found; reason: why it cannot be used;
    remedy: what to write instead.
    """

    def __init__(self, field: str, value: object, reason: str, remedy: str = "") -> None:
        self.field, self.value, self.reason, self.remedy = field, value, reason, remedy
        shown = "" if value is None else f" = {_short(value)}"
        super().__init__(f"{field}{shown}: {reason}" + (f"\n  remedy: {remedy}" if remedy else ""))


class CardError(InputError):
    """A setup card cannot be used as it stands."""


class PromiseBrokenError(LlmbenchError):
    """The machine, a file or the server is not what the card states."""

    def __init__(self, what: str, promised: object, found: object, remedy: str = "") -> None:
        self.what, self.promised, self.found, self.remedy = what, promised, found, remedy
        super().__init__(
            f"{what}: the card promises {promised}, found {found}" + (f"\n  remedy: {remedy}" if remedy else "")
        )


class ServerError(LlmbenchError):
    """The server could not start, or died. The text holds command line, exit, last log lines and known remedy."""


class ServerStartError(ServerError):
    """The server did not become ready."""


class ServerDiedError(ServerError):
    """The server ended while it was needed."""


def _short(value: object, limit: int = 160) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
