"""The gate in whole sessions: a setup that gets slower, against a baseline of recorded sessions."""

from __future__ import annotations

import getpass
import json
import re
import shutil
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from bench_folder import altered, events, kill_in_the_middle

from pytest_llmbench import verify
from pytest_llmbench.history.schema import VERSION_TABLE
from pytest_llmbench.history.store import Store
from pytest_llmbench.outcomes.file import packaged_schema

if TYPE_CHECKING:
    from bench_folder import Bench

SLOW = {"tok_s": 90}
DECODE = ("test_decode.py",)
PREFILL = ("test_prefill.py",)
# As few fresh servers as may decide: a real one costs seconds.
THREE = ("--llmbench-remeasure", "3")


def cell_of(verdict: dict[str, Any], cell: str, card: str = "card") -> dict[str, Any]:
    (of_card,) = (one for one in verdict["cards"] if one["card"] == card)
    return dict(next(one for one in of_card["cells"] if one["id"] == cell))


def figure_of(verdict: dict[str, Any], cell: str, name: str, card: str = "card") -> dict[str, Any]:
    return dict(next(one for one in cell_of(verdict, cell, card)["figures"] if one["name"] == name))


# ---- a baseline ----


def test_a_baseline_is_collected_then_pinned_and_an_unchanged_setup_passes(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 3)
    result = bench_folder.run(card=bench_folder.small_card())
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    assert "4 have no baseline yet (1 more session)" in result.stdout.str()
    found = figure_of(bench_folder.verdict(), "decode[code]", "decode_tok_s")
    assert (found["verdict"], found["failed"]) == ("no baseline", False)
    assert found["baseline"]["sessions"] == 4
    assert found["baseline"]["missing"] == 1

    bench_folder.seed(first_report, 6, until_days_ago=30)
    shown = bench_folder.llmbench("baseline").stdout
    assert re.search(r"decode\[code\] +decode_tok_s +10 .* pinned ", shown)
    assert "missing" not in shown
    result = bench_folder.run(card=bench_folder.small_card())
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    text = result.stdout.str()
    assert "\n4 figures within what they resolve\n" in text
    assert not re.search("^decode|^prefill", text.partition("- llmbench -")[2], re.MULTILINE)  # nothing moved
    assert "measured again" not in text
    verdict = bench_folder.verdict()
    assert verdict["category"] is None
    found = figure_of(verdict, "decode[code]", "decode_tok_s")
    assert (found["verdict"], found["baseline"]["pinned"], found["clear"]) == ("ok", True, True)


