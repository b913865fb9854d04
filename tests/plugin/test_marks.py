"""Marks in whole sessions: proposed by the history, in effect only from the reviewed file."""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any

import pytest
from bench_folder import altered

from pytest_llmbench.history import keys
from pytest_llmbench.marks.file import KEY_DIGITS

if TYPE_CHECKING:
    from bench_folder import Bench

SLOW = {"tok_s": 90}
DECODE = ("test_decode.py",)
# As few fresh servers as may decide: a real one costs seconds.
THREE = ("--llmbench-remeasure", "3")
REGRESSED = {
    "decode_tok_s": {"verdict": "regressed", "reference": 200.0, "change": -0.55, "sigma": 0.12, "clear": False}
}
CLEAR = {
    name: {"verdict": "ok", "change": 0.0, "sigma": 0.12, "clear": True}
    for name in ("decode_tok_s", "ttft_ms", "prefill_tok_s")
}


def regressed(report: dict[str, Any], *days_ago: int) -> list[dict[str, Any]]:
    return [altered(report, day, rate=0.45, figures=REGRESSED) for day in days_ago]


def marked(bench: Bench, report: dict[str, Any], **changes: Any) -> None:
    """Write a reviewed file with one slow mark of decode[code] on the machine of a report."""
    today = dt.datetime.now(dt.UTC).date()
    mark = {
        "card": "card",
        "cell": "decode[code]",
        "figure": "decode_tok_s",
        "machine": keys.machine_key(report["contract"]["identity"])[:KEY_DIGITS],
        "mark": "slow",
        "depth": 0.65,
        "reason": "waits for the next engine",
        "evidence": ["20261101T000000-aaaa", "20261102T000000-bbbb"],
        "date": str(today),
        "expires": str(today + dt.timedelta(days=30)),
    }
    (bench.path / "llmbench-marks.json").write_text(json.dumps({"llmbench_marks": 1, "marks": [mark | changes]}))


def marks_in(bench: Bench) -> list[dict[str, Any]]:
    return list(json.loads((bench.path / "llmbench-marks.json").read_text())["marks"])


def states(bench: Bench) -> list[str]:
    return [mark["state"] for card in bench.verdict()["cards"] for cell in card["cells"] for mark in cell["marks"]]


def test_the_third_slow_session_is_red_until_the_mark_is_accepted(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10, until_days_ago=20)
    sessions = bench_folder.record(regressed(first_report, 3, 2))
    bench_folder.becomes(**SLOW)
    card = bench_folder.small_card()
    result = bench_folder.run(*THREE, card=card, paths=DECODE)
    result.assert_outcomes(failed=1)
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        [
            "slow mark proposed for decode[[]code] of card: decode_tok_s: 3 usable sessions in a row: *(see: llmbench marks)"
        ]
    )
    assert not (bench_folder.path / "llmbench-marks.json").exists()  # a session only proposes
    sessions.append(bench_folder.runs[-1].name)

    done = bench_folder.llmbench("marks", "accept", "card", "decode[code]", "--reason", "waits for the next engine")
    assert (done.returncode, done.stderr) == (0, "")
    (mark,) = marks_in(bench_folder)
    assert (mark["mark"], mark["cell"], mark["figure"]) == ("slow", "decode[code]", "decode_tok_s")
    assert (mark["reason"], mark["evidence"]) == ("waits for the next engine", sessions)
    assert 0.55 < mark["depth"] < 0.95

    result = bench_folder.run(*THREE, "-rx", card=card)
    result.assert_outcomes(xfailed=1, passed=1)
    assert result.ret == 0
    text = result.stdout.str()
    assert "slow mark of decode[code] decode_tok_s of card covers decode_tok_s regressed -5" in text
    assert "(waits for the next engine)" in text
    assert "[expected: a mark covers it]" in text
    assert "slow mark proposed" not in text
    verdict = bench_folder.verdict()
    assert (verdict["category"], verdict["exit_code"], states(bench_folder)) == (None, 0, ["covers"])

    chosen = bench_folder.run_here("--collect-only", "-q", "-m", "not slow", card=card).stdout.str()
    assert "test_prefill[512]" in chosen
    assert "test_decode[code]" not in chosen


