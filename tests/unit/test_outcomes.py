"""Categories, exit codes, summary lines and the verdict file: GATE's table of outcomes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import jsonschema
import pytest
from cells import good, result
from marks_histories import history
from test_marks_effect import applied, verdict
from test_marks_file import mark

from pytest_llmbench import outcomes
from pytest_llmbench.marks.propose import propose
from pytest_llmbench.outcomes import JudgedCell, category_of, exit_code, file, result_of, summary_lines, worst
from pytest_llmbench.records import Baseline, CellStatus, VerdictKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.records import CellResult, Verdict

MEASURED = result([good(1, 60.0), good(2, 61.0)])


def cell(*verdicts: Verdict, status: CellStatus = "measured", **more: Any) -> JudgedCell:
    return JudgedCell(replace(MEASURED, status=status), verdicts, **more)


BY_STATUS: dict[CellStatus, tuple[str | None, str]] = {
    "measured": (None, "passed"),
    "disturbed": ("machine", "failed"),
    "invalid": ("measurement", "failed"),
    "failed": ("setup", "failed"),
    "missing": ("measurement", "failed"),
    "unsupported": (None, "skipped"),
}
BY_VERDICT: dict[VerdictKind, tuple[str | None, str]] = {
    "ok": (None, "passed"),
    "improved": (None, "passed"),
    "equivalent": (None, "passed"),
    "no baseline": (None, "passed"),
    "noisy": (None, "passed"),
    "inconclusive": (None, "passed"),
    "below floor": ("performance", "failed"),
    "regressed": ("performance", "failed"),
    "below target": ("performance", "failed"),
    "machine changed": ("machine", "failed"),
}


def test_every_status_and_verdict_has_its_row() -> None:
    assert set(BY_STATUS) == set(get_args(CellStatus))
    assert set(BY_VERDICT) == set(get_args(VerdictKind))


@pytest.mark.parametrize("status", BY_STATUS)
def test_the_category_of_a_status(status: CellStatus) -> None:
    assert (category_of(cell(status=status)), result_of(cell(status=status))) == BY_STATUS[status]


@pytest.mark.parametrize("kind", BY_VERDICT)
def test_the_category_of_a_verdict(kind: VerdictKind) -> None:
    one = cell(verdict("ok", 0.0, "ttft_ms"), verdict(kind, -0.08))
    assert (category_of(one), result_of(one)) == BY_VERDICT[kind]


SPECIAL = [
    ("interrupted before its verdict", cell(not_judged=True), None, "not judged"),
    ("strict", cell(verdict("inconclusive", -0.02, failed=True)), "performance", "failed"),
    ("a limit without a number", cell(verdict("inconclusive", failed=True, value=None)), "measurement", "failed"),
    ("no baseline where one is required", cell(verdict("no baseline", failed=True)), "measurement", "failed"),
    ("covered", cell(verdict("regressed", -0.08), covered=frozenset({"decode_tok_s"})), None, "xfailed"),
    ("another is", cell(verdict("regressed", -0.08), covered=frozenset({"ttft_ms"})), "performance", "failed"),
    (
        "a floor never",
        cell(verdict("below floor", -0.08), covered=frozenset({"decode_tok_s"})),
        "performance",
        "failed",
    ),
    ("expired", cell(verdict("ok", 0.0), mark_failures=("expired",)), "performance", "failed"),
    ("expired, and crashed", cell(status="failed", mark_failures=("expired",)), "setup", "failed"),
    ("expired, and not possible here", cell(status="unsupported", mark_failures=("expired",)), None, "skipped"),
    ("both", cell(verdict("machine changed", -0.1), verdict("regressed", -0.1, "ttft_ms")), "performance", "failed"),
    ("no number and slow", cell(verdict("regressed", -0.1), status="invalid"), "performance", "failed"),
]


@pytest.mark.parametrize(("name", "one", "category", "said"), SPECIAL)
def test_the_category_of_special_cells(name: str, one: JudgedCell, category: str | None, said: str) -> None:
    assert (category_of(one), result_of(one)) == (category, said), name


def test_which_category_speaks() -> None:
    assert outcomes.ORDER == ("performance", "setup", "measurement", "machine")
    for there in itertools.permutations((*outcomes.ORDER, None)):
        assert worst(there) == "performance"
        assert worst(one for one in there if one != "performance") == "setup"
    assert worst(["machine", None, "measurement"]) == "measurement"
    assert worst([None]) is None
    assert worst([]) is None


def test_the_exit_codes_are_their_own() -> None:
    codes = list(outcomes.EXIT_CODES.values())
    assert len(set(codes)) == len(outcomes.ORDER)
    assert not set(codes) & {*map(int, pytest.ExitCode), *range(64, 79), *range(126, 256)}


CODES: list[tuple[outcomes.Category | None, int, bool, int]] = [
    (None, 0, False, 0),
    (None, 1, False, 1),
    ("performance", 1, False, 10),
    ("setup", 1, False, 11),
    ("measurement", 0, False, 12),
    ("machine", 1, False, 13),
    ("machine", 1, True, 1),
    ("performance", 1, True, 1),
    ("performance", 2, False, 2),
    ("machine", 3, False, 3),
    ("setup", 4, False, 4),
    (None, 5, False, 5),
]


@pytest.mark.parametrize(("category", "pytest_code", "other", "code"), CODES)
def test_the_exit_code_of_a_session(
    category: outcomes.Category | None, pytest_code: int, *, other: bool, code: int
) -> None:
    assert exit_code(category, pytest_code, other_failures=other) == code


# ---- summary ------------------------------------------------------------------------------------------------------------


def ok(figure: str = "decode_tok_s", reference: float | None = 60.0) -> Verdict:
    return verdict("ok", 0.001, figure, reference=reference, lines=("never shown",))


def test_nothing_is_said_of_what_did_not_move() -> None:
    assert summary_lines([cell(ok(), ok("ttft_ms")), cell(ok())]) == ["3 figures within what they resolve"]
    assert summary_lines([cell(ok())]) == ["1 figure within what it resolves"]
    assert summary_lines([cell()]) == []
    assert summary_lines([]) == []


def test_each_figure_that_moved_has_one_line_and_the_rest_is_counted() -> None:
    baseline = Baseline((60.0, 61.0, 60.5), ("s1", "s2", "s3"))
    regressed = verdict("regressed", -0.077, lines=("decode[code] regressed: 58.9 tok/s, was 63.8 (-7.7 %)", "runs …"))
    lines = summary_lines(
        [
            cell(regressed, ok("ttft_ms")),
            cell(regressed, covered=frozenset({"decode_tok_s"})),
            cell(verdict("improved", 0.05, lines=("prefill[8192] improved",)), notes=("passes again",)),
            cell(verdict("inconclusive", -0.02, lines=("ctx[1] inconclusive",))),
            cell(verdict("noisy", lines=("noisy",)), ok(reference=None)),
            cell(
                verdict("no baseline"), verdict("no baseline", figure="ttft_ms"), baselines={"decode_tok_s": baseline}
            ),
            cell(status="disturbed"),
            cell(ok(), mark_failures=("a mark expired",)),
        ]
    )
    assert lines == [
        "decode[code] regressed: 58.9 tok/s, was 63.8 (-7.7 %)",
        "decode[code] regressed: 58.9 tok/s, was 63.8 (-7.7 %) [expected: a mark covers it]",
        "prefill[8192] improved",
        "ctx[1] inconclusive",
        "passes again",
        "a mark expired",
        "2 figures within what they resolve; 3 moved; 1 not decided; 1 too noisy to gate; "
        "2 have no baseline yet (2 to 5 more sessions); 1 not compared with anything; "
        "1 cell has no number (1 disturbed)",
    ]


@pytest.mark.parametrize(
    ("known", "said"),
    [(3, "1 has no baseline yet (2 more sessions)"), (4, "1 has no baseline yet (1 more session)")],
)
def test_how_many_sessions_are_missing(known: int, said: str) -> None:
    baseline = Baseline(tuple(range(60, 60 + known)), tuple(f"s{n}" for n in range(known)))
    assert summary_lines([cell(verdict("no baseline"), baselines={"decode_tok_s": baseline})]) == [said]


# ---- the verdict file -----------------------------------------------------------------------------------------------------


def built(cells: Sequence[JudgedCell], **more: Any) -> file.VerdictFile:
    card = file.card_verdict(
        "my-card", cells, machine_key="3f9a", machine_name="a box", remeasured_s=90, report="r.json"
    )
    facts: dict[str, Any] = {"session": "s1", "started": "a", "finished": "b", "pytest_code": 1}
    return file.build(cards=[(card, cells)], **{**facts, **more})


def full() -> list[JudgedCell]:
    """A cell with everything: a covered regression, its mark, a proposal, a baseline."""
    bad = verdict(
        "regressed", -0.08, reference=64.0, interval=(-0.09, -0.07), resolves=0.026, sigma=0.009, again=(55.0,)
    )
    effect = applied(mark(), verdicts=(bad,))
    one = cell(
        bad,
        ok("ttft_ms"),
        covered=effect.covered,
        marks=effect.applied,
        notes=effect.notes,
        proposals=propose([history("d.d.d")]),
        baselines={"decode_tok_s": Baseline((64.0, 63.9), ("s1", "s2"), "a", "b", accepted="new driver")},
    )
    return [one, cell(status="failed")]


def test_it_tells_everything_and_fits_its_schema() -> None:
    made = built(full())
    content = made.model_dump(mode="json")
    jsonschema.validate(content, file.packaged_schema())
    assert (content["category"], content["exit_code"], content["failed_cells"]) == ("setup", 11, {"setup": 1})
    (card,) = content["cards"]
    assert (card["remeasured_minutes"], card["report"]) == (1.5, "r.json")
    first, second = card["cells"]
    assert (first["result"], first["category"], second["category"]) == ("xfailed", None, "setup")
    figure = first["figures"][0]
    assert (figure["covered"], figure["unit"], figure["interval"]) == (True, "tok/s", [-0.09, -0.07])
    assert figure["baseline"] == {
        "sessions": 2,
        "missing": 3,
        "pinned": False,
        "since": "a",
        "until": "b",
        "accepted": "new driver",
    }
    assert first["figures"][1]["baseline"] is None
    assert (first["marks"][0]["state"], first["marks"][0]["covers"]) == ("covers", ["decode_tok_s"])
    assert (first["proposals"][0]["mark"], first["proposals"][0]["evidence"]) == ("flaky", ["s01", "s03", "s05"])
    assert content["summary"][-1].endswith("1 cell has no number (1 failed)")


def test_a_run_that_never_started_is_a_setup_failure() -> None:
    card = file.card_verdict("my-card", [], problems=["the server did not start"])
    made = file.build(session="s", started="a", finished="b", cards=[(card, [])], pytest_code=1)
    assert (made.category, made.exit_code) == ("setup", 11)


def test_one_card_of_two_speaks_for_the_session() -> None:
    good_card = file.card_verdict("a", [cell(ok())])
    bad = [cell(verdict("machine changed", -0.1))]
    made = file.build(
        session="s",
        started="a",
        finished="b",
        cards=[(good_card, [cell(ok())]), (file.card_verdict("b", bad), bad)],
        pytest_code=1,
    )
    assert (made.category, made.exit_code) == ("machine", 13)
    assert [card.category for card in made.cards] == [None, "machine"]


def test_the_shipped_schema_is_fresh() -> None:
    assert file.packaged_schema() == file.schema(), "python -m pytest_llmbench.outcomes.file > …/verdict.schema.json"


def test_a_verdict_of_a_figure_that_the_cell_lacks_is_an_error() -> None:
    broken: CellResult = MEASURED
    with pytest.raises(KeyError, match="has no figure 'nothing'"):
        file.card_verdict("c", [JudgedCell(broken, (verdict("ok", figure="nothing"),))])


@pytest.mark.parametrize(("code", "interrupted"), [(0, False), (1, False), (2, True), (3, True)])
def test_an_interrupted_session_says_so(code: int, interrupted: bool) -> None:  # noqa: FBT001
    cells = [cell(not_judged=interrupted)]
    found = file.build(
        session="s", started="", finished="", cards=[(file.card_verdict("c", cells), cells)], pytest_code=code
    )
    assert found.interrupted is interrupted
    assert ("the session was interrupted: nothing is decided" in found.summary) is interrupted
    assert ("1 cell not judged (decode[code])" in found.summary) is interrupted
    jsonschema.validate(found.model_dump(mode="json"), file.packaged_schema())


def test_a_session_that_does_not_count_says_so_once() -> None:
    one = [cell(verdict("no baseline"))]
    cards = [(file.card_verdict(name, one, not_counted="this session does not count"), one) for name in ("a", "b")]
    facts: dict[str, Any] = {"session": "s", "started": "a", "finished": "b", "pytest_code": 0}
    assert file.build(cards=cards[:1], **facts).summary[-1] == "this session does not count"
    assert file.build(cards=cards, **facts).summary[-2:] == (
        "a: this session does not count",
        "b: this session does not count",
    )
