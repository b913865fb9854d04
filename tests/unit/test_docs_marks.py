"""The pages on marks and outcomes say what is so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_docs import _fields
from test_outcomes import built, full

from pytest_llmbench import outcomes
from pytest_llmbench.marks import file as marks
from pytest_llmbench.marks.evidence import RULE
from pytest_llmbench.outcomes import file as verdicts

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parents[2] / "docs"
MARKS = (DOCS / "marks.md").read_text(encoding="utf-8")
OUTCOMES = (DOCS / "outcomes.md").read_text(encoding="utf-8")


def block(text: str, note: str) -> str:
    found = re.search(rf"^<!-- {note} -->\n```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, note
    return found[1]


def test_the_file_on_the_page_is_one_as_it_would_be_written(tmp_path: Path) -> None:
    path = tmp_path / marks.FILE_NAME
    path.write_text(block(MARKS, "marks file"), encoding="utf-8")
    read = marks.read(path)
    marks.write(path, read)
    assert path.read_text(encoding="utf-8") == block(MARKS, "marks file")
    (one,) = read.marks
    assert (one.expires - one.date).days == RULE.slow_days


def test_every_key_is_named() -> None:
    assert not [name for name in marks.Mark.model_fields if f"| `{name}`" not in MARKS and f", `{name}`" not in MARKS]
    missing = {name for name in _fields(verdicts.VerdictFile, set()) if f"`{name}`" not in OUTCOMES}
    assert not missing, f"docs/outcomes.md does not name {sorted(missing)}"


def test_the_exit_codes_stand_in_the_table_in_their_order() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \|", OUTCOMES, re.MULTILINE)
    assert rows == [(one, str(outcomes.EXIT_CODES[one])) for one in outcomes.ORDER]
    (script,) = re.findall(r"^```sh\n(.*?)^```$", OUTCOMES, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"^\s+(1\d)\)", script, re.MULTILINE)) == {str(one) for one in outcomes.EXIT_CODES.values()}


NUMBERS = [
    (f"the last {RULE.slow_sessions} usable sessions regressed", MARKS),
    (f"the last {RULE.clear_sessions} usable sessions are clear", MARKS),
    (f"an event in {RULE.events} of the last {RULE.window} usable sessions", MARKS),
    (f"differ too much in {RULE.spread_sessions} of the last {RULE.spread_window}", MARKS),
    (f"above {RULE.spread_floor:.0%}".replace("%", " %") + f" and above {RULE.spread_sds:g} times", MARKS),
    (f"at least {RULE.mode_gap * 100:g} %, {RULE.mode_sds:g} times", MARKS),
    (f"{RULE.mode_sigmas:g} times the figure's own spread", MARKS),
    (f"plus {RULE.margin_sds:g} times the figure's spread (at least {RULE.margin_floor * 100:g} %; ", MARKS),
    (f"proposed for {RULE.slow_days} days. A flaky one for {RULE.flaky_days}", MARKS),
    (f"at most {marks.LONGEST.days} days after", MARKS),
]


@pytest.mark.parametrize(("words", "text"), NUMBERS, ids=[words for words, _ in NUMBERS])
def test_the_numbers_are_the_rules(words: str, text: str) -> None:
    assert words in text.replace("\n  ", " ")


def test_the_script_reads_a_verdict_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "verdict.json").write_text(built(full()).model_dump_json(), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(block(OUTCOMES, "verdict file"), {})  # the page's own script
    said = capsys.readouterr().out
    assert "setup my-card decode[code]" in said
    assert "proposed: add flaky events in the last 5 usable sessions" in said


def _commands() -> Iterator[list[str]]:
    for line in MARKS.splitlines():
        if "accept it: " in line:
            yield shlex.split(line.partition("accept it: ")[2])


def test_the_command_on_the_page_is_one() -> None:
    import argparse  # noqa: PLC0415

    from pytest_llmbench.cli import marks as cli  # noqa: PLC0415

    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    (words,) = _commands()
    args = parser.parse_args(words[2:])
    assert (args.action, args.card, args.cell, args.mark) == ("accept", "rtx3090-my-model-q4km", "decode[code]", "slow")
