"""``llmbench canary``: what is no result, and what two flags cannot both mean; without a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from documents import document

from pytest_llmbench.cli import canary
from pytest_llmbench.cli.main import main
from pytest_llmbench.history import canaries, entry
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Sequence

PLANTED = {"way": "pace", "size": 0.1, "share": 0.1, "words": "10 % slower (pace)", "stopped": []}


def planted(status: str = "measured", verdict: str | None = "ok") -> dict[str, Any]:
    made = document(1)
    made["canary"] = PLANTED
    made["cells"][0]["figures"][0]["verdict"] = "regressed"
    made["cells"][1]["status"] = status
    for figure in made["cells"][1]["figures"]:
        figure["verdict"] = verdict
    return made


@pytest.mark.parametrize(
    ("status", "verdict", "kept"),
    [("measured", "ok", True), ("disturbed", None, True), ("missing", None, False), ("measured", None, False)],
)
def test_a_session_whose_cells_were_not_all_judged_is_no_canary(
    tmp_path: Path, status: str, verdict: str | None, *, kept: bool
) -> None:
    made = planted(status, verdict)
    with Store.open(tmp_path) as store:
        assert store.record(made, tmp_path) is kept
    read = entry.of_document(made, "x")
    assert bool(canaries.unknown(read)) is not kept
    # One that an earlier version kept is not told as a result either.
    assert canaries.line([read]).startswith("canary: never tried") is not kept


@pytest.mark.parametrize(
    ("code", "status", "exit_code", "said"),
    [
        (2, "measured", 2, "canary: interrupted, or the suite could not be collected: nothing is known"),
        (1, "missing", 1, "canary: the session ended before these cells were judged: prefill[2048]: nothing is known"),
    ],
)
def test_an_interrupted_session_is_told_as_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    status: str,
    exit_code: int,
    said: str,
) -> None:
    def session(command: Sequence[str]) -> int:
        verdict = Path(command[command.index("--llmbench-verdict") + 1])
        (verdict.parent / "report.json").write_text(json.dumps(planted(status)))
        verdict.write_text(json.dumps({"category": "performance", "cards": [{"report": "report.json"}]}))
        return code

    monkeypatch.setattr(canary, "_wait", session)
    assert main(["canary", "--setup", "card.json", str(tmp_path)]) == exit_code
    out = capsys.readouterr().out
    assert said in out
    assert "caught" not in out


def test_two_ways_to_slow_down_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["canary", "--setup", "card.json", "--slow", "10%", "--threads", "3", str(tmp_path)]) == 4
    assert "--slow = '10%': says nothing beside --threads" in capsys.readouterr().err


def test_the_value_of_a_flag_is_no_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bench_suites", "mine", "storage"):
        (tmp_path / name).mkdir()
    (tmp_path / "mine" / "test_decode.py").touch()
    (tmp_path / "code").touch()
    assert canary._with_suite(["--llmbench-storage", "storage", "-k", "code"])[0] == "bench_suites"
    for suite in ("mine", "mine/test_decode.py", "mine/test_decode.py::test_decode"):
        assert canary._with_suite([suite, "-q"]) == [suite, "-q"]
