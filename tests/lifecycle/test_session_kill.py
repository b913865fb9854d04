"""Whatever ends a session, no process of ours is left, and what was measured is on the disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import jsonschema
import psutil
import pytest

from pytest_llmbench import verify
from pytest_llmbench.client.parse import parse
from pytest_llmbench.journal import read_lines, trace_from_json
from pytest_llmbench.outcomes import EXIT_CODES
from pytest_llmbench.outcomes import file as outcomes_file
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench_folder import Bench

POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SUITES = ("test_decode.py", "test_prefill.py")
WITHIN_S = 60.0  # generous: a busy machine; what is left would stay for minutes

# Requests of the paced server: 1 warm-up, 2 and 3 decode[code], 4 the first run of decode[prose].
SLOW_FROM_PROSE = {"requests": {"4-": {"tok_s": 2}}}

# Stands still between two cells, as a slow test of somebody else's does.
PAUSE_AFTER_CODE = """
import pathlib, time

def pytest_runtest_logfinish(nodeid):
    if nodeid.endswith("[code]"):
        pathlib.Path("between").touch()
        time.sleep(600)
"""


class Session:
    """A pytest session that runs, with its folder and every process it was seen to start."""

    def __init__(self, bench: Bench, process: subprocess.Popen[bytes], output: Path) -> None:
        self.bench, self.process, self.output = bench, process, output
        self.seen: dict[int, psutil.Process] = {}

    def look(self) -> None:
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.seen |= {child.pid: child for child in children}

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert self.process.poll() is None, f"pytest ended before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.text()}"
            time.sleep(0.02)
        self.look()

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def ended(self) -> int:
        """The exit code; afterwards nothing of the session is left."""
        code = self.process.wait(timeout=WITHIN_S)
        deadline = time.monotonic() + WITHIN_S
        while left := [p for p in self.seen.values() if _alive(p)] + self.bench.servers():
            assert time.monotonic() < deadline, f"left running: {left}\n{self.text()}"
            time.sleep(0.05)
        return code

    # ---- what is on the disk ----

    @property
    def folder(self) -> Path:
        found = list((self.bench.path / ".llmbench" / "runs").glob("*/card"))
        return found[0] if found else self.bench.path / "not-there-yet"

    def events(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / "journal.jsonl"
        return [line for line in read_lines(path) if line["event"] == name] if path.exists() else []

    def statuses(self) -> list[str]:
        """Of the report, which must be whole and valid."""
        report = self.bench.report()
        jsonschema.validate(report, packaged_schema())
        assert not report["complete"]
        return [cell["status"] for cell in report["cells"]]

    def streaming(self) -> bool:
        """Whether the first request of decode[prose] is in the middle of its answer."""
        ready = self.events("server ready")
        done = [e for e in self.events("attempt") if e["attempt"]["cell"] == "decode[code]"]
        if not ready or len(done) < 3:  # warm-up and two runs
            return False
        argv = ready[-1]["argv"]
        url = f"http://127.0.0.1:{argv[argv.index('--port') + 1]}/slots"
        (slot,) = httpx.get(url, trust_env=False, timeout=30).json()
        return bool(slot["is_processing"]) and any(one.get("n_decoded", 0) > 1 for one in _list(slot["next_token"]))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def session(bench: Bench, card: Path, *args: str, suites: tuple[str, ...] = SUITES) -> Iterator[Session]:
    output = bench.path / "output.txt"
    with output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *suites, "--setup", str(card), *args],
            cwd=bench.path,
            stdout=out,
            stderr=out,
            start_new_session=True,
            # As in a terminal: a shell's background job would ignore SIGINT, and so would its children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
    one = Session(bench, process, output)
    try:
        yield one
    finally:
        process.kill()
        process.wait()
        for child in one.seen.values():
            if _alive(child):
                child.kill()


def loading(bench: Bench) -> tuple[Path, Callable[[Session], None]]:
    def wait(one: Session) -> None:
        # The engine was run before, to ask for its version.
        one.until(lambda: one.events("server starting") and bench.servers(), "server that loads")

    return bench.card(pace={"load_s": 300}), wait


def streaming(bench: Bench) -> tuple[Path, Callable[[Session], None]]:
    def wait(one: Session) -> None:
        one.until(one.streaming, "stream of decode[prose]")

    return bench.card(pace=SLOW_FROM_PROSE), wait


def between(bench: Bench) -> tuple[Path, Callable[[Session], None]]:
    (bench.path / "conftest.py").write_text(PAUSE_AFTER_CODE)

    def wait(one: Session) -> None:
        one.until((bench.path / "between").exists, "pause between two cells")
        assert bench.servers()

    return bench.card(), wait


MOMENTS = [
    pytest.param(loading, ["missing", "missing", "missing"], id="loading"),
    pytest.param(streaming, ["measured", "missing", "missing"], id="streaming"),
    pytest.param(between, ["measured", "missing", "missing"], id="between"),
]


@pytest.mark.parametrize("number", POLITE, ids=lambda n: n.name)
@pytest.mark.parametrize(("moment", "statuses"), MOMENTS)
def test_a_signal_ends_the_session_with_a_report(
    bench_folder: Bench, moment: Any, statuses: list[str], number: signal.Signals
) -> None:
    card, wait = moment(bench_folder)
    with session(bench_folder, card) as one:
        wait(one)
        one.send(number)
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.text()
        assert one.statuses() == statuses
        # Where something was promised, it can be gone on with.
        goes_on = (
            f"cut short: card, 2 cells to measure; the same command with --llmbench-resume {one.folder.parent.name}"
        )
        assert (goes_on in one.text()) is ("measured" in statuses)
        assert "INTERNALERROR" not in one.text()
        assert "Traceback" not in one.text()


@pytest.mark.parametrize(("moment", "statuses"), MOMENTS)
def test_a_kill_leaves_nothing_but_readable_files(bench_folder: Bench, moment: Any, statuses: list[str]) -> None:
    card, wait = moment(bench_folder)
    with session(bench_folder, card) as one:
        wait(one)
        one.send(signal.SIGKILL)
        assert one.ended() == -signal.SIGKILL
        assert not (one.folder / "report.json").exists()
        assert one.events("server starting")
        attempts = [event["attempt"] for event in one.events("attempt")]
        finished = 3 if "measured" in statuses else 0
        assert len(attempts) == finished
        raw = {record["request_id"]: record for path in one.folder.glob("raw/*") for record in read_lines(path)}
        for attempt in attempts:
            for request in attempt["request_ids"]:
                assert parse(trace_from_json(raw[request])).completion_tokens == 32
        assert [event["cell"] for event in one.events("cell")] == (["decode[code]"] if finished else [])
        assert len(one.events("contract")) == bool(finished)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGTERM, signal.SIGHUP),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGINT, signal.SIGTERM),
    ],
    ids=lambda n: n.name,
)
def test_a_second_signal_during_clean_up_leaves_nothing(
    bench_folder: Bench, first: signal.Signals, second: signal.Signals
) -> None:
    # A server that is deaf to TERM keeps the clean-up busy for seconds.
    with session(bench_folder, bench_folder.card(pace={**SLOW_FROM_PROSE, "hang_on_sigterm": True})) as one:
        one.until(one.streaming, "stream of decode[prose]")
        one.send(first)
        time.sleep(1.0)
        if one.process.poll() is None:
            one.send(second)
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.text()
        assert one.statuses() == ["measured", "missing", "missing"]


def test_a_signal_to_the_whole_group_is_no_other(bench_folder: Bench) -> None:
    # Ctrl-C in a terminal goes to every process of the foreground group; closing the terminal does so with HUP.
    with session(bench_folder, bench_folder.card(pace=SLOW_FROM_PROSE)) as one:
        one.until(one.streaming, "stream of decode[prose]")
        os.killpg(one.process.pid, signal.SIGINT)
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.text()
        assert one.statuses() == ["measured", "missing", "missing"]
        assert [event["died"] for event in one.events("server stopped")] == [False]


# ---- exceptions that are no signal --------------------------------------------------------------------------------------

MINE = """
import asyncio, signal
import pytest

