"""The floor: the least client that can measure a stream. Standard library only; reads jobs from stdin, one a line.

Sockets are connected and requests encoded beforehand; one epoll loop stamps and keeps what comes; everything is parsed
afterwards. There is no handling of anything that goes wrong.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import sys
import time
from typing import Any


def encode(host: str, job: dict[str, Any], number: int) -> bytes:
    body = json.dumps({
        "messages": [{"role": "user", "content": f"{job['nonce']} {number}"}],
        "max_tokens": job["tokens"], "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False,
    }).encode()  # fmt: skip
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    head += f"X-Request-Id: {job['nonce']}/{number}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def measure(job: dict[str, Any]) -> dict[str, Any]:
    host = job["url"].removeprefix("http://")
    address = (host.rpartition(":")[0], int(host.rpartition(":")[2]))
    sockets = {}
    for number in range(job["concurrency"]):
        one = socket.create_connection(address)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        one.setblocking(False)  # noqa: FBT003 - its own signature
        sockets[one.fileno()] = (one, encode(host, job, number))
    reads: dict[int, list[tuple[int, bytes]]] = {fd: [] for fd in sockets}
    sent: dict[int, int] = {}
    clock, epoll = time.monotonic_ns, select.epoll()
    for fd in sockets:
        epoll.register(fd, select.EPOLLIN)
    time.sleep(0.1 + 0.001 * len(sockets))  # the server accepts them meanwhile
    gc.collect()
    gc.disable()
    for fd, (one, payload) in sockets.items():
        sent[fd] = clock()
        one.send(payload)
    left = len(sockets)
    while left:
        for fd, _ in epoll.poll():
            now = clock()
            data = sockets[fd][0].recv(65536)
            if data:
                reads[fd].append((now, data))
            else:
                epoll.unregister(fd)
                left -= 1
    gc.enable()
    epoll.close()
    for one, _ in sockets.values():
        one.close()
    ids = {fd: f"{job['nonce']}/{number}" for number, fd in enumerate(sockets)}
    return figures(ids, sent, reads)


def measure_all(job: dict[str, Any]) -> dict[str, Any]:
    rounds = [measure({**job, "nonce": f"{job['nonce']}/{number}"}) for number in range(job["rounds"])]
    return {name: [value for one in rounds for value in one[name]] for name in rounds[0]}


def figures(ids: dict[int, str], sent: dict[int, int], reads: dict[int, list[tuple[int, bytes]]]) -> dict[str, Any]:
    ttft, decode, first = [], [], []
    for fd, parts in reads.items():
        times = [now for now, data in parts for _ in range(data.count(b'"content":"'))]
        first.append(times[0])
        ttft.append((times[0] - sent[fd]) / 1e6)
        decode.append((len(times) - 1) / ((times[-1] - times[0]) / 1e9))
    return {
        "ttft_ms": ttft,
        "decode_tok_s": decode,
        "ids": [ids[fd] for fd in reads],
        "first_ns": first,
        "send_spread_ms": [(max(sent.values()) - min(sent.values())) / 1e6],
    }


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(measure_all(json.loads(line))) + "\n")
        sys.stdout.flush()
