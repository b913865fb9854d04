"""Asking a paced server, and looking at what it answered."""

from __future__ import annotations

from typing import Any

from pytest_llmbench.paced import Pace, PacedProcess
from pytest_llmbench.paced.probe import Reply, send

CHAT = "/v1/chat/completions"


def fast(**knobs: Any) -> Pace:
    return Pace(**{"ttft_ms": 1, "tok_s": 2000, **knobs})


def ask(server: PacedProcess, *, stream: bool = True, timeout_s: float = 60.0, **body: Any) -> Reply:
    messages = [{"role": "user", "content": "Say hello."}]
    asked = {"messages": messages, "max_tokens": 8, "stream": stream, "stream_options": {"include_usage": True}}
    return send(server.address, CHAT, {**asked, "cache_prompt": False, **body}, timeout_s=timeout_s)


def texts(reply: Reply) -> int:
    return sum(
        bool(event["choices"] and event["choices"][0]["delta"].get("content"))
        for event in reply.events()
        if isinstance(event, dict) and "choices" in event
    )


def whole(reply: Reply) -> bool:
    """A stream with everything that an ideal one has."""
    events = reply.events()
    return reply.complete and texts(reply) == 8 and events[-1] == "[DONE]" and "usage" in events[-2]