@pytest.mark.llmbench("decode")
async def test_mine(bench, cell):
    {body}
"""


def mine(bench: Bench, body: str) -> str:
    (bench.path / "test_mine.py").write_text(MINE.format(body=body.strip().replace("\n", "\n    ")))
    return "test_mine.py"


def test_a_keyboard_interrupt_of_a_test_is_one_of_the_session(bench_folder: Bench) -> None:
    suite = mine(bench_folder, 'await bench.measure(cell)\nif cell.id == "decode[code]":\n    raise KeyboardInterrupt')
    with session(bench_folder, bench_folder.card(), suites=(suite,)) as one:
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.text()
        assert one.statuses() == ["measured", "missing"]


def test_a_test_that_breaks_between_measure_and_check_keeps_what_it_measured(bench_folder: Bench) -> None:
    suite = mine(bench_folder, "result = await bench.measure(cell)\nresult.no_such_thing\nawait bench.check(result)")
    with session(bench_folder, bench_folder.card(), suites=(suite,)) as one:
        assert one.ended() == pytest.ExitCode.TESTS_FAILED, one.text()
        report = bench_folder.report()
        assert [cell["status"] for cell in report["cells"]] == ["measured", "measured"]
        assert one.text().count("AttributeError") >= 2


def test_a_test_that_is_timed_out_inside_a_stream_does_not_disturb_the_next(bench_folder: Bench) -> None:
    # As pytest-timeout does it: the handler of an alarm raises, wherever the program is.
    suite = mine(
        bench_folder,
        """
