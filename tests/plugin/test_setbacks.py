"""What goes wrong in the middle of a session: it ends, says why, and keeps what it has."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from bench_folder import SUITES, events, kill_in_the_middle

from pytest_llmbench import verify
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from bench_folder import Bench

DECODE = ("test_decode.py",)
ONCE = """
from pathlib import Path
if "--port" in sys.argv:
    starts = Path(__file__).with_name("starts")
    starts.write_text(starts.read_text() + "x" if starts.exists() else "x")
    if len(starts.read_text()) > 1:
        sys.exit("out of memory")
"""


def test_a_suspect_whose_fresh_servers_do_not_start_stays_open(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(tok_s=90)
    bench_folder.tamper(ONCE)
    done = bench_folder.run(card=bench_folder.small_card(), paths=DECODE)
    said = done.stdout.str()
    assert done.ret == 0, said
    assert "decode[code] inconclusive" in said
    (folder,) = (bench_folder.path / ".llmbench" / "runs").glob("*/card")
    assert len(events(folder, "measuring again failed")) == 5
    assert len(events(folder, "server starting")) == 6
    assert [cell["status"] for cell in bench_folder.last()["cells"]] == ["measured"]


def test_a_server_of_a_memory_test_that_is_not_the_promised_one_is_a_matter_of_the_setup(bench_folder: Bench) -> None:
    shutil.copy(SUITES / "test_fit.py", bench_folder.path / "test_fit.py")
    bench_folder.tamper(
        'sys.argv = ["2" if before == "-np" else word for before, word in zip(["", *sys.argv], sys.argv)]'
    )
    card = bench_folder.card(plan={"parts": ["fit"], "fit": {"sizes": [1024, 2048]}})
    done = bench_folder.run(card=card, paths=("test_fit.py",))
    assert done.ret == 11, done.stdout.str()
    assert "promises" in done.stdout.str()
    assert "cut short" not in done.stdout.str()
    assert {cell["status"] for cell in bench_folder.last()["cells"]} == {"failed"}
    assert bench_folder.verdict()["category"] == "setup"
    assert not bench_folder.servers()


def test_a_server_that_dies_while_a_cell_is_measured_again_is_said_and_is_one_start(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(tok_s=90)
    dies = "json.dumps({'tok_s': 90, 'exit_after_requests': 3} if starts.read_text() == 'xxx' else {'tok_s': 90})"
    bench_folder.tamper(
        ONCE.partition("    if len")[0] + f"    Path(__file__).with_name('pace.json').write_text({dies})"
    )
    done = bench_folder.run(card=bench_folder.small_card(), paths=DECODE)
    assert done.ret == 10, done.stdout.str()
    (cell,) = (one for one in bench_folder.last()["cells"] if one["id"] == "decode[code]")
    assert any(note.startswith("fresh server 2 broke off while it was measured again: ") for note in cell["notes"])
    starts: dict[int, set[int]] = {}
    for one in cell["attempts"]:
        starts.setdefault(one["again"], set()).add(one["server_start"])
    assert all(len(found) == 1 for found in starts.values())
    assert len(starts) == 6


# ---- several cards, cut short ----


@pytest.mark.parametrize("named", [True, False])
def test_of_several_cards_those_that_are_done_are_left_out_and_the_others_go_on(
    bench_folder: Bench,
    named: bool,  # noqa: FBT001
) -> None:
    done_card = bench_folder.card("done")
    cut = bench_folder.card("cut", pace={"requests": {"5": {"hang_after": 1}}})
    old = kill_in_the_middle(bench_folder, cut, after=4, more=(done_card,))
    # Ctrl-C in the second card: the first one's report is written, the second one's is of no matter here.
    (old.parent / "done" / "report.json").write_text("{}")
    run = [old.parent.name] if named else []
    again = bench_folder.run("--setup", str(done_card), "--llmbench-resume", *run, card=cut)
    assert again.ret == 0, again.stdout.str()
    again.assert_outcomes(passed=3, deselected=3)
    assert f"llmbench: done: all of it was measured in {'last' if not named else old.parent.name}" in again.stdout.str()
    assert bench_folder.last("cut")["continues"]["session"] == old.parent.name
    assert not list(bench_folder.runs[-1].glob("done"))
    nothing = bench_folder.run_here("--llmbench-resume", old.parent.name, card=done_card)
    assert nothing.ret == 4
    assert "nothing is left to measure in it" in nothing.stderr.str()


def test_a_run_that_was_killed_after_its_last_cell_gets_its_report(bench_folder: Bench) -> None:
    card = bench_folder.card()
    bench_folder.run(card=card).assert_outcomes(passed=3)
    (old,) = bench_folder.runs
    for name in ("report.json", "table.md"):
        (old / "card" / name).unlink()
    cut = subprocess.run(
        [sys.executable, "-m", "pytest_llmbench.verify", str(old / "card")], capture_output=True, text=True, check=False
    )
    assert "the session was cut short before it wrote report.json" in cut.stderr
    again = bench_folder.run("--llmbench-resume", card=card)
    again.assert_outcomes(passed=3)
    new = bench_folder.runs[-1] / "card"
    assert not events(new, "server starting")
    assert bench_folder.last()["complete"]
    assert all(one.matches for one in verify.check(new))
    assert (
        "nothing is left to measure"
        in bench_folder.run_here("--llmbench-resume", new.parent.name, card=card).stderr.str()
    )


def test_what_a_session_leaves_out_the_next_one_still_goes_on_with(bench_folder: Bench) -> None:
    card = bench_folder.card(pace={"requests": {"5": {"hang_after": 1}}})
    old = kill_in_the_middle(bench_folder, card, after=4)
    bench_folder.run("-k", "prefill", "--llmbench-resume", card=card)
    done = bench_folder.run("--llmbench-resume", card=card)
    assert done.ret == 0, done.stdout.str()
    sessions = {cell["id"]: cell["sessions"] for cell in bench_folder.last()["cells"]}
    assert sessions["decode[prose]"] == [old.parent.name, bench_folder.runs[-1].name]


def test_of_several_cards_one_that_was_not_reached_is_measured_anew(bench_folder: Bench) -> None:
    cut = bench_folder.card("cut", pace={"requests": {"5": {"hang_after": 1}}})
    later = bench_folder.card("later")
    old = kill_in_the_middle(bench_folder, cut, after=4)
    again = bench_folder.run("--llmbench-resume", old.parent.name, "--setup", str(cut), card=later)
    assert again.ret == 0, again.stdout.str()
    again.assert_outcomes(passed=6)
    assert bench_folder.last("cut")["continues"]["session"] == old.parent.name
    assert bench_folder.last("later")["continues"] is None


# ---- what is kept out of the history ----


def test_a_refused_canary_leaves_nothing_in_the_history(bench_folder: Bench) -> None:
    done = bench_folder.run("--llmbench-canary", "pause:20%", card=bench_folder.small_card(), paths=DECODE)
    assert done.ret == 1
    assert "is judged here yet" in done.stdout.str()
    assert not list((bench_folder.path / ".llmbench" / "runs").glob("*/*"))
    with Store.open(bench_folder.path / ".llmbench") as store:
        assert store.setups() == []
        assert store.sessions(10) == []


def test_a_rebuild_takes_no_session_in_that_asked_for_no_history(bench_folder: Bench) -> None:
    card = bench_folder.small_card()
    bench_folder.run("--llmbench-no-history", card=card, paths=DECODE).assert_outcomes(passed=1)
    assert bench_folder.last()["history"] is False
    bench_folder.run(card=card, paths=DECODE).assert_outcomes(passed=1)
    assert bench_folder.last()["history"] is True
    kept = bench_folder.runs[-1].name
    assert bench_folder.llmbench("history", "rebuild").returncode == 0
    with Store.open(bench_folder.path / ".llmbench") as store:
        assert [one.session for one in store.sessions(10)] == [kept]


# ---- wrong calls ----


def test_one_file_for_several_reports_is_refused(bench_folder: Bench) -> None:
    other = str(bench_folder.card("other"))
    done = bench_folder.run_here("--llmbench-json", "r.json", "--setup", other, card=bench_folder.card())
    assert done.ret == 4
    assert "one file for several cards' reports" in done.stderr.str()


def test_a_placeholder_of_the_controls_card_can_be_filled(bench_folder: Bench) -> None:
    plan = {"parts": ["context"], "context": {"depths": [2304], "prompts": ["code"], "runs": 1, "max_tokens": 32}}
    control = bench_folder.card("control", plan=plan)
    content = json.loads(control.read_text())
    content["server"]["args"] = ["-m", "tiny.gguf", "-c", "<SIZE>", "-np", "1"]
    control.write_text(json.dumps(content))
    wish = ("--llmbench-control", str(control), "--collect-only")
    done = bench_folder.run_here(*wish, "--llmbench-var", "SIZE=8192", card=bench_folder.card())
    assert done.ret == 0, done.stderr.str()
    wrong = bench_folder.run_here(*wish, "--llmbench-var", "SIZES=8192", card=bench_folder.card())
    assert "no card has this placeholder (there: SIZE)" in wrong.stderr.str()


@pytest.mark.parametrize("flag", ["--llmbench-history", "--llmbench-storage"])
def test_a_name_that_no_file_can_have_is_refused_in_words(bench_folder: Bench, flag: str) -> None:
    done = bench_folder.run_here(flag, "x" * 300, card=bench_folder.card(), paths=DECODE)
    assert done.ret == 4
    assert "cannot be used: File name too long" in done.stderr.str()
