"""benchmarks/truth.py: its arithmetic, and that ours, the floor and plain httpx see the same tokens."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.paced import Pace, running

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("truth_benchmark", BENCHMARKS / "truth.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["truth_benchmark"] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


truth = load()


def test_a_round_is_summed_up_by_rank() -> None:
    one = truth.Round([float(n) for n in range(1, 101)], [0.5, 0.1, 0.3])
    assert one.figures() == {"TTFT p50": 50.0, "TTFT p95": 95.0, "decode p50": 0.3, "decode max": 0.5}
    assert truth.row("x", 4, [one]) == "| x | 4 | +50.00 / +95.00 | 0.300 / 0.500 | 1 x 100 |"


def test_the_largest_of_many_is_compared_by_rounds_of_equal_size() -> None:
    many = truth.Round([1.0] * 7, [0.1, 0.2, 0.3, 0.9, 0.1, 0.4, 5.0])
    rounds = truth.split(many, 2)  # the seventh is in no round
    assert [one.decode for one in rounds] == [[0.1, 0.2], [0.3, 0.9], [0.1, 0.4]]
    assert truth.summed_up(rounds)["decode max"] == 0.4  # of 0.2, 0.9, 0.4


def test_the_interval_holds_the_median_and_is_the_same_each_time() -> None:
    values = [0.1, -0.2, 0.3, 0.0, 0.2, 0.1, -0.1, 0.4, 0.1, 0.05]
    middle, low, high = truth.interval(values)
    assert middle == pytest.approx(0.1)
    assert min(values) <= low <= middle <= high <= max(values)
    assert truth.interval(values) == (middle, low, high)
    assert truth.interval([0.5] * 10) == (0.5, 0.5, 0.5)


def test_goals_are_differences_up_to_64_and_ratios_above() -> None:
    ours, floor = [truth.Round([13.2], [0.15])] * 10, [truth.Round([10.0], [0.14])] * 10
    below = [goal.line() for goal in truth.judged(64, ours, floor, "schedule")]
    assert below[0] == (
        "not met: C = 64, TTFT p50 against the schedule: ours - floor +3.200 (+3.200 … +3.200), goal at most 0.3 ms "
        "(10 pairs of 1 requests each)"
    )
    assert below[2].startswith("met: C = 64, decode p50 against the schedule: ours - floor +0.010")
    above = [goal.line() for goal in truth.judged(256, ours, floor, "schedule")]
    assert "not met: C = 256, TTFT p50 against the schedule: ours / floor 1.320" in above[0]
    assert "goal at most 1.3 times" in above[0]


@pytest.mark.parametrize(
    ("low", "middle", "high", "pairs", "word"),
    [
        (-1.0, 0.1, 0.3, 10, "met"),
        (0.31, 0.4, 0.5, 10, "not met"),
        (-1.0, 0.2, 0.4, 10, "not shown (the middle meets it)"),
        (-1.0, 0.31, 0.4, 10, "not shown (the middle misses it)"),
        (-1.0, 0.1, 0.2, 5, "not shown (6 pairs are needed)"),
    ],
)
def test_a_goal_is_met_by_the_whole_interval(low: float, middle: float, high: float, pairs: int, word: str) -> None:
    assert truth.Goal(16, "TTFT p50", "schedule", "ms", 0.3, middle, low, high, pairs, 16).verdict == word


def test_beside_a_peer_what_is_worse_is_named() -> None:
    ours, theirs = [truth.Round([1.0], [0.2])], [truth.Round([2.0], [0.1])]
    assert truth.beside(4, "x", ours, ours) == "C = 4, x: ours is at least as good in all four"
    assert truth.beside(4, "x", ours, theirs) == (
        "C = 4, x: ours is worse in decode p50 (+0.200, theirs +0.100), decode max (+0.200, theirs +0.100)"
    )


@pytest.mark.parametrize("name", ["ours", "floor", "httpx_default"])
def test_clients_see_every_request_and_every_token(name: str) -> None:
    with running(Pace(ttft_ms=100, tok_s=50), args=["-np", "3"]) as server:
        client = truth.Client(name, sys.executable, truth.HERE / f"{name}.py")
        rounds = [
            client.measure(url=server.base_url, concurrency=3, tokens=12, rounds=n, nonce=f"n{n}") for n in (1, 2)
        ]
        client.close()
        count = 15 if name == "httpx_default" else 9  # it warms up with a round of its own
        records = server.truth(count)
    assert [len(one.bias) for one in rounds] == [3, 6]
    # Nothing can be seen before it was written: never early, whatever the machine does.
    assert all(bias > 0 for one in rounds for bias in one.bias)
    assert [record.predicted_n for record in records] == [12] * count
    assert {record.end for record in records} == {"done"}


def test_every_peer_has_an_adapter_of_its_name() -> None:
    assert set(truth.PEERS) == {"aiperf", "guidellm", "llama_benchy"}


def test_a_client_that_gives_up_is_an_error_of_its_name() -> None:
    client = truth.Client("floor", sys.executable, truth.HERE / "floor.py")
    with pytest.raises(truth.ClientFailedError, match="floor: ended with 1"):
        client.measure(url="http://127.0.0.1:1", concurrency=1, tokens=1, rounds=1, nonce="n")
    client.close()
