"""What the client's lag may have moved, and which figures allow it."""

from __future__ import annotations

import pytest
from traces import DONE, delta, steady, tail, trace

from pytest_llmbench.client.parse import parse
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.lateness import stamped_late_ms, too_late
from pytest_llmbench.measure.part import RunFacts, Sent, read_run
from pytest_llmbench.measure.validity import Bounds
from pytest_llmbench.records import CellSpec, RequestTrace

DECODE = CellSpec(id="decode[code]", part="decode", runs=2, max_tokens=512)


def sent(one: RequestTrace) -> list[Sent]:
    return [Sent(one, parse(one), 50)]


STEADY = sent(steady(512))  # TTFT 100 ms, a token every 20 ms: 10.22 s from first to last


def late(figure: str, lag_ms: float, *, kernel: bool = False, part: str = "decode", **bounds: float) -> str:
    return "; ".join(too_late(part, figure, STEADY, Bounds(**bounds), RunFacts(lag_ms=lag_ms, kernel_stamps=kernel)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("figure", "allowed"),
    [("ttft_ms", 55.0), ("prefill_tok_s", 55.0), ("decode_tok_s", 102.2), ("words_s", 102.2), ("total_tok_s", 103.2)],
)
def test_each_figure_allows_what_moves_it_little(figure: str, allowed: float) -> None:
    assert late(figure, allowed - 0.1) == ""
    said = late(figure, allowed + 1)
    assert f"its stamps may be {allowed + 1:.1f} ms late, {allowed:.1f} ms is what {figure} allows here" in said
    assert "leave a core free for the client" in said


@pytest.mark.parametrize("figure", ["tokens", "server_decode_tok_s", "server_prefill_tok_s", "queued_requests"])
def test_what_hangs_on_no_stamp_of_ours_is_left_alone(figure: str) -> None:
    assert late(figure, 1e6) == ""


def test_fit_takes_its_speeds_from_the_server() -> None:
    assert late("decode_tok_s", 1e6, part="fit") == late("prefill_tok_s", 1e6, part="fit") == ""
    assert late("ttft_ms", 1e6, part="fit") != ""


def test_the_bounds_are_the_cards() -> None:
    assert late("decode_tok_s", 150, decode_within=0.02) == ""
    assert late("ttft_ms", 150, ttft_above_ms=200) == ""


def test_a_bound_of_the_cards_own_holds_for_every_figure() -> None:
    assert late("ttft_ms", 250, client_lag_ms=250) == ""
    assert "it ran 251 ms late (validity.client_lag_ms 250)" in late("tokens", 251, client_lag_ms=250)
    assert "it ran 31 ms late" in late("decode_tok_s", 31, client_lag_ms=30, kernel=True)


def test_the_kernels_stamps_are_not_moved_by_lag() -> None:
    (one,) = STEADY
    assert stamped_late_ms(one.answer, RunFacts(lag_ms=400, kernel_stamps=True)) == (0.0, 20.0)
    assert stamped_late_ms(one.answer, RunFacts(lag_ms=3, kernel_stamps=True)) == (0.0, 3.0)
    assert late("ttft_ms", 400, kernel=True) == late("decode_tok_s", 400, kernel=True) == ""


def test_texts_that_were_read_together_have_the_last_ones_stamp() -> None:
    parts = [(100, delta("a")), (100, delta("b")), (160, delta("c")), (160, delta("d"))]
    one = trace([*parts, (160, delta(finish="stop")), (161, tail(50, 4)), (161, DONE)])
    answer = parse(one)
    assert stamped_late_ms(answer, RunFacts(lag_ms=40, kernel_stamps=True)) == (40, 40)
    assert stamped_late_ms(answer, RunFacts(lag_ms=90, kernel_stamps=True)) == (90, 60.0)


def test_the_whole_run_is_read_with_it() -> None:
    reading = read_run(PARTS["decode"], DECODE, STEADY, Bounds(), RunFacts(lag_ms=80))
    why = {figure.name: figure.reasons for figure in reading.figures}
    assert why["decode_tok_s"] == ()  # 80 ms in 10 s
    assert "80.0 ms late, 55.0 ms is what ttft_ms allows" in why["ttft_ms"][0]
    assert reading.details["client_lag_max_ms"] == 80
    assert reading.details["arrivals_stamped_by"] == "client"
