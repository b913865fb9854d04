"""Exchanges released together and read to their end, in a thread that does nothing else.

An event loop costs three to ten times the CPU of this per arriving chunk (docs/clock.md), and at hundreds of streams
that is the difference between measuring the server and measuring the client. The thread's own lateness is sampled.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.client.exchange import Exchange

LAG_INTERVAL_NS = 10_000_000
_clock = time.monotonic_ns


class Burst:
    """One release of one or more exchanges whose connections are open.

    lag_max_ms: the most that the reading thread woke up too late, sampled every 10 ms: nothing was read later than this
    + 10 ms after it could have been.
    """

    def __init__(self, exchanges: Sequence[Exchange], *, settle_s: float = 0.0) -> None:
        self.lag_max_ms = 0.0
        self._all, self._settle_s = exchanges, settle_s
        self._open: set[Exchange] = set()
        self._stopped = False

    async def run(self) -> None:
        """Release and read, until every exchange has ended. A cancelled wait closes every connection at once."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # cancelling the wait must not cancel the thread's word
        wake, waker = socket.socketpair()
        with wake, waker:
            thread = threading.Thread(target=self._into, args=(done, wake), name="llmbench-burst", daemon=True)
            thread.start()
            try:
                await asyncio.wrap_future(done)
            finally:
                self._stopped = True
                waker.send(b"x")
                thread.join()

    # ---- the thread

    def _into(self, done: concurrent.futures.Future[None], wake: socket.socket) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(wake, selectors.EVENT_READ)
                self._read_all(selector)
        except BaseException as exc:  # noqa: BLE001 - raised again where it is awaited
            done.set_exception(exc)
        else:
            done.set_result(None)

    def _read_all(self, selector: selectors.BaseSelector) -> None:
        try:
            if self._settle_s:
                selector.select(self._settle_s)  # nothing but the end of patience can come
            ready = [one for one in self._all if one.t_end_ns is None]
            for one in ready:
                selector.register(one.connection, selectors.EVENT_READ, one)
            self._open.update(ready)
            if not self._stopped:
                for one in ready:
                    one.send()
                self._loop(selector)
        finally:
            for one in self._all:
                one.break_off(httpx.ReadError("given up by the client"))
                one.close()  # only now: closing takes time from other streams' arrivals

    def _loop(self, selector: selectors.BaseSelector) -> None:
        for one in self._open:
            if one.unsent:
                selector.modify(one.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, one)
        due = _clock() + LAG_INTERVAL_NS
        silence_ends = self._silence_ends()
        while self._open and not self._stopped:
            ready = selector.select(max(0, due - _clock()) / 1e9)
            now = _clock()
            if now >= due:
                self._note_lag(now - due)
                due = now + LAG_INTERVAL_NS
            for key, events in ready:
                one = key.data
                if one is None:
                    continue  # stopped
                if events & selectors.EVENT_WRITE:
                    one.send_more()
                    if not one.unsent:
                        selector.modify(one.connection, selectors.EVENT_READ, one)
                if events & selectors.EVENT_READ:
                    one.receive()
                    if one.t_end_ns is not None:
                        self._over(selector, one)
            if now >= silence_ends:
                self._end_silent(selector, now)
                silence_ends = self._silence_ends()
        self._note_lag(_clock() - due)  # what the last reads took

    def _note_lag(self, lag_ns: int) -> None:
        self.lag_max_ms = max(self.lag_max_ms, lag_ns / 1e6)

    def _over(self, selector: selectors.BaseSelector, one: Exchange) -> None:
        selector.unregister(one.connection)
        self._open.discard(one)

    def _silence_ends(self) -> float:
        """When the first of the open exchanges will have been silent for too long, if nothing comes."""
        limits = [
            one.t_last_ns + one.silence_s * 1e9
            for one in self._open
            if one.silence_s is not None and one.t_last_ns is not None
        ]
        return min(limits, default=math.inf)

    def _end_silent(self, selector: selectors.BaseSelector, now: int) -> None:
        for one in list(self._open):
            if one.silence_s is not None and one.t_last_ns is not None and now >= one.t_last_ns + one.silence_s * 1e9:
                one.break_off(httpx.ReadTimeout(f"no byte came for {one.silence_s:g} s (--llmbench-silence-timeout)"))
                self._over(selector, one)
