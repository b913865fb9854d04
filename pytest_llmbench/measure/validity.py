"""Which figures of a request are valid (METHOD, "Valid, or not"). Pure; every reason is a sentence for the user."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_llmbench.measure import figures as fig

if TYPE_CHECKING:
    from pytest_llmbench.records import Answer, CellSpec, RequestTrace


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rules' numbers; part of the contract, and a card may change them.

    decode_within: the share by which client and server may differ on decode. ttft_above_fraction + ttft_above_ms: how
    far TTFT may lie above the server's ``prompt_ms`` (ttft_below_ms: and below it: the clocks' resolution).
    min_tokens: the fewest generated tokens of a decode figure (half of what was asked, where less than twice this was
    asked). client_lag_ms: how late the client may run and still tell (None: as late as moves no
    figure by more than decode_within of its time, or TTFT by more than its bound above; see ``lateness``).
    """

    decode_within: float = 0.01
    ttft_above_fraction: float = 0.05
    ttft_above_ms: float = 50.0
    ttft_below_ms: float = 1.0
    min_tokens: int = 256
    client_lag_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why figures are not valid. every: holds for each figure of the request; decode, ttft: for those kinds alone."""

    every: tuple[str, ...] = ()
    decode: tuple[str, ...] = ()
    ttft: tuple[str, ...] = field(default=())


def judge_request(
    spec: CellSpec,
    trace: RequestTrace,
    answer: Answer,
    bounds: Bounds,
    *,
    prompt_tokens: int | None,
    cross_check: bool = True,
) -> Reasons:
    """Apply every rule to one request.

    prompt_tokens: what the prompt must count (None = not known beforehand). cross_check: compare with the server's own
    timings (not for requests that share the server, whose prompt_ms holds other requests' work).
    """
    every = tuple(_broken(answer)) + tuple(_prompt(spec, answer, prompt_tokens))
    if trace.t_send_ns is None:
        every += ("the request was never sent",)
    decode = tuple(_too_short(spec, answer, bounds))
    ttft: tuple[str, ...] = ()
    if cross_check and not every:
        decode += tuple(_decode_differs(answer, bounds))
        ttft = tuple(_ttft_differs(trace, answer, bounds))
    return Reasons(every, decode, ttft)


def _broken(answer: Answer) -> list[str]:
    if answer.error:
        return [answer.error]
    if not answer.events:
        return ["no generated text arrived"]
    if not answer.ended:
        return ["the stream ended without its end mark ([DONE])"]
    if answer.finish_reason is None:
        return ["the stream ended without a finish reason"]
    return []


def _prompt(spec: CellSpec, answer: Answer, asked: int | None) -> list[str]:
    if answer.error:
        return []
    reasons = []
    if answer.cached_tokens:
        reasons.append(
            f"{answer.cached_tokens} of {answer.prompt_tokens} prompt tokens came from the cache "
            "(every request sends cache_prompt false; --cache-ram 0 turns the server's own cache of prompts off)"
        )
    if asked is not None and answer.prompt_tokens is not None and answer.prompt_tokens != asked:
        reasons.append(f"the server counted {answer.prompt_tokens} prompt tokens, {asked} were asked for")
    if asked is not None and answer.prompt_tokens is None and spec.prompt_tokens is not None:
        reasons.append(f"the server gave no prompt count; {asked} tokens were asked for")
    if answer.reasoning and not spec.thinking:
        reasons.append(
            f"{len(answer.reasoning)} characters of reasoning although thinking is off: the chat template did not obey"
        )
    return reasons


def _too_short(spec: CellSpec, answer: Answer, bounds: Bounds) -> list[str]:
    if answer.error or not answer.events:
        return []
    count, asked = answer.completion_tokens, spec.max_tokens
    if count is None:
        return ["the server gave no token count"]
    reasons = []
    need = bounds.min_tokens if asked is None or asked >= 2 * bounds.min_tokens else (asked + 1) // 2
    if count < need:
        reasons.append(f"{count} tokens generated, at least {need} are needed (finish reason {answer.finish_reason})")
    if answer.finish_reason == "length" and asked is not None and count < asked:
        reasons.append(f"the context was full after {count} of {asked} tokens (finish reason length)")
    return reasons


def _decode_differs(answer: Answer, bounds: Bounds) -> list[str]:
    client, _ = fig.decode_tok_s(answer)
    server = fig.server_decode_tok_s(answer.timings)
    if client is None or server is None or abs(client / server - 1) <= bounds.decode_within:
        return []
    return [
        f"client and server disagree on decode: {client:.2f} against {server:.2f} tok/s "
        f"({client / server - 1:+.1%}, bound ±{bounds.decode_within:.1%})"
    ]


def _ttft_differs(trace: RequestTrace, answer: Answer, bounds: Bounds) -> list[str]:
    client = fig.ttft_ms(answer, trace.t_send_ns)
    server = answer.timings.prompt_ms if answer.timings else None
    if client is None or server is None:
        return []
    most = server * (1 + bounds.ttft_above_fraction) + bounds.ttft_above_ms
    if server - bounds.ttft_below_ms <= client <= most:
        return []
    return [
        f"client and server disagree on the first token: TTFT {client:.1f} ms, the server's prompt_ms {server:.1f} "
        f"(bound: not below, not above by more than {bounds.ttft_above_fraction:.0%} + {bounds.ttft_above_ms:.0f} ms)"
    ]
