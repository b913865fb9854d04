"""When each token of a request leaves: pure arithmetic on CLOCK_MONOTONIC nanoseconds."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_llmbench.paced.pace import Pace


@dataclass(frozen=True, slots=True)
class Schedule:
    """The absolute schedule of one request; lazy, so that a burst of requests costs nothing when it arrives.

    slot_ns: a slot was free and the request fully received. first_ns: token 0. late_ns: jitter of each token.
    """

    slot_ns: int
    first_ns: float
    interval_ns: float
    tokens: int
    burst: int = 1
    late_ns: tuple[float, ...] = ()

    def release(self, k: int) -> int:
        """When token k (from 0) leaves, in monotonic ns; never decreasing in k."""
        # The first token comes from the prompt's own pass; the others leave when their burst is through.
        step = min(self.tokens - 1, -(-k // self.burst) * self.burst)
        return round(self.first_ns + step * self.interval_ns + (self.late_ns[k] if self.late_ns else 0.0))

    def timings(self, *, cache_n: int, prompt_n: int, predicted_n: int) -> dict[str, Any]:
        """llama-server's ``timings`` after ``predicted_n`` tokens; the first token is free, so rates divide n - 1.

        Before the first token prompt_ms is 0, and predicted_ms is at least 0.001, both as in the real server.
        """
        first = self.release(0)
        prompt_ms = round((first - self.slot_ns) / 1e6, 3) if predicted_n else 0.0
        predicted_ms = max(0.001, round((self.release(predicted_n - 1) - first) / 1e6, 3)) if predicted_n else 0.0
        steps = max(0, predicted_n - 1)
        return {
            "cache_n": cache_n,
            "prompt_n": prompt_n,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
            "prompt_per_second": 1e3 / prompt_ms * prompt_n if prompt_ms else 0.0,
            "predicted_n": predicted_n,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": predicted_ms / steps if steps else 0.0,
            "predicted_per_second": 1e3 / predicted_ms * steps if predicted_ms else 0.0,
        }


def request_speed(pace: Pace, number: int, start_factor: float) -> float:
    """The factor on all rates of one request: knob, request number, drawn noise, and this process start."""
    factor = pace.speed * start_factor
    if pace.speed_by_request:
        factor *= pace.speed_by_request[min(number, len(pace.speed_by_request)) - 1]
    if pace.speed_cv:
        drawn = random.Random(f"{pace.seed}/speed/{number}").gauss(1.0, pace.speed_cv)  # noqa: S311 - noise, no secret
        factor *= max(0.05, drawn)
    return factor


def start_speed(pace: Pace, start_number: int) -> float:
    """The factor on all rates of one process start, numbered from 1."""
    factor = 1.0
    if pace.start_slow_every and start_number % pace.start_slow_every == 0:
        factor /= pace.start_slow_factor
    if pace.start_cv:
        factor *= max(0.05, random.Random(f"{pace.seed}/start/{start_number}").gauss(1.0, pace.start_cv))  # noqa: S311
    return factor


def make_schedule(
    pace: Pace, *, number: int, slot_ns: int, processed: int, tokens: int, start_factor: float = 1.0
) -> Schedule:
    """The schedule of a request of ``processed`` prompt tokens (cached ones left out) and ``tokens`` answer tokens."""
    factor = request_speed(pace, number, start_factor)
    prefill_ns = processed / pace.prefill_tok_s * 1e9 if pace.prefill_tok_s else 0.0
    interval = 1e9 / (pace.tok_s * factor)
    return Schedule(
        slot_ns=slot_ns,
        first_ns=slot_ns + (pace.ttft_ms * 1e6 + prefill_ns) / factor,
        interval_ns=interval,
        tokens=max(1, tokens),
        burst=pace.burst_tokens,
        late_ns=_jitter(pace, number, max(1, tokens), interval) if pace.jitter_ms else (),
    )


def _jitter(pace: Pace, number: int, tokens: int, interval: float) -> tuple[float, ...]:
    """How late each token is, cut so that no token overtakes the one before it (tokens of a burst leave together)."""
    noise = random.Random(f"{pace.seed}/jitter/{number}")  # noqa: S311 - noise, no secret
    late: list[float] = []
    for k in range(tokens):
        same_burst = k > 1 and (k - 1) % pace.burst_tokens != 0
        drawn = late[-1] if same_burst else noise.uniform(0.0, pace.jitter_ms) * 1e6
        floor = late[-1] - interval if late and not same_burst else 0.0
        late.append(max(drawn, floor))
    return tuple(late)
