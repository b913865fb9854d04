"""The self-check: what it says about a client, given what the client saw and what was true."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from traces import MS, SEND, delta, steady, tail, trace

from pytest_llmbench import selfcheck
from pytest_llmbench.errors import LlmbenchError
from pytest_llmbench.paced import TruthChunk, TruthRecord

if TYPE_CHECKING:
    from pytest_llmbench.records import RequestTrace


def truth(tokens: int = 101, *, read_ms: float = 0.4, first_ms: float = 99.0, every_ms: float = 20.0) -> TruthRecord:
    """A request read ``read_ms`` after it was sent, its tokens written from ``first_ms`` after that on."""
    received = SEND + round(read_ms * MS)
    record = TruthRecord("cell/1/1/0", 1, "/v1/chat/completions", stream=True, t_received_ns=received)
    for k in range(tokens):
        left = received + round((first_ms + k * every_ms) * MS)
        record.chunks += [TruthChunk("role", 0, left, left)] if k == 0 else []
        record.chunks.append(TruthChunk("content", 1, left, left))
    return record


def test_bias_is_what_both_ways_add() -> None:
    # Sent at 0, read at 0.4, written at 99.4, seen at 100: the client says 100 ms, the truth is 99.
    reading = selfcheck.read(steady(101, ttft_ms=100), truth())
    assert reading.ttft_bias_ms == pytest.approx(1.0)
    assert reading.request_way_ms == pytest.approx(0.4)
    assert reading.text_way_ms == pytest.approx(0.6)
    assert reading.decode_error == pytest.approx(0, abs=1e-9)


def test_the_servers_own_lateness_is_not_the_clients() -> None:
    reading = selfcheck.read(steady(101, ttft_ms=350, every_ms=25), truth(first_ms=349.0, every_ms=25.0))
    assert reading.ttft_bias_ms == pytest.approx(1.0)
    assert reading.decode_error == pytest.approx(0, abs=1e-9)


def test_decode_error_counts_tokens_not_chunks() -> None:
    # Two tokens a chunk; the last chunk is seen 20 ms late: 2 s become 2.02 s.
    record = TruthRecord("cell/1/1/0", 1, "/v1/chat/completions", stream=True, t_received_ns=SEND)
    record.chunks = [
        TruthChunk("content", 2, SEND + (100 + 40 * k) * MS, SEND + (100 + 40 * k) * MS) for k in range(51)
    ]
    chunks = [(100.0 + 40 * k + (20 if k == 50 else 0), delta("ab", predicted_n=2 + 2 * k)) for k in range(51)]
    seen = trace([*chunks, (2200, delta(finish="length")), (2200, tail(5, 102)), (2200, b"data: [DONE]\n\n")])
    assert selfcheck.read(seen, record).decode_error == pytest.approx(2 / 2.02 - 1)


@pytest.mark.parametrize("seen", [trace([(100, b"data: [DONE]\n\n")]), trace([], error="ReadError: gone"), steady(1)])
def test_a_request_without_an_answer_is_an_error(seen: RequestTrace) -> None:
    with pytest.raises(LlmbenchError, match="was not answered"):
        selfcheck.read(seen, truth())


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0, 0.01),
        (-3, 0.01),
        (0.01, 0.01),
        (0.011, 0.02),
        (0.1, 0.1),
        (0.3, 0.5),
        (0.51, 1),
        (5, 5),
        (7, 10),
        (120, 200),
    ],
)
def test_verdicts_use_round_numbers_that_hold(value: float, rounded: float) -> None:
    assert selfcheck.round_up(value) == pytest.approx(rounded)


def test_a_level() -> None:
    readings = [selfcheck.Reading(b, 0.5, b - 0.5, e) for b, e in [(1.0, 0.001), (2.0, -0.002), (3.0, 0.0)]]
    level = selfcheck.summarise(3, readings, [0.1, 0.3, 0.2], 4.0)
    assert (level.requests, level.ttft_bias_p50_ms, level.ttft_bias_p95_ms) == (3, 2.0, 3.0)
    assert (level.text_way_p50_ms, level.text_way_p95_ms) == (1.5, 2.5)
    assert level.decode_error_p50_pct == pytest.approx(0.1)
    assert level.decode_error_max_pct == pytest.approx(0.2)
    assert (level.send_spread_ms, level.lag_max_ms) == (0.2, 4.0)
    assert level.verdict == "good enough for TTFT to 5 ms and decode to 0.2 %."


def test_a_client_that_is_too_late_cannot_tell() -> None:
    level = selfcheck.summarise(1, [selfcheck.Reading(0.1, 0.05, 0.05, 0.0)], [0.0], 80.0)
    assert level.verdict.startswith("not good enough now: the client woke up 80 ms late")


def test_quantiles_are_values_that_were_seen() -> None:
    values = [5.0, 1.0, 3.0, 2.0, 4.0]
    assert [selfcheck.quantile(values, share) for share in (0.0, 0.5, 0.95, 1.0)] == [1.0, 3.0, 5.0, 5.0]


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(selfcheck, "TOKENS", 12)
    assert selfcheck.main(["--levels", "2", "--json"]) in (0, 1)  # 1 where this machine is too busy to tell
    (level,) = json.loads(capsys.readouterr().out)
    assert (level["concurrency"], level["requests"]) == (2, 2 * selfcheck.ROUNDS)
    # What is seen cannot be earlier than it was written, whatever the machine does.
    assert 0 < level["text_way_p50_ms"] <= level["text_way_p95_ms"]
    assert level["ttft_bias_p50_ms"] > level["text_way_p50_ms"] / 2
    assert level["send_spread_ms"] > 0
    assert level["verdict"]


@pytest.mark.parametrize("levels", ["0", "a", "", "4,-1"])
def test_bad_levels_are_refused(levels: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        selfcheck.main(["--levels", levels])
    assert caught.value.code == 2
    assert "numbers above zero" in capsys.readouterr().err
