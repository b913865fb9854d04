"""A client that was late cannot tell: by how much its lag may have moved a figure, against what the figure allows. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.measure import figures as fig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pytest_llmbench.measure.part import RunFacts, Sent
    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import Answer

# Which of a request's stamps a figure hangs on. The server's own figures, and counts, hang on none.
_FIRST = {"ttft_ms", "prefill_tok_s", "started_ttft_ms", "queued_ttft_ms"}
_SPAN = {"decode_tok_s", "words_s", "characters_s"}
_WALL = {"wall_s", "total_tok_s", "request_tok_s", "started_tok_s", "queued_tok_s"}
_FROM_THE_SERVER = {("fit", "prefill_tok_s"), ("fit", "decode_tok_s")}
_REMEDY = "leave a core free for the client, generate more tokens, or set validity.client_lag_ms in the card"


def stamped_late_ms(answer: Answer, facts: RunFacts) -> tuple[float, float]:
    """How late t_first and t_last may have been stamped, in ms.

    Stamped by the reading thread: as late as that woke up. Stamped by the kernel: not at all where the read held no
    later text; for t_last, with which the end of the stream comes, no later than since the read before it.
    """
    events, lag = answer.events, facts.lag_ms
    if not facts.kernel_stamps or len(events) < 2:
        return lag, lag
    first = 0.0 if events[1].t_ns > events[0].t_ns else lag
    before = next((one.t_ns for one in reversed(events) if one.t_ns < events[-1].t_ns), None)
    return first, lag if before is None else min(lag, (events[-1].t_ns - before) / 1e6)


def too_late(part: str, figure: str, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts) -> tuple[str, ...]:
    """Why a figure is not valid because of the client's lag; empty where it is.

    What may be moved: TTFT by ``ttft_above_fraction`` of itself + ``ttft_above_ms``, as the cross-check has it; figures
    over a time by ``decode_within`` of that time. ``client_lag_ms``, where set, holds for every figure instead.
    """
    if bounds.client_lag_ms is not None:
        if facts.lag_ms <= bounds.client_lag_ms:
            return ()
        return (
            f"the client was too slow to tell: it ran {facts.lag_ms:.0f} ms late "
            f"(validity.client_lag_ms {bounds.client_lag_ms:g}); {_REMEDY}",
        )
    rule = None if (part, figure) in _FROM_THE_SERVER else _rule(figure)
    if rule is None:
        return ()
    worst = max(((late - most, late, most) for one in sent for late, most in rule(one, bounds, facts)), default=None)
    if worst is None or worst[0] <= 0:
        return ()
    _, late, most = worst
    return (
        f"the client was too slow to tell: its stamps may be {late:.1f} ms late, {most:.1f} ms is what {figure} "
        f"allows here; {_REMEDY}",
    )


def _rule(figure: str) -> Callable[[Sent, Bounds, RunFacts], Iterator[tuple[float, float]]] | None:
    """(late, allowed) in ms of one request; nothing where it has no such figure."""
    return _first if figure in _FIRST else _span if figure in _SPAN else _wall if figure in _WALL else None


def _first(one: Sent, bounds: Bounds, facts: RunFacts) -> Iterator[tuple[float, float]]:
    ttft = fig.ttft_ms(one.answer, one.trace.t_send_ns)
    if ttft is not None:
        yield stamped_late_ms(one.answer, facts)[0], ttft * bounds.ttft_above_fraction + bounds.ttft_above_ms


def _span(one: Sent, bounds: Bounds, facts: RunFacts) -> Iterator[tuple[float, float]]:
    span = fig.span_s(one.answer)
    if span is not None:
        yield max(stamped_late_ms(one.answer, facts)), span * 1e3 * bounds.decode_within


def _wall(one: Sent, bounds: Bounds, facts: RunFacts) -> Iterator[tuple[float, float]]:
    wall = fig.wall_s(one.answer, one.trace.t_send_ns)
    if wall is not None:
        yield stamped_late_ms(one.answer, facts)[1], wall * 1e3 * bounds.decode_within
