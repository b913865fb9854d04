"""The measured path over httpx: one request in, one RequestTrace out, nothing parsed on the way.

The transport is chosen in ``_transport`` and nowhere else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import httpx

from pytest_llmbench.records import RequestTrace

if TYPE_CHECKING:
    from collections.abc import Mapping

CHAT_PATH = "/v1/chat/completions"


def _transport(connections: int) -> httpx.AsyncBaseTransport:
    """The default transport, never a proxy: the server is on this machine."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=None)
    return httpx.AsyncHTTPTransport(limits=limits, retries=0, trust_env=False)


class LlmClient:
    """A client of one running server.

    base_url: ``http://host:port``. connections: the most requests in flight. silence_s: the longest wait for the next
    byte before a request counts as hung (a cold 128K prompt is silent for minutes). headers: sent with every request.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connections: int = 16,
        silence_s: float = 1800.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.http = httpx.AsyncClient(
            base_url=base_url,
            transport=_transport(connections),
            timeout=httpx.Timeout(connect=10.0, read=silence_s, write=60.0, pool=silence_s),
            headers=dict(headers or {}),
            trust_env=False,
        )
        self.bytes_received = 0
        self.chunks_received = 0

    async def warm_up(self) -> None:
        """Send one request that the model never sees through the measured path.

        The first request of a process imports lazily (about 50 ms), which would end up in the first TTFT.
        """
        trace = await self._exchange("GET", "/health", b"", "client-warm-up")
        if trace.status != httpx.codes.OK:
            raise httpx.TransportError(f"/health answered {trace.status or trace.transport_error}")

    async def stream_chat(self, body: Mapping[str, Any], request_id: str) -> RequestTrace:
        """Send one chat request and read its stream to the end. Failures are in the trace, never raised."""
        return await self._exchange("POST", CHAT_PATH, json.dumps(body).encode(), request_id)

    async def _exchange(self, method: str, path: str, body: bytes, request_id: str) -> RequestTrace:
        sent: list[int] = []

        async def on_event(name: str, _info: dict[str, Any]) -> None:
            # The last one counts: a retried connection sends again.
            if name == "http11.send_request_headers.started":
                sent.append(time.monotonic_ns())

        request = self.http.build_request(
            method,
            path,
            content=body,
            headers={"content-type": "application/json", "x-request-id": request_id},
            extensions={"trace": on_event},
        )
        chunks: list[tuple[int, bytes]] = []
        status: int | None = None
        headers: tuple[tuple[str, str], ...] = ()
        t_headers: int | None = None
        error: str | None = None
        clock = time.monotonic_ns
        wall = datetime.now(UTC).isoformat(timespec="milliseconds")
        t_call = clock()
        try:
            response = await self.http.send(request, stream=True)
            t_headers = clock()
            status, headers = response.status_code, tuple(response.headers.multi_items())
            try:
                async for data in response.aiter_raw():
                    chunks.append((clock(), data))
                    self.bytes_received += len(data)
                    self.chunks_received += 1
            finally:
                await response.aclose()
        except httpx.HTTPError as exc:
            error = f"{type(exc).__name__}: {exc}".rstrip(": ")
        return RequestTrace(
            request_id=request_id,
            path=path,
            body=body,
            wall=wall,
            t_call_ns=t_call,
            t_send_ns=sent[-1] if sent else None,
            t_headers_ns=t_headers,
            t_end_ns=clock(),
            status=status,
            headers=headers,
            chunks=tuple(chunks),
            transport_error=error,
        )

    async def aclose(self) -> None:
        """Close every connection, so that the server can stop at once."""
        await self.http.aclose()


class LoopLag:
    """How late the event loop runs its timers: the longest delay seen while open, in ms.

    A loop that is late stamps arrivals late; METHOD makes that part of validity.
    """

    interval_s = 0.02

    def __init__(self) -> None:
        self.max_ms = 0.0
        self.samples = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _sample(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self.interval_s
            await asyncio.sleep(self.interval_s)
            self.max_ms = max(self.max_ms, (loop.time() - due) * 1e3)
            self.samples += 1
