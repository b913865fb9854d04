"""How late the event loop runs: a client whose loop is late stamps arrivals late (METHOD, "Valid, or not")."""

from __future__ import annotations

import asyncio
from typing import Self


class LoopLag:
    """The longest delay of the event loop seen while open, in ms.

    A timer due every ``interval_s`` says how late it ran. A loop that was blocked for x ms shows a lag between
    x - interval and x, so no delay longer than ``max_ms`` + the interval has happened unseen.
    """

    interval_s = 0.01

    def __init__(self) -> None:
        self.max_ms = 0.0
        self.samples = 0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._arm()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._timer is not None
        self._timer.cancel()
        self._note(self._loop.time())  # a delay that lasts until now

    def _arm(self) -> None:
        self._due = self._loop.time() + self.interval_s
        self._timer = self._loop.call_at(self._due, self._tick)

    def _tick(self) -> None:
        self._note(self._loop.time())
        self.samples += 1
        self._arm()

    def _note(self, now: float) -> None:
        self.max_ms = max(self.max_ms, (now - self._due) * 1e3)
