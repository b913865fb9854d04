"""The table that people paste: what it says when there is little to say."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.report import table
from pytest_llmbench.report.form import CellEntry, Document, Headline


def cell(name: str, status: Any = "failed", reasons: tuple[str, ...] = ("no such file\n  remedy: …",)) -> CellEntry:
    # Only what the table reads of a cell without a number; the rest of the model may grow.
    nothing = dict.fromkeys(CellEntry.model_fields, ())
    counts = {"requests_examined_for_cache": 0, "requests_with_cached_tokens": 0, "headline": None}
    own = {"id": name, "part": name.partition("[")[0], "status": status, "reasons": reasons}
    return CellEntry.model_construct(**{**nothing, **counts, **own})


def rendered(*cells: CellEntry, **environment: Any) -> str:
    fields: dict[str, Any] = {
        **dict.fromkeys(Document.model_fields),
        "tool": "pytest-llmbench 0",
        "started": "2026-11-30T00:00:00+00:00",
        "card": {"title": "Title"},
        "environment": environment,
        "plan_changes": {},
        "headline": Headline.model_construct(**dict.fromkeys(Headline.model_fields)),
        "cells": cells,
        "searched": (),
    }
    return table.render(Document.model_construct(**fields))


def test_one_reason_of_several_cells_is_told_once() -> None:
    text = rendered(cell("decode[code]"), cell("prefill[512]"), cell("decode[prose]", reasons=("another",)))
    assert "- decode[code], prefill[512] failed: no such file\n" in text
    assert "- decode[prose] failed: another\n" in text
    assert "remedy" not in text


def test_a_session_without_a_request_says_nothing_of_caches_and_has_no_empty_line_of_a_setup() -> None:
    text = rendered(cell("decode[code]"))
    assert "Cached" not in text
    assert "\n  \n" not in text


def test_slowed_gpus_are_shown_once_with_the_cells() -> None:
    def attempts(heat: float, capped: float) -> tuple[dict[str, Any], ...]:
        gpu = {
            "uuid": "GPU-1a2b3c4d-0000",
            "power_limit_w": 180.0,
            "power_capped_share": capped,
            "throttle_reasons": {"thermal slowdown by the driver": heat} if heat else {},
        }
        return ({"run": 1, "number": 1, "reason": "first", "again": 0, "details": {"watch": {"gpus": [gpu]}}},)

    cells = [cell(f"prefill[{n}]").model_copy(update={"attempts": attempts(0.0, 0.9)}) for n in range(3)]
    hot = cell("decode[code]").model_copy(update={"attempts": attempts(0.12, 1.0)})
    text = rendered(*cells, hot, cell("decode[prose]"))
    assert "- GPU-1a2b3c4d: at its power limit of 180 W in up to 100% of a run's samples (4 of 5 cells)\n" in text
    assert "- GPU-1a2b3c4d: thermal slowdown by the driver in up to 12% of a run's samples (decode[code])\n" in text
    assert "GPU" not in rendered(cell("decode[code]").model_copy(update={"attempts": attempts(0.0, 0.0)})).replace(
        "no NVIDIA GPU", ""
    )


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
