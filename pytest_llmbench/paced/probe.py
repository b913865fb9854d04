"""A plain blocking client for looking at a server byte by byte; not for measuring (that is the client's room)."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. reads: (monotonic ns, bytes as one recv gave them), HTTP framing included.

    complete: the message came to the end that its framing promises. parts: the HTTP chunks (one, if not chunked).
    """

    status: int
    headers: dict[str, str]
    parts: tuple[bytes, ...]
    complete: bool
    reads: tuple[tuple[int, bytes], ...]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The ``data:`` events in order: parsed JSON, or the string ``[DONE]``; comments are left out."""
        lines = [line[6:] for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


def send(
    address: tuple[str, int],
    path: str,
    body: object = None,
    *,
    headers: dict[str, str] | None = None,
    timeout_s: float = 60.0,
    stop_after_bytes: int | None = None,
) -> Reply:
    """One request on a connection of its own: GET without a body, POST of JSON (or raw bytes) with one.

    ``stop_after_bytes`` closes the connection once so many have come. Raises TimeoutError when nothing comes any more.
    """
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: paced\r\nConnection: close\r\n"
    for name, value in (headers or {}).items():
        head += f"{name}: {value}\r\n"
    if body is not None:
        head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    reads: list[tuple[int, bytes]] = []
    with socket.create_connection(address, timeout=timeout_s) as one:
        one.sendall(head.encode() + b"\r\n" + data)
        while stop_after_bytes is None or sum(len(part) for _, part in reads) < stop_after_bytes:
            try:
                part = one.recv(1 << 20)
            except ConnectionResetError:
                break
            if not part:
                break
            reads.append((time.monotonic_ns(), part))
    return parse_reply(b"".join(part for _, part in reads), tuple(reads))


def parse_reply(raw: bytes, reads: tuple[tuple[int, bytes], ...] = ()) -> Reply:
    """Take an HTTP/1.1 response apart; what is missing at its end makes it incomplete, never an error."""
    head, found, rest = raw.partition(b"\r\n\r\n")
    if not found:
        return Reply(0, {}, (), complete=False, reads=reads)
    lines = head.decode("latin-1").split("\r\n")
    fields = (line.partition(":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in fields}
    status = int(lines[0].split(" ")[1])
    if headers.get("transfer-encoding") != "chunked":
        size = int(headers.get("content-length", len(rest)))
        return Reply(status, headers, (rest,), complete=len(rest) >= size, reads=reads)
    parts: list[bytes] = []
    while True:
        size_text, found, after = rest.partition(b"\r\n")
        if not found or len(after) < int(size_text, 16) + 2:
            return Reply(status, headers, tuple(parts), complete=False, reads=reads)
        size = int(size_text, 16)
        if size == 0:
            return Reply(status, headers, tuple(parts), complete=True, reads=reads)
        parts.append(after[:size])
        rest = after[size + 2 :]
