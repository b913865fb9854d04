"""An event loop whose timers are as exact as the kernel's: epoll alone rounds every wait up to a millisecond."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from typing import TYPE_CHECKING, Literal

from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

if sys.platform == "linux":

    class ExactSelector(selectors.EpollSelector):
        """Waits in select(2) on the epoll descriptor (microseconds), then asks epoll without waiting."""

        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            if timeout is not None and timeout > 0:
                try:
                    select.select([self.fileno()], (), (), timeout)
                except InterruptedError:
                    return []
                timeout = 0
            return super().select(timeout)


def loop_factory(kind: Literal["asyncio", "uvloop"]) -> Callable[[], asyncio.AbstractEventLoop]:
    """The loop to run in. uvloop's timers are whole milliseconds, so asyncio's is the default and the more exact one."""
    if kind == "uvloop":
        try:
            import uvloop  # type: ignore[import-not-found, unused-ignore] # noqa: PLC0415 - optional
        except ImportError:
            raise InputError(
                "paced.loop", kind, "uvloop is not installed", "leave it out, or pip install uvloop"
            ) from None
        new: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
        return new
    if sys.platform == "linux":
        return lambda: asyncio.SelectorEventLoop(ExactSelector())
    return asyncio.new_event_loop
