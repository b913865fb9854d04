"""The table that people paste: what it says when there is little to say."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.report import table
from pytest_llmbench.report.document import CellEntry, Document, Headline


def cell(name: str, status: Any = "failed", reasons: tuple[str, ...] = ("no such file\n  remedy: …",)) -> CellEntry:
    return CellEntry(
        id=name,
        part=name.partition("[")[0],
        status=status,
        reasons=reasons,
        promised={},
        headline=None,
        notes=(),
        figures=(),
        attempts=(),
        requests_examined_for_cache=0,
        requests_with_cached_tokens=0,
        raw_file=None,
        server_logs=(),
    )


def rendered(*cells: CellEntry, **environment: Any) -> str:
    return table.render(
        Document(
            llmbench_report=1,
            tool="pytest-llmbench 0",
            session="s",
            started="2026-11-30T00:00:00+00:00",
            finished="2026-11-30T00:00:00+00:00",
            complete=False,
            card={"title": "Title"},
            contract={},
            environment=environment,
            headline=Headline(
                decode_tok_s=None,
                words_s=None,
                characters_s=None,
                seconds_for_500_words=None,
                decode_spread_cv=None,
                fit_largest=None,
            ),
            cells=cells,
            problems=(),
        )
    )


def test_one_reason_of_several_cells_is_told_once() -> None:
    text = rendered(cell("decode[code]"), cell("prefill[512]"), cell("decode[prose]", reasons=("another",)))
    assert "- decode[code], prefill[512] failed: no such file\n" in text
    assert "- decode[prose] failed: another\n" in text
    assert "remedy" not in text


def test_a_session_without_a_request_says_nothing_of_caches_and_has_no_empty_line_of_a_setup() -> None:
    text = rendered(cell("decode[code]"))
    assert "Cached" not in text
    assert "\n  \n" not in text


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"machine": {"gpus": []}}, "no NVIDIA GPU · "),
        ({"machine": {"gpus": []}, "gpus_not_verified": ["1 x Radeon RX 7900 XTX"]}, "1 x Radeon RX 7900 XTX (as stated) · "),
        ({"machine": {"gpus": [{"name": "RTX 3090"}]}, "gpus_not_verified": ["1 x Arc A770"]}, "RTX 3090, 1 x Arc A770 (as stated) · "),
    ],
)  # fmt: skip
def test_gpus_that_cannot_be_asked_are_named_as_stated(environment: dict[str, Any], words: str) -> None:
    assert words in rendered(cell("decode[code]"), **environment)


def test_numbers_stand_on_the_right() -> None:
    rows = [
        line for line in rendered(cell("prefill[131072]"), cell("decode[code]")).splitlines() if line.startswith("|")
    ]
    assert rows[0] == "| cell            | runs | spread | result |"
    assert rows[3] == "| decode[code]    |    0 |        | failed |"
