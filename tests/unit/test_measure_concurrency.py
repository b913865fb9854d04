"""The figures of rounds and of the memory test, on traces whose true values are known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from traces import MS, steady

from pytest_llmbench import stats
from pytest_llmbench.client.parse import parse
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.concurrency import queued_requests, request_tok_s, total_tok_s
from pytest_llmbench.measure.part import RunFacts, Sent, read_run
from pytest_llmbench.measure.validity import Bounds
from pytest_llmbench.records import Attempt, CellResult, CellSpec, Figure

ROUND = CellSpec(id="conc[8]", part="concurrency", runs=1, requests_per_run=8, max_tokens=512)
FIT = CellSpec(id="fit[4096]", part="fit", runs=1, max_tokens=96, context=4096)


def sent(tokens: int, *, wall_s: float, late_s: float = 0.0, ttft_ms: float = 100.0) -> Sent:
    """A request released at 0 whose slot starts ``late_s`` later; it ends ``wall_s`` after its release."""
    every_ms = (wall_s * 1e3 - ttft_ms) / (tokens - 1)
    trace = steady(tokens, ttft_ms=ttft_ms, every_ms=every_ms)
    assert trace.t_send_ns is not None
    trace = replace(trace, t_headers_ns=trace.t_send_ns + round(late_s * 1000) * MS + MS)
    return Sent(trace, parse(trace), 50)


def eight_on_four_slots() -> list[Sent]:
    """The source page: 8 at once on 4 slots, 65.0 tok/s in total, printed 11.0 per request."""
    whole = 8 * 512 / 65.0
    first = [sent(512, wall_s=whole / 2) for _ in range(4)]
    return first + [sent(512, wall_s=whole, late_s=whole / 2 + 0.01, ttft_ms=whole / 2 * 1e3 + 100) for _ in range(4)]


def test_total_and_per_request_agree_with_the_source_page() -> None:
    found = eight_on_four_slots()
    assert total_tok_s(found) == pytest.approx(65.0)
    # All generated tokens over the sum of (t_last - t_send): 4096 / (4 * 31.5 + 4 * 63.0) = 10.8
    assert request_tok_s(found) == pytest.approx(65.0 / 6)


def test_started_and_queued_are_told_apart_by_their_headers() -> None:
    found = eight_on_four_slots()
    assert queued_requests(found) == frozenset({4, 5, 6, 7})
    reading = PARTS["concurrency"].read(ROUND, found, Bounds(), RunFacts(slots=4))
    figures = {f.name: f for f in reading.figures}
    whole = 8 * 512 / 65.0
    assert figures["total_tok_s"].label == "queues"
    assert figures["started_tok_s"].value == pytest.approx(512 / (whole / 2))
    assert figures["queued_tok_s"].value == pytest.approx(512 / whole)
    assert figures["started_ttft_ms"].value == pytest.approx(100)
    assert figures["queued_ttft_ms"].value == pytest.approx(whole / 2 * 1e3 + 100)


def test_below_the_slots_nothing_queues() -> None:
    found = [sent(512, wall_s=10) for _ in range(8)]
    figures = {f.name: f for f in PARTS["concurrency"].read(ROUND, found, Bounds(), RunFacts(slots=8)).figures}
    assert figures["total_tok_s"].label is None
    assert figures["queued_tok_s"].value is None
    assert figures["total_tok_s"].valid


def test_a_level_above_the_slots_is_labelled_where_the_headers_say_nothing() -> None:
    found = [replace(one, trace=replace(one.trace, t_headers_ns=None)) for one in eight_on_four_slots()]
    assert queued_requests(found) is None
    figures = {f.name: f for f in PARTS["concurrency"].read(ROUND, found, Bounds(), RunFacts(slots=4)).figures}
    assert figures["total_tok_s"].label == "queues"
    assert figures["queued_tok_s"].value is None


def test_a_request_without_a_count_leaves_the_round_without_a_figure() -> None:
    found = eight_on_four_slots()
    bare = replace(found[3], answer=replace(found[3].answer, completion_tokens=None))
    figures = {f.name: f for f in PARTS["concurrency"].read(ROUND, [*found[:3], bare], Bounds()).figures}
    assert figures["total_tok_s"].value is None
    assert "request 4 of 4: the server gave no token count" in figures["total_tok_s"].reasons
    assert figures["ttft_ms"].valid  # validity is per figure


def test_a_late_client_cannot_tell() -> None:
    reading = read_run(PARTS["concurrency"], ROUND, eight_on_four_slots(), Bounds(), RunFacts(lag_ms=700, slots=4))
    late = {figure.name for figure in reading.figures if figure.reasons}
    # 1 % of a request's 31.5 s, and 5 % of its 100 ms + 50 ms; who waited is told by order, not by stamps.
    assert late == {f.name for f in reading.figures} - {"queued_requests"}
    assert "700.0 ms late, 315.1 ms is what total_tok_s allows" in reading.figures[0].reasons[-1]
    reading = read_run(PARTS["concurrency"], ROUND, eight_on_four_slots(), Bounds(), RunFacts(lag_ms=300))
    assert [figure.name for figure in reading.figures if figure.reasons] == [
        "ttft_ms",
        "started_ttft_ms",
        "queued_ttft_ms",
    ]


@pytest.mark.parametrize("context", [4096, 8192, 16384, 32768, 65536, 131072])
def test_fit_fills_95_percent(context: int) -> None:
    page = {4096: 3891, 8192: 7782, 16384: 15564, 32768: 31129, 65536: 62259, 131072: 124518}  # as the page prints them
    assert PARTS["fit"].sized(FIT, context).prompt_tokens == page[context]


def fit_result(size: int, decode: float, label: str | None = None) -> CellResult:
    figures = tuple(
        Figure(kind.name, kind.unit, decode if kind.name == "decode_tok_s" else 1.0, (), label)
        for kind in PARTS["fit"].kinds
    )
    spec = replace(FIT, id=f"fit[{size}]", context=size)
    attempt = Attempt(spec.id, 1, 1, "first", 1, "clean", "", 0, 1, (), figures)
    return stats.conclude(spec, "card", [attempt], PARTS["fit"].kinds)


def test_a_collapse_is_below_half_of_the_next_smaller_size() -> None:
    results = [fit_result(16384, 20.0), fit_result(4096, 60.0), fit_result(8192, 41.0)]
    notes = stats.fit_notes(results)
    assert list(notes) == ["fit[16384]"]
    assert "20.0 tok/s at 16384, 41.0 at 8192 (-51%)" in notes["fit[16384]"][0]
    assert stats.fit_largest(results) == 16384


def test_a_size_that_was_cut_silently_is_not_the_largest() -> None:
    results = [fit_result(4096, 60.0), fit_result(8192, 60.0, "the server gives one request 4096 tokens")]
    assert stats.fit_largest(results) == 4096
    assert stats.fit_largest([]) is None
