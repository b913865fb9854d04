"""The document of a run, and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from cells import CODE, KINDS, RATE, TTFT, attempt, figure, good, result
from pydantic import ValidationError

from pytest_llmbench import verdict
from pytest_llmbench.contract import Contract
from pytest_llmbench.measure.part import SingleRequestPart
from pytest_llmbench.records import CellResult, CellSpec
from pytest_llmbench.report import document, table
from pytest_llmbench.report.form import CellEntry, Document, FigureEntry

if TYPE_CHECKING:
    from collections.abc import Sequence

BASE = Path("/runs/one/card")
PROSE = CellSpec(id="decode[prose]", part="decode", runs=2, prompt_id="prose", max_tokens=512)
GOOD = result(
    [good(1, 60.0), good(2, 62.0)],
    raw_file=str(BASE / "raw" / "decode-code.jsonl"),
    server_logs=[str(BASE / "server-1.log")],
)
PARTS = {"decode": SingleRequestPart("decode", KINDS, headline="decode_tok_s")}
MACHINE = {"gpus": [{"name": "NVIDIA GeForce RTX 5060 Ti"}], "cpu": "A CPU", "cores_logical": 8, "memory_mib": 32_768}


def build(
    *results: CellResult, promised: Sequence[CellSpec] = (CODE, PROSE), problems: Sequence[str] = (), **more: Any
) -> Document:
    return document.build(
        **{
            "session": "20260102T030405Z-ab12",
            "started": "2026-01-02T03:04:05+00:00",
            "finished": "2026-01-02T03:05:05+00:00",
            "card": {"title": "A setup"},
            "contract": Contract("card", tuple(promised), (), (), {}),
            "environment": {"machine": MACHINE, "engine": {"kind": "llama-server", "version": "b1"}},
            "results": {one.spec.id: one for one in results},
            "searched": {},
            "verdicts": {},
            "problems": problems,
            "parts": PARTS,
            "base": BASE,
            **more,
        }
    )


def cell(built: Document, name: str) -> CellEntry:
    (found,) = [one for one in built.cells if one.id == name]
    return found


def test_it_is_valid_by_the_schema_that_is_shipped() -> None:
    for built in (build(), build(GOOD), build(GOOD, problems=["it did not start"]), build(result([]))):
        content = json.loads(json.dumps(built.model_dump(mode="json"), allow_nan=False))
        jsonschema.validate(content, document.packaged_schema())
        assert Document.model_validate_json(json.dumps(content)) == built


def test_the_shipped_schema_is_fresh() -> None:
    assert document.packaged_schema() == document.schema(), (
        "python -m pytest_llmbench.report.document > …/report.schema.json"
    )


def test_a_promised_cell_without_a_result_is_there_as_missing() -> None:
    built = build(GOOD)
    assert [(one.id, one.status) for one in built.cells] == [("decode[code]", "measured"), ("decode[prose]", "missing")]
    assert cell(built, "decode[prose]").reasons == ("the session ended before this cell was measured",)
    assert not built.complete


def test_it_is_failed_where_the_run_could_not_start() -> None:
    built = build(problems=["no GPU"])
    assert {one.status for one in built.cells} == {"failed"}
    assert cell(built, "decode[code]").reasons == ("no GPU",)


def test_complete_means_every_promised_cell() -> None:
    assert build(GOOD, promised=[CODE]).complete
    assert not build(result([good(1, 60.0)]), promised=[CODE]).complete


def test_a_result_that_was_not_promised_is_no_cell() -> None:
    assert [one.id for one in build(GOOD, promised=[PROSE]).cells] == ["decode[prose]"]


def test_a_part_that_cannot_be_read_has_a_status_and_no_figure() -> None:
    other = CellSpec(id="ladder[1]", part="ladder", runs=1)
    (only,) = build(promised=[other]).cells
    assert (only.status, only.headline, only.figures) == ("missing", None, ())


def test_figures_carry_definition_values_and_verdict() -> None:
    verdicts = verdict.judge(GOOD, KINDS, {"decode_tok_s": verdict.Threshold(floor=100.0)}, None)
    entry = cell(build(GOOD, verdicts={"decode[code]": verdicts}), "decode[code]")
    rate = entry.figures[0]
    assert (rate.name, rate.definition, rate.direction) == (RATE.name, RATE.definition, "higher")
    assert (rate.median, rate.values, rate.promised_runs) == (61.0, (60.0, 62.0), 2)
    assert (rate.verdict, rate.reference) == ("below floor", 100.0)
    assert rate.change == pytest.approx(-0.39)
    assert rate.explanation == verdicts[0].lines
    assert (entry.figures[1].name, entry.figures[1].verdict) == (TTFT.name, "ok")
    assert entry.headline == "decode_tok_s"


def test_paths_are_relative_to_the_document() -> None:
    entry = cell(build(GOOD), "decode[code]")
    assert (entry.raw_file, entry.server_logs) == ("raw/decode-code.jsonl", ("server-1.log",))


def test_cache_is_counted_over_every_request_also_of_repeats() -> None:
    attempts = [
        attempt(
            1,
            figure(60.0, "26 of 50 prompt tokens came from the cache"),
            examined_for_cache=1,
            details={"cached_tokens": 26},
        ),
        good(1, 60.0, number=2, examined_for_cache=1, details={"cached_tokens": 0}),
        good(2, 60.0, examined_for_cache=1, details={"cached_tokens": 0}),
    ]
    entry = cell(build(result(attempts)), "decode[code]")
    assert (entry.requests_with_cached_tokens, entry.requests_examined_for_cache) == (1, 3)
    assert len(entry.attempts) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_does_not_get_in(value: float) -> None:
    with pytest.raises(ValidationError):
        FigureEntry(**{**cell(build(GOOD), "decode[code]").figures[0].model_dump(), "median": value})


def test_the_headline_is_of_decode_alone() -> None:
    prose = result([good(1, 40.0, cell=PROSE.id), good(2, 40.0, cell=PROSE.id)], PROSE)
    head = build(GOOD, prose).headline
    assert head.decode_tok_s == pytest.approx((61.0 + 40.0) / 2)
    assert head.words_s == pytest.approx((30.5 + 20.0) / 2)
    assert head.seconds_for_500_words == pytest.approx(500 / 25.25)
    assert build().headline.decode_tok_s is None


# ---- table ------------------------------------------------------------------------------------------------------------


def rows(built: Document) -> dict[str, list[str]]:
    lines = [line for line in table.render(built).splitlines() if line.startswith("| ")]
    return {words[0]: words[1:] for line in lines for words in [[word.strip() for word in line.strip("|").split("|")]]}


def test_one_row_a_cell_with_its_numbers() -> None:
    text = table.render(build(GOOD))
    found = rows(build(GOOD))
    assert found["cell"] == ["decode tok/s", "first token ms", "runs", "spread", "result"]
    assert found["decode[code]"] == ["61.0", "50.0", "2", "2.3%", "measured"]
    assert found["decode[prose]"] == ["", "", "0", "", "missing"]
    assert "- decode[prose] missing: the session ended before this cell was measured" in text
    assert text.startswith("**A setup**")
    assert "NVIDIA GeForce RTX 5060 Ti · A CPU (8 logical cores) · 32 GiB RAM" in text
    assert "llama-server · b1" in text


def test_a_figure_without_all_its_runs_shows_no_number() -> None:
    found = rows(build(result([good(1, 60.0)])))
    assert found["decode[code]"][0] == "-"
    assert found["decode[code]"][-1] == "invalid"


def test_a_verdict_that_a_reader_must_see() -> None:
    verdicts = verdict.judge(GOOD, KINDS, {"ttft_ms": verdict.Threshold(floor=1.0)}, None)
    assert rows(build(GOOD, verdicts={"decode[code]": verdicts}))["decode[code]"][-1] == "ttft_ms below floor"


def test_repeats_are_said() -> None:
    again = result(
        [attempt(1, figure(1.0, "a rule")), good(1, 60.0, number=2, reason="attempt 1 was invalid"), good(2, 60.0)]
    )
    assert "- decode[code] run 1 was made 2 times: attempt 1 was invalid" in table.render(build(again))


def test_rows_are_aligned_so_that_plain_text_reads_too() -> None:
    lengths = {len(line) for line in table.render(build(GOOD)).splitlines() if line.startswith("| ")}
    assert len(lengths) == 1


def test_a_run_that_never_started_still_has_a_table() -> None:
    text = table.render(build(problems=["no GPU\n  remedy: buy one"], environment={}))
    assert "failed: no GPU\n" in text
    assert "remedy" not in text
