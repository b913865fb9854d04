"""``concurrency``: C requests released together (METHOD, "Clocks and tokens").

A round's total is all its generated tokens over (last t_last - first t_send); per request, all its generated tokens over
the sum of the requests' own end-to-end times (t_last - t_send).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.figure_kinds import FigureKind
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.measure.part import (
    NO_VALUE,
    NOTHING_KNOWN,
    TTFT,
    RunFacts,
    RunReading,
    Sent,
    SharedServer,
)
from pytest_llmbench.measure.validity import judge_request
from pytest_llmbench.records import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import CellSpec

TOTAL = FigureKind("total_tok_s", "tok/s", "higher", "all generated tokens of the round / (last t_last - first t_send)")
REQUEST = FigureKind(
    "request_tok_s", "tok/s", "higher", "all generated tokens of the round / sum of its requests' (t_last - t_send)"
)
ROUND_TTFT = replace(TTFT, definition="median over the round's requests of t_first - t_send")
_ABOUT = "of the requests that had to wait for a slot (headers later than another request's last token)"
_STARTED = "of the requests that got a slot at once"
APART = (
    FigureKind("started_tok_s", "tok/s", "higher", f"request_tok_s {_STARTED}", gated=False),
    FigureKind("started_ttft_ms", "ms", "lower", f"median TTFT {_STARTED}", gated=False),
    FigureKind("queued_tok_s", "tok/s", "higher", f"request_tok_s {_ABOUT}", gated=False),
    FigureKind("queued_ttft_ms", "ms", "lower", f"median TTFT {_ABOUT}", gated=False),
    FigureKind("queued_requests", "requests", "none", "requests that had to wait for a slot", gated=False),
)
QUEUES = "queues"


@dataclass(frozen=True)
class Concurrency(SharedServer):
    """A round is a run; any request that is not valid makes the whole round invalid."""

    name: str = "concurrency"
    kinds: tuple[FigureKind, ...] = (TOTAL, REQUEST, ROUND_TTFT, *APART)
    headline: str = "total_tok_s"

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts = NOTHING_KNOWN) -> RunReading:
        every, short = _reasons(spec, sent, bounds)
        queued = queued_requests(sent)
        above = facts.slots is not None and len(sent) > facts.slots
        label = QUEUES if above or queued else None
        values: dict[str, tuple[float | None, tuple[str, ...]]] = {
            "total_tok_s": (total_tok_s(sent), every + short),
            "request_tok_s": (request_tok_s(sent), every + short),
            "ttft_ms": (_median_ttft(sent), every),
        }
        if label and queued is not None:
            late = [one for at, one in enumerate(sent) if at in queued]
            prompt = [one for at, one in enumerate(sent) if at not in queued]
            values |= {
                "started_tok_s": (request_tok_s(prompt), every + short),
                "started_ttft_ms": (_median_ttft(prompt), every),
                "queued_tok_s": (request_tok_s(late), every + short),
                "queued_ttft_ms": (_median_ttft(late), every),
                "queued_requests": (float(len(late)), every),
            }
        figures = []
        for kind in self.kinds:
            value, why = values.get(kind.name, (None, ()))
            if value is None and not why and kind.gated:
                why = (NO_VALUE,)
            figures.append(Figure(kind.name, kind.unit, value, why, label))
        return RunReading(tuple(figures), _details(sent, queued, facts))


def total_tok_s(sent: Sequence[Sent]) -> float | None:
    """All generated tokens / (last t_last - first t_send), in tok/s; None where a request has no count or no token."""
    tokens, ends = _tokens(sent), [one.answer.events[-1].t_ns for one in sent if one.answer.events]
    begins = [one.trace.t_send_ns for one in sent if one.trace.t_send_ns is not None]
    if tokens is None or not len(sent) == len(ends) == len(begins) or max(ends) <= min(begins):
        return None
    return tokens / ((max(ends) - min(begins)) / 1e9)


def request_tok_s(sent: Sequence[Sent]) -> float | None:
    """All generated tokens / sum of (t_last - t_send), in tok/s; None where a request has no count or no token."""
    tokens = _tokens(sent)
    seconds = [fig.wall_s(one.answer, one.trace.t_send_ns) for one in sent]
    known = [one for one in seconds if one is not None]
    if tokens is None or len(known) != len(sent) or sum(known) <= 0:
        return None
    return tokens / sum(known)


def queued_requests(sent: Sequence[Sent]) -> frozenset[int] | None:
    """Which requests waited for a slot, by position; None where that cannot be told.

    llama-server sends a request's headers when its slot starts: at once, or when another one's answer is complete. So a
    request whose headers came only about then has waited. ("About": two sockets are read one after the other, and
    the last token may be stamped with the bytes behind it; a tenth of the time until then is far more than both.)
    """
    ends = [one.answer.events[-1].t_ns for one in sent if one.answer.events]
    sends = [one.trace.t_send_ns for one in sent if one.trace.t_send_ns is not None]
    if not ends or not sends or any(one.trace.t_headers_ns is None for one in sent):
        return None
    about = min(ends) - (min(ends) - min(sends)) / 10
    return frozenset(at for at, one in enumerate(sent) if (one.trace.t_headers_ns or 0) > about)


def _tokens(sent: Sequence[Sent]) -> int | None:
    counts = [one.answer.completion_tokens for one in sent]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _median_ttft(sent: Sequence[Sent]) -> float | None:
    values = [fig.ttft_ms(one.answer, one.trace.t_send_ns) for one in sent]
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _reasons(spec: CellSpec, sent: Sequence[Sent], bounds: Bounds) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(for every figure, for those that count tokens): each reason once, with the first request it holds for.

    No cross-check with the server's timings: where requests share the server, they hold the others' work too.
    """
    found: tuple[dict[str, list[int]], dict[str, list[int]]] = ({}, {})
    for at, one in enumerate(sent, 1):
        judged = judge_request(spec, one.trace, one.answer, bounds, prompt_tokens=one.prompt_tokens, cross_check=False)
        for place, reasons in zip(found, (judged.every, judged.decode), strict=True):
            for reason in reasons:
                place.setdefault(reason, []).append(at)
    every, short = (
        tuple(f"request {_numbers(which)} of {len(sent)}: {reason}" for reason, which in place.items())
        for place in found
    )
    return every, short


