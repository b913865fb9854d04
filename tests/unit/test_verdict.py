"""What a number says, and the message about it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from cells import CODE, KINDS, attempt, figure, good, result

from pytest_llmbench import verdict
from pytest_llmbench.verdict import Reference, Threshold, judge

if TYPE_CHECKING:
    from pytest_llmbench.records import Direction, Verdict

MEASURED = result(
    [good(1, 60.0, 50.0), good(2, 62.0, 52.0)], raw_file="raw/decode-code.jsonl", server_logs=["server-1.log"]
)


def reference(value: float, tolerance: float = 0.10) -> Reference:
    return Reference("main", value, 2, "2026-01-01", tolerance)


def of(figure_name: str, verdicts: tuple[Verdict, ...]) -> Verdict:
    (found,) = [one for one in verdicts if one.figure == figure_name]
    return found


@pytest.mark.parametrize(
    ("value", "other", "direction", "worse"),
    [
        (90.0, 100.0, "higher", 0.10),
        (110.0, 100.0, "higher", -0.10),
        (110.0, 100.0, "lower", 0.10),
        (90.0, 100.0, "lower", -0.10),
    ],
)
def test_worse_has_a_direction(value: float, other: float, direction: Direction, worse: float) -> None:
    assert verdict.worse_by(value, other, direction) == pytest.approx(worse)


def test_without_limits_every_gated_figure_is_ok_and_companions_are_silent() -> None:
    verdicts = judge(MEASURED, KINDS, {}, None)
    assert [(v.figure, v.kind, v.failed) for v in verdicts] == [("decode_tok_s", "ok", False), ("ttft_ms", "ok", False)]
    assert verdict.explain(MEASURED, verdicts) == ""


@pytest.mark.parametrize(
    ("name", "threshold", "kind"),
    [
        ("decode_tok_s", Threshold(floor=61.0), "ok"),  # the median is 61.0: reached is reached
        ("decode_tok_s", Threshold(floor=61.01), "below floor"),
        ("decode_tok_s", Threshold(target=61.0), "ok"),
        ("decode_tok_s", Threshold(floor=50.0, target=70.0), "below target"),
        ("decode_tok_s", Threshold(floor=65.0, target=70.0), "below floor"),
        ("ttft_ms", Threshold(floor=51.0), "ok"),
        ("ttft_ms", Threshold(floor=50.9), "below floor"),
        ("ttft_ms", Threshold(floor=100.0, target=40.0), "below target"),
        ("words_s", Threshold(floor=31.0), "below floor"),  # a companion, once the card gives it a limit
    ],
)
def test_thresholds(name: str, threshold: Threshold, kind: str) -> None:
    found = of(name, judge(MEASURED, KINDS, {name: threshold}, None))
    assert found.kind == kind
    assert found.failed == (kind != "ok")


@pytest.mark.parametrize(
    ("name", "was", "kind"),
    [
        ("decode_tok_s", 67.0, "ok"),
        ("decode_tok_s", 68.0, "regressed"),
        ("decode_tok_s", 55.0, "improved"),
        ("ttft_ms", 47.0, "ok"),
        ("ttft_ms", 46.0, "regressed"),
        ("ttft_ms", 57.0, "improved"),
    ],
)
def test_comparison(name: str, was: float, kind: str) -> None:
    found = of(name, judge(MEASURED, KINDS, {}, {name: reference(was)}))
    assert found.kind == kind
    assert found.failed == (kind == "regressed")
    assert found.reference == was
    assert found.change == pytest.approx(found.value / was - 1 if found.value else None)


def test_a_figure_that_the_reference_lacks_is_said_and_passes() -> None:
    found = of("ttft_ms", judge(MEASURED, KINDS, {}, {"decode_tok_s": reference(61.0)}))
    assert (found.kind, found.failed) == ("no baseline", False)
    assert "the saved session has no such figure" in found.lines[0]


def test_the_worst_word_wins() -> None:
    limits = {"decode_tok_s": Threshold(floor=65.0, target=70.0)}
    assert of("decode_tok_s", judge(MEASURED, KINDS, limits, {"decode_tok_s": reference(90.0)})).kind == "below floor"
    limits = {"decode_tok_s": Threshold(target=70.0)}
    assert of("decode_tok_s", judge(MEASURED, KINDS, limits, {"decode_tok_s": reference(90.0)})).kind == "regressed"
    # A floor that is kept hides nothing, and neither does a better reference.
    assert of("decode_tok_s", judge(MEASURED, KINDS, limits, {"decode_tok_s": reference(40.0)})).kind == "below target"


def test_what_has_no_median_is_not_judged() -> None:
    half = result([good(1, 60.0)])
    assert judge(half, KINDS, {"decode_tok_s": Threshold(floor=1e9)}, None) == ()


def test_the_message_says_what_how_much_all_runs_and_where() -> None:
    verdicts = judge(MEASURED, KINDS, {"decode_tok_s": Threshold(floor=100.0)}, None)
    lines = verdict.explain(MEASURED, verdicts, facts=["machine: 61 °C"]).splitlines()
    assert lines == [
        "decode[code] below floor: 61.0 tok/s, the card's floor is 100.0 tok/s (-39.0%)",
        "  machine: 61 °C",
        "  promised: 2 runs, up to 512 tokens each",
        "  decode_tok_s: runs 60.0 62.0 tok/s (CV 2.3%)",
        "  ttft_ms: runs 50.0 52.0 ms (CV 2.8%)",
        "  words_s: runs 30.0 31.0 words/s (CV 2.3%)",
        "  raw: raw/decode-code.jsonl",
        "  server log: server-1.log",
    ]


def test_what_two_figures_have_in_common_is_said_once() -> None:
    missed = judge(MEASURED, KINDS, {"decode_tok_s": Threshold(floor=1e6), "ttft_ms": Threshold(floor=0.001)}, None)
    changed = "changed since the baseline: engine b1 -> b2"
    text = verdict.explain(MEASURED, [replace(one, lines=(*one.lines, changed)) for one in missed])
    assert [one.failed for one in missed].count(True) == 2
    assert text.count(changed) == 1


def test_a_regression_names_the_saved_session() -> None:
    text = verdict.explain(MEASURED, judge(MEASURED, KINDS, {}, {"decode_tok_s": reference(80.0, 0.05)}))
    assert text.splitlines()[0] == "decode[code] regressed: 61.0 tok/s, was 80.0 tok/s (-23.8%, tolerance 5.0%)"
    assert text.splitlines()[1] == '  saved session "main" of 2026-01-01, median of 2 runs'


def test_a_ceiling_is_called_one() -> None:
    text = verdict.explain(MEASURED, judge(MEASURED, KINDS, {"ttft_ms": Threshold(floor=40.0)}, None))
    assert text.startswith("decode[code] ttft_ms above ceiling: 51.0 ms, the card's ceiling is 40.0 ms (+27.5%)")
    text = verdict.explain(MEASURED, judge(MEASURED, KINDS, {"ttft_ms": Threshold(target=40.0)}, None))
    assert text.startswith("decode[code] ttft_ms above target: 51.0 ms, the card's target is 40.0 ms")


def test_an_unmeasured_cell_fails_with_every_reason_and_every_repeat() -> None:
    bad = result(
        [
            attempt(1, figure(60.0, "a rule")),
            attempt(1, figure(60.0, "another rule"), number=2, reason="attempt 1 was invalid: a rule"),
        ],
        replace(CODE, prompt_tokens=8192),
    )
    lines = verdict.explain(bad, judge(bad, KINDS, {}, None)).splitlines()
    assert lines[0] == "decode[code] invalid: run 1 of 2: another rule"
    assert "  run 2 of 2: was not made" in lines
    assert "  run 1 was made 2 times: attempt 1 was invalid: a rule" in lines
    assert "  promised: 2 runs on a prompt of exactly 8192 tokens, up to 512 tokens each" in lines


def test_a_status_without_a_reason_still_speaks() -> None:
    assert verdict.explain(replace(MEASURED, status="missing"), ()).startswith("decode[code] missing: no result")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "0.0123 x"),
        (9.994, "9.99 x"),
        (10.0, "10.0 x"),
        (999.94, "999.9 x"),
        (1000.0, "1,000 x"),
        (-5.0, "-5.00 x"),
    ],
)
def test_values_as_people_read_them(value: float, text: str) -> None:
    assert verdict.shown(value, "x") == text
