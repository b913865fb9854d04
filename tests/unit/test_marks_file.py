"""The file of marks: what is refused and how, what it looks like, and when a mark speaks."""

from __future__ import annotations

import datetime as dt
import difflib
import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from pytest_llmbench.marks import file
from pytest_llmbench.marks.file import Mark, Marks, MarksError
from pytest_llmbench.marks.propose import Marked, Proposal

if TYPE_CHECKING:
    from pathlib import Path

KEY = "3f9a1c2b7d04" + "0" * 52
TODAY = dt.date(2026, 12, 1)
ENTRY: dict[str, Any] = {
    "card": "my-card",
    "cell": "decode[code]",
    "figure": "decode_tok_s",
    "machine": "3f9a1c2b7d04",
    "machine_name": "NVIDIA GeForce RTX 3090 (a1b2c3)",
    "mark": "slow",
    "depth": 0.11,
    "reason": "known since build b12301",
    "evidence": ["20261129T030000Z-1a2b", "20261130T030000Z-3c4d"],
    "date": "2026-11-30",
    "expires": "2026-12-30",
}


def mark(**changes: Any) -> Mark:
    return Mark.model_validate_json(json.dumps(ENTRY | changes))


def written(tmp_path: Path, *entries: dict[str, Any], **more: Any) -> Path:
    path = tmp_path / file.FILE_NAME
    path.write_text(json.dumps({"llmbench_marks": 1, "marks": entries} | more), encoding="utf-8")
    return path


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in ENTRY.items() if name != key}


REFUSED = [
    (without("expires"), "marks[0].expires: is missing", 'add "expires"'),
    (without("reason"), "marks[0].reason: is missing", 'add "reason"'),
    (ENTRY | {"expires": "soon"}, "marks[0].expires = 'soon': must be a date", ""),
    (
        ENTRY | {"expires": "2026-11-29"},
        "marks[0].expires = '2026-11-29': is before its date (2026-11-30)",
        "later day",
    ),
    (ENTRY | {"expires": "2099-01-01"}, "is more than a year after its date", "2027-12-01 at the latest"),
    (ENTRY | {"mark": "slwo"}, "marks[0].mark = 'slwo': unknown value", "did you mean 'slow'"),
    (ENTRY | {"depht": 0.1}, "marks[0].depht: unknown key", "did you mean 'depth'"),
    (ENTRY | {"depth": "12 %"}, "marks[0].depth = '12 %': must be a number", "without quotes"),
    (ENTRY | {"depth": -0.12}, "marks[0].depth = -0.12: must be at least 0", ""),
    (without("figure") | {"depth": 1.5}, "marks[0].depth = 1.5: would cover any rate at all", "name the figure"),
    (ENTRY | {"machine": "my-box"}, "marks[0].machine = 'my-box': is neither a machine key nor 'any'", "hexadecimal"),
    (ENTRY | {"machine": "3f9a"}, "marks[0].machine = '3f9a': is neither", "8 or more"),
    (ENTRY | {"cell": "decode"}, "marks[0].cell = 'decode': is not in the right form", "decode[code]"),
    (ENTRY | {"evidence": []}, "marks[0].evidence", "at least one"),
]


@pytest.mark.parametrize(("entry", "said", "remedy"), REFUSED, ids=[one[1][:40] for one in REFUSED])
def test_a_bad_mark_is_one_clear_error(entry: dict[str, Any], said: str, remedy: str, tmp_path: Path) -> None:
    path = written(tmp_path, entry)
    with pytest.raises(MarksError) as caught:
        file.read(path)
    assert str(path) in str(caught.value)
    assert said in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("[]", "a file of marks is one object"),
        ('{"llmbench_marks": 1, "marks": [,]}', "line 1, column 33: is not JSON"),
        ('{"llmbench_marks": 2}', "llmbench_marks = 2: unknown value"),
        ('{"llmbench_marks": 1, "marks": [], "marks": []}', "stands twice"),
    ],
)
def test_a_bad_file_is_one_clear_error_that_does_not_speak_of_cards(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MarksError) as caught:
        file.read(path)
    assert said in str(caught.value)
    assert "card" not in str(caught.value).replace(str(path), "")


def test_two_faults_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(MarksError, match="2 faults") as caught:
        file.read(written(tmp_path, without("expires"), ENTRY | {"mark": "fast"}))
    assert "marks[0].expires" in str(caught.value)
    assert "marks[1].mark" in str(caught.value)


CLASHES = [
    ({}, True),
    ({"machine": "any"}, True),
    ({"machine": "3f9a1c2b7d0400"}, True),
    ({"figure": None}, True),
    ({"figure": "ttft_ms"}, False),
    ({"mark": "flaky"}, False),
    ({"machine": "aaaaaaaaaaaa"}, False),
    ({"cell": "decode[prose]"}, False),
    ({"card": "other"}, False),
]


