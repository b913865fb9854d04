"""httpx's transport interface over exchanges: what ``LlmClient`` measures with, and what its ``http`` sends with."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import httpx

from pytest_llmbench.client.exchange import Address, Exchange, Tally

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class ExchangeTransport(httpx.AsyncBaseTransport):
    """One connection a request, never a proxy: the server is on this machine, or near.

    Of httpx's timeouts, ``connect`` and ``read`` count; ``read`` also ends a request that the server does not take.
    The exchange of a response is in its ``extensions["exchange"]``.
    """

    def __init__(self) -> None:
        self.tally = Tally()
        self._open: set[Exchange] = set()
        self._tls: ssl.SSLContext | None = None

    def exchange(self, request: httpx.Request) -> Exchange:
        """Encode a request whose content has been read; nothing is opened yet."""
        timeout = request.extensions.get("timeout", {})
        exchange = Exchange(
            self._address(request.url),
            request.method,
            encode(request.method, request.url, request.headers, request.content),
            connect_s=timeout.get("connect"),
            silence_s=timeout.get("read"),
            tally=self.tally,
        )
        self._open.add(exchange)
        exchange.on_end = self._open.discard
        return exchange

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        exchange = self.exchange(request)
        try:
            await exchange.open()
            exchange.send()
            exchange.watch_silence()
            await exchange.more(-1)
        except asyncio.CancelledError:
            exchange.abort()
            raise
        head = exchange.answer.head
        if head is None:
            assert exchange.error is not None
            exchange.error.request = request
            raise exchange.error
        return httpx.Response(
            head.status,
            headers=list(head.headers),
            stream=_Body(exchange),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": head.reason, "exchange": exchange},
        )

    async def aclose(self) -> None:
        """Close every connection that is still open."""
        for exchange in list(self._open):
            exchange.abort()

    def _address(self, url: httpx.URL) -> Address:
        secure = url.scheme == "https"
        if secure and self._tls is None:
            self._tls = ssl.create_default_context()
        return Address(url.host, url.port or (443 if secure else 80), self._tls if secure else None)


class _Body(httpx.AsyncByteStream):
    """Body parts as they come."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange, seen = self._exchange, 0
        while True:
            await exchange.more(seen)
            body = exchange.answer.body
            for _, data in body[seen:]:
                seen += 1
                yield data
            if exchange.t_end_ns is not None and seen == len(body):
                break
        if exchange.error is not None:
            raise exchange.error

    async def aclose(self) -> None:
        self._exchange.abort()


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
