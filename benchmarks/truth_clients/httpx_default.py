"""httpx with its default transport on one event loop, used as its documentation says; reads jobs from stdin."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any

import httpx


async def one(client: httpx.AsyncClient, job: dict[str, Any], request: str) -> tuple[float, float]:
    body = {
        "messages": [{"role": "user", "content": f"{job['nonce']} {request}"}],
        "max_tokens": job["tokens"], "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False,
    }  # fmt: skip
    times: list[int] = []
    sent = time.monotonic_ns()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for data in response.aiter_raw():
            times += [time.monotonic_ns()] * data.count(b'"content":"')
    return (times[0] - sent) / 1e6, (len(times) - 1) / ((times[-1] - times[0]) / 1e9)


async def measure(job: dict[str, Any]) -> dict[str, Any]:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=job["url"], limits=limits, timeout=60, trust_env=False) as client:
        seen: list[tuple[float, float]] = []
        for number in range(job["rounds"] + 1):
            gc.collect()
            gc.disable()
            answers = await asyncio.gather(*(one(client, job, f"{number} {n}") for n in range(job["concurrency"])))
            gc.enable()
            seen += answers if number else []  # the first round warms up and opens the connections
    return {"ttft_ms": [ttft for ttft, _ in seen], "decode_tok_s": [decode for _, decode in seen]}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asyncio.run(measure(json.loads(line)))) + "\n")
        sys.stdout.flush()
