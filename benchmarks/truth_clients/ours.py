"""Our own client, as the runner uses it; reads jobs from stdin, one a line."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
from typing import Any

from pytest_llmbench.client import LlmClient, parse
from pytest_llmbench.client.http import send_spread_ms
from pytest_llmbench.measure import figures


async def measure(job: dict[str, Any]) -> dict[str, Any]:
    client = LlmClient(job["url"], connections=job["concurrency"])
    numbers = range(job["concurrency"])
    bodies = [
        {
            "messages": [{"role": "user", "content": f"{job['nonce']} {number}"}],
            "max_tokens": job["tokens"], "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False,
        }
        for number in numbers
    ]  # fmt: skip
    await client.warm_up()
    gc.collect()
    gc.disable()
    try:
        traces = await client.burst(bodies, [f"{job['nonce']}/{number}" for number in numbers])
    finally:
        gc.enable()
        await client.aclose()
    answers = [parse(trace) for trace in traces]
    if broken := [answer.error for answer in answers if answer.error]:
        raise RuntimeError(f"{len(broken)} of {len(answers)} requests failed: {broken[0]}")
    return {
        "ttft_ms": [figures.ttft_ms(answer, trace.t_send_ns) for trace, answer in zip(traces, answers, strict=True)],
        "decode_tok_s": [figures.decode_tok_s(answer)[0] for answer in answers],
        "ids": [trace.request_id for trace in traces],
        "first_ns": [answer.events[0].t_ns for answer in answers],
        "send_spread_ms": [send_spread_ms(traces)],
        "lag_max_ms": [client.lag_max_ms],
    }


def measure_all(job: dict[str, Any]) -> dict[str, Any]:
    numbers = range(job["rounds"])
    rounds = [asyncio.run(measure({**job, "nonce": f"{job['nonce']}/{number}"})) for number in numbers]
    return {name: [value for one in rounds for value in one[name]] for name in rounds[0]}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(measure_all(json.loads(line))) + "\n")
        sys.stdout.flush()