def out_of_time(*_):
    pytest.fail("out of time")
if cell.id == "decode[code]":
    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, 1.5)
await bench.check(await bench.measure(cell))
""",
    )
    # The first server, the thousandth that this file counts, would take minutes for an answer; the next one does not.
    counter = bench_folder.path / "starts"
    counter.write_text("999")
    card = bench_folder.card(pace={"counter_file": str(counter), "start_slow_every": 1000, "start_slow_factor": 5000})
    with session(bench_folder, card, suites=(suite,)) as one:
        assert one.ended() == pytest.ExitCode.TESTS_FAILED, one.text()
        assert "out of time" in one.text()
        assert one.events("attempt interrupted")
        report = bench_folder.report()
        assert [cell["status"] for cell in report["cells"]] == ["missing", "measured"]
        times = sorted((a["t_start_ns"], a["t_end_ns"]) for event in one.events("attempt") for a in [event["attempt"]])
        assert all(before[1] <= after[0] for before, after in pairwise(times))


def test_an_exit_asked_for_by_a_test_stops_everything(bench_folder: Bench) -> None:
    suite = mine(bench_folder, 'await bench.measure(cell)\npytest.exit("enough", returncode=7)')
    with session(bench_folder, bench_folder.card(), suites=(suite,)) as one:
        assert one.ended() == 7, one.text()
        assert one.statuses() == ["measured", "missing"]
        assert json.loads(next(one.folder.glob("report.json")).read_text())["llmbench_report"] == 1


# ---- a control beside the setup ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_in_the_controls_turn_leaves_neither_server(bench_folder: Bench, number: signal.Signals) -> None:
    plan = {"parts": ["context"], "context": {"depths": [2304], "prompts": ["code"], "runs": 1, "max_tokens": 32}}
    control = bench_folder.card("control", pace={"tok_s": 1}, plan=plan)
    with session(bench_folder, bench_folder.card(), "--llmbench-control", str(control)) as one:
        one.until(
            lambda: (one.folder / "control" / "contract.json").exists() and len(bench_folder.servers()) == 2,
            "turn of the control",
        )
        one.send(number)
        code = one.ended()
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else pytest.ExitCode.INTERRUPTED), one.text()
        assert (one.folder / "control" / "journal.jsonl").exists()
        if number == signal.SIGTERM:
            assert one.statuses() == ["missing", "missing", "missing"]
            assert "INTERNALERROR" not in one.text()
            stopped = [
                e for e in read_lines(one.folder / "control" / "journal.jsonl") if e["event"] == "server stopped"
            ]
            assert [event["died"] for event in stopped] == [False]


# ---- on the way to a verdict ---------------------------------------------------------------------------------------------


def test_a_signal_before_a_verdict_decides_nothing_and_a_later_session_goes_on(
    bench_folder: Bench, first_report: dict[str, Any]
) -> None:
    bench_folder.seed(first_report, 10)
    bench_folder.becomes(tok_s=80)
    card = bench_folder.small_card()
    with session(bench_folder, card, suites=("test_decode.py",)) as one:
        one.until(lambda: len(one.events("server ready")) == 2, "fresh server")
        one.send(signal.SIGTERM)
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.text()
        text = one.text()
    assert "Traceback" not in text
    assert "the session was interrupted: nothing is decided" in text
    assert "1 cell not judged (decode[code])" in text
    assert "cut short: card, 1 cell to measure" in text
    assert "verdict.json (interrupted, nothing is decided)" in text
    assert "nothing failed" not in text
    found = bench_folder.verdict()
    jsonschema.validate(found, outcomes_file.packaged_schema())
    assert (found["interrupted"], found["exit_code"]) == (True, 2)
    (cell,) = (cell for cell in found["cards"][0]["cells"] if cell["id"] == "decode[code]")
    assert (cell["status"], cell["result"]) == ("measured", "not judged")

    result = bench_folder.run(card=card, paths=("test_decode.py", "--llmbench-resume"))
    assert result.ret == EXIT_CODES["performance"]
    result.stdout.fnmatch_lines(["decode[[]code] regressed: *"])
    assert not bench_folder.verdict()["interrupted"]


# ---- a direct comparison ------------------------------------------------------------------------------------------------

PLAN = {"parts": ["decode"], "decode": {"prompts": ["code"], "runs": 2, "max_tokens": 24, "warmups": 0}}


def second_start_is_busy(one: Session) -> bool:
    """Whether the old side's second start answers, which it does for minutes."""
    path = one.folder / "against" / "journal.jsonl"
    return path.exists() and len([one for one in read_lines(path) if one["event"] == "server ready"]) == 2