def test_a_required_baseline_that_is_missing_fails_and_says_what_differs(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    card = bench_folder.small_card()
    result = bench_folder.run("--llmbench-require-baseline", card=card, paths=PREFILL)
    result.assert_outcomes(failed=1)
    assert result.ret == 12
    text = result.stdout.str()
    assert re.search(r"prefill\[512\] has no baseline yet: [\d,]+ tok/s; 0 of 5 sessions before this one", text)
    assert "a baseline is required (--llmbench-require-baseline)" in text
    assert "another machine" not in text
    assert bench_folder.verdict()["category"] == "measurement"

    shutil.rmtree(bench_folder.path / ".llmbench")
    first_report["contract"]["identity"]["machine"]["host_id"] = "0123456789abcdef"
    bench_folder.seed(first_report, 5)
    result = bench_folder.run("--llmbench-require-baseline", card=card, paths=PREFILL)
    assert result.ret == 12
    result.stdout.fnmatch_lines(
        ["*5 sessions of this card until *-*-* had:", "*another machine: host 0123456789abcdef, this one is *"]
    )


# ---- a slower setup ----


def test_a_slower_server_fails_exactly_what_it_slows_and_the_second_time_a_mark_is_proposed(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10, engine="0.5.9-older")
    bench_folder.becomes(**SLOW)
    result = bench_folder.run("-rA", card=bench_folder.small_card())
    assert result.ret == 10
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "PASSED test_prefill.py::test_prefill[512]" in text
    assert "FAILED test_decode.py::test_decode[code] - decode[code] regressed" in text
    burden = "  changed since the baseline: CPU "  # of the machine that the tests run on
    message = [
        line for line in text.partition("_ test_decode[code] _")[2].splitlines()[1:] if not line.startswith(burden)
    ]
    number = r"\d[\d.,]*"
    for line, pattern in zip(
        message,
        (
            rf"decode\[code\] regressed: {number} tok/s, was \d+\.\d \(-5\d\.\d %, 95 % interval -{number} … -{number}\)",
            rf"  runs {number} {number}; measured again on 4 fresh servers: {number} {number} {number} {number}",
            rf"  every server start was lower, .* from {number} % on that is no longer noise",
            rf"  baseline: 10 sessions, [-\d]+ … [-\d]+, spread {number} %; resolves changes of {number} % and more",
            r"  changed since the baseline: engine 0\.5\.9-older -> 0\.6\.0-paced .*",
            r"  promised: 2 runs, up to 24 tokens each",
        ),
        strict=False,
    ):
        assert re.fullmatch(pattern, line), line
    assert re.search(r"\n  raw: \S+/raw/decode-code\.jsonl\n  server log: (\S+/server-\d\.log(, )?){5}\n", text)
    assert "\n3 figures within what they resolve; 1 moved\n" in text
    assert re.search(r"measured again on fresh servers: 0\.\d min", text)

    verdict = bench_folder.verdict()
    jsonschema.validate(verdict, packaged_schema())
    assert (verdict["category"], verdict["exit_code"]) == ("performance", 10)
    assert verdict["failed_cells"] == {"performance": 1}
    found = figure_of(verdict, "decode[code]", "decode_tok_s")
    assert len(found["again"]) == 4
    assert found["interval"][0] < found["change"] < found["interval"][1] < -found["resolves"]
    assert cell_of(verdict, "prefill[512]")["result"] == "passed"
    (cell,) = (one for one in bench_folder.last()["cells"] if one["id"] == "decode[code]")
    made = [(one["again"], one["run"]) for one in cell["attempts"]]
    assert made == [(0, 1), (0, 2), *((again, run) for again in range(1, 5) for run in range(1, 6))]
    assert [one["server_start"] for one in cell["attempts"]] == [1] * 2 + [n for n in range(2, 6) for _ in range(5)]

    folder = bench_folder.runs[-1] / "card"
    done = subprocess.run(
        [sys.executable, "-m", "pytest_llmbench.verify", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "decode_tok_s again" in {one.figure for one in verify.check(folder)}
    report = folder / "report.json"
    wrong = json.loads(report.read_text())
    wrong["cells"][0]["figures"][0]["again"][2] *= 1.01
    report.write_text(json.dumps(wrong))
    assert [one.figure for one in verify.check(folder) if not one.matches] == ["decode_tok_s again"]

    assert "mark proposed" not in text
    result = bench_folder.run(*THREE, card=bench_folder.small_card(), paths=DECODE)
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        [
            "slow mark proposed for decode[[]code] of card: decode_tok_s: 2 usable sessions in a row: regressed -5* % in "
            "*, regressed -5* % in * (see: llmbench marks)"
        ]
    )
    assert "slow: decode[code] decode_tok_s of card" in bench_folder.llmbench("marks").stdout


def test_without_fresh_servers_it_stays_open_and_strict_fails_it(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(**SLOW)
    card = bench_folder.small_card()
    result = bench_folder.run("--llmbench-remeasure", "0", card=card, paths=DECODE)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert re.search(r"^decode\[code\] inconclusive: [\d.]+ tok/s, was ", result.stdout.str(), re.MULTILINE)
    assert "1 not decided" in result.stdout.str()
    assert {one["server_start"] for one in bench_folder.last()["cells"][0]["attempts"]} == {1}

    result = bench_folder.run("--llmbench-remeasure", "0", "--llmbench-strict", card=card, paths=DECODE)
    result.assert_outcomes(failed=1)
    assert result.ret == 10
    assert "no more fresh servers were allowed (--llmbench-remeasure)" in result.stdout.str()


def test_a_new_reference_is_accepted_with_its_reason(bench_folder: Bench, first_report: dict[str, Any]) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(**SLOW)
    reason = "the new driver is slower, and fixes the crashes"
    result = bench_folder.run("--llmbench-accept", reason, card=bench_folder.small_card(), paths=DECODE)
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert {one["server_start"] for one in bench_folder.last()["cells"][0]["attempts"]} == {1}
    (line,) = (bench_folder.path / ".llmbench" / "acceptances.jsonl").read_text().splitlines()
    accepted = json.loads(line)
    assert (accepted["why"], accepted["who"]) == (reason, getpass.getuser())
    assert list(accepted["cells"]) == ["decode[code]"]
    rows = bench_folder.llmbench("baseline").stdout.splitlines()
    (row,) = (row for row in rows if re.match(r"decode\[code\] +decode_tok_s ", row))
    assert "collecting, 9 missing" in row
    assert f"{getpass.getuser()}, " in row
    assert reason in row
    (other,) = (row for row in rows if re.match(r"prefill\[512\] +prefill_tok_s ", row))
    assert "pinned" in other
    found = figure_of(bench_folder.verdict(), "decode[code]", "decode_tok_s")
    assert found["baseline"]["accepted"] == reason
    assert re.search(
        r"starts a new baseline; was 2\d\d\.\d tok/s|starts a new baseline; was 1\d\d\.\d", found["lines"][0]
    )


def test_baselines_of_a_file_judge_without_a_history_and_only_here(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10, engine="0.5.9-older")
    done = bench_folder.llmbench("baseline", "export", "card", "baselines.json")
    assert "8 baselines, 8 of them pinned, from 10 sessions" in done.stdout, done.stderr
    shutil.rmtree(bench_folder.path / ".llmbench")
    bench_folder.becomes(**SLOW)
    flags = ("--llmbench-baseline", "baselines.json", "--llmbench-no-history")
    card = bench_folder.small_card()
    result = bench_folder.run(*flags, *THREE, card=card, paths=DECODE)
    assert result.ret == 10
    result.stdout.fnmatch_lines(
        [
            "decode[[]code] regressed: *",
            "  baseline: 10 sessions, *",
            "  changed since the baseline: engine 0.5.9-older -> *",
        ]
    )
    assert not list((bench_folder.path / ".llmbench").glob("history*"))

    file = bench_folder.path / "baselines.json"
    content = json.loads(file.read_text())
    content["machine"]["host_id"] = "0123456789abcdef"
    file.write_text(json.dumps(content))
    before = bench_folder.runs
    result = bench_folder.run(*flags, card=card, paths=DECODE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "of another setup or machine" in result.stderr.str()
    assert "another machine: host 0123456789abcdef, this one is " in result.stderr.str()
    assert bench_folder.runs == before


# ---- what is remembered ----


def test_what_is_no_measurement_or_not_to_be_remembered_leaves_no_history(bench_folder: Bench) -> None:
    card = bench_folder.small_card()
    bench_folder.run_here("--collect-only", card=card)
    assert not (bench_folder.path / ".llmbench").exists()
    bench_folder.run("--llmbench-no-history", card=card, paths=PREFILL).assert_outcomes(passed=1)
    bench_folder.run("--llmbench-probe", card=card, paths=PREFILL).assert_outcomes(passed=1)
    assert len(bench_folder.runs) == 2
    assert not list((bench_folder.path / ".llmbench").glob("history*"))
    assert "there is no history yet" in bench_folder.llmbench("history").stderr


@pytest.mark.parametrize("wrong", ["corrupt", "newer"])
def test_a_history_that_cannot_be_read_is_refused_before_anything_is_measured(bench_folder: Bench, wrong: str) -> None:
    store = bench_folder.path / ".llmbench" / "history.sqlite"
    Store.open(store.parent).close()
    if wrong == "corrupt":
        store.write_bytes(b"no database " * 1000)
    else:
        with sqlite3.connect(store) as connection:
            connection.execute(f"update {VERSION_TABLE} set version_num = 'from-the-future'")
        connection.close()
    result = bench_folder.run_here(card=bench_folder.small_card())
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert str(store) in result.stderr.str()
    assert "remedy" in result.stderr.str()
    assert not (store.parent / "runs").exists()


# ---- other ends ----


def test_a_history_that_breaks_in_the_middle_takes_nothing_away(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 6)
    bench_folder.pytester.makeconftest(
        "import sqlite3\n"
        "def pytest_runtest_teardown():\n"
        "    with sqlite3.connect('.llmbench/history.sqlite') as store:\n"
        "        store.execute('DROP TABLE IF EXISTS figures')\n"
    )
    result = bench_folder.run(card=bench_folder.small_card(), paths=PREFILL)
    assert result.ret == 0
    text = result.stdout.str() + result.stderr.str()
    assert "Traceback" not in text
    assert re.search(r"not remembered: history = .*no such table: figures", text)
    assert re.search(r"the history could not be read: .*no such table: figures", text)
    assert figure_of(bench_folder.verdict(), "prefill[512]", "prefill_tok_s")["verdict"] == "ok"


def test_a_run_killed_while_it_measured_again_is_resumed_and_judged(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(**SLOW)
    card = bench_folder.small_card()
    # A warm-up and two runs, then a warm-up and five on the first fresh server: killed on the second one.
    old = kill_in_the_middle(bench_folder, card, after=11, files=DECODE)
    made = [one["attempt"]["again"] for one in events(old, "attempt") if one["attempt"]["run"]]
    assert made[:7] == [0, 0, 1, 1, 1, 1, 1]
    assert 2 in made
    result = bench_folder.run("--llmbench-resume", *THREE, card=card, paths=DECODE)
    result.assert_outcomes(failed=1)
    assert result.ret == 10
    assert "decode[code] regressed" in result.stdout.str()
    (cell,) = bench_folder.last()["cells"]
    own = [one for one in cell["attempts"] if not one["again"]]
    assert [one["server_start"] for one in own] == [1, 1]  # taken over, not made again
    assert len(figure_of(bench_folder.verdict(), "decode[code]", "decode_tok_s")["again"]) == 3
    assert [one for one in verify.check(bench_folder.runs[-1] / "card") if not one.matches] == []
    assert bench_folder.servers() == []


def test_two_cards_and_a_failing_test_of_the_users_own(bench_folder: Bench, first_report: dict[str, Any]) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(**SLOW)
    (bench_folder.path / "test_own.py").write_text("def test_own():\n    assert 1 == 2\n")
    one, two = bench_folder.small_card(), bench_folder.small_card("two", pace={"seed": 5})
    result = bench_folder.run(*THREE, "--setup", str(one), "--setup", str(two), paths=(*DECODE, "test_own.py"))
    result.assert_outcomes(passed=1, failed=2)
    assert (
        result.ret == pytest.ExitCode.TESTS_FAILED
    )  # not 10: a pipeline that forgives speed must not forgive test_own
    verdict = bench_folder.verdict()
    assert (verdict["category"], verdict["exit_code"]) == ("performance", 1)
    assert figure_of(verdict, "decode[code]", "decode_tok_s")["verdict"] == "regressed"
    assert figure_of(verdict, "decode[code]", "decode_tok_s", card="two")["verdict"] == "no baseline"
    assert "decode[code] regressed" in result.stdout.str()


def test_a_setup_that_is_slow_at_every_third_start_is_proposed_as_flaky(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10, until_days_ago=20)
    starts = bench_folder.path / "starts"
    starts.write_text("2")
    bench_folder.becomes(counter_file=str(starts), start_slow_every=3, start_slow_factor=2.5)
    card = bench_folder.small_card()
    result = bench_folder.run(card=card, paths=DECODE)  # starts 3, which is slow, and 4
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    found = figure_of(bench_folder.verdict(), "decode[code]", "decode_tok_s")
    assert (found["verdict"], found["dip"], len(found["again"])) == ("ok", True, 1)
    assert "flaky mark" not in result.stdout.str()

    bench_folder.record([altered(bench_folder.last(), 5)])
    result = bench_folder.run(card=card, paths=DECODE)  # start 5
    result.assert_outcomes(passed=1)
    assert not figure_of(bench_folder.verdict(), "decode[code]", "decode_tok_s")["dip"]
    assert "flaky mark" not in result.stdout.str()  # two events
    result = bench_folder.run(card=card, paths=DECODE)  # starts 6 and 7
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["flaky mark proposed for decode[[]code] of card: events in the last 10 usable sessions: *dipped (-*"]
    )
    assert starts.read_text() == "7"
