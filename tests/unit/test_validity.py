"""Every rule of validity: what breaks it, which figures it takes down, and what it says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from traces import DONE, delta, steady, tail, trace

from pytest_llmbench.client.parse import parse
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.part import Sent
from pytest_llmbench.measure.validity import Bounds, judge_request
from pytest_llmbench.records import CellSpec, RequestTrace

DECODE = CellSpec(id="decode[code]", part="decode", runs=2, max_tokens=512)
PREFILL = CellSpec(id="prefill[50]", part="prefill", runs=3, max_tokens=16, prompt_tokens=50)


def reasons(
    one: RequestTrace, spec: CellSpec = DECODE, *, prompt_tokens: int | None = 50, bounds: Bounds | None = None
) -> dict[str, str]:
    found = judge_request(spec, one, parse(one), bounds or Bounds(), prompt_tokens=prompt_tokens)
    return {kind: "; ".join(getattr(found, kind)) for kind in ("every", "decode", "ttft") if getattr(found, kind)}


def test_a_good_run_has_no_reason() -> None:
    assert reasons(steady(512)) == {}


@pytest.mark.parametrize(
    ("one", "spec", "kind", "said"),
    [
        (steady(255), DECODE, "decode", "255 tokens generated, at least 256 are needed (finish reason length)"),
        (steady(23, finish="stop"), DECODE, "decode", "23 tokens generated"),
        (steady(300), DECODE, "decode", "the context was full after 300 of 512 tokens"),
        (steady(512, cached=26), DECODE, "every", "26 of 50 prompt tokens came from the cache"),
        (steady(512, prompt=51), DECODE, "every", "the server counted 51 prompt tokens, 50 were asked for"),
        (steady(512, timings={"predicted_n": 512, "predicted_ms": 511 * 20.3}), DECODE, "decode", "client and server disagree on decode"),
        (steady(512, timings={"prompt_ms": 103.0}), DECODE, "ttft", "TTFT 100.0 ms, the server's prompt_ms 103.0"),
        (steady(512, ttft_ms=400, timings={"prompt_ms": 300}), DECODE, "ttft", "disagree on the first token"),
        (trace([(1, delta("a")), (2, tail(50, 1)), (3, DONE)]), DECODE, "every", "without a finish reason"),
        (trace([(1, delta("a")), (2, delta(finish="stop")), (3, tail(50, 1))]), DECODE, "every", "without its end mark"),
        (trace([(1, delta(finish="stop")), (2, tail(50, 0)), (3, DONE)]), DECODE, "every", "no generated text arrived"),
        (trace([(1, b"x")], status=500), DECODE, "every", "HTTP 500"),
        (trace([(1, delta(None, reasoning_content="hm")), (2, delta(finish="stop")), (3, tail(50, 1)), (4, DONE)]), DECODE, "every", "2 characters of reasoning although thinking is off"),
        (trace([(1, delta("a")), (2, delta(finish="stop")), (3, DONE)]), PREFILL, "every", "the server gave no prompt count"),
        (replace(steady(512), t_send_ns=None), DECODE, "every", "never sent"),
    ],
)  # fmt: skip
def test_each_rule(one: RequestTrace, spec: CellSpec, kind: str, said: str) -> None:
    assert said in reasons(one, spec).get(kind, "")


@pytest.mark.parametrize(
    ("change", "limit"), [({"decode_within": 0.02}, None), ({"min_tokens": 100}, None), ({"ttft_above_ms": 100}, None)]
)
def test_a_card_may_change_the_bounds(change: dict[str, Any], limit: None) -> None:
    bad = {
        "decode_within": steady(512, timings={"predicted_n": 512, "predicted_ms": 511 * 20.3}),
        "min_tokens": steady(200, finish="stop"),
        "ttft_above_ms": steady(512, ttft_ms=400, timings={"prompt_ms": 300}),
    }[next(iter(change))]
    assert reasons(bad)
    assert reasons(bad, bounds=Bounds(**change)) == {}


def test_half_of_what_was_asked_where_less_than_512_was_asked() -> None:
    spec = replace(DECODE, max_tokens=101)
    assert "at least 51 are needed" in reasons(steady(50, finish="stop"), spec)["decode"]
    assert reasons(steady(51, finish="stop"), spec) == {}


def test_validity_is_per_figure() -> None:
    short = steady(23, finish="stop")
    figures = {f.name: f for f in PARTS["decode"].read(DECODE, [Sent(short, parse(short), 50)], Bounds()).figures}
    assert figures["ttft_ms"].valid
    assert figures["ttft_ms"].value == pytest.approx(100)
    assert not figures["decode_tok_s"].valid
    assert not figures["words_s"].valid


def test_cache_takes_every_figure_down() -> None:
    cached = steady(512, cached=1)
    figures = PARTS["decode"].read(DECODE, [Sent(cached, parse(cached), 50)], Bounds()).figures
    assert not any(figure.valid for figure in figures)


def test_prefill_does_not_ask_for_long_answers() -> None:
    one = steady(16)
    figures = PARTS["prefill"].read(PREFILL, [Sent(one, parse(one), 50)], Bounds()).figures
    assert {f.name for f in figures if f.valid} == {"prefill_tok_s", "ttft_ms", "server_prefill_tok_s"}
