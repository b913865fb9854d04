"""What a decision says: the lines that a person reads, whole."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_llmbench.gate import decide, explain, shown
from pytest_llmbench.gate.messages import bare
from pytest_llmbench.records import Baseline

PAST = Baseline(
    (63.1, 64.2, 63.8, 63.9, 63.0, 64.4, 63.7, 63.9, 64.1, 63.6),
    tuple("abcdefghij"),
    since="2026-11-02T08:00:00Z",
    until="2026-11-28T08:00:00Z",
    pinned=True,
    sigma0=0.009,
)
ABOUT = "baseline: 10 sessions, 2026-11-02 … 2026-11-28, spread 0.8 %; resolves changes of 4.2 % and more"


def said(value: float, *again: float, past: Baseline | None = PAST, left: int | None = None) -> list[str]:
    found = decide(value, again, past, "higher", remeasures_left=left)
    return list(explain(found, "decode[code]", "tok/s", past, (58.7, 58.9, 59.0)))


def test_a_regression() -> None:
    assert said(58.9, 58.8, 59.1, 58.6, 58.7) == [
        "decode[code] regressed: 58.8 tok/s, was 63.8 (-7.9 %, 95 % interval -8.9 … -6.8)",
        "runs 58.7 58.9 59.0; measured again on 4 fresh servers: 58.8 59.1 58.6 58.7",
        "every server start was lower, and all but the most extreme by 7.8 % on average; from 3.0 % on that is no longer noise",
        ABOUT,
    ]


def test_a_latency_that_regressed_is_higher() -> None:
    past = Baseline((812.0,) * 10, (), since="2026-11-02", until="2026-11-28", sigma0=0.0)
    lines = explain(decide(900, (901, 902, 903, 904), past, "lower"), "decode[code] ttft_ms", "ms", past)
    assert lines[0] == "decode[code] ttft_ms regressed: 902.0 ms, was 812.0 (+11.1 %, 95 % interval +11.1 … +11.1)"
    assert lines[1] == "first 900.0 ms; measured again on 4 fresh servers: 901.0 902.0 903.0 904.0"
    assert "every server start was higher" in lines[2]
    assert lines[3].endswith("spread 0.0 %; resolves changes of 3.1 % and more")


def test_an_improvement() -> None:
    lines = said(69.0, 69.0, 69.2, 68.8, 69.3)
    assert lines[0] == "decode[code] improved: 69.1 tok/s, was 63.8 (+8.2 %, 95 % interval +6.9 … +9.5)"
    assert lines[2].startswith("every server start was higher, and all but the most extreme by 8.1 % on average")


def test_a_dip() -> None:
    lines = said(58.9, 63.5)
    assert lines[0].startswith("decode[code] ok: 61.2 tok/s, was 63.8 (-4.2 %,")
    assert lines[1] == "runs 58.7 58.9 59.0; measured again on 1 fresh server: 63.5"
    assert lines[2] == "a fresh server was back near the reference: a dip of that one start"


def test_slower_yet_maybe_noise() -> None:
    lines = said(62.2, 62.3, 62.2, 62.2, 62.1)
    assert lines[0].startswith("decode[code] ok: 62.2 tok/s")
    assert (
        lines[2]
        == "every server start was lower, all but the most extreme by 2.5 % on average; below 3.0 % it may be noise"
    )


def test_too_few_starts_says_what_could_have_been_seen() -> None:
    lines = said(58.9, left=0)
    assert lines[0].startswith("decode[code] inconclusive: 58.9 tok/s, was 63.8 (-7.7 %")
    assert lines[2] == (
        "lower on every start so far, and too few starts to tell: no more fresh servers were allowed "
        "(--llmbench-remeasure); with enough of them it shows changes of 4.2 % and more"
    )


def test_more_servers_are_asked_for_only_where_they_would_tell() -> None:
    # All were made, and the control does not bear it out: what is said then is the control's.
    found = replace(decide(58.9, (58.8, 59.1, 58.6, 58.7), PAST, "higher"), kind="inconclusive")
    lines = list(explain(found, "decode[code]", "tok/s", PAST, (58.7, 58.9, 59.0)))
    assert lines[0].startswith("decode[code] inconclusive: 58.8 tok/s, was 63.8 (-7.9 %")
    assert not any("remeasure" in line for line in lines)


def test_what_was_to_be_measured_again_and_was_not_is_inconclusive() -> None:
    lines = said(58.9)
    assert lines[0].startswith("decode[code] inconclusive: 58.9 tok/s, was 63.8 (-7.7 %")
    assert "lower by more than 2.0 %: no fresh server could decide whether the setup or that start was it" in lines[2]


@pytest.mark.parametrize(
    ("k", "line"),
    [
        (3, "decode[code] has no baseline yet: 58.9 tok/s; 3 of 5 sessions before this one"),
        (0, "decode[code] has no baseline yet: 58.9 tok/s; 0 of 5 sessions before this one"),
    ],
)
def test_no_baseline_yet(k: int, line: str) -> None:
    assert said(58.9, past=Baseline(PAST.values[:k], ())) == [line]


def test_noisy() -> None:
    past = Baseline((63, 50, 70, 66, 60), (), since="2026-11-02", until="2026-11-28", sigma0=0.01)
    lines = said(58.9, past=past)
    assert lines[0].startswith("decode[code] is too noisy to judge: 58.9 tok/s, was 63.0 (-6.4 %")
    assert "spread 8.0 %, usual for such figures here 1.0 %; resolves changes of" in lines[1]


def test_a_value_that_is_no_number() -> None:
    assert said(float("nan")) == [
        "decode[code] inconclusive: nan cannot be compared: a value must be a number and not below 0"
    ]


def test_nothing_is_said_of_what_did_not_move() -> None:
    assert said(63.7) == []
    assert said(62.9) == []


def test_what_cannot_be_resolved_at_all_is_said_in_words() -> None:
    wild = Baseline((1.0, 1e30, 1e-30, 1e40, 1e-40), (), sigma0=1.0)
    found = decide(1.0, (), wild, "lower")
    assert (found.kind, found.resolves) == ("noisy", math.inf)
    assert explain(found, "a", "ms", wild)[-1].endswith("resolves nothing short of a collapse")


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234.5, "1,234"), (63.84, "63.8"), (5.678, "5.68"), (0.0, "0.00"), (0.012345, "0.0123"), (-12.0, "-12.0")],
)
def test_values_as_people_read_them(value: float, text: str) -> None:
    assert bare(value) == text
    assert shown(value, "ms") == f"{text} ms"
