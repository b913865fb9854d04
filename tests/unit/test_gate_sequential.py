"""The sequential comparison: right at every moment, for noise that no normal interval is made for; and it ends."""

from __future__ import annotations

import math
import random
import statistics
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.gate.bounds import at_most
from pytest_llmbench.gate.sequential import Asked, Bet, Comparison, Sequential, walsh_median

if TYPE_CHECKING:
    from collections.abc import Callable


def feed(one: Sequential, changes: list[float]) -> Comparison:
    """Pairs of which the new is so much (share) above the old."""
    return [one.add(100.0, 100.0 * (1 + change)) for change in changes][-1]


def wild(rng: random.Random) -> float:
    return 0.01 * math.tan(math.pi * (rng.random() - 0.5))


NOISE: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda rng: rng.gauss(0, 0.014),
    "wild": wild,
    "of two starts that are slow now and then": lambda rng: (
        0.1 * (rng.random() < 0.1) - 0.1 * (rng.random() < 0.1) + rng.gauss(0, 0.01)
    ),
}


@pytest.mark.parametrize("name", NOISE)
def test_the_truth_stays_inside_at_every_moment(name: str) -> None:
    rng, ruined, left = random.Random(7), math.log(2 / 0.05), 0
    for _ in range(400):
        bets = Bet(0.0, 1), Bet(0.0, -1)
        for _ in range(60):
            d = NOISE[name](rng)
            for bet in bets:
                bet.take(d)
        left += any(bet.peak >= ruined for bet in bets)
    # Not more than 5 %, as far as 400 can tell; a plain t interval at every look would be near 30 %.
    assert left <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)
    assert at_most(left, 400) < 0.09


def test_a_clear_slowdown_is_said_after_seven_pairs_and_not_before() -> None:
    rng = random.Random(3)
    one = Sequential(Asked(), "higher")
    said = [one.add(100.0, 95.0 * math.exp(rng.gauss(0, 0.005))).outcome for _ in range(7)]
    assert said == ["measure again"] * 6 + ["regressed"]
    found = one.now()
    assert found.pairs == 7
    assert found.change is not None
    assert found.change == pytest.approx(-0.05, abs=0.005)
    low, high = found.interval
    assert low is not None
    assert high is not None
    assert low < found.change < high < 0
    assert found.why.startswith(f"{found.change:+.1%} (interval -")
    assert "7 pairs, margin 2.0%" in found.why


def test_a_latency_that_grows_is_a_regression_and_keeps_its_sign() -> None:
    found = feed(Sequential(Asked(), "lower"), [0.05, 0.052, 0.049, 0.05, 0.051, 0.048, 0.05])
    assert found.outcome == "regressed"
    assert found.change == pytest.approx(0.05, abs=0.002)
    assert found.interval[0] is not None
    assert found.interval[0] > 0
    faster = feed(Sequential(Asked(), "lower"), [-0.05, -0.052, -0.049, -0.05, -0.051, -0.048, -0.05])
    assert faster.outcome == "improved"


def test_no_change_is_equivalent_and_a_small_one_is_no_matter() -> None:
    rng = random.Random(5)
    found = feed(Sequential(Asked(), "higher"), [rng.gauss(0, 0.003) for _ in range(9)])
    assert found.outcome == "equivalent"
    # Surely slower, by less than the margin: no regression.
    small = Sequential(Asked(), "higher")
    outcomes = [small.add(100.0, 99.4 * math.exp(rng.gauss(0, 0.001))).outcome for _ in range(7)]
    assert outcomes[-1] == "equivalent"
    assert small.bounds()[1] < 0


