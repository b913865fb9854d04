"""Traces made by hand, so that every figure's true value is known."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_llmbench.records import RequestTrace

if TYPE_CHECKING:
    from collections.abc import Iterable

MS = 1_000_000
SEND = 5_000 * MS


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def delta(
    content: str | None = None, *, predicted_n: int | None = None, finish: str | None = None, **more: Any
) -> bytes:
    value: dict[str, Any] = {
        "choices": [
            {
                "index": 0,
                "delta": {**({} if content is None else {"content": content}), **more},
                "finish_reason": finish,
            }
        ]
    }
    if predicted_n is not None:
        value["timings"] = {"predicted_n": predicted_n}
    return event(**value)


ROLE = delta(role="assistant")
DONE = b"data: [DONE]\n\n"


def tail(prompt: int, completion: int, *, cached: int = 0, timings: dict[str, Any] | None = None) -> bytes:
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    return event(choices=[], usage=usage, **({"timings": timings} if timings else {}))


def trace(chunks: Iterable[tuple[float, bytes]], *, status: int | None = 200, error: str | None = None) -> RequestTrace:
    """chunks: (ms after t_send, bytes)."""
    stamped = tuple((SEND + round(ms * MS), data) for ms, data in chunks)
    return RequestTrace(
        request_id="cell/1/1/0",
        path="/v1/chat/completions",
        body=b'{"messages": [{"role": "user", "content": "secret prompt"}], "seed": 42}',
        wall="2026-01-02T03:04:05.000+00:00",
        t_call_ns=SEND - MS,
        t_send_ns=SEND,
        t_headers_ns=SEND + MS,
        t_end_ns=(stamped[-1][0] if stamped else SEND) + MS,
        status=status,
        headers=(("content-type", "text/event-stream"),),
        chunks=stamped,
        transport_error=error,
    )


def steady(
    tokens: int,
    *,
    ttft_ms: float = 100.0,
    every_ms: float = 20.0,
    prompt: int = 50,
    counted: bool = True,
    finish: str = "length",
    cached: int = 0,
    timings: dict[str, Any] | None = None,
) -> RequestTrace:
    """One token a chunk, at ttft + k * every; the server's own timings say the same unless given."""
    own = {
        "prompt_n": prompt - cached,
        "prompt_ms": ttft_ms - 2,
        "predicted_n": tokens,
        "predicted_ms": (tokens - 1) * every_ms,
        "cache_n": cached,
    }
    chunks = [(ttft_ms, ROLE)]
    chunks += [(ttft_ms + k * every_ms, delta(f"w{k} ", predicted_n=k + 1 if counted else None)) for k in range(tokens)]
    end = ttft_ms + tokens * every_ms
    chunks += [
        (end, delta(finish=finish)),
        (end, tail(prompt, tokens, cached=cached, timings=timings or own)),
        (end, DONE),
    ]
    return trace(chunks)
