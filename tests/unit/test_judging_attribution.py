"""A regression is broken down by recorded facts: those of the baseline's sessions, and those of this one."""

from __future__ import annotations

import copy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pytest
from documents import document, figure

from pytest_llmbench.figure_kinds import FigureKind
from pytest_llmbench.gate import facts
from pytest_llmbench.history.store import Store
from pytest_llmbench.judging import Gate
from pytest_llmbench.records import Attempt, CellResult, CellSpec, Figure, Summary
from pytest_llmbench.wishes import Gating

if TYPE_CHECKING:
    from pathlib import Path

CELL = "decode[code]"


def attempt_json(run: int, *, sm: int = 2500, memory: int = 9000, **details: Any) -> dict[str, Any]:
    gpu = {"uuid": "GPU-1", "sm_max_mhz": sm, "memory_max_mhz": memory}
    return {
        "run": run,
        "error": None,
        "guard": "clean",
        "again": 0,
        "server_start": 1,
        "figures": [{"reasons": []}],
        "details": {"watch": {"gpus": [gpu]}, **details},
    }


def log(**weights: float) -> dict[str, Any]:
    buffers = [{"owner": "model", "device": name, "kind": "weights", "mib": mib} for name, mib in weights.items()]
    return {"server-1.log": {"layers": [48, 49], "buffers": buffers}}


def session(
    number: int, name: str, median: float, attempt: dict[str, Any], logs: dict[str, Any] | None
) -> dict[str, Any]:
    made = document(number)
    made["environment"] = copy.deepcopy(made["environment"]) | ({"engine_log": logs} if logs else {})
    made["cells"][0]["figures"] = [figure(name, median)]
    made["cells"][0]["attempts"] = [copy.deepcopy(attempt) | {"run": run} for run in (1, 2, 3)]
    return made


def judged(
    tmp_path: Path,
    name: str,
    before: tuple[float, dict[str, Any], dict[str, Any] | None],
    after: tuple[float, dict[str, Any], dict[str, Any] | None],
) -> tuple[str, ...]:
    """The lines of the figure's verdict, against ten sessions that were as before."""
    value, attempt, logs = before
    with Store.open(tmp_path) as store:
        for number in range(10):
            kept = session(number, name, value * (1 + 0.002 * (number % 3)), attempt, logs)
            assert store.record(kept, tmp_path / "runs" / f"S{number}" / "card")
    value, attempt, logs = after
    now = session(99, name, value, attempt, logs)
    identity = now["contract"]["identity"]
    lower = name.endswith("_ms")
    summary = Summary(name, "ms" if lower else "tok/s", "lower" if lower else "higher", value, (value,) * 3, 3, 0.0)
    fresh = tuple(
        Attempt(
            cell=CELL, run=run, number=1, reason="", server_start=again + 1, guard="clean", wall="", t_start_ns=0, t_end_ns=1,
            request_ids=(), figures=(Figure(name, summary.unit, value),), again=again,
        )
        for again in (1, 2, 3, 4, 5)
        for run in (1, 2, 3)
    )  # fmt: skip
    spec = CellSpec(id=CELL, part="decode", runs=3)
    result = CellResult(spec, "card", "measured", fresh, (summary,))
    kind = FigureKind(name, summary.unit, summary.direction, "as told", gated=True)
    gate = Gate(Gating(history=str(tmp_path / "history.sqlite")), tmp_path, "card")
    gate.open(identity, now["environment"], 2)
    try:
        (verdict,) = gate.judge(result, [kind], MappingProxyType({}), None, seen=lambda: now)
    finally:
        gate.close()
    assert verdict.kind == "regressed"
    return verdict.lines


def test_a_lower_clock(tmp_path: Path) -> None:
    lines = judged(tmp_path, "prefill_tok_s", (1000.0, attempt_json(1), None), (880.0, attempt_json(1, sm=2250), None))
    assert "clock 2,500 -> 2,250 MHz explains about -10.0% of -12.1%" in lines
    assert any(line.startswith("rest, not explained: -2") for line in lines)


