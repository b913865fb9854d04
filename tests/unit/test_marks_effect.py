"""What accepted marks do to today's verdicts, case by case."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest
from test_marks_file import KEY, mark

from pytest_llmbench.marks.effect import Effect, effect, markers
from pytest_llmbench.records import Verdict

if TYPE_CHECKING:
    from pytest_llmbench.marks.file import Mark
    from pytest_llmbench.records import CellStatus, VerdictKind

TODAY = dt.date(2026, 12, 10)
LATER = dt.date(2027, 1, 1)
FAILING = {"regressed", "below target", "below floor", "machine changed"}


def verdict(kind: VerdictKind, change: float | None = None, figure: str = "decode_tok_s", **more: Any) -> Verdict:
    facts: dict[str, Any] = {"failed": kind in FAILING, "lines": (), "value": 55.0, "change": change}
    return Verdict("decode[code]", figure, kind, **{**facts, **more})


def applied(
    *marks: Mark, verdicts: tuple[Verdict, ...] = (), status: CellStatus = "measured", today: dt.date = TODAY
) -> Effect:
    return effect(
        marks, card="my-card", cell="decode[code]", machine_key=KEY, status=status, verdicts=verdicts, today=today
    )


SLOW = mark()  # down to 11 %
STATES = [
    ([verdict("regressed", -0.08)], "covers", True),
    ([verdict("regressed", -0.11)], "covers", True),
    ([verdict("below target", -0.05)], "covers", True),
    ([verdict("regressed", -0.111)], "too deep", False),
    ([verdict("regressed", None)], "not applicable", False),
    ([verdict("below floor", -0.02)], "not applicable", False),
    ([verdict("machine changed", -0.02)], "not applicable", False),
    ([verdict("inconclusive", -0.02, failed=True)], "not applicable", False),
    ([verdict("inconclusive", -0.02)], "idle", False),
    ([verdict("ok", -0.001)], "passes again", False),
    ([verdict("improved", 0.05)], "passes again", False),
    ([verdict("no baseline")], "idle", False),
    ([verdict("noisy")], "idle", False),
    ([], "idle", False),
]


@pytest.mark.parametrize(("verdicts", "state", "xfails"), STATES)
def test_what_a_slow_mark_does(verdicts: list[Verdict], state: str, *, xfails: bool) -> None:
    found = applied(SLOW, verdicts=tuple(verdicts))
    assert [one.state for one in found.applied] == [state]
    assert (found.xfail is not None) is xfails
    assert found.covered == ({"decode_tok_s"} if xfails else set())
    assert bool(found.notes) is (state in {"too deep", "not applicable", "passes again"})
    assert not found.failures


def test_the_lines_say_what_and_until_when() -> None:
    covers = applied(SLOW, verdicts=(verdict("regressed", -0.081),))
    assert covers.xfail == (
        "slow mark of decode[code] decode_tok_s of my-card covers decode_tok_s regressed -8.1 %: "
        "down to 11% worse is accepted until 2026-12-30 (known since build b12301)"
    )
    deep = applied(SLOW, verdicts=(verdict("regressed", -0.2),))
    assert deep.notes[0].endswith("covers 11% and no more: decode_tok_s regressed -20.0 %")
    floor = applied(SLOW, verdicts=(verdict("below floor", -0.01),))
    assert floor.notes[0].endswith("never covers a missed floor (decode_tok_s)")
    again = applied(SLOW, verdicts=(verdict("ok", 0.001),))
    assert "no longer needed today: it passes again" in again.notes[0]


def test_a_flaky_mark_covers_the_same_and_passing_is_no_news() -> None:
    flaky = mark(mark="flaky")
    assert applied(flaky, verdicts=(verdict("regressed", -0.08),)).xfail is not None
    passing = applied(flaky, verdicts=(verdict("ok", 0.0),))
    assert [one.state for one in passing.applied] == ["idle"]
    assert not passing.notes


@pytest.mark.parametrize("status", ["failed", "invalid", "disturbed", "missing", "unsupported"])
def test_no_mark_covers_a_cell_without_a_number(status: CellStatus) -> None:
    found = applied(SLOW, verdicts=(verdict("regressed", -0.05),), status=status)
    assert found.xfail is None
    assert not found.covered
    assert found.notes[0].endswith(f"covers speed only, not a cell that is {status}")


@pytest.mark.parametrize("kind", ["regressed", "ok"])
def test_an_expired_mark_fails_by_name_whatever_the_cell_says(kind: VerdictKind) -> None:
    found = applied(SLOW, verdicts=(verdict(kind, -0.01),), today=LATER)
    assert found.xfail is None
    assert not found.covered
    assert found.failures == (
        "slow mark of decode[code] decode_tok_s of my-card expired on 2026-12-30: remove it, or accept it again with its "
        "evidence (known since build b12301)",
    )


def test_a_failure_that_is_not_covered_keeps_the_cell_red() -> None:
    both = (verdict("regressed", -0.08), verdict("regressed", 0.09, "ttft_ms"))
    one = applied(SLOW, verdicts=both)
    assert one.xfail is None
    assert one.covered == {"decode_tok_s"}
    assert applied(mark(figure=None), verdicts=both).xfail is not None
    assert applied(SLOW, mark(figure="ttft_ms"), verdicts=both).xfail is not None
    assert applied(mark(figure=None), verdicts=(*both, verdict("below floor", -0.01, "prefill_tok_s"))).xfail is None


def test_an_expired_mark_is_not_hidden_by_one_in_effect() -> None:
    old = mark(mark="flaky", expires="2026-12-05")
    found = applied(SLOW, old, verdicts=(verdict("regressed", -0.08),))
    assert found.xfail is None
    assert found.failures


def test_a_deeper_mark_of_the_other_kind_speaks_and_the_shallow_one_is_silent() -> None:
    found = applied(mark(depth=0.05), mark(mark="flaky", depth=0.2), verdicts=(verdict("regressed", -0.08),))
    assert found.xfail is not None
    assert found.xfail.startswith("flaky mark")
    assert not found.notes


def test_marks_of_others_do_nothing() -> None:
    others = (mark(card="other"), mark(cell="decode[prose]"), mark(machine="aaaaaaaaaaaa"))
    assert applied(*others, verdicts=(verdict("regressed", -0.01),)) == Effect()


def test_markers_are_of_marks_in_effect() -> None:
    marks = (SLOW, mark(mark="flaky", machine="any", expires="2027-02-01"))
    here: dict[str, Any] = {"card": "my-card", "cell": "decode[code]"}
    assert markers(marks, **here, machine_key=KEY, today=TODAY) == ("flaky", "slow")
    assert markers(marks, **here, machine_key="a" * 64, today=TODAY) == ("flaky",)
    assert markers(marks, **here, machine_key=KEY, today=LATER) == ("flaky",)
    assert markers(marks, card="my-card", cell="decode[prose]", machine_key=KEY, today=TODAY) == ()
