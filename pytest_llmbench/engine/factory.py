"""Which engine kinds there are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from pytest_llmbench.engine import StartServer

# Kind in the card → module:function. Imported when used: a collection needs no engine.
KINDS = {
    "llama-server": "pytest_llmbench.engine.llama_server:start_llama_server",
}


def starter(kind: str) -> StartServer:
    """The start function of an engine kind. Raises InputError that lists the kinds there are."""
    if kind not in KINDS:
        raise InputError("engine.kind", kind, "there is no such engine kind", f"one of: {', '.join(KINDS)}")
    module, _, function = KINDS[kind].partition(":")
    return cast("StartServer", getattr(import_module(module), function))
