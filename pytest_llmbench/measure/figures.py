"""The definitions of METHOD, "Clocks and tokens", as pure functions of one parsed answer.

Every function returns None where the answer does not hold what the definition needs; none guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.records import Answer, ServerTimings, TextEvent

WINDOW_TOKENS = 256
WINDOW_MIN_REST = 128
FIRST_CHUNK_ASSUMED = "first chunk taken as one token"


@dataclass(frozen=True, slots=True)
class TokensAfterFirst:
    """tokens: generated after the first chunk, up to the last text event. label: how they were counted."""

    tokens: int
    label: str | None


def ttft_ms(answer: Answer, t_send_ns: int | None) -> float | None:
    """Time to first token in ms: t_first - t_send."""
    if t_send_ns is None or not answer.events:
        return None
    return (answer.events[0].t_ns - t_send_ns) / 1e6


def span_s(answer: Answer) -> float | None:
    """t_last - t_first in seconds; None under two text events."""
    if len(answer.events) < 2:
        return None
    seconds = (answer.events[-1].t_ns - answer.events[0].t_ns) / 1e9
    return seconds if seconds > 0 else None


def tokens_after_first(answer: Answer) -> TokensAfterFirst | None:
    """Tokens after the first chunk, as the server counts them; None where it gives no count.

    Per-chunk counts (``timings_per_token``) say how many tokens had been generated with the first and the last text
    event. With the total alone, the first chunk is taken as one token, and the label says so. Chunks are never counted.
    """
    if not answer.events:
        return None
    first, last = answer.events[0].predicted_n, answer.events[-1].predicted_n
    if first is not None and last is not None and last >= first:
        return TokensAfterFirst(last - first, None)
    if answer.completion_tokens is not None:
        return TokensAfterFirst(answer.completion_tokens - 1, FIRST_CHUNK_ASSUMED)
    return None


def decode_tok_s(answer: Answer) -> tuple[float | None, str | None]:
    """Decode speed in tok/s: tokens after the first chunk / (t_last - t_first), and how the tokens were counted."""
    tokens, seconds = tokens_after_first(answer), span_s(answer)
    if tokens is None or seconds is None:
        return None, None
    return tokens.tokens / seconds, tokens.label


def prefill_tok_s(answer: Answer, t_send_ns: int | None) -> float | None:
    """Prefill speed in tok/s: prompt tokens / TTFT of the same request."""
    ttft = ttft_ms(answer, t_send_ns)
    if ttft is None or ttft <= 0 or answer.prompt_tokens is None:
        return None
    return answer.prompt_tokens / (ttft / 1e3)


def wall_s(answer: Answer, t_send_ns: int | None) -> float | None:
    """End-to-end time of a request in seconds: t_last - t_send."""
    if t_send_ns is None or not answer.events:
        return None
    return (answer.events[-1].t_ns - t_send_ns) / 1e9


def words_s(answer: Answer) -> float | None:
    """Whitespace-separated words after the first chunk per second of t_last - t_first."""
    seconds = span_s(answer)
    return None if seconds is None else len(_rest(answer).split()) / seconds


def characters_s(answer: Answer) -> float | None:
    """Characters after the first chunk per second of t_last - t_first."""
    seconds = span_s(answer)
    return None if seconds is None else len(_rest(answer)) / seconds


def windows_tok_s(answer: Answer) -> tuple[float, ...]:
    """The decode rate of consecutive windows of 256 tokens after the first chunk; a rest under 128 joins the last.

    Needs the server's per-chunk counts; without them, or under 128 tokens, there are no windows (an empty tuple). A
    window closes at the first text event that reaches its last token, and its rate uses the tokens that really lie
    between its two events.
    """
    counted = [(e.t_ns, e.predicted_n) for e in answer.events if e.predicted_n is not None]
    if len(counted) < 2 or len(counted) != len(answer.events):
        return ()
    (t_begin, n_begin), (_, n_last) = counted[0], counted[-1]
    full, rest = divmod(n_last - n_begin, WINDOW_TOKENS)
    bounds = [n_begin + WINDOW_TOKENS * k for k in range(1, full + 1)]
    if rest >= WINDOW_MIN_REST:
        bounds.append(n_last)
    elif bounds:
        bounds[-1] = n_last
    rates = []
    events = iter(counted)
    for bound in bounds:
        t_close, n_close = next((t, n) for t, n in events if n >= bound)
        if t_close > t_begin:
            rates.append((n_close - n_begin) / ((t_close - t_begin) / 1e9))
        t_begin, n_begin = t_close, n_close
    return tuple(rates)


def server_decode_tok_s(timings: ServerTimings | None) -> float | None:
    """The server's own decode speed in tok/s, recomputed: (n - 1) / predicted_ms, for the first token is free."""
    if timings is None or timings.predicted_n is None or not timings.predicted_ms or timings.predicted_n < 2:
        return None
    return (timings.predicted_n - 1) / (timings.predicted_ms / 1e3)


def server_prefill_tok_s(timings: ServerTimings | None) -> float | None:
    """The server's own prefill speed in tok/s: prompt_n / prompt_ms."""
    if timings is None or timings.prompt_n is None or not timings.prompt_ms:
        return None
    return timings.prompt_n / (timings.prompt_ms / 1e3)


def text_of(event: TextEvent) -> str:
    return event.content + event.reasoning + event.tool_call


def _rest(answer: Answer) -> str:
    return "".join(text_of(e) for e in answer.events[1:])