def _numbers(which: list[int]) -> str:
    return ", ".join(map(str, which)) if len(which) <= 4 else f"{which[0]} and {len(which) - 1} more"


def _details(sent: Sequence[Sent], queued: frozenset[int] | None, facts: RunFacts) -> dict[str, Any]:
    begins = [one.trace.t_send_ns for one in sent if one.trace.t_send_ns is not None]
    return {
        "slots": facts.slots,
        "queued_requests": None if queued is None else len(queued),
        # How far apart the requests left: the release itself must not be what is measured.
        "release_spread_ms": (max(begins) - min(begins)) / 1e6 if begins else None,
        "cached_tokens": sum(one.answer.cached_tokens or 0 for one in sent),
        "cached_requests": sum(bool(one.answer.cached_tokens) for one in sent),
        "finish_reasons": sorted({str(one.answer.finish_reason) for one in sent}),
        "requests": [
            {
                "ttft_ms": fig.ttft_ms(one.answer, one.trace.t_send_ns),
                "wall_s": fig.wall_s(one.answer, one.trace.t_send_ns),
                "decode_tok_s": fig.decode_tok_s(one.answer)[0],
                "completion_tokens": one.answer.completion_tokens,
                "headers_ms": _ms(one.trace.t_send_ns, one.trace.t_headers_ns),
                "queued": None if queued is None else at in queued,
            }
            for at, one in enumerate(sent)
        ],
    }


def _ms(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else (end - begin) / 1e6


PART = Concurrency()
