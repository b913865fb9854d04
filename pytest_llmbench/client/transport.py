"""httpx's transport interface over exchanges: what ``LlmClient`` measures with, and what its ``http`` sends with."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import httpx

from pytest_llmbench.client.burst import Burst
from pytest_llmbench.client.exchange import Exchange, Tally
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class ExchangeTransport(httpx.AsyncBaseTransport):
    """One connection a request, never a proxy: the server is on this machine, or near.

    Of httpx's timeouts, ``connect`` and ``read`` count; ``read`` also ends a request that the server does not take.
    tally: what has arrived. Of the last ``release``: lag_max_ms (see ``Burst``), kernel_stamps (see ``Exchange``).
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self.lag_max_ms = 0.0
        self.kernel_stamps = False
        self._tasks: set[asyncio.Task[None]] = set()

    def exchange(self, request: httpx.Request) -> Exchange:
        """Encode a request whose content has been read; nothing is opened yet. Raises InputError for https."""
        url, timeout = request.url, request.extensions.get("timeout", {})
        if url.scheme != "http":
            raise InputError(
                "base_url", str(url.copy_with(userinfo=b"")), "is not plain HTTP, and TLS would be measured with the server",
                "name the server's own port, not a proxy before it",
            )  # fmt: skip
        return Exchange(
            (url.host, url.port or 80),
            request.method,
            encode(request.method, url, request.headers, request.content),
            connect_s=timeout.get("connect"),
            silence_s=timeout.get("read"),
            tally=self.tally,
        )

    async def release(self, exchanges: Sequence[Exchange], settle_s: float = 0.0) -> None:
        """Open every connection, then send every request, then read every answer to its end."""
        burst = Burst(exchanges, settle_s=settle_s)
        try:
            await asyncio.gather(*(one.open() for one in exchanges))
            await burst.run()
        finally:
            self.lag_max_ms = burst.lag_max_ms
            self.kernel_stamps = all(one.kernel_stamps for one in exchanges)
            for one in exchanges:
                one.close()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        exchange = self.exchange(request)
        changed = asyncio.Event()
        exchange.on_change = partial(_tell, asyncio.get_running_loop(), changed)
        task = asyncio.create_task(self.release([exchange]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        body = _Body(exchange, changed, task)
        try:
            await body.wait_for_head()
        except BaseException:
            await body.aclose()
            raise
        head = exchange.answer.head
        assert head is not None
        return httpx.Response(
            head.status,
            headers=list(head.headers),
            stream=body,
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": head.reason},
        )

    async def aclose(self) -> None:
        """Close every connection that is still open."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Body(httpx.AsyncByteStream):
    """Body parts as they come, while the task reads them."""

    def __init__(self, exchange: Exchange, changed: asyncio.Event, task: asyncio.Task[None]) -> None:
        self._exchange, self._changed, self._task = exchange, changed, task

    async def wait_for_head(self) -> None:
        while self._exchange.answer.head is None:
            if self._task.done():
                self._raise()
            await self._change()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen, parts = 0, self._exchange.answer.body
        while True:
            over = self._task.done()  # before the look: nothing can come after it
            while seen < len(parts):
                yield parts[seen][1]
                seen += 1
            if over:
                self._raise()
                return
            await self._change()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _change(self) -> None:
        """Wait for a read, or for the end."""
        waiting = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        self._changed.clear()

    def _raise(self) -> None:
        if not self._task.cancelled():
            self._task.result()
        if self._exchange.error is not None:
            raise self._exchange.error


def _tell(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    loop.call_soon_threadsafe(changed.set)


def encode(method: str, url: httpx.URL, headers: httpx.Headers, body: bytes) -> bytes:
    """A whole HTTP/1.1 request as bytes, which asks the server to close afterwards."""
    fields = [
        (name, value)
        for name, value in headers.raw
        if name.lower() not in (b"connection", b"content-length", b"transfer-encoding")
    ]
    fields.append((b"Connection", b"close"))
    if body or method in ("POST", "PUT", "PATCH"):
        fields.append((b"Content-Length", b"%d" % len(body)))
    lines = [b"%b %b HTTP/1.1" % (method.encode("ascii"), url.raw_path), *(b"%b: %b" % field for field in fields)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
