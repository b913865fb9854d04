"""``llmbench marks``: shows, accepts, removes; a made-up history stands where the store will be."""

from __future__ import annotations

import argparse
import datetime as dt
import shlex
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from marks_histories import history

from pytest_llmbench.cli import marks as cli
from pytest_llmbench.errors import InputError
from pytest_llmbench.history.listing import Setup
from pytest_llmbench.marks import file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.records import Outcome

KEYS = {"box": "3f9a1c2b7d04" + "0" * 52, "other box": "aa11bb22cc33" + "0" * 52}
TODAY = dt.date(2026, 12, 1)


class Histories:
    """(machine, cell, figure) to a letter a session. Directions by the figure's name."""

    def __init__(self, sessions: Mapping[tuple[str, str, str], str]) -> None:
        self.sessions = dict(sessions)

    def cells(self) -> Sequence[cli.TrackedCell]:
        places = dict.fromkeys((machine, cell) for machine, cell, _ in self.sessions)
        return [
            cli.TrackedCell(
                "my-card",
                cell,
                f"key of {cell}",
                KEYS[machine],
                machine,
                tuple(
                    cli.TrackedFigure(figure, "lower" if figure == "ttft_ms" else "higher")
                    for on, of, figure in self.sessions
                    if (on, of) == (machine, cell)
                ),
            )
            for machine, cell in places
        ]

    def outcomes(self, cell: cli.TrackedCell, figure: str, limit: int) -> Sequence[Outcome]:
        direction = "lower" if figure == "ttft_ms" else "higher"
        letters = self.sessions[cell.machine, cell.cell, figure]
        return history(letters, figure, direction).outcomes[-limit:]  # type: ignore[arg-type]


SLOW = {("box", "decode[code]", "decode_tok_s"): "...rr", ("box", "prefill[8192]", "prefill_tok_s"): "....."}


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> list[dt.date]:
    """The day that the command believes in; a test may turn the page."""
    days = [TODAY]
    monkeypatch.setattr(cli, "_today", lambda: days[-1])
    return days


@pytest.fixture
def call(
    tmp_path: Path, today: list[dt.date], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Call:
    monkeypatch.chdir(tmp_path)
    return Call(capsys)


class Call:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, sessions: Mapping[tuple[str, str, str], str], *words: str) -> str:
        parser = argparse.ArgumentParser(cli.NAME)
        cli.add_arguments(parser)
        assert cli.run(parser.parse_args(words), Histories(sessions)) == 0
        return self.capsys.readouterr().out