def test_an_empty_budget_says_what_could_have_been_seen() -> None:
    rng = random.Random(9)
    one = Sequential(Asked(margin=0.01, budget=12), "higher")
    found = feed(one, [rng.gauss(0, 0.04) for _ in range(12)])
    assert found.outcome == "inconclusive"
    assert found.could_have_seen is not None
    assert 0.01 < found.could_have_seen < 0.2
    assert "the budget of 12 pairs is used up; a worsening of" in found.why
    short = feed(Sequential(Asked(budget=3), "higher"), [0.0, 0.01, -0.01])
    assert short.outcome == "inconclusive"
    assert short.interval == (None, None)
    assert short.could_have_seen is None
    assert "nothing could be bounded" in short.why


def test_what_could_have_been_seen_would_have_been() -> None:
    rng = random.Random(21)
    seen = 0
    for _ in range(60):
        noise = [rng.gauss(0, 0.02) for _ in range(20)]
        claim = Sequential(Asked(margin=0.005, budget=20), "higher")
        for d in noise:
            claim.take(d)
        could = claim.now().could_have_seen
        assert could is not None
        fresh = Sequential(Asked(margin=0.005, budget=20), "higher")
        for _ in range(20):
            fresh.take(rng.gauss(0, 0.02) + math.log1p(-could))
        seen += fresh.bounds()[1] < 0
    assert 0.65 <= seen / 60 <= 0.99


def test_more_figures_ask_for_more() -> None:
    changes = [-0.05 - 0.0001 * i for i in range(12)]
    needed = []
    for figures in (1, 4, 30):
        one = Sequential(Asked(figures=figures), "higher")
        outcomes = [one.add(100.0, 100.0 * (1 + c)).outcome for c in changes]
        needed.append(outcomes.index("regressed") + 1)
    assert needed[0] == 7
    assert needed == sorted(needed)
    assert needed[2] > needed[0]


def test_one_start_that_went_wrong_does_not_decide() -> None:
    rng = random.Random(2)
    clean = [-0.05 + rng.gauss(0, 0.01) for _ in range(11)]
    found = feed(Sequential(Asked(), "higher"), [*clean, 0.9])
    assert found.outcome == "regressed"
    assert found.change == pytest.approx(-0.05, abs=0.012)
    assert feed(Sequential(Asked(), "higher"), [0.0, -0.9, 0.001]).outcome == "measure again"


def test_the_interval_holds_what_the_bets_leave() -> None:
    rng = random.Random(13)
    one = Sequential(Asked(), "higher")
    for _ in range(25):
        one.take(rng.gauss(0.01, 0.02))
    low, high = one.bounds()
    needs = math.log(2 / 0.05)
    for at, side, out in (
        (low - 1e-6, 1, True),
        (low + 1e-4, 1, False),
        (high + 1e-6, -1, True),
        (high - 1e-4, -1, False),
    ):
        bet = Bet(at, side)
        for d in one.values:
            bet.take(d)
        assert (bet.peak >= needs) == out, (at, side)


def test_ties_are_no_coins_and_equal_starts_say_nothing() -> None:
    found = feed(Sequential(Asked(), "higher"), [0.0] * 6)
    assert found.outcome == "measure again"


def test_the_middle() -> None:
    rng = random.Random(1)
    values = [rng.gauss(3, 1) for _ in range(31)]
    assert walsh_median(values) == pytest.approx(statistics.fmean(values), abs=0.15)
    assert walsh_median([1.0]) == 1.0
    assert Sequential(Asked(), "higher").now().outcome == "measure again"


@pytest.mark.parametrize(("old", "new"), [(0.0, 1.0), (1.0, -1.0), (1.0, math.nan), (math.inf, 1.0)])
def test_values_that_cannot_be_are_refused(old: float, new: float) -> None:
    with pytest.raises(ValueError, match="two positive numbers"):
        Sequential(Asked(), "higher").add(old, new)


def test_what_is_asked_must_make_sense() -> None:
    for bad in ({"margin": 0.0}, {"error": 1.0}, {"budget": 0}, {"figures": 0}):
        with pytest.raises(ValueError, match="margin and error lie between"):
            Asked(**bad)
    with pytest.raises(ValueError, match="without a better direction"):
        Sequential(Asked(), "none")
