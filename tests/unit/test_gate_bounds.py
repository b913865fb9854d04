"""Exact bounds of counted rates, against tables and against the binomial itself."""

from __future__ import annotations

import math

import pytest

from pytest_llmbench.gate import bounds


@pytest.mark.parametrize(
    ("hits", "trials", "bound"), [(0, 30, 0.0950), (0, 299, 0.00997), (1, 30, 0.1485), (5, 100, 0.1023)]
)
def test_upper_bounds_of_the_tables(hits: int, trials: int, bound: float) -> None:
    assert bounds.at_most(hits, trials) == pytest.approx(bound, abs=2e-4)


def test_twenty_of_twenty_prove_86_percent() -> None:
    assert bounds.at_least(20, 20) == pytest.approx(0.05 ** (1 / 20), abs=1e-9)


def test_two_sided_as_published() -> None:
    # 8 of 20: 0.191 … 0.639 (the usual textbook example)
    assert bounds.interval(8, 20) == pytest.approx((0.1912, 0.6395), abs=1e-3)
    assert bounds.interval(0, 0) == (0.0, 1.0)
    assert bounds.interval(0, 10)[0] == 0.0
    assert bounds.interval(10, 10)[1] == 1.0


@pytest.mark.parametrize(("hits", "trials"), [(0, 1), (3, 17), (16, 17), (60, 100), (1000, 100_000)])
def test_at_the_bound_the_tail_has_the_stated_probability(hits: int, trials: int) -> None:
    rate = bounds.at_most(hits, trials)
    logs = [
        math.lgamma(trials + 1)
        - math.lgamma(k + 1)
        - math.lgamma(trials - k + 1)
        + k * math.log(rate)
        + (trials - k) * math.log1p(-rate)
        for k in range(hits + 1)
    ]
    assert math.fsum(map(math.exp, logs)) == pytest.approx(0.05, rel=1e-6)


def test_words_say_what_is_not_yet_shown() -> None:
    assert bounds.shown_at_most(0, 30, 0.01) == "0 of 30 = 0.00%, at most 9.50% (<= 1.00% not yet shown)"
    assert bounds.shown_at_most(0, 299, 0.01).endswith("(shows <= 1.00%)")
    assert bounds.shown_at_least(20, 20, 0.95).endswith("at least 86.09% (>= 95% not yet shown)")
    assert bounds.shown_at_least(0, 0, 0.95) == "nothing tried"


@pytest.mark.parametrize(("hits", "trials", "confidence"), [(-1, 3, 0.95), (4, 3, 0.95), (1, 3, 1.0)])
def test_impossible_counts_are_refused(hits: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=r"cannot be|not between"):
        bounds.at_most(hits, trials, confidence)