@pytest.mark.parametrize("number", POLITE, ids=lambda n: n.name)
def test_a_signal_keeps_the_pairs_that_are_there(bench_folder: Bench, number: signal.Signals) -> None:
    slow = {"start_slow_every": 2, "start_slow_factor": 10_000, "counter_file": str(bench_folder.path / "starts")}
    old = bench_folder.card(pace=slow, plan=PLAN).rename(bench_folder.path / "old.json")
    card = bench_folder.card(plan=PLAN)
    with session(bench_folder, card, "--llmbench-against", str(old), suites=("test_decode.py",)) as one:
        one.until(lambda: second_start_is_busy(one), "second start of the old side")
        one.send(number)
        assert one.ended() == pytest.ExitCode.INTERRUPTED, one.text()
        assert "Traceback" not in one.text()
        for folder, role in ((one.folder, "new"), (one.folder / "against", "old")):
            report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
            jsonschema.validate(report, packaged_schema())
            assert (report["against"]["role"], report["against"]["pairs"], report["against"]["ended"]) == (
                role,
                1,
                None,
            )
            assert [check for check in verify.check(folder) if not check.matches] == []
        (cell,) = bench_folder.report()["cells"]
        (figure,) = (one for one in cell["figures"] if one["name"] == "decode_tok_s")
        assert len(figure["compared"]["pairs"]) == 1
        assert figure["verdict"] == "inconclusive"
        assert "the session was interrupted" in figure["explanation"][0]
        assert "--llmbench-resume" not in one.text()
        assert "1 pair, cut short" in one.text()
        assert "decode[code] inconclusive against old" in one.text()
        assert "(interrupted, nothing is decided)" in one.text()
        assert bench_folder.verdict()["interrupted"]
