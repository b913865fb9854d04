"""A direct comparison that is cut short: both servers are gone, and both sides' documents say how far it came."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import jsonschema
import pytest
from test_session_kill import Session, session

from pytest_llmbench import verify
from pytest_llmbench.journal import read_lines
from pytest_llmbench.report.document import packaged_schema

if TYPE_CHECKING:
    from bench_folder import Bench

PLAN = {"parts": ["decode"], "decode": {"prompts": ["code"], "runs": 2, "max_tokens": 24, "warmups": 0}}


def second_start_is_busy(one: Session) -> bool:
    """Whether the old side's second start answers, which it does for minutes."""
    path = one.folder / "against" / "journal.jsonl"
    return path.exists() and sum(line["event"] == "server ready" for line in read_lines(path)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
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
            assert (report["against"]["role"], report["against"]["pairs"], report["against"]["ended"]) == (role, 2, None)
            assert [check for check in verify.check(folder) if not check.matches] == []
        (cell,) = bench_folder.report()["cells"]
        (figure,) = (one for one in cell["figures"] if one["name"] == "decode_tok_s")
        assert len(figure["compared"]["pairs"]) == 1
        assert figure["verdict"] == "inconclusive"
        assert "the session was interrupted" in figure["explanation"][0]
        assert "--llmbench-resume" not in one.text()