def test_recovery_is_said_and_after_three_clear_sessions_the_mark_may_go(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10, until_days_ago=20)
    bench_folder.record(regressed(first_report, 6, 5))
    bench_folder.record([altered(first_report, 4, figures=CLEAR)])
    marked(bench_folder, first_report)
    card = bench_folder.small_card()
    result = bench_folder.run(card=card, paths=DECODE)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["slow mark of decode[[]code] decode_tok_s of card is no longer needed today: it passes again; *"]
    )
    assert "slow mark no longer needed" not in result.stdout.str()  # two clear sessions
    assert states(bench_folder) == ["passes again"]

    result = bench_folder.run(card=card, paths=DECODE)
    result.stdout.fnmatch_lines(
        ["slow mark no longer needed for decode[[]code] of card: *3 usable sessions in a row are clear: *"]
    )
    assert len(marks_in(bench_folder)) == 1  # a session only proposes
    assert "no longer slow: decode[code] decode_tok_s of card" in bench_folder.llmbench("marks").stdout
    done = bench_folder.llmbench("marks", "remove", "card", "decode[code]")
    assert (done.returncode, done.stderr) == (0, "")
    assert marks_in(bench_folder) == []


def test_a_mark_of_every_figure_may_go_too(bench_folder: Bench, first_report: dict[str, Any]) -> None:
    bench_folder.seed(first_report, 10, until_days_ago=20)
    bench_folder.record(altered(first_report, day, figures=CLEAR) for day in (3, 2, 1))
    marked(bench_folder, first_report, figure=None)
    # The history keeps figures that nobody judges; they have no say.
    assert "no longer slow: decode[code] of card" in bench_folder.llmbench("marks").stdout


def test_what_is_deeper_than_the_mark_fails_in_spite_of_it(bench_folder: Bench, first_report: dict[str, Any]) -> None:
    bench_folder.seed(first_report, 10)
    marked(bench_folder, first_report, depth=0.4)
    bench_folder.becomes(**SLOW)
    result = bench_folder.run(*THREE, card=bench_folder.small_card(), paths=DECODE)
    result.assert_outcomes(failed=1)
    assert result.ret == 10
    assert "covers 40% and no more: decode_tok_s regressed -5" in result.stdout.str()
    assert states(bench_folder) == ["too deep"]


def test_a_missed_floor_is_never_covered(bench_folder: Bench, first_report: dict[str, Any]) -> None:
    marked(bench_folder, first_report)
    bench_folder.becomes(**SLOW)
    card = bench_folder.small_card(thresholds={"decode[code]": {"decode_tok_s": {"floor": 150}}})
    result = bench_folder.run(card=card, paths=DECODE)
    result.assert_outcomes(failed=1)
    assert result.ret == 10
    text = result.stdout.str()
    assert "decode[code] below floor" in text
    assert "never covers a missed floor (decode_tok_s)" in text


def test_a_missed_target_is_covered(bench_folder: Bench, first_report: dict[str, Any]) -> None:
    marked(bench_folder, first_report)
    bench_folder.becomes(**SLOW)
    card = bench_folder.small_card(thresholds={"decode[code]": {"decode_tok_s": {"target": 150}}})
    result = bench_folder.run(card=card, paths=DECODE)
    result.assert_outcomes(xfailed=1)
    assert result.ret == 0


def test_an_expired_mark_fails_by_name_and_a_mark_of_nothing_is_said(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    marked(bench_folder, first_report, date="2026-01-01", expires="2026-01-31")
    file = bench_folder.path / "llmbench-marks.json"
    content = json.loads(file.read_text())
    content["marks"].append(content["marks"][0] | {"cell": "decode[cod]"})
    file.write_text(json.dumps(content))
    card = bench_folder.small_card()
    result = bench_folder.run(card=card, paths=DECODE)
    result.assert_outcomes(failed=1)
    assert result.ret == 10
    text = result.stdout.str()
    assert "slow mark of decode[code] decode_tok_s of card expired on 2026-01-31: remove it, or accept it again" in text
    assert "slow mark of decode[cod] decode_tok_s of card covers nothing: no such cell in its plan" in text
    chosen = bench_folder.run_here("--collect-only", "-q", "-m", "not slow", card=card).stdout.str()
    assert "test_decode[code]" in chosen  # that it expired must not be hidden


@pytest.mark.parametrize(
    ("machine", "kind", "expression", "there"),
    [
        (None, "flaky", "flaky", True),
        (None, "flaky", "slow", False),
        ("any", "slow", "slow", True),
        ("0123456789ab", "slow", "slow", False),
    ],
)
def test_marks_are_pytest_markers_on_their_machine(
    bench_folder: Bench,
    first_report: dict[str, Any],
    machine: str | None,
    kind: str,
    expression: str,
    there: bool,  # noqa: FBT001 - a table
) -> None:
    marked(bench_folder, first_report, mark=kind, **({"machine": machine} if machine else {}))
    result = bench_folder.run_here(
        "--collect-only", "-q", "--strict-markers", "-m", expression, card=bench_folder.small_card()
    )
    assert ("test_decode[code]" in result.stdout.str()) is there
    assert "test_prefill[512]" not in result.stdout.str()
    assert not (bench_folder.path / ".llmbench").exists()