@pytest.mark.parametrize(("changes", "refused"), CLASHES)
def test_two_marks_that_would_speak_for_one_figure_are_refused(
    changes: dict[str, Any], *, refused: bool, tmp_path: Path
) -> None:
    path = written(tmp_path, ENTRY, ENTRY | changes)
    if refused:
        with pytest.raises(MarksError, match=r"marks\[1\]: marks\[0\] is a slow mark of decode\[code\]"):
            file.read(path)
    else:
        assert len(file.read(path).marks) == 2


def test_a_file_that_is_not_there_holds_no_marks(tmp_path: Path) -> None:
    assert file.read(tmp_path / "none.json") == Marks()


def test_a_folder_is_refused_in_words_of_marks(tmp_path: Path) -> None:
    with pytest.raises(MarksError, match=r"is a directory\n  remedy: name the marks' \.json file"):
        file.read(tmp_path)


def test_one_more_mark_changes_only_its_own_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    others = [mark(cell=f"prefill[{depth}]", figure=None) for depth in (2048, 8192)]
    file.write(path, Marks().adding(*others, today=TODAY))
    before = path.read_text(encoding="utf-8").splitlines()
    file.write(path, file.read(path).adding(mark(cell="prefill[4096]", figure=None), today=TODAY))
    after = path.read_text(encoding="utf-8").splitlines()
    changed = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    assert all(line.startswith("+") for line in changed)
    assert len(changed) == len(ENTRY) - 1 + 5  # a line a field but the figure, each session, and the brackets
    assert [one.cell for one in file.read(path).marks] == ["prefill[2048]", "prefill[4096]", "prefill[8192]"]


def test_what_is_written_is_what_is_read_and_fits_the_schema(tmp_path: Path) -> None:
    marks = Marks.model_validate_json(
        json.dumps({"$schema": "marks.schema.json", "llmbench_marks": 1, "marks": [ENTRY]})
    )
    path = tmp_path / "m.json"
    file.write(path, marks)
    assert file.read(path) == marks
    content = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate(content, file.packaged_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**content, "marks": [without("expires")]}, file.packaged_schema())


def test_the_shipped_schema_is_fresh() -> None:
    assert file.packaged_schema() == file.schema(), "python -m pytest_llmbench.marks.file > …/marks.schema.json"


@pytest.mark.parametrize(
    ("machine", "key", "speaks"), [("any", KEY, True), ("3f9a1c2b7d04", KEY, True), ("aaaaaaaaaaaa", KEY, False)]
)
def test_a_mark_speaks_for_its_machine(machine: str, key: str, *, speaks: bool) -> None:
    assert mark(machine=machine).is_for("my-card", "decode[code]", key) is speaks
    assert not mark(machine=machine).is_for("my-card", "decode[prose]", key)
    assert not mark(machine=machine).is_for("other", "decode[code]", key)


def test_the_last_day_is_still_in_effect() -> None:
    assert mark().is_active(dt.date(2026, 12, 30))
    assert not mark().is_active(dt.date(2026, 12, 31))


def test_a_mark_in_effect_is_not_replaced_and_an_expired_one_is() -> None:
    there = Marks().adding(mark(), today=TODAY)
    with pytest.raises(MarksError, match="in effect until 2026-12-30"):
        there.adding(mark(depth=0.2), today=TODAY)
    later = there.adding(mark(depth=0.2, date="2027-01-05", expires="2027-02-01"), today=dt.date(2027, 1, 5))
    assert [one.depth for one in later.marks] == [0.2]


def test_marks_that_cover_nothing_are_said() -> None:
    marks = Marks().adding(
        mark(),
        mark(cell="decode[cod]"),
        mark(cell="decode[prose]", figure="decode_tok"),
        mark(card="my-crad"),
        today=TODAY,
    )
    plans = {"my-card": {"decode[code]": ["decode_tok_s"], "decode[prose]": ["decode_tok_s"]}}
    lines = file.covers_nothing(marks, plans)
    assert [line.partition(" covers")[0] for line in lines] == [
        "slow mark of decode[cod] decode_tok_s of my-card",
        "slow mark of decode[prose] decode_tok of my-card",
    ]
    assert "did you mean 'decode[code]'" in lines[0]
    assert "no such figure (did you mean 'decode_tok_s'" in lines[1]
    assert "no such card (did you mean 'my-card'" in file.covers_nothing(marks, plans, all_cards=True)[-1]


def test_a_proposal_becomes_a_mark() -> None:
    proposal = Proposal("add", "flaky", None, ("…",), ("s1", "s2", "s3"), 0.09, "…", 60)
    one = file.accepted(
        proposal,
        card="my-card",
        cell="decode[code]",
        machine_key=KEY,
        machine_name="a box",
        reason="the driver",
        today=TODAY,
    )
    assert (one.machine, one.evidence, one.depth) == ("3f9a1c2b7d04", ("s1", "s2", "s3"), 0.09)
    assert (one.date, one.expires) == (TODAY, dt.date(2027, 1, 30))
    marks = Marks().adding(one, today=TODAY)
    where: dict[str, Any] = {"card": "my-card", "cell": "decode[code]", "machine_key": KEY}
    assert file.marked(marks, **where, today=TODAY) == (Marked("flaky", None, "2026-12-01"),)
    assert file.marked(marks, **where, today=dt.date(2027, 1, 31)) == ()
