"""Attempts → summaries and status."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from cells import CODE, KINDS, RATE, TTFT, WORDS, attempt, figure, good, result

from pytest_llmbench import stats
from pytest_llmbench.records import Attempt, CellResult, CellSpec


def test_cv_is_the_sample_standard_deviation_over_the_mean() -> None:
    assert stats.cv([2, 4, 4, 4, 5, 5, 7, 9]) == pytest.approx(math.sqrt(32 / 7) / 5)
    assert stats.cv([60.0, 62.0]) == pytest.approx(math.sqrt(2) / 61)
    assert stats.cv([3, 3, 3]) == 0


@pytest.mark.parametrize("values", [[], [5.0], [0.0, 0.0], [-1.0, 1.0]])
def test_cv_is_unknown_where_it_means_nothing(values: list[float]) -> None:
    assert stats.cv(values) is None


@pytest.mark.parametrize(("rates", "median"), [((60.0, 64.0), 62.0), ((60.0, 64.0, 90.0), 64.0), ((7.0,), 7.0)])
def test_the_median_is_over_runs(rates: tuple[float, ...], median: float) -> None:
    spec = replace(CODE, runs=len(rates))
    summary = stats.summarise(spec, [good(run, rate) for run, rate in enumerate(rates, 1)], RATE)
    assert (summary.median, summary.values, summary.promised_runs) == (median, rates, len(rates))
    assert (summary.name, summary.unit, summary.direction) == ("decode_tok_s", "tok/s", "higher")
    assert summary.reasons == ()


def test_the_first_valid_attempt_counts_never_the_better_of_two() -> None:
    attempts = [good(1, 50.0), good(1, 99.0, number=2), good(2, 60.0)]
    assert stats.summarise(CODE, attempts, RATE).values == (50.0, 60.0)


def test_a_later_attempt_counts_where_the_first_is_no_result() -> None:
    attempts = [
        attempt(1, figure(99.0), error="broke off"),
        attempt(1, figure(98.0), number=2, guard="disturbed"),
        attempt(1, figure(97.0, "too few tokens"), number=3),
        attempt(1, figure(None), number=4),
        attempt(1, figure(61.0), number=5),
        good(2, 60.0),
    ]
    assert stats.summarise(CODE, attempts, RATE).values == (61.0, 60.0)


def test_validity_is_per_figure_also_over_attempts() -> None:
    attempts = [
        attempt(1, figure(70.0, "too short"), figure(40.0, kind=TTFT)),
        attempt(1, figure(61.0), figure(90.0, kind=TTFT), number=2),
        good(2, 60.0, 50.0),
    ]
    assert stats.summarise(CODE, attempts, RATE).values == (61.0, 60.0)
    assert stats.summarise(CODE, attempts, TTFT).values == (40.0, 50.0)


def test_a_figure_needs_all_its_promised_runs() -> None:
    summary = stats.summarise(CODE, [good(1, 60.0), attempt(2, figure(50.0, "a rule"))], RATE)
    assert summary.median is None
    assert summary.values == (60.0,)
    assert summary.reasons == ("run 2 of 2: a rule",)


@pytest.mark.parametrize(
    ("attempts", "why"),
    [
        ([], "was not made"),
        ([attempt(1, error="exit code 3")], "exit code 3"),
        (
            [attempt(1, figure(1.0), guard="disturbed", details={"guard": "make: 98 % of a core"})],
            "make: 98 % of a core",
        ),
        ([attempt(1, figure(1.0), guard="disturbed")], "disturbed by foreign load"),
        ([attempt(1, figure(1.0, "one", "two"))], "one; two"),
        ([attempt(1, figure(None))], "the server gave no value"),
        ([attempt(1)], "the figure is not part of this cell"),
        ([attempt(1, figure(1.0, "old")), attempt(1, figure(1.0, "new"), number=2)], "new"),
    ],
)
def test_why_a_run_has_no_value(attempts: list[Attempt], why: str) -> None:
    summary = stats.summarise(replace(CODE, runs=1), attempts, RATE)
    assert summary.reasons == (f"run 1 of 1: {why}",)


def test_labels_are_kept() -> None:
    attempts = [attempt(1, figure(60.0, label="b")), attempt(2, figure(60.0, label="a"))]
    assert stats.summarise(CODE, attempts, RATE).label == "a; b"
    assert stats.summarise(CODE, [good(1, 1.0), good(2, 1.0)], RATE).label is None


BAD = figure(60.0, "a rule")


@pytest.mark.parametrize(
    ("attempts", "status"),
    [
        ([good(1, 60.0), good(2, 61.0)], "measured"),
        ([], "missing"),
        ([good(1, 60.0), attempt(2, BAD)], "invalid"),
        ([good(1, 60.0)], "invalid"),  # the second run was not made, and nothing says that it broke off
        ([good(1, 60.0), attempt(2, error="gone")], "failed"),
        ([good(1, 60.0), good(2, 60.0, guard="disturbed")], "disturbed"),
        ([attempt(1, error="gone"), good(2, 60.0, guard="disturbed")], "failed"),
        ([attempt(1, BAD), good(2, 60.0, guard="disturbed")], "disturbed"),
        ([attempt(1, error="gone"), good(1, 60.0, number=2), good(2, 61.0)], "measured"),
        ([attempt(1, error="gone"), attempt(1, BAD, number=2), good(2, 61.0)], "invalid"),
        ([attempt(0, error="the warm-up broke off"), good(1, 60.0), good(2, 61.0)], "measured"),
    ],
)
def test_status(attempts: list[Attempt], status: str) -> None:
    concluded = result(attempts)
    assert concluded.status == status
    assert bool(concluded.reasons) == (status != "measured")
    assert concluded.attempts == tuple(attempts)


def test_what_kept_a_run_from_being_made_comes_first() -> None:
    concluded = result([good(1, 60.0)], broken="the server does not start again")
    assert concluded.status == "failed"
    assert concluded.reasons[0] == "the server does not start again"


def test_one_bad_gated_figure_is_enough_and_a_companion_is_not() -> None:
    slow_first_token = attempt(2, figure(60.0), figure(1.0, "clocks disagree", kind=TTFT), figure(30.0, kind=WORDS))
    assert result([good(1, 60.0), slow_first_token]).status == "invalid"
    wordless = attempt(2, figure(60.0), figure(50.0, kind=TTFT), figure(None, kind=WORDS))
    concluded = result([good(1, 60.0), wordless])
    assert concluded.status == "measured"
    assert concluded.summary("words_s").median is None


def test_a_companion_without_any_value_is_left_out_and_a_gated_figure_is_not() -> None:
    bare = [attempt(run, figure(60.0), figure(50.0, kind=TTFT)) for run in (1, 2)]
    assert [s.name for s in result(bare).summaries] == ["decode_tok_s", "ttft_ms"]
    assert [s.name for s in result([]).summaries] == ["decode_tok_s", "ttft_ms"]
    with pytest.raises(KeyError, match=r"decode\[code\] has no figure 'speed'; it has decode_tok_s, ttft_ms"):
        result(bare).summary("speed")


def test_the_same_reason_is_told_once() -> None:
    dead = [attempt(run, error="gone") for run in (1, 2)]
    assert result(dead).reasons == ("run 1 of 2: gone", "run 2 of 2: gone")


def cell(name: str, rate: float | None, part: str = "decode") -> CellResult:
    spec = CellSpec(id=f"{part}[{name}]", part=part, runs=2)
    runs = [good(1, rate, cell=spec.id), good(2, rate * 1.02, cell=spec.id)] if rate is not None else []
    return stats.conclude(spec, "card", runs, KINDS)


def test_the_headline_is_the_mean_of_code_and_prose() -> None:
    results = [cell("code", 60.0), cell("prose", 40.0), cell("512", 9999.0, part="prefill")]
    assert stats.headline(results, "decode_tok_s") == pytest.approx(50 * 1.01)
    assert stats.headline(results, "words_s") == pytest.approx(25 * 1.01)


def test_there_is_no_headline_of_half() -> None:
    assert stats.headline([cell("code", 60.0), cell("prose", None)], "decode_tok_s") is None
    assert stats.headline([], "decode_tok_s") is None
    assert stats.headline([cell("512", 100.0, part="prefill")], "decode_tok_s") is None


def test_the_headline_spread_is_the_larger_one() -> None:
    wide = stats.conclude(CODE, "card", [good(1, 50.0), good(2, 70.0)], KINDS)
    assert stats.headline_spread([wide, cell("prose", 40.0)]) == pytest.approx(stats.cv([50.0, 70.0]))
    assert stats.headline_spread([]) is None
