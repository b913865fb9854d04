"""The measured path: requests in, one RequestTrace each out, nothing parsed on the way."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import httpx

from pytest_llmbench.client.transport import ExchangeTransport
from pytest_llmbench.records import RequestTrace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_llmbench.client.exchange import Exchange

CHAT_PATH = "/v1/chat/completions"
WARM_UP_REQUESTS = 3


class LlmClient:
    """A client of one running server.

    base_url: ``http://host:port``. connections: the most requests of one burst (each has a connection of its own).
    silence_s: the longest wait for the next byte before a request counts as hung (a cold 128K prompt is silent for
    minutes). headers: sent with every request. ``http`` is an ``httpx.AsyncClient`` on the same transport.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connections: int = 16,
        silence_s: float = 1800.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.connections = connections
        self._transport = ExchangeTransport()  # the choice of the transport, here and nowhere else
        self.http = httpx.AsyncClient(
            base_url=base_url,
            transport=self._transport,
            timeout=httpx.Timeout(silence_s, connect=10.0),
            headers={"accept-encoding": "identity", **(headers or {})},
            trust_env=False,
        )

    @property
    def bytes_received(self) -> int:
        """Bytes of bodies so far, HTTP framing included; for a progress line."""
        return self._transport.tally.bytes

    @property
    def lag_max_ms(self) -> float:
        """How late the thread that read the last burst woke up at most, in ms (``Burst``)."""
        return self._transport.lag_max_ms

    @property
    def kernel_stamps(self) -> bool:
        """Whether all arrivals of the last burst are the kernel's word, which that lag does not move."""
        return self._transport.kernel_stamps

    @property
    def chunks_received(self) -> int:
        """Reads of bodies so far; for a progress line."""
        return self._transport.tally.reads

    async def warm_up(self) -> None:
        """Send requests that the model never sees through the measured path.

        The first request of a process imports lazily, which would end up in the first TTFT. Raises
        httpx.TransportError where the server does not answer.
        """
        for _ in range(WARM_UP_REQUESTS):
            (trace,) = await self._measure([self._request("GET", "/health", b"", "client-warm-up")])
            if trace.status != httpx.codes.OK:
                raise httpx.TransportError(f"/health answered {trace.status or trace.transport_error}")

    async def stream_chat(self, body: Mapping[str, Any], request_id: str) -> RequestTrace:
        """Send one chat request and read its stream to the end. Failures are in the trace, never raised."""
        (trace,) = await self.burst([body], [request_id])
        return trace

    async def burst(self, bodies: Sequence[Mapping[str, Any]], ids: Sequence[str]) -> list[RequestTrace]:
        """Send chat requests together and read every stream to its end; the traces come in the order of ``bodies``.

        All requests are encoded and all connections are open before the first byte is sent; then one request after the
        other is handed to its socket with nothing in between (``send_spread_ms`` says how far apart). Failures are in
        the traces, never raised. Raises ValueError for more requests than ``connections``, or ids that do not match.
        """
        if len(bodies) != len(ids) or len(bodies) > self.connections:
            raise ValueError(f"{len(bodies)} bodies, {len(ids)} ids; this client has {self.connections} connections")
        return await self._measure(
            [
                self._request("POST", CHAT_PATH, json.dumps(body).encode(), i)
                for body, i in zip(bodies, ids, strict=True)
            ]
        )

    def _request(self, method: str, path: str, content: bytes, request_id: str) -> httpx.Request:
        fields = {"content-type": "application/json", "x-request-id": request_id}
        return self.http.build_request(method, path, content=content, headers=fields)

    async def _measure(self, requests: Sequence[httpx.Request]) -> list[RequestTrace]:
        wall = datetime.now(UTC).isoformat(timespec="milliseconds")
        t_call = time.monotonic_ns()
        exchanges = [self._transport.exchange(request) for request in requests]
        await self._transport.release(exchanges, settle_s(len(exchanges)))
        return [_trace(r, e, wall, t_call) for r, e in zip(requests, exchanges, strict=True)]

    async def aclose(self) -> None:
        """Close every connection, so that the server can stop at once."""
        await self.http.aclose()


def settle_s(connections: int) -> float:
    """How long a burst's open connections rest before the release, so that the server's accepting is in no TTFT."""
    return 0.1 + 0.001 * connections


def send_spread_ms(traces: Sequence[RequestTrace]) -> float | None:
    """How far apart a burst's requests were sent: last t_send - first t_send, in ms. None where none was sent."""
    sent = [trace.t_send_ns for trace in traces if trace.t_send_ns is not None]
    return (max(sent) - min(sent)) / 1e6 if sent else None


def _trace(request: httpx.Request, exchange: Exchange, wall: str, t_call_ns: int) -> RequestTrace:
    head, error = exchange.answer.head, exchange.error
    assert exchange.t_end_ns is not None
    return RequestTrace(
        request_id=request.headers["x-request-id"],
        path=request.url.path,
        body=request.content,
        wall=wall,
        t_call_ns=t_call_ns,
        t_send_ns=exchange.t_send_ns,
        t_headers_ns=exchange.answer.t_head_ns,
        t_end_ns=exchange.t_end_ns,
        status=head.status if head else None,
        headers=tuple((k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in head.headers) if head else (),
        chunks=tuple(exchange.answer.body),
        transport_error=f"{type(error).__name__}: {error}".rstrip(": ") if error else None,
    )
