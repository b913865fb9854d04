"""Which sessions make a baseline, and what their spread is."""

from __future__ import annotations

import math

import pytest

from pytest_llmbench.history import baselines
from pytest_llmbench.history.baselines import Candidate


def candidates(*minutes: float) -> list[Candidate]:
    return [Candidate(f"s{at:g}", f"t{at:g}", 60 * at, 100 + at) for at in minutes]


def admitted(*minutes: float) -> list[str]:
    return [one.session for one in baselines.collect(candidates(*minutes))]


def test_members_are_at_least_thirty_minutes_apart() -> None:
    assert admitted(0, 10, 29.99, 30, 59, 60) == ["s0", "s30", "s60"]


def test_a_session_recorded_late_keeps_the_distance_on_both_sides() -> None:
    assert admitted(0, 60, 31, 29, 30) == ["s0", "s60", "s30"]


def test_a_baseline_is_complete_at_ten() -> None:
    assert admitted(*range(0, 600, 30)) == [f"s{at}" for at in range(0, 300, 30)]
    ten = baselines.collect(candidates(*range(0, 300, 30)))
    assert baselines.collect(candidates(1000), ten) == ten


@pytest.mark.parametrize(
    ("own", "status", "median", "enters"),
    [
        (True, "measured", 50.0, True),
        (True, "measured", 5e9, True),  # by validity, never by value
        (True, "invalid", 50.0, True),  # another figure of the cell is invalid; this one has its runs
        (True, "measured", None, False),
        (True, "disturbed", 50.0, False),
        (True, "failed", 50.0, False),
        (False, "measured", 50.0, False),
        (True, "measured", 0.0, False),  # has no logarithm
        (True, "measured", math.inf, False),
    ],
)
def test_a_value_enters_by_validity(own: bool, status: str, median: float | None, enters: bool) -> None:  # noqa: FBT001
    assert baselines.usable(own=own, status=status, median=median) is enters


def test_spread_leaves_the_slowest_out() -> None:
    steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2, 99.8, 100.1, 99.9, 100.3]
    slow = [*steady[:-1], 60.0]
    rates, times = baselines.spread(slow, "higher"), baselines.spread(slow, "lower")
    assert rates is not None
    assert times is not None
    assert rates < 0.01
    assert times > 0.1  # for a latency 60 is a fast one


def test_spread_of_too_few_is_unknown() -> None:
    assert baselines.spread([100.0, 101.0], "higher") is None
    assert baselines.sigma0([0.01, 0.02]) is None
    assert baselines.sigma0([0.01, 0.05, 0.02]) == 0.02


def test_the_reference_is_a_trimmed_mean_of_logs() -> None:
    assert baselines.reference([], "higher") is None
    assert baselines.reference([4.0, 9.0], "lower") == pytest.approx(6.0)
    assert baselines.reference([1.0, *[50.0] * 6, 51.0, 200.0, 900.0], "higher") == pytest.approx(50.0, rel=0.01)