def test_fewer_drafts_are_accepted(tmp_path: Path) -> None:
    old = attempt_json(1, completion_tokens=512, draft_n=400, draft_n_accepted=300)
    new = attempt_json(1, completion_tokens=512, draft_n=400, draft_n_accepted=200)
    lines = judged(tmp_path, "decode_tok_s", (60.0, old, None), (40.0, new, None))
    (said,) = [line for line in lines if line.startswith("drafts ")]
    assert "acceptance 75% -> 50% explains about -32.1% of -33.4%" in said


def test_weights_that_moved_get_no_share(tmp_path: Path) -> None:
    old, new = log(CUDA0=14000.0), log(CUDA0=12000.0, CPU=2000.0)
    lines = judged(tmp_path, "decode_tok_s", (60.0, attempt_json(1), old), (30.0, attempt_json(1), new))
    assert "changed since the baseline: weights CUDA0 14,000 -> CUDA0 12,000, CPU 2,000 MiB" in lines
    assert not any("explains" in line or line.startswith("rest") for line in lines)


def test_queueing(tmp_path: Path) -> None:
    lines = judged(
        tmp_path,
        "ttft_ms",
        (500.0, attempt_json(1, queue_ms=5.0), None),
        (700.0, attempt_json(1, queue_ms=155.0), None),
    )
    (said,) = [line for line in lines if line.startswith("queueing 5 -> 155 ms")]
    assert "explains about +30.0% of +" in said


def test_what_was_not_recorded_explains_nothing(tmp_path: Path) -> None:
    bare: dict[str, Any] = {"run": 1, "error": None, "guard": "clean", "again": 0, "figures": [{"reasons": []}]}
    lines = judged(tmp_path, "decode_tok_s", (60.0, bare, None), (30.0, attempt_json(1), None))
    assert not any("explains" in line or "different" in line for line in lines)


def test_typical_facts_are_medians_and_the_last_of_what_has_none() -> None:
    found = facts.typical(
        [
            {"sm_mhz": 2500, "engine": "b1", "flash_attention": True},
            {"sm_mhz": 2400, "engine": "b2"},
            {"sm_mhz": 1000},
        ]
    )
    assert found == {"sm_mhz": 2400, "engine": "b2", "flash_attention": True}
    assert facts.typical([]) == {}


@pytest.mark.parametrize("name", ["decode_tok_s", "prefill_tok_s"])
def test_ordinary_sessions_keep_their_facts_in_the_history(tmp_path: Path, name: str) -> None:
    with Store.open(tmp_path) as store:
        made = session(1, name, 60.0, attempt_json(1, prompt_tokens=360), log(CUDA0=100.0))
        store.record(made, tmp_path / "runs" / "S" / "card")
        (entry,) = store.entries_of("S0001")
        first = entry.cells[0]
        assert first.facts is not None
        assert first.facts["sm_mhz"] == 2500
        assert first.facts["prompt_tokens"] == 360
        assert first.facts["weights_mib"] == {"CUDA0": 100.0}


def test_only_what_this_session_measured_itself_is_accepted(tmp_path: Path) -> None:
    cells = [
        {"id": "own", "status": "measured", "sessions": ("S",)},
        {"id": "taken over", "status": "measured", "sessions": ("R",)},
        {"id": "half", "status": "measured", "sessions": ("R", "S")},
        {"id": "not", "status": "invalid", "sessions": ("S",)},
    ]
    gate = Gate(Gating(accept="why"), tmp_path, "card")
    (said,) = gate._accepted({"session": "S", "cells": cells}, interrupted=False)
    assert gate.accepted == ["own"]
    assert said.startswith("not accepted: taken over, half: measured by an earlier session")
    gate = Gate(Gating(accept="why"), tmp_path, "card")
    assert gate._accepted({"session": "S", "cells": cells}, interrupted=True)
    assert gate.accepted == []
