"""RequestTrace → Answer. Pure: raw files are parsed again by the same code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pytest_llmbench.client.sse import sse_events
from pytest_llmbench.records import Answer, ServerTimings, TextEvent

if TYPE_CHECKING:
    from pytest_llmbench.records import RequestTrace

_OK = 200


def parse(trace: RequestTrace) -> Answer:
    """Parse the stream of a chat completion; read on after ``finish_reason`` to the end.

    An event counts as text when its delta holds non-empty content, reasoning or tool-call text; a role-only or empty
    delta does not (METHOD, "Clocks and tokens"). Whatever is missing stays None. Never raises on what a server sent:
    it is described in ``Answer.error``.
    """
    if trace.status != _OK:
        return _failed(trace)
    reader = _Reader()
    for t_ns, data in sse_events(trace.chunks):
        if data.strip() == "[DONE]":
            reader.ended = True
            continue
        reader.event(t_ns, data)
    if not reader.seen and trace.chunks and reader.error is None:
        reader.error = f"no server-sent event in the answer: {_start(trace)}"
    return reader.answer(trace.transport_error)


class _Reader:
    def __init__(self) -> None:
        self.seen = 0
        self.events: list[TextEvent] = []
        self.usage: dict[str, Any] = {}
        self.timings: dict[str, Any] = {}
        self.finish_reason: str | None = None
        self.model: str | None = None
        self.ended = False
        self.error: str | None = None

    def event(self, t_ns: int, data: str) -> None:
        self.seen += 1
        try:
            value = json.loads(data)
        except json.JSONDecodeError as exc:
            self._fail(f"event {self.seen} is not JSON ({exc}): {data[:120]!r}")
            return
        if not isinstance(value, dict):
            self._fail(f"event {self.seen} is not a JSON object: {data[:120]!r}")
            return
        if value.get("error"):
            self._fail(f"error inside the stream: {_error_text(value['error'])}")
        self.usage = _object(value.get("usage")) or self.usage
        timings = _object(value.get("timings"))
        self.timings = timings or self.timings
        if isinstance(value.get("model"), str):
            self.model = value["model"]
        for choice in _list(value.get("choices")):
            self._choice(t_ns, _object(choice), _int(timings.get("predicted_n")))

    def _choice(self, t_ns: int, choice: dict[str, Any], predicted_n: int | None) -> None:
        delta = _object(choice.get("delta"))
        content = _text(delta.get("content"))
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        tool_call = "".join(
            _text(function.get("name")) + _text(function.get("arguments"))
            for call in _list(delta.get("tool_calls"))
            if (function := _object(_object(call).get("function")))
        )
        if content or reasoning or tool_call:
            self.events.append(TextEvent(t_ns, content, reasoning, tool_call, predicted_n))
        if choice.get("finish_reason"):
            self.finish_reason = str(choice["finish_reason"])

    def _fail(self, text: str) -> None:
        self.error = self.error or text  # the first one is the cause

    def answer(self, transport_error: str | None) -> Answer:
        details = _object(self.usage.get("prompt_tokens_details"))
        cached = _int(details.get("cached_tokens"))
        cache_n = _int(self.timings.get("cache_n"))
        return Answer(
            events=tuple(self.events),
            content="".join(e.content for e in self.events),
            reasoning="".join(e.reasoning for e in self.events),
            tool_calls="".join(e.tool_call for e in self.events),
            prompt_tokens=_int(self.usage.get("prompt_tokens")),
            completion_tokens=_int(self.usage.get("completion_tokens")) or _int(self.timings.get("predicted_n")),
            cached_tokens=max((n for n in (cached, cache_n) if n is not None), default=None),
            timings=_timings(self.timings),
            finish_reason=self.finish_reason,
            model=self.model,
            ended=self.ended,
            error=self.error or transport_error,
        )


def _failed(trace: RequestTrace) -> Answer:
    if trace.status is None:
        error = trace.transport_error or "no answer"
    else:
        body = b"".join(data for _, data in trace.chunks)
        try:
            text = _error_text(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            text = _start(trace)
        error = f"HTTP {trace.status}: {text}"
    return Answer((), "", "", "", None, None, None, None, None, None, ended=False, error=error)


def _error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return str(error)
    extra = ", ".join(f"{k} {error[k]}" for k in ("n_prompt_tokens", "n_ctx") if k in error)
    return f"{error.get('message', error)}" + (f" ({extra})" if extra else "")


def _timings(raw: dict[str, Any]) -> ServerTimings | None:
    if not raw:
        return None
    return ServerTimings(
        prompt_n=_int(raw.get("prompt_n")),
        prompt_ms=_float(raw.get("prompt_ms")),
        predicted_n=_int(raw.get("predicted_n")),
        predicted_ms=_float(raw.get("predicted_ms")),
        cache_n=_int(raw.get("cache_n")),
        draft_n=_int(raw.get("draft_n")),
        draft_n_accepted=_int(raw.get("draft_n_accepted")),
    )


def _start(trace: RequestTrace) -> str:
    return repr(b"".join(data for _, data in trace.chunks)[:200].decode("utf-8", errors="replace"))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _int(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