def test_nothing_to_show(call: Call, tmp_path: Path) -> None:
    assert call({}) == (
        "proposed (no effect until accepted):\n  none\nin effect:\n  none\nexpired (each fails its cell):\n  none\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_proposal_is_shown_with_its_evidence_and_the_command_that_accepts_it(call: Call, tmp_path: Path) -> None:
    shown = call(SLOW)
    assert "  slow: decode[code] decode_tok_s of my-card on box, 3f9a1c2b7d04\n" in shown
    assert "regressed -8.0 % in s04, regressed -8.0 % in s05" in shown
    assert "would accept down to 11% worse for 30 days (decode_tok_s: worst seen 8.0% worse" in shown
    assert not (tmp_path / file.FILE_NAME).exists()
    (line,) = [line for line in shown.splitlines() if "accept it: " in line]
    words = shlex.split(line.partition("accept it: ")[2])
    assert words[:2] == ["llmbench", "marks"]
    call(SLOW, *words[2:-1], "known since b12301")
    assert [one.place for one in file.read(tmp_path / file.FILE_NAME).marks] == ["decode[code] decode_tok_s of my-card"]


def test_the_life_of_a_mark(call: Call, today: list[dt.date], tmp_path: Path) -> None:
    said = call(SLOW, "accept", "my-card", "decode[code]", "--reason", "known", "--author", "me")
    assert (
        said
        == "llmbench-marks.json: slow mark of decode[code] decode_tok_s of my-card, down to 11%, until 2026-12-31\n"
        "sessions read llmbench-marks.json in pytest's root folder, or the file of --llmbench-marks FILE\n"
    )
    shown = call(SLOW)
    assert shown.startswith("proposed (no effect until accepted):\n  none\n")
    assert (
        "  slow: decode[code] decode_tok_s of my-card on box, 3f9a1c2b7d04: down to 11% worse, until 2026-12-31 (30 more "
        "days)\n    accepted on 2026-12-01, by me: known\n    evidence: s04, s05\n"
    ) in shown
    recovered = SLOW | {("box", "decode[code]", "decode_tok_s"): "...rr..."}
    shown = call(recovered)
    assert "  no longer slow: decode[code] decode_tok_s of my-card on box" in shown
    assert "3 usable sessions in a row are clear" in shown
    (line,) = [line for line in shown.splitlines() if "remove it: " in line]
    said = call(recovered, *shlex.split(line.partition("remove it: ")[2])[2:])
    assert said == "llmbench-marks.json: the slow mark of decode[code] decode_tok_s of my-card is gone\n"
    assert file.read(tmp_path / file.FILE_NAME).marks == ()


def test_an_expired_mark_is_shown_proposed_again_and_replaced(call: Call, today: list[dt.date], tmp_path: Path) -> None:
    call(SLOW, "accept", "--all", "--reason", "known")
    today.append(dt.date(2027, 1, 5))
    shown = call(SLOW)
    assert "expired (each fails its cell):\n  slow: decode[code]" in shown
    assert "expired on 2026-12-31" in shown
    assert "accept it: " in shown
    call(SLOW, "accept", "--all", "--reason", "still known")
    (one,) = file.read(tmp_path / file.FILE_NAME).marks
    assert (one.reason, one.expires) == ("still known", dt.date(2027, 2, 4))


def test_all_takes_everything_that_is_proposed_and_what_has_gone(
    call: Call, today: list[dt.date], tmp_path: Path
) -> None:
    sessions = {
        ("box", "decode[code]", "decode_tok_s"): "...rr",
        ("box", "decode[code]", "ttft_ms"): "...rr",
        ("box", "prefill[8192]", "prefill_tok_s"): "d.d.d",
    }
    call(sessions, "accept", "--all", "--reason", "known")
    marks = file.read(tmp_path / file.FILE_NAME).marks
    assert [(one.cell, one.figure, one.mark) for one in marks] == [
        ("decode[code]", "decode_tok_s", "slow"),
        ("decode[code]", "ttft_ms", "slow"),
        ("prefill[8192]", "prefill_tok_s", "flaky"),
    ]
    assert call(sessions, "remove", "--all").endswith("nothing is proposed for removal, and nothing has expired\n")
    call(sessions | {("box", "decode[code]", "ttft_ms"): "...rr..."}, "remove", "--all")
    assert [one.figure for one in file.read(tmp_path / file.FILE_NAME).marks] == ["decode_tok_s", "prefill_tok_s"]
    today.append(dt.date(2027, 1, 15))  # the slow one has expired
    call(sessions, "remove", "--all")
    assert [one.mark for one in file.read(tmp_path / file.FILE_NAME).marks] == ["flaky"]


def test_a_mark_for_any_machine_goes_when_all_of_them_are_clear(call: Call, tmp_path: Path) -> None:
    call(SLOW, "accept", "--all", "--reason", "known")
    path = tmp_path / file.FILE_NAME
    path.write_text(path.read_text(encoding="utf-8").replace('"3f9a1c2b7d04"', '"any"'), encoding="utf-8")
    both = {
        ("box", "decode[code]", "decode_tok_s"): "...rr...",
        ("other box", "decode[code]", "decode_tok_s"): "...rr",
    }
    call(both, "remove", "--all")
    assert len(file.read(path).marks) == 1
    call(both | {("other box", "decode[code]", "decode_tok_s"): "......"}, "remove", "--all")
    assert file.read(path).marks == ()


def test_two_machines_have_their_own_marks(call: Call, tmp_path: Path) -> None:
    both = {(box, "decode[code]", "decode_tok_s"): "..rr" for box in KEYS}
    call(both, "accept", "my-card", "decode[code]", "--machine", "aa11", "--reason", "known")
    assert [one.machine for one in file.read(tmp_path / file.FILE_NAME).marks] == ["aa11bb22cc33"]
    assert "slow: decode[code] decode_tok_s of my-card on box, 3f9a" in call(both)


def test_what_stands_out_is_said(call: Call) -> None:
    call(SLOW, "accept", "--all", "--reason", "known")
    shown = call({("box", "prefill[8192]", "prefill_tok_s"): "..xxx"})
    assert "covers nothing that the history knows" in shown
    assert "prefill[8192] of my-card on box: the machine is the problem" in shown


WRONG = [
    (("accept", "my-card", "prefill[8192]", "--reason", "x"), "no such mark is proposed (proposed: slow decode[code]"),
    (("accept", "my-card", "decode[code]", "--figure", "ttft_ms", "--reason", "x"), "no such mark is proposed"),
    (("accept", "my-card", "decode[code]", "--mark", "flaky", "--reason", "x"), "no such mark is proposed"),
    (("accept", "my-card", "--reason", "x"), "needs either CARD and CELL, or --all"),
    (("accept", "--reason", "x"), "needs either CARD and CELL, or --all"),
    (("accept", "my-card", "decode[code]", "--all", "--reason", "x"), "needs either CARD and CELL, or --all"),
    (("remove", "my-card", "decode[code]"), "llmbench-marks.json has no such mark (it has: none)"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_a_wrong_call_is_one_clear_error_and_changes_nothing(
    words: tuple[str, ...], said: str, call: Call, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        call(SLOW, *words)
    assert said in str(caught.value)
    assert not (tmp_path / file.FILE_NAME).exists()


def test_a_reason_is_asked_for(call: Call) -> None:
    with pytest.raises(SystemExit):
        call(SLOW, "accept", "--all")
    assert "--reason" in call.capsys.readouterr().err


def test_an_empty_reason_is_refused(call: Call, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="reason"):
        call(SLOW, "accept", "--all", "--reason", " ")
    assert not (tmp_path / file.FILE_NAME).exists()


def test_only_what_a_card_is_now_is_asked_about() -> None:
    machine = {"host_id": "h", "cpu": "c", "gpus": []}

    def setup(card_id: str, model: str, on: dict[str, Any]) -> Setup:
        return Setup(
            card_id, 3, "2026-12-01", {"card_id": card_id, "card": {"model": model, "cells": {}}, "machine": on}
        )

    elsewhere = machine | {"host_id": "i"}
    known = [
        setup("a", "new", machine),
        setup("a", "old", machine),
        setup("a", "new", elsewhere),
        setup("b", "x", machine),
    ]

    class Store:
        def setups(self) -> list[Setup]:
            return known

        def kept_baselines(self, identity: dict[str, Any]) -> list[Any]:
            keys = {"cell": identity["card"]["model"], "cell_key": "k", "machine_key": identity["machine"]["host_id"]}
            return [SimpleNamespace(figure="decode_tok_s", direction="higher", accepted_when=None, **keys)]

    cells = cli.StoreSource(cast("Any", Store())).cells()
    assert [(one.card, one.cell, one.machine_key) for one in cells] == [
        ("a", "new", "h"),
        ("a", "new", "i"),
        ("b", "x", "h"),
    ]
